"""Nothing of a request outlives it: however it ends, counting references frees it, body and all. What lies
in a circle stays until the garbage collector looks, and a few large bodies do not make it look."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from antiphon.errors import EngineBusy, EngineError, EngineLost
from antiphon.http.edge import Exchange
from antiphon.testing import Answer, ScriptedEngine
from tests.http.harness import (
    CHAT,
    HELLO,
    KEY,
    PROMPT,
    TEXT,
    LooseEngine,
    Served,
    gone,
    request_bytes,
    serving,
)
from tests.http.test_accounting import limited
from tests.pipeline.books import limit

Asked = Callable[[Served], Awaitable[object]]
STREAM = HELLO | {"stream": True}


def whole(path: str, body: object) -> Asked:
    """A request whose answer is read."""
    return lambda served: served.ask(path, body)


def left(body: object, until: bytes | None = None) -> Asked:
    """A request whose caller goes before its answer has ended, after that text of it."""

    async def ask(served: Served) -> None:
        async with served.line() as line:
            await line.send(request_bytes(CHAT, body))
            if until is None:
                while not served.engine.streams:
                    await asyncio.sleep(0.002)
            else:
                await line.until(until)
            line.drop()
            await gone(served.connections)
            await served.engine.streams[0].over.wait()

    return ask


async def stopped(served: Served) -> None:
    """A request that is running when the server stops."""
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(served.ask(CHAT, HELLO))
        while not len(served.edge.ongoing):
            await asyncio.sleep(0.002)
        served.edge.ongoing.end(EngineLost("the server stops"))
    assert asked.result().status == 503


async def defect():
    raise ZeroDivisionError
    yield


def ended(served: Served) -> list[object]:
    """What the collector finds of requests."""
    gc.collect()
    return [found for found in gc.garbage if isinstance(found, Exchange)]


ENDLESS = Answer(endless=True, pace=0.005)
CASES: dict[str, tuple[ScriptedEngine | Answer | None, dict[str, Any], Asked]] = {
    "answered": (None, {}, whole(CHAT, HELLO)),
    "streamed": (None, {}, whole(CHAT, STREAM)),
    "several choices": (None, {}, whole(CHAT, STREAM | {"n": 3})),
    "no model": (None, {}, whole(CHAT, HELLO | {"model": "none"})),
    "no JSON": (None, {}, whole(CHAT, b"{")),
    "large and no JSON": (None, {}, whole(CHAT, b"[" * 100_000)),
    "unknown field": (None, {}, whole(CHAT, HELLO | {"temprature": 1})),
    "no path": (None, {}, whole("/nowhere", HELLO)),
    "too large": (None, {"max_body_bytes": 1024}, whole(CHAT, b" " * 2000)),
    "no key": (None, {"key": KEY}, whole(CHAT, HELLO)),
    "refused": (Answer(error=EngineBusy("busy")), {}, whole(CHAT, HELLO)),
    "stream refused": (Answer(error=EngineBusy("busy")), {}, whole(CHAT, STREAM)),
    "failed midway": (Answer(error=EngineError("gone"), error_after=2), {}, whole(CHAT, HELLO)),
    "stream failed midway": (Answer(error=EngineError("gone"), error_after=2), {}, whole(CHAT, STREAM)),
    "defect": (LooseEngine(defect), {}, whole(CHAT, HELLO)),
    "stream's defect": (LooseEngine(defect), {}, whole(CHAT, STREAM)),
    "too late": (ENDLESS, {"request_timeout": 0.05}, whole(CHAT, HELLO | {"max_tokens": 10_000})),
    "stream too late": (ENDLESS, {"request_timeout": 0.05}, whole(CHAT, STREAM | {"max_tokens": 10_000})),
    "left": (ENDLESS, {}, left(HELLO | {"max_tokens": 100_000})),
    "stream left": (ENDLESS, {}, left(STREAM | {"max_tokens": 100_000}, b"Hello")),
    "stopped": (Answer(wait=60), {}, stopped),
    "no vectors": (None, {}, whole("/v1/embeddings", {"model": "m", "input": "hi"})),
}


@pytest.fixture
def saving():
    """The collector keeps what it finds, and looks only when it is asked to."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@pytest.mark.parametrize("case", CASES)
async def test_nothing_of_a_request_is_left_to_the_collector(case, saving):
    engine, settings, ask = CASES[case]
    async with serving(engine, **settings) as served:
        await ask(served)
        await asyncio.sleep(0.01)
        assert not ended(served)


@pytest.mark.parametrize("stream", [False, True])
async def test_nor_of_one_that_a_limit_refuses_or_ends(stream, saving):
    body = PROMPT | {"stream": stream, "max_tokens": 20}
    async with limited(limit(amount=1)) as (served, _):
        assert [(await served.ask(TEXT, body)).status for _ in range(2)] == [200, 429]
        await asyncio.sleep(0.01)
        assert not ended(served)
