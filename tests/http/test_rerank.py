"""/v1/rerank over real sockets: the answer, what is refused, and that leaving ends the work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from antiphon.dialects.openai.dialect import OpenAI
from antiphon.domain.request import Pooling
from antiphon.engines.base import Engine
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.rendering.renderer import Renderer
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import EmbeddingScript, ScriptedEmbeddingEngine, ScriptedEngine
from tests.support.http_server import CHAT, HELLO, Reply, Served, at_most, serving_edge
from tests.support.waiting import await_until

RERANK = "/v1/rerank"
ASKED: dict[str, Any] = {"model": "r", "query": "who", "documents": ["a long one", "b"]}
PLAIN = EmbeddingScript()


@dataclass(frozen=True)
class Serving:
    """A server with a reranker `r`, an embedding model `e` and a generating one `m`."""

    served: Served
    engine: ScriptedEmbeddingEngine
    metrics: Metrics

    async def ask(self, body: dict[str, Any], path: str = RERANK) -> Reply:
        return await self.served.ask(path, body)


@asynccontextmanager
async def serving(script: EmbeddingScript = PLAIN) -> AsyncIterator[Serving]:
    engine, generating = ScriptedEmbeddingEngine(script, pooling=Pooling.RANK), ScriptedEngine()
    engines: dict[str, Engine] = {
        "r": Renderer(engine),
        "e": Renderer(ScriptedEmbeddingEngine()),
        "m": generating,
    }
    models = ModelRegistry(tuple(Model(name, (ModelRoute(each),), 1) for name, each in engines.items()))
    metrics = Metrics()
    edge = AppState(Pipeline(models, metrics, restart_patience=0.0), models, OpenAI(), ServerSettings())
    async with serving_edge(edge) as (port, connections):
        yield Serving(Served(port, generating, edge, connections), engine, metrics)


@pytest.mark.parametrize("path", [RERANK, "/v2/rerank", "/rerank"])
async def test_documents_come_ranked_with_their_usage(path: str) -> None:
    async with serving() as at:
        reply = await at.ask(ASKED, path)
        read = sum(map(len, at.engine.asked[0].texts))
    assert reply.status == 200
    assert [each["index"] for each in reply.json()["results"]] == [1, 0]
    assert reply.json()["usage"] == {"prompt_tokens": read, "total_tokens": read}
    assert at.metrics.reranks == {("r", "ok"): 1}
    assert at.metrics.prompt_tokens == {"r": read}


@pytest.mark.parametrize(
    ("body", "path", "status", "code", "param"),
    [
        (ASKED | {"model": "m"}, RERANK, 400, "unsupported_parameter", "model"),
        (ASKED | {"model": "e"}, RERANK, 400, "unsupported_parameter", "model"),
        (ASKED | {"model": "x"}, RERANK, 404, "model_not_found", "model"),
        (ASKED | {"query": "w" * 600}, RERANK, 400, "context_length_exceeded", "query"),
        (ASKED | {"documents": ["a", "b" * 600]}, RERANK, 400, "context_length_exceeded", "documents[1]"),
        (ASKED | {"more": 1}, RERANK, 400, "unknown_parameter", "more"),
        (HELLO | {"model": "r"}, CHAT, 400, "unsupported_parameter", "model"),
        ({"model": "r", "input": "a"}, "/v1/embeddings", 400, "unsupported_parameter", "model"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(
    body: dict[str, Any], path: str, status: int, code: str, param: str
) -> None:
    async with serving() as at:
        reply = await at.ask(body, path)
        assert not at.engine.asked
    error = reply.json()["error"]
    assert (reply.status, error["code"], error["param"]) == (status, code, param)


async def test_a_caller_that_leaves_ends_the_work() -> None:
    async with serving(EmbeddingScript(hold=asyncio.Event())) as at:
        async with at_most(), asyncio.TaskGroup() as group:
            asking = group.create_task(at.ask(ASKED))
            await await_until(lambda: at.engine.asked)
            asking.cancel()
            await await_until(lambda: at.metrics.reranks)
        assert at.metrics.reranks == {("r", "cancelled"): 1}
        assert at.engine.ended_count == 1
