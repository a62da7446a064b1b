"""/v1/embeddings over real sockets: the answer, what is refused, and that leaving ends the work."""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from antiphon.dialects.openai.dialect import OpenAI
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.rendering.renderer import Renderer
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import EmbeddingScript, ScriptedEmbeddingEngine, ScriptedEngine
from antiphon_testing.scripted_engine import make_vector
from tests.support.http_server import CHAT, HELLO, Reply, Served, at_most, serving_edge
from tests.support.waiting import await_until

EMBEDDINGS = "/v1/embeddings"
PLAIN = EmbeddingScript()
ASKED: dict[str, Any] = {"model": "e", "input": [[7, 8], [9]]}


@dataclass(frozen=True)
class Serving:
    """A server with an embedding model `e` and a generating one `m`."""

    served: Served
    engine: ScriptedEmbeddingEngine

    async def ask(self, body: dict[str, Any], path: str = EMBEDDINGS) -> Reply:
        return await self.served.ask(path, body)


@asynccontextmanager
async def serving(script: EmbeddingScript = PLAIN, **settings: Any) -> AsyncIterator[Serving]:
    engine, generating = ScriptedEmbeddingEngine(script), ScriptedEngine()
    models = ModelRegistry(
        (Model("e", (ModelRoute(Renderer(engine)),), 1), Model("m", (ModelRoute(generating),), 1))
    )
    chosen = msgspec.structs.replace(ServerSettings(), **settings)
    dialect = OpenAI(chosen.unknown_fields == "report")
    edge = AppState(Pipeline(models, Metrics(), restart_patience=0.0), models, dialect, chosen)
    async with serving_edge(edge) as (port, connections):
        yield Serving(Served(port, generating, edge, connections), engine)


async def test_vectors_come_in_order_with_their_usage() -> None:
    async with serving() as at:
        reply = await at.ask(ASKED)
    answer = reply.json()
    assert reply.status == 200
    assert [array("f", each["embedding"]).tobytes() for each in answer["data"]] == [
        make_vector((7, 8)),
        make_vector((9,)),
    ]
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


async def test_the_largest_request_is_answered_whole() -> None:
    async with serving() as at:
        reply = await at.ask({"model": "e", "input": [[7, place % 200] for place in range(2048)]})
    assert [each["index"] for each in reply.json()["data"]] == list(range(2048))


@pytest.mark.parametrize(
    ("body", "path", "status", "code", "param"),
    [
        ({"model": "m", "input": "a"}, EMBEDDINGS, 400, "unsupported_parameter", "model"),
        ({"model": "x", "input": "a"}, EMBEDDINGS, 404, "model_not_found", "model"),
        ({"model": "e", "input": []}, EMBEDDINGS, 400, "invalid_value", "input"),
        ({"model": "e", "input": ["a", [7] * 3]}, EMBEDDINGS, 400, "invalid_value", "input"),
        ({"model": "e", "input": [7] * 513}, EMBEDDINGS, 400, "context_length_exceeded", "input"),
        (
            {"model": "e", "input": "a", "dimensions": 4},
            EMBEDDINGS,
            400,
            "unsupported_parameter",
            "dimensions",
        ),
        ({"model": "e", "input": "a", "more": 1}, EMBEDDINGS, 400, "unknown_parameter", "more"),
        (HELLO | {"model": "e"}, CHAT, 400, "unsupported_parameter", "model"),
        ({"model": "e", "prompt": "a"}, "/v1/completions", 400, "unsupported_parameter", "model"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(
    body: dict[str, Any], path: str, status: int, code: str, param: str
) -> None:
    async with serving() as at:
        reply = await at.ask(body, path)
        assert (reply.status, reply.error["code"], reply.error["param"]) == (status, code, param)
        assert not at.engine.asked


async def test_ignored_fields_are_named_and_unknown_ones_if_configured() -> None:
    async with serving() as at:
        assert (await at.ask(ASKED | {"user": "u"})).headers["x-antiphon-ignored"] == "user"
        assert "x-antiphon-ignored" not in (await at.ask(ASKED)).headers
    async with serving(unknown_fields="report") as at:
        assert (await at.ask(ASKED | {"more": 1})).headers["x-antiphon-ignored"] == "more"


async def test_a_caller_that_leaves_ends_the_work() -> None:
    async with serving(EmbeddingScript(hold=asyncio.Event())) as at, at_most():
        async with at.served.line() as line:
            body = json.dumps(ASKED).encode()
            head = f"POST {EMBEDDINGS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            await line.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await await_until(lambda: at.engine.asked)
            line.drop()
        await await_until(lambda: at.engine.ended_count)


async def test_a_request_that_takes_too_long_is_ended() -> None:
    async with serving(EmbeddingScript(hold=asyncio.Event()), request_timeout=0.5) as at:
        while not at.engine.asked:  # its time was up before it came so far, where the machine stood still
            reply = await at.ask(ASKED)
            assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")
        assert at.engine.ended_count == 1


async def test_it_asks_for_the_key_and_takes_post_alone() -> None:
    async with serving() as at:
        reply = await at.served.raw(f"GET {EMBEDDINGS} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert reply.status == 405
        paths = (await at.served.raw(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")).json()[
            "paths"
        ]
        assert "post" in paths[EMBEDDINGS]
