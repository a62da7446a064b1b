"""A token engine that makes vectors without weights: a hash of each text's token ids gives its vector.

It satisfies the contract of `EmbeddingEngine`, so it passes `check_embedding_engine`. A script can make it
hold, or fail after some texts.
"""

import asyncio
import math
from array import array
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from hashlib import blake2b

from antiphon.domain.embedding import EmbeddingFacts, EmbedRequest, Pooling, Vectors
from antiphon.engines.base import LoadSpec, SequenceStarted, TokenEvent, TokenRequest
from antiphon.errors import (
    AntiphonError,
    ContextLengthExceeded,
    EngineBusy,
    EngineUnavailable,
    InvalidValue,
    UnsupportedParameter,
)
from antiphon.testing.scripted_token_engine import BOUNDS, ScriptedTokenEngine, scripted_info
from antiphon.testing.toy_model import build_vocabulary

DIMENSIONS = 8


@dataclass(frozen=True, slots=True)
class EmbeddingScript:
    """How to answer requests."""

    hold: asyncio.Event | None = None
    """Each request waits before its second text until this is set."""
    error: AntiphonError | None = None
    error_after: int | None = 1
    """The number of texts before the error; None raises it while the request is queued."""


class ScriptedEmbeddingEngine(ScriptedTokenEngine):
    """`TokenEngine` and `EmbeddingEngine`. `asked` contains every request in order; `ended` counts the
    finished ones."""

    def __init__(
        self,
        script: EmbeddingScript = EmbeddingScript(),
        *,
        context_length: int = 512,
        sequences: int = 4,
        spec: LoadSpec = BOUNDS,
    ) -> None:
        """Only the queue's limits of `spec` are used."""
        table = build_vocabulary()
        ends = (() if table.bos_id is None else (table.bos_id,), (table.eos_id or 0,))
        facts = replace(
            scripted_info(context_length, sequences, None),
            embedding=EmbeddingFacts(DIMENSIONS, Pooling.MEAN),
        )
        super().__init__(info=facts, vocabulary=replace(table, embedding_frame=ends), spec=spec)
        self.behaviour = script
        self.asked: list[EmbedRequest] = []

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        raise UnsupportedParameter("this model makes vectors of texts, and no tokens", param="model")
        yield  # makes this a generator, as the interface requires

    async def embed(self, request: EmbedRequest) -> AsyncGenerator[SequenceStarted | Vectors, None]:
        self._require_texts(request)
        if self._counters.queued >= self._spec.queue + self._facts.sequences:
            raise EngineBusy("the queue is full; try again", retry_after=1.0)
        self.asked.append(request)
        self._count(queued=1)
        try:
            await asyncio.sleep(0)
            self._fail(None)
            yield SequenceStarted(sum(map(len, request.texts)))
            for place, text in enumerate(request.texts):
                self._fail(place)
                if place and self.behaviour.hold is not None:
                    await self.behaviour.hold.wait()
                await asyncio.sleep(0)
                self._count(prefill_tokens=len(text), steps=1, admitted=1)
                yield Vectors(place, make_vector(text))
        finally:
            self._count(queued=-1)
            self.ended += 1

    def _fail(self, texts: int | None) -> None:
        if self.behaviour.error is not None and self.behaviour.error_after == texts:
            raise self.behaviour.error

    def _require_texts(self, request: EmbedRequest) -> None:
        if self.closed:
            raise EngineUnavailable("the scripted engine is closed")
        if not request.texts or not all(request.texts):
            raise InvalidValue("a text has no tokens", param="input")
        size = len(self.table.pieces)
        if any(not 0 <= token < size for text in request.texts for token in text):
            raise InvalidValue(f"token ids go from 0 to {size - 1}", param="input")
        if max(map(len, request.texts)) > self._facts.context_length:
            raise ContextLengthExceeded(
                "a text is longer than this model's maximum context length", param="input"
            )


def make_vector(text: tuple[int, ...]) -> bytes:
    """The vector that the scripted engine makes of these token ids."""
    digest = blake2b(repr(text).encode(), digest_size=DIMENSIONS * 2).digest()
    numbers = [int.from_bytes(digest[at : at + 2], "little") - 32767.5 for at in range(0, len(digest), 2)]
    length = math.sqrt(math.fsum(number * number for number in numbers))
    return array("f", [number / length for number in numbers]).tobytes()
