"""`priority` over HTTP: of what a caller has waiting, the lowest number is answered first."""

import asyncio

import pytest

from antiphon.dialects.openai.dialect import OpenAI
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.rendering.renderer import Renderer
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import Hold, Script, ScriptedEngine, ScriptedTokenEngine, scripted_info
from tests.support.http_server import PROMPT, TEXT, Served, serving_edge
from tests.support.lora_server import unproved
from tests.support.waiting import await_until


async def until(engine, queued):
    async def is_queued():
        return (await engine.info()).load.queued == queued

    await await_until(is_queued)


@pytest.mark.parametrize(
    ("priorities", "order"), [([None, 5, 0, -1], [3, 0, 2, 1]), ([1, 1, 1, 1], [0, 1, 2, 3])]
)
async def test_a_callers_lowest_priority_comes_first(priorities, order):
    go = asyncio.Event()
    engine = ScriptedTokenEngine(Script("yes", hold=Hold(go)), info=scripted_info(sequences=1))
    models = ModelRegistry((Model("m", (ModelRoute(Renderer(engine, prove=unproved)),), 1),))
    edge = AppState(Pipeline(models, Metrics(), restart_patience=0.0), models, OpenAI(), ServerSettings())
    answered = []
    async with serving_edge(edge) as (port, connections), asyncio.TaskGroup() as group:
        served = Served(port, ScriptedEngine(), edge, connections)

        async def ask(number, **more):
            reply = await served.ask(TEXT, PROMPT | more)
            assert reply.status == 200, reply.body
            answered.append(number)

        running = group.create_task(ask("running"))
        while not (await engine.info()).load.running:
            await asyncio.sleep(0.002)
        for number, priority in enumerate(priorities):
            group.create_task(ask(number, **({} if priority is None else {"priority": priority})))
            await until(engine, number + 1)
        go.set()
        await running
    assert answered == ["running", *order]
