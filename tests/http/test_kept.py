"""Nothing of a request outlives it: however it ends, counting references frees it, body and all. What lies
in a circle stays until the garbage collector looks, and a few large bodies do not make it look."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from antiphon.domain.events import Started, TextDelta
from antiphon.errors import EngineBusy, EngineError, EngineLost
from antiphon_testing import ScriptedAnswer, ScriptedEngine
from tests.support.accounting import limit, limited
from tests.support.freed import earlier, require_freed  # noqa: F401 - a fixture is found by its name
from tests.support.http_server import (
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
from tests.support.waiting import await_until

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
                await await_until(lambda: served.engine.streams)
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
        await await_until(lambda: len(served.edge.in_flight))
        served.edge.in_flight.end(EngineLost("the server stops"))
    assert asked.result().status == 503


async def refusing():
    raise EngineBusy("busy")
    yield


async def failing():
    yield Started(1)
    yield TextDelta(0, "Hello")
    raise EngineError("gone")


async def defect():
    raise ZeroDivisionError
    yield


ENDLESS = ScriptedAnswer(endless=True, pace=0.005)
CASES: dict[str, tuple[ScriptedEngine | ScriptedAnswer | None, dict[str, Any], Asked]] = {
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
    "refused": (LooseEngine(refusing), {}, whole(CHAT, HELLO)),
    "stream refused": (LooseEngine(refusing), {}, whole(CHAT, STREAM)),
    "failed midway": (LooseEngine(failing), {}, whole(CHAT, HELLO)),
    "stream failed midway": (LooseEngine(failing), {}, whole(CHAT, STREAM)),
    "defect": (LooseEngine(defect), {}, whole(CHAT, HELLO)),
    "stream's defect": (LooseEngine(defect), {}, whole(CHAT, STREAM)),
    "too late": (ENDLESS, {"request_timeout": 0.05}, whole(CHAT, HELLO | {"max_tokens": 10_000})),
    "stream too late": (ENDLESS, {"request_timeout": 0.05}, whole(CHAT, STREAM | {"max_tokens": 10_000})),
    "left": (ENDLESS, {}, left(HELLO | {"max_tokens": 100_000})),
    "stream left": (ENDLESS, {}, left(STREAM | {"max_tokens": 100_000}, b"Hello")),
    "stopped": (ScriptedAnswer(wait=60), {}, stopped),
    "no vectors": (None, {}, whole("/v1/embeddings", {"model": "m", "input": "hi"})),
}


@pytest.mark.parametrize("case", CASES)
async def test_nothing_of_a_request_is_left_to_the_collector(case, earlier):  # noqa: F811
    engine, settings, ask = CASES[case]
    async with serving(engine, **settings) as served:
        await ask(served)
        await require_freed(earlier)


@pytest.mark.parametrize("stream", [False, True])
async def test_nor_of_one_that_a_limit_refuses(stream, earlier):  # noqa: F811
    body = PROMPT | {"stream": stream, "max_tokens": 20}
    async with limited(limit(amount=1)) as (served, _):
        assert [(await served.ask(TEXT, body)).status for _ in range(2)] == [200, 429]
        await require_freed(earlier)
