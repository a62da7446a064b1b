"""The processes that the supervisor starts: their pipes and reports, and `ChildWatch`, which restarts a dead
one.

This module does not depend on the child's task.
"""

import asyncio
import logging
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from antiphon.domain.values import Struct, field
from antiphon.engines.base import EngineInfo, EngineState
from antiphon.engines.host.control import WORK_REPORTS, ChildState, Status
from antiphon.errors import AntiphonError, StartupError
from antiphon.processes.ipc import FrameError, from_line
from antiphon.processes.sandbox import kill
from antiphon.telemetry.logs import record

DEATHS = 3
WINDOW = 60.0
"""After DEATHS deaths within WINDOW seconds, a child is not restarted, or only after a pause."""

FIRST_PAUSE = 5.0
"""Seconds of the first pause. Each further death doubles it, up to WINDOW."""

REPORT_TIMEOUT = 4.0
MAX_TIMEOUTS = 5
"""The seconds of one wait for a report, and the number of successive waits without a report after which a
child that sends heartbeats counts as stuck. A loaded machine delays reports by a second or two."""

LONGEST_LINE = 1024 * 1024
"""The most bytes of one report; an engine's facts take a few thousand."""

STDERR = 2


class Child:
    """A process that the supervisor has started. Consume `read_reports` to its end, then await
    `wait_for_end`."""

    def __init__(self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader) -> None:
        self._process = process
        self._reader = reader
        self.pid = process.pid

    async def read_reports(self, report_timeout: float = REPORT_TIMEOUT) -> AsyncIterator[Status]:
        """Yields the child's reports, until the child ends and so closes its pipe.

        After its first heartbeat, a child must continue to report. After MAX_TIMEOUTS waits of
        `report_timeout` seconds without a report, the child is stuck, and is killed. Several short waits are
        used because the supervisor itself may have been suspended: a single long wait would then end although
        unread reports are in the pipe.
        """
        timeouts, sends_heartbeats = 0, False
        while timeouts < MAX_TIMEOUTS:
            try:
                async with asyncio.timeout(report_timeout if sends_heartbeats else None):
                    line = await self._reader.readline()
            except TimeoutError:
                timeouts += 1
                continue
            if not line:
                return
            status = from_line(line, Status)
            timeouts, sends_heartbeats = 0, sends_heartbeats or status.state is ChildState.ALIVE
            if status.state is not ChildState.ALIVE:
                yield status
        record("process_stuck", logging.WARNING, pid=self.pid)
        self.kill()
        await self._reader.read()  # the killed process closes the pipe

    async def wait_for_end(self) -> str:
        """Waits for the process to end. Returns a description of its end: `status 1`, or `signal SIGKILL`."""
        code = await self._process.wait()
        return f"status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def send(self, line: bytes) -> None:
        """Sends a line; does nothing if the child is gone."""
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(line)

    async def stop(self, deadline: float, signal_number: signal.Signals = signal.SIGTERM) -> None:
        """Sends the signal. Sends SIGKILL if the child has not ended after `deadline` seconds."""
        kill(self._process, signal_number)
        try:
            async with asyncio.timeout(deadline):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        kill(self._process)

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.returncode is None


async def start_child(
    command: Sequence[str],
    build_configuration: Callable[[int], bytes],
    environment: Mapping[str, str],
    inherited_fds: Sequence[int] = (),
) -> Child:
    """Starts a process and writes its configuration, which contains the number of its status pipe. Raises
    OSError.

    The child gets a session of its own, so that a terminal's signals reach only the supervisor. Its standard
    output goes to standard error, because native libraries print there.
    """
    read_end, write_end = os.pipe()
    try:
        configuration = build_configuration(write_end)
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=STDERR,
            env=dict(environment),
            pass_fds=(write_end, *inherited_fds),
            start_new_session=True,
        )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", buffering=0)
    )
    child = Child(process, reader)
    child.send(configuration)
    return child


class DeathCounter(Struct):
    """The latest deaths of one child."""

    times: deque[float] = field(default_factory=deque)

    def add_death(self, now: float) -> float:
        """Counts one more death. Returns the seconds of the pause that follows; 0 before the third death
        within WINDOW."""
        self.times.append(now)
        while now - self.times[0] > WINDOW:
            self.times.popleft()
        if len(self.times) < DEATHS:
            return 0.0
        pause = min(WINDOW, FIRST_PAUSE * 2.0 ** (len(self.times) - DEATHS))
        self.times = deque((moment + pause for moment in self.times), maxlen=16)  # a pause is no life
        return pause


