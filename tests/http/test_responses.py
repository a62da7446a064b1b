"""Answers that are sent part by part."""

import asyncio
from collections.abc import AsyncIterator

from antiphon.dialects.base import Endpoint, FileStream, Request, Services
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.engines.registry import ModelRegistry
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon.testing import ScriptedEngine
from tests.support.http_server import Served, gone, request_bytes, serving_edge

PARTS = 10_000


async def test_a_client_that_leaves_a_file_ends_its_reading():
    read, gate = [], asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        for number in range(PARTS):
            read.append(number)
            yield b"part"
            await gate.wait()

    async def show(_request: Request, _services: Services) -> FileStream:
        return FileStream(parts(), "text/csv")

    endpoint = Endpoint(method="GET", path="/file", handler=show, right=None)
    models = ModelRegistry(())
    pipeline = Pipeline(models, Metrics(), restart_patience=0.0)
    edge = AppState(pipeline, models, OpenAI(), ServerSettings(), admin_endpoints=(endpoint,))
    async with serving_edge(edge) as (port, connections):
        served = Served(port, ScriptedEngine(), edge, connections)
        async with served.line() as line:
            await line.send(request_bytes("/file"))
            await line.until(b"part")
            tasks = next(iter(connections)).server.tasks
        await gone(connections)
        gate.set()
        await gone(tasks)
    assert len(read) == 2
