"""A child as the supervisor sees it: one that promised signs of life and falls silent is stuck, and ended."""

import asyncio
import os
import signal

import pytest

from antiphon.engines.host.child import Child
from antiphon.engines.host.control import ChildState
from tests.support.host_process import speaking


@pytest.fixture
def anyio_backend() -> str:
    """The supervisor's loop is the standard library's."""
    return "asyncio"


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