class ChildWatch:
    """Starts one child, and starts it again when it dies. It calls `on_state` with READY and the child's
    facts, with RESTARTING at each death, and with FAILED when the child will not be started again. With
    `always_restart`, a child that died too often is started again after a pause."""

    def __init__(
        self,
        name: str,
        start: Callable[[], Awaitable[Child]],
        on_state: Callable[[EngineState, EngineInfo | None], None],
        *,
        always_restart: bool = False,
        on_report: Callable[[Status], None] = lambda _: None,
        on_rest: Callable[[float], None] = lambda _: None,
        on_death: Callable[[], None] = lambda: None,
        start_hint: str = "",
    ) -> None:
        """`on_report`: called with each report about the child's work (WORK_REPORTS). `on_rest`: called with
        the seconds of each pause. `on_death`: called when the child has ended unasked.
        `start_hint`: what to do if it ends before it is ready, and reports no reason."""
        self.name = name
        """The child's name in logs and messages: `the engine of cantor`."""
        self.latest_end = ""
        """How the process ended the last time."""
        self._on_report = on_report
        self._on_rest = on_rest
        self._on_death = on_death
        self._start_hint = start_hint
        self._start = start
        self._on_state = on_state
        self._always_restart = always_restart
        self._child: Child | None = None
        self._stop_requested = asyncio.Event()
        self._was_ready = False
        self._deaths = DeathCounter()

    async def keep_running(self) -> None:
        """Starts the child, and restarts it whenever it dies, until it is stopped or has died too often.

        If the child never became ready, raises the child's own StartupError, or a StartupError about its end.
        """
        while not self._stop_requested.is_set():
            ending, error = await self._run_once()
            self.latest_end = ending
            if self._stop_requested.is_set():
                return
            self._on_death()
            if not self._was_ready:
                raise error or StartupError(
                    f"{self.name} ended with {ending} before it was ready{self._start_hint}"
                )
            problem = error and error.message
            record("process_ended", logging.WARNING, process=self.name, how=ending, error=problem)
            pause = self._deaths.add_death(time.monotonic())
            if pause and not self._always_restart:
                record("process_given_up", logging.ERROR, process=self.name, deaths=DEATHS, seconds=WINDOW)
                self._on_state(EngineState.FAILED, None)
                return
            self._on_state(EngineState.RESTARTING, None)
            if pause:  # it leaves the machine to other processes
                record("process_rests", logging.ERROR, process=self.name, seconds=pause)
                self._on_rest(pause)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stop_requested.wait()

    async def _run_once(self) -> tuple[str, AntiphonError | None]:
        """Runs one process from start to end. Returns a description of its end, and the error that it
        reported."""
        error: AntiphonError | None = None
        try:
            child = await self._start()
        except OSError as problem:
            return "no start", StartupError(f"{self.name} cannot be started: {problem}")
        self._child = child
        if self._stop_requested.is_set():
            child.kill()
        try:
            async for status in child.read_reports():
                if status.state is ChildState.READY:
                    self._note_ready(child, status.info)
                elif status.state in WORK_REPORTS:
                    self._on_report(status)
                elif status.error is not None:
                    error = status.error.to_exception()
        except FrameError as problem:
            error = StartupError(
                f"{self.name} has another release of Antiphon than the supervisor; install the same release "
                f"for both ({problem})"
            )
            child.kill()
        return await child.wait_for_end(), error

    def _note_ready(self, child: Child, info: EngineInfo | None) -> None:
        """Reports READY with the child's facts. Logs it if the child was restarted."""
        if self._was_ready:
            record("process_back", process=self.name, pid=child.pid)
        self._was_ready = True
        self._on_state(EngineState.READY, info)

    def send(self, line: bytes) -> None:
        """Sends a line to the child, if there is one."""
        if self._child is not None:
            self._child.send(line)

    @property
    def is_running(self) -> bool:
        """Whether the child was started and has not ended."""
        return self._child is not None and self._child.is_running

    def forbid_restart(self) -> None:
        """Prevents any further start of the child."""
        self._stop_requested.set()

    async def stop(self, deadline: float, signal_number: signal.Signals = signal.SIGTERM) -> None:
        """Ends the child with a signal, or with SIGKILL after `deadline` seconds. The child is not started
        again."""
        self.forbid_restart()
        if self._child is not None:
            await self._child.stop(deadline, signal_number)

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
