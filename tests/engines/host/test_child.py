"""A child as the supervisor sees it: one that promised signs of life and falls silent is stuck, and ended."""

import asyncio
import os
import signal
import sys

import pytest

from antiphon.engines.host.child import Child, start_child
from antiphon.engines.host.control import ChildState


@pytest.fixture
def anyio_backend() -> str:
    """The supervisor's loop is the standard library's."""
    return "asyncio"


SPEAKER = """
import sys, time
from antiphon.engines.host.control import StatusPipe
pipe = StatusPipe(int(sys.stdin.readline()))
pipe.ready()
for word in sys.argv[1]:
    pipe.alive() if word == "a" else time.sleep(0.2)
time.sleep(60 if sys.argv[1].endswith("a") else 0)
"""


async def speaking(words: str) -> Child:
    """A child that says it is alive for each `a`, and is silent a fifth of a second for each dot."""
    command = [sys.executable, "-c", SPEAKER, words]
    return await start_child(command, lambda number: b"%d\n" % number, os.environ)


async def told(child: Child, silence: float) -> list[ChildState]:
    async with asyncio.timeout(30):
        return [status.state async for status in child.reports(silence)]


async def test_one_that_falls_silent_after_a_sign_of_life_is_killed():
    child = await speaking("a")
    assert await told(child, 0.05) == [ChildState.READY]
    assert await child.ended() == "signal SIGKILL"


async def test_one_that_never_promised_may_be_silent():
    child = await speaking("......")
    assert await told(child, 0.02) == [ChildState.READY]
    assert await child.ended() == "status 0"


async def test_one_that_keeps_its_word_is_left_alone():
    child = await speaking("a.a.a.a.a.a.")
    assert await told(child, 0.5) == [ChildState.READY]
    assert await child.ended() == "status 0"


async def test_one_that_is_stopped_is_ended_too():
    child = await speaking("a" + ".a" * 100)
    reports = child.reports(0.2)
    assert (await anext(reports)).state is ChildState.READY
    os.kill(child.pid, signal.SIGSTOP)
    async with asyncio.timeout(30):
        assert [status async for status in reports] == []
    assert await child.ended() == "signal SIGKILL"
