"""The kit of embedding engines: it passes the scripted one, and catches each way of breaking the contract."""

from array import array
from collections.abc import AsyncGenerator

import pytest

from antiphon.domain.request import EmbedRequest, Vectors
from antiphon.domain.values import replace
from antiphon.engines.base import LoadSpec, SequenceStarted
from antiphon_testing import ScriptedEmbeddingEngine, check_embedding_engine

SPEC = LoadSpec("scripted", queue=4)
Events = AsyncGenerator[SequenceStarted | Vectors, None]


async def test_the_scripted_engine_keeps_the_contract() -> None:
    await check_embedding_engine(ScriptedEmbeddingEngine(spec=SPEC), queue=4)


class Long(ScriptedEmbeddingEngine):
    """Its vectors have the length 2."""

    async def embed(self, request: EmbedRequest) -> Events:
        async for event in super().embed(request):
            if isinstance(event, Vectors):
                doubled = array("f", [2 * number for number in array("f", event.values)])
                yield replace(event, values=doubled.tobytes())
            else:
                yield event


class Fickle(ScriptedEmbeddingEngine):
    """A text's vector depends on its place."""

    async def embed(self, request: EmbedRequest) -> Events:
        async for event in super().embed(request):
            if isinstance(event, Vectors) and event.start % 2:
                turned = array("f", reversed(array("f", event.values)))
                yield replace(event, values=turned.tobytes())
            else:
                yield event


class Silent(ScriptedEmbeddingEngine):
    """Leaves the last text out."""

    async def embed(self, request: EmbedRequest) -> Events:
        async for event in super().embed(request):
            if isinstance(event, SequenceStarted) or event.start < max(1, len(request.texts) - 1):
                yield event


class Shortening(ScriptedEmbeddingEngine):
    """Cuts what is too long."""

    async def embed(self, request: EmbedRequest) -> Events:
        most = self._facts.context_length
        async for event in super().embed(
            replace(request, texts=tuple(text[:most] for text in request.texts))
        ):
            yield event


class Patient(ScriptedEmbeddingEngine):
    """Lets everybody wait."""

    def __init__(self) -> None:
        super().__init__(spec=LoadSpec("scripted", queue=10**6))


class Leaking(ScriptedEmbeddingEngine):
    """Forgets to free what a closed request held."""

    async def embed(self, request: EmbedRequest) -> Events:
        done = False
        try:
            async for event in super().embed(request):
                yield event
            done = True
        finally:
            self._count(running=0 if done else 1)


@pytest.mark.parametrize(
    ("engine", "rule"),
    [
        (Long, "has the length 1"),
        (Fickle, "alone and in a batch"),
        (Silent, "every text has one vector"),
        (Shortening, "never shortened"),
        (Patient, "refused with EngineBusy"),
        (Leaking, "holds no resources"),
    ],
)
async def test_what_breaks_the_contract_is_caught(engine: type[ScriptedEmbeddingEngine], rule: str) -> None:
    patience = 2.0 if engine in (Patient, Leaking) else 30.0  # those are found by waiting for them in vain
    with pytest.raises(AssertionError, match=rule):
        await check_embedding_engine(engine(), queue=4, patience=patience)
