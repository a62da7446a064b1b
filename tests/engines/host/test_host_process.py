"""The engine host as a process: it says how it stands, and leaves nothing behind however it ends."""

import asyncio
import signal
import subprocess
import sys

import pytest

from antiphon.engines.base import SequenceFinished, SequenceStarted, TextPiece
from antiphon.engines.host.__main__ import ENGINE_LOST
from antiphon.engines.host.client import open_host_engine
from antiphon.engines.host.control import ChildState
from antiphon.errors import EngineDied, EngineUnavailable, LibraryError, LoadError
from tests.support.host_engines import SPEC, build_request
from tests.support.host_process import Started, gone, started
from tests.support.waiting import wait_until


async def hang_up_after(host: Started, seconds: float) -> None:
    await asyncio.sleep(seconds)
    host.hang_up()


async def test_it_reports_loading_then_ready_and_serves() -> None:
    with started("create_brief_engine") as host:
        host.says(ChildState.LOADING)
        info = host.says(ChildState.READY).info
        assert info is not None
        assert info.architecture == "scripted"
        assert info.chat_template is None
        async with open_host_engine(str(host.socket), "cantor") as client:
            assert (await client.load(SPEC)).chat_template
            assert [event async for event in client.generate(build_request())]


def test_a_missing_library_is_reported_with_its_own_error() -> None:
    with started("Unloadable") as host:
        host.says(ChildState.LOADING)
        error = host.says(ChildState.FAILED).error
        assert error is not None
        assert isinstance(error.to_exception(), LibraryError)
        assert error.message == "no engine library was found; install one"
        assert gone(host) == 1
        assert not host.socket.exists()


def test_a_defect_while_loading_is_one_sentence_and_is_logged() -> None:
    with started("Defective", subprocess.PIPE) as host:
        host.says(ChildState.LOADING)
        error = host.says(ChildState.FAILED).error
        assert error is not None
        assert isinstance(error.to_exception(), LoadError)
        assert error.message.startswith("the engine of cantor cannot start: RuntimeError")
        assert "\n" not in error.message
        assert gone(host) == 1
        _, logged = host.process.communicate()
        (line,) = [line for line in logged.splitlines() if b"engine_load_failed" in line]
        assert b'exception="RuntimeError at ' in line


@pytest.mark.parametrize("way", ["SIGTERM", "end of stdin"])
def test_it_ends_and_leaves_no_socket_also_while_it_loads(way: str) -> None:
    with started("Loading") as host:
        host.says(ChildState.LOADING)
        if way == "SIGTERM":
            host.process.send_signal(signal.SIGTERM)
            assert gone(host) == 0
        else:
            host.hang_up()
            assert gone(host) == 3
        assert not host.socket.exists()


async def test_the_end_of_its_input_ends_it_during_native_code() -> None:
    with started("Stuck") as host:
        host.says(ChildState.LOADING)
        host.says(ChildState.READY)
        async with open_host_engine(str(host.socket), "cantor") as client:
            await client.load(SPEC)
            async with asyncio.timeout(20), asyncio.TaskGroup() as group:
                hanging = group.create_task(hang_up_after(host, 0.1))
                with pytest.raises(EngineUnavailable):
                    await client.tokenize([TextPiece("a")], False)
                await hanging
            assert await asyncio.to_thread(gone, host) == 3
        assert not host.socket.exists()


async def test_sigterm_lets_running_calls_end() -> None:
    with started("create_slow_engine") as host:
        host.says(ChildState.LOADING)
        host.says(ChildState.READY)
        async with open_host_engine(str(host.socket), "cantor") as client:
            await client.load(SPEC)
            events = client.generate(build_request())
            assert isinstance(await anext(events), SequenceStarted)
            host.process.send_signal(signal.SIGTERM)
            assert isinstance([event async for event in events][-1], SequenceFinished)
            assert await asyncio.to_thread(gone, host) == 0


async def test_sigterm_does_not_wait_long_for_running_calls() -> None:
    with started("create_endless_engine") as host:
        host.says(ChildState.LOADING)
        host.says(ChildState.READY)
        async with open_host_engine(str(host.socket), "cantor") as client:
            await client.load(SPEC)
            events = client.generate(build_request())
            assert isinstance(await anext(events), SequenceStarted)
            host.process.send_signal(signal.SIGTERM)
            assert host.socket.exists()
            with pytest.raises(EngineDied):
                async for _ in events:
                    pass
            assert await asyncio.to_thread(gone, host) == 0
        assert not host.socket.exists()


async def test_it_ends_when_its_engine_is_lost() -> None:
    with started("Lost") as host:
        host.says(ChildState.LOADING)
        host.says(ChildState.READY)
        async with open_host_engine(str(host.socket), "cantor") as client:
            await client.load(SPEC)
            await client.tokenize([TextPiece("a")], False)
            assert await asyncio.to_thread(gone, host) == ENGINE_LOST
        assert not host.socket.exists()


def test_the_last_to_leave_removes_the_runtime_directory() -> None:
    with started("create_brief_engine") as host:
        host.says(ChildState.LOADING)
        host.says(ChildState.READY)
        place = host.socket.parent
        (place / "lock").write_bytes(b"")
        host.hang_up()
        assert gone(host) == 3
        wait_until(lambda: not place.exists(), what="the directory is removed")
        place.mkdir()


@pytest.mark.parametrize("line", [pytest.param(b"", marks=pytest.mark.soak), b"hello\n"])
def test_started_by_hand_it_says_who_starts_it(line: bytes) -> None:
    command = [sys.executable, "-P", "-m", "antiphon.engines.host"]
    done = subprocess.run(command, input=line, capture_output=True, timeout=50, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(b"an engine host is started by the supervisor")
    assert done.stderr.count(b"\n") == 1


def test_a_terminals_interrupt_is_left_to_the_supervisor() -> None:
    with started("create_brief_engine") as host:
        host.says(ChildState.LOADING)
        host.says(ChildState.READY)
        host.process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            host.process.wait(0.3)
