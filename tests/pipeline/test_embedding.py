"""Requests for vectors in the pipeline: tried again while nothing was begun, logged and counted once."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from antiphon.domain.context import Context
from antiphon.domain.request import EmbeddingRequest, Embeddings, RawPrompt
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import (
    AntiphonError,
    EngineDied,
    EngineLost,
    EngineUnavailable,
    ModelNotFound,
    UnsupportedParameter,
)
from antiphon.pipeline.run import Pipeline
from antiphon.telemetry.logs import FIELDS
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import FakeClock, ScriptedEngine
from tests.support.accounting import ScriptedEmbedding

REQUEST = EmbeddingRequest("m", (RawPrompt("SECRETTEXT"), RawPrompt("b")))
MADE = Embeddings(bytes(16), 2, 7)
RESTARTING = EngineUnavailable("it starts again")


class Embedding(ScriptedEngine):
    """Raises these, one at each try, and then makes vectors; or never answers."""

    def __init__(self, *errors: AntiphonError, stuck: bool = False) -> None:
        super().__init__()
        self.errors = list(errors)
        self.stuck = stuck
        self.tries = 0

    async def prepare_embedding(self, request: EmbeddingRequest, context: Context) -> ScriptedEmbedding:
        return ScriptedEmbedding(self._embed)

    async def _embed(self, context: Context) -> Embeddings:
        self.tries += 1
        if self.stuck:
            await asyncio.Event().wait()
        if self.errors:
            raise self.errors.pop(0)
        return MADE


class Bench:
    """A pipeline over one engine, and what it logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture, engine: ScriptedEngine) -> None:
        caplog.set_level(logging.INFO, logger="antiphon")
        self.caplog = caplog
        self.engine = engine
        self.metrics = Metrics()
        self.pipeline = Pipeline(
            ModelRegistry((Model("m", (ModelRoute(engine),), 1),)), self.metrics, restart_patience=5.0
        )

    async def embed(self, request: EmbeddingRequest = REQUEST) -> Embeddings:
        return await self.pipeline.embed(request, Context("req-1", clock=FakeClock()))

    def logged(self) -> list[dict[str, object]]:
        return [getattr(record, FIELDS) for record in self.caplog.records if record.message == "embedding"]


@pytest.fixture
def bench(caplog: pytest.LogCaptureFixture) -> Callable[[ScriptedEngine], Bench]:
    return lambda engine: Bench(caplog, engine)


async def test_vectors_pass_through_and_are_logged_and_counted_once(
    bench: Callable[[ScriptedEngine], Bench],
) -> None:
    at = bench(Embedding())
    assert await at.embed() == MADE
    (line,) = at.logged()
    assert (line["status"], line["inputs"], line["prompt_tokens"]) == ("ok", 2, 7)
    assert "SECRET" not in str(line)
    assert at.metrics.embeddings == {("m", "ok"): 1}
    assert at.metrics.prompt_tokens["m"] == 7


async def test_a_request_waits_for_an_engine_that_starts_again(
    bench: Callable[[ScriptedEngine], Bench],
) -> None:
    engine = Embedding(RESTARTING, RESTARTING)
    assert await bench(engine).embed() == MADE
    assert engine.tries == 3


@pytest.mark.parametrize(
    ("errors", "tries"),
    [
        ([EngineDied("it was in the batch")], 1),
        ([EngineLost("it ended"), EngineLost("it ended again")], 2),
    ],
)
async def test_what_may_have_ended_the_engine_is_not_tried_for_ever(
    bench: Callable[[ScriptedEngine], Bench], errors: list[AntiphonError], tries: int
) -> None:
    at = bench(engine := Embedding(*errors))
    with pytest.raises(type(errors[0])):
        await at.embed()
    assert engine.tries == tries
    assert at.metrics.embeddings == {("m", errors[0].code): 1}


async def test_a_caller_that_leaves_is_counted_as_such(bench: Callable[[ScriptedEngine], Bench]) -> None:
    at = bench(Embedding(stuck=True))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await at.embed()
    assert at.metrics.embeddings == {("m", "cancelled"): 1}


async def test_who_cannot_make_vectors_is_named(bench: Callable[[ScriptedEngine], Bench]) -> None:
    with pytest.raises(UnsupportedParameter, match="m makes no vectors"):
        await bench(ScriptedEngine()).embed()
    with pytest.raises(ModelNotFound, match="`x` does not exist"):
        await bench(Embedding()).embed(EmbeddingRequest("x", REQUEST.inputs))
