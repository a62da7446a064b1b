"""Answers that are sent part by part."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.dialects.base import Endpoint, Handler
from antiphon.dialects.http_types import FileStream, Request, Response
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.dialects.services import Services
from antiphon.engines.registry import ModelRegistry
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import ScriptedEngine
from tests.support.http_server import Served, gone, request_bytes, serving_edge

PARTS = 10_000


@asynccontextmanager
async def serving_endpoint(handler: Handler) -> AsyncIterator[Served]:
    """A server with one more endpoint, GET /file."""
    endpoint = Endpoint(method="GET", path="/file", handler=handler, right=None)
    models = ModelRegistry(())
    pipeline = Pipeline(models, Metrics(), restart_patience=0.0)
    edge = AppState(pipeline, models, OpenAI(), ServerSettings(), admin_endpoints=(endpoint,))
    async with serving_edge(edge) as (port, connections):
        yield Served(port, ScriptedEngine(), edge, connections)


async def test_a_client_that_leaves_a_file_ends_its_reading():
    read, gate = [], asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        for number in range(PARTS):
            read.append(number)
            yield b"part"
            await gate.wait()

    async def show(_request: Request, _services: Services) -> FileStream:
        return FileStream(parts(), "text/csv")

    async with serving_endpoint(show) as served:
        async with served.line() as line:
            await line.send(request_bytes("/file"))
            await line.until(b"part")
            tasks = next(iter(served.connections)).server.tasks
        await gone(served.connections)
        gate.set()
        await gone(tasks)
    assert len(read) == 2


@pytest.mark.parametrize("control", ["\r\nx-made-up: 1", "\n", "\0", "\x7f"])
async def test_a_header_with_a_control_character_is_never_sent(control):
    async def show(_request: Request, _services: Services) -> Response:
        return Response(b"shown", headers=((b"x-name", f"a{control}".encode()),))

    async with serving_endpoint(show) as served:
        reply = await served.ask("/file")
    assert (reply.status, reply.error["code"]) == (500, "internal_error")
    assert not reply.headers.keys() & {"x-name", "x-made-up"}


async def test_a_file_is_sent_with_its_head_and_its_end():
    async def show(_request: Request, _services: Services) -> FileStream:
        return FileStream(parts(), "text/csv")

    async def parts() -> AsyncIterator[bytes]:
        for part in (b"one", b"", b"two"):
            yield part

    async with serving_endpoint(show) as served, served.line() as line:
        for method, body in (("GET", b"onetwo"), ("HEAD", b"")):
            await line.send(request_bytes("/file", method=method))
            head = await line.until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n") and b"content-type: text/csv" in head
            assert (b"transfer-encoding: chunked" in head) is bool(body)
            if body:
                assert await line.until(b"0\r\n\r\n") == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
