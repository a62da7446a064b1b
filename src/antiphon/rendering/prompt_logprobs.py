"""The scores of one prompt's tokens, packed: told by the sequence of the prompt's first choice, and read by
whoever wants them."""

import asyncio
import sys
from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from antiphon.domain.events import Event, PromptScored, Started
from antiphon.domain.scores import PackedScores
from antiphon.engines.base import PromptScores, SequenceFinished, Steps, TokenEvent
from antiphon.errors import EngineError


class PromptLogprobs:
    """One prompt's scores, however long it is: the engine makes them once, and they stay packed."""

    def __init__(
        self, prompt: int, tokens: tuple[int, ...], pieces: Sequence[bytes], width: int, given: int | None
    ) -> None:
        """`prompt`: which of the request's. `pieces`: of every id. `width`: alternatives of each token.
        `given`: how many of them are told apart from any choice; None tells nothing."""
        self.width = width
        self._prompt = prompt
        self._given = given
        self._tokens = tokens
        self._pieces = pieces
        self._logprobs = array("f", [float("nan")])
        self._ids = array("i", [0] * width)
        self._values = array("f", [0.0] * width)
        self._ranks = array("i", [0])
        self._whole = asyncio.Event()

    async def wait_until_scored(self) -> None:
        """Waits until all tokens are scored."""
        await self._whole.wait()

    async def collect_scores(
        self, sequence: AsyncGenerator[TokenEvent, None]
    ) -> AsyncGenerator[TokenEvent, None]:
        """The sequence that scores the prompt, as it is. Raises EngineError when it does not."""
        async with aclosing(sequence) as events:
            async for event in events:
                if isinstance(event, PromptScores):
                    self._add(event)
                elif isinstance(event, Steps | SequenceFinished) and not self._whole.is_set():
                    self._complete()
                yield event

    async def insert_scores(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """The events of the choice whose sequence is overheard, with the scores after Started."""
        async with aclosing(events):
            async for event in events:
                yield event
                if isinstance(event, Started) and self._given is not None:
                    count = len(self._tokens)
                    scores = self.pack_scores(0, count, bytes(count), self._given, ranked=True)
                    yield PromptScored(self._prompt, scores)

    def pack_scores(
        self, begin: int, end: int, offsets: Sequence[int], width: int, *, ranked: bool = False
    ) -> PackedScores:
        """The scores of some of the tokens. `offsets`: where each stands. `width`: alternatives, at most as
        many as there are."""
        wide = slice(begin * self.width, end * self.width)
        return PackedScores(
            self._tokens[begin:end],
            offsets,
            self._logprobs[begin:end],
            self._pieces,
            width,
            self._ids[wide],
            self._values[wide],
            self.width,
            self._ranks[begin:end] if ranked else None,
        )

    def _add(self, scores: PromptScores) -> None:
        if scores.start != len(self._logprobs):
            raise EngineError("the engine's scores of the prompt do not follow on each other")
        _unpack(self._logprobs, scores.logprobs)
        _unpack(self._ids, scores.alternative_ids)
        _unpack(self._values, scores.alternative_logprobs)
        _unpack(self._ranks, scores.ranks)

    def _complete(self) -> None:
        count = len(self._tokens)
        found = (len(self._logprobs), len(self._ids), len(self._values), len(self._ranks))
        if found != (count, count * self.width, count * self.width, count):
            raise EngineError("the engine did not score the whole prompt")
        self._whole.set()


def _unpack(held: "array[int] | array[float]", chunk: bytes) -> None:
    """Appends packed numbers, which are little-endian on every machine."""
    if sys.byteorder == "big":
        swapped = array(held.typecode, chunk)
        swapped.byteswap()
        chunk = swapped.tobytes()
    held.frombytes(chunk)
