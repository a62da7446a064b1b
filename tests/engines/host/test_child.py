"""A child as the supervisor sees it: one that promised signs of life and falls silent is stuck, and ended."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.engines.host.child import Child, start_child
from antiphon.engines.host.control import ChildState


@pytest.fixture
def anyio_backend() -> str:
    """The supervisor's loop is the standard library's."""
    return "asyncio"


SPEAKER = """
import os, sys, time
from antiphon.engines.host.control import ChildState, Status, StatusPipe
from antiphon.processes.ipc import to_line
number = int(sys.stdin.readline())
pipe = StatusPipe(number)
both = to_line(Status(ChildState.ALIVE)) + to_line(Status(ChildState.READY))
for word in sys.argv[1]:
    pauses = {".": lambda: time.sleep(0.2), "_": lambda: time.sleep(60)}
    words = {"r": pipe.report_ready, "a": pipe.report_alive, "b": lambda: os.write(number, both)}
    (words | pauses)[word]()
"""


@asynccontextmanager
async def speaking(words: str) -> AsyncIterator[Child]:
    """A child that says it is ready (r) or alive (a), or first alive and then ready in one breath (b), and is
    silent for a fifth of a second (.) or a minute (_)."""
    command = [sys.executable, "-c", SPEAKER, words]
    child = await start_child(command, lambda number: b"%d\n" % number, os.environ)
    try:
        yield child
    finally:
        child.kill()
        await child.wait_for_end()


async def told(child: Child, silence: float) -> list[ChildState]:
    async with asyncio.timeout(30):
        return [status.state async for status in child.read_reports(silence)]


async def test_one_that_falls_silent_after_a_sign_of_life_is_killed():
    async with speaking("ra_") as child:
        assert await told(child, 0.05) == [ChildState.READY]
        assert await child.wait_for_end() == "signal SIGKILL"


async def test_one_that_never_promised_may_be_silent():
    async with speaking("r......") as child:
        assert await told(child, 0.02) == [ChildState.READY]
        assert await child.wait_for_end() == "status 0"


async def test_one_that_keeps_its_word_is_left_alone():
    async with speaking("ra" + ".a" * 14) as child:
        assert await told(child, 2.0) == [ChildState.READY]
        assert await child.wait_for_end() == "status 0"


async def test_one_that_is_stopped_is_ended_too():
    async with speaking("b" + ".a" * 100) as child:
        reports = child.read_reports(0.2)
        assert (await anext(reports)).state is ChildState.READY
        os.kill(child.pid, signal.SIGSTOP)
        async with asyncio.timeout(30):
            assert [status async for status in reports] == []
        assert await child.wait_for_end() == "signal SIGKILL"
