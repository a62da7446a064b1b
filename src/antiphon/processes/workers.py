"""Starts, watches and replaces the HTTP processes of one server. They share one socket.

The supervisor supplies a function that starts a process.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from antiphon.domain.values import Struct, field
from antiphon.engines.base import EngineInfo, EngineState
from antiphon.engines.host.child import Child, ChildWatch
from antiphon.engines.host.control import ChildState, Status
from antiphon.errors import AntiphonError, ErrorReport, StartupError
from antiphon.telemetry.logs import record

RETIRE_SIGNAL = signal.SIGUSR2
"""Tells an HTTP process to accept no new connections and to end after its running requests."""

READY_DEADLINE = 60.0
"""Seconds in which a replacement process must be ready."""

MARGIN = 5.0
"""Seconds that an HTTP process gets in addition to its drain time."""


class Worker(Struct, eq=False):
    """One HTTP process. It is restarted when it dies."""

    watch: ChildWatch
    is_ready: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process is ready, or cannot become ready."""
    step_number: int = -1
    """The number of the latest reload step that the process was asked to do."""
    step_replied: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process has replied to the step, or cannot reply any more."""
    rest_end: float = 0.0
    """Until when the process is not started again, after too many deaths; a moment of `time.monotonic`."""
    problem: ErrorReport | None = None
    """Why the process did not do the step: it refused, or it ended."""


def _report(message: str) -> ErrorReport:
    """Builds the reason of a process that did not do a step."""
    return ErrorReport.from_error(StartupError(message))


class Workers:
    """The HTTP processes of one server. `run` must run in a task."""

    def __init__(
        self,
        count: int,
        retire_timeout: float,
        start: Callable[[], Awaitable[Child]],
        on_change: Callable[[], None],
        on_failure: Callable[[AntiphonError], None],
        on_replaced: Callable[[str | None], None],
        on_death: Callable[[], None],
    ) -> None:
        """`retire_timeout`: seconds that a replaced process gets for its requests. `on_change` is called when
        a process becomes ready or stops being ready. `on_failure` is called with the error that ends the
        server. `on_replaced` is called after a replacement of all processes, with the problem if it
        failed. `on_death` is called when a process has ended unasked."""
        # The supervisor sets these four as it runs: what they call needs its task group.
        self.on_reload_request: Callable[[int, Callable[[bytes], None]], None] = lambda *_: None
        """Called when a process asks for a reload, with the number of its request and a function that sends
        the process a line."""
        self.on_load: Callable[[str], None] = lambda _: None
        """Called with the name of a model that a request of a process needs."""
        self.on_knowledge: Callable[[], None] = lambda: None
        """Called when a request of a process needs the knowledge process."""
        self.on_pause: Callable[[float, asyncio.Event], object] = lambda *_: None
        """Called with the seconds during which no process runs, because all have died too often. The event is
        set when a process serves earlier, such as a replacement, and when the server ends."""
        self._pause_end = asyncio.Event()
        self._count = count
        self._retire_timeout = retire_timeout + MARGIN
        self._start = start
        self._on_change = on_change
        self._on_failure = on_failure
        self._on_replaced = on_replaced
        self._on_death = on_death
        self._serving: list[Worker] = []
        self._in_replacement: set[Worker] = set()
        """New workers that are not ready yet, and old workers that finish their requests."""
        self._stopping = asyncio.Event()
        self._replacement_requested = asyncio.Event()

    @property
    def are_ready(self) -> bool:
        """Whether every process is ready."""
        return len(self._serving) == self._count and all(worker.is_ready for worker in self._serving)

    def tell(self, line: bytes) -> None:
        """Sends a line to every process."""
        for worker in self._list_all():
            worker.watch.send(line)

    async def ask(self, line: bytes, step_number: int, timeout_s: float) -> dict[str, ErrorReport]:
        """Sends the line of a reload step to every process, and waits for the replies of the ready processes.
        Returns the names of the processes that did not do the step, with the reason: a process can refuse,
        end, or not reply within `timeout_s` seconds. A process that starts meanwhile reads the line before it
        serves, so nothing waits for it."""
        ready = [worker for worker in self._serving if worker.is_ready]
        for worker in ready:
            worker.step_number, worker.problem = step_number, None
            worker.step_replied.clear()
        self.tell(line)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for worker in ready:
                    await worker.step_replied.wait()
        for worker in ready:
            if not worker.step_replied.is_set():
                worker.problem = _report(f"{worker.watch.name} did not reply within {timeout_s:g} s")
        return {worker.watch.name: worker.problem for worker in ready if worker.problem is not None}

    def kill(self) -> None:
        """Kills all processes."""
        for worker in self._list_all():
            worker.watch.kill()

    def replace(self) -> None:
        """Requests the replacement of every process."""
        self._replacement_requested.set()

    async def run(self) -> None:
        """Runs all processes until `stop`. Restarts a process that dies."""
        if self._stopping.is_set():
            return
        async with asyncio.TaskGroup() as group:
            for index in range(self._count):
                worker = self._create_worker(index)
                self._serving.append(worker)
                group.create_task(self._run_worker(worker, self._on_failure))
            replacement_task = group.create_task(self._run_replacements(group))
            await self._stopping.wait()
            replacement_task.cancel()

    async def stop(self, seconds: float) -> None:
        """Ends all processes. Kills those that still run after `seconds`."""
        self._stopping.set()
        self._pause_end.set()
        for worker in self._list_all():
            worker.watch.forbid_restart()
        async with asyncio.TaskGroup() as group:
            for worker in self._list_all():
                group.create_task(worker.watch.stop(seconds))

    # --- one process ----------------------------------------------------------------------------------------

    def _list_all(self) -> tuple[Worker, ...]:
        """Returns all workers, including those that are being replaced."""
        return (*self._serving, *self._in_replacement)

    def _create_worker(self, index: int) -> Worker:
        """Creates the worker at an index. Does not start it."""
        name = "the HTTP process" if self._count == 1 else f"the HTTP process {index + 1}"
        watch = ChildWatch(
            name,
            self._start,
            lambda *state: self._update_state(worker, *state),
            always_restart=True,
            on_report=lambda status: self._receive(worker, status),
            on_rest=lambda seconds: self._note_rest(worker, seconds),
            on_death=self._on_death,
        )
        worker = Worker(watch)
        return worker

    def _update_state(self, worker: Worker, state: EngineState, _: EngineInfo | None) -> None:
        """Stores the state of a worker. One that ends while a reload step waits for it has not done the
        step."""
        worker.is_ready = state is EngineState.READY
        if worker.is_ready:
            self._pause_end.set()
            worker.settled.set()
        elif not worker.step_replied.is_set():
            worker.problem = _report(f"{worker.watch.name} ended during the reload")
            worker.step_replied.set()
        self._on_change()

    def _note_rest(self, worker: Worker, seconds: float) -> None:
        """Stores until when a worker pauses. If all do, reports the time until the first one starts again."""
        now = time.monotonic()
        worker.rest_end = now + seconds
        first_end = min(worker.rest_end for worker in self._serving)
        if first_end > now:
            self._pause_end.set()
            self._pause_end = asyncio.Event()
            self.on_pause(first_end - now, self._pause_end)

    def _receive(self, worker: Worker, status: Status) -> None:
        """Stores a worker's reply to a reload step, or passes its request on."""
        if status.state is ChildState.ASKS_RELOAD:
            self.on_reload_request(status.number, worker.watch.send)
        elif status.state is ChildState.ASKS_LOAD:
            self.on_load(status.model)
        elif status.state is ChildState.ASKS_KNOWLEDGE:
            self.on_knowledge()
        elif status.number == worker.step_number:
            worker.problem = status.error
            worker.step_replied.set()

    async def _run_worker(self, worker: Worker, on_failure: Callable[[AntiphonError], None]) -> None:
        """Starts a worker, and restarts it until it is stopped. If it never becomes ready, calls `on_failure`
        with the error."""
        try:
            await worker.watch.keep_running()
        except AntiphonError as error:
            on_failure(error)
        finally:
            worker.settled.set()
            worker.step_replied.set()
            self._in_replacement.discard(worker)

    # --- replacement ----------------------------------------------------------------------------------------

    async def _run_replacements(self, group: asyncio.TaskGroup) -> None:
        """Replaces all processes, one after the other, whenever `replace` has requested it."""
        while True:
            await self._replacement_requested.wait()
            record("replacing_workers", workers=self._count)
            replaced, problem = 0, None
            while replaced < self._count and problem is None:
                problem = await self._replace(replaced, group)
                replaced += 1
            self._replacement_requested.clear()
            if problem is None:
                record("workers_replaced", workers=self._count)
            self._on_replaced(problem)

    async def _replace(self, index: int, group: asyncio.TaskGroup) -> str | None:
        """Starts a new process, and retires the old one when the new one is ready. Returns why the new
        process could not become ready; None after a success."""
        new_worker, old_worker = self._create_worker(index), self._serving[index]
        problems: list[str] = []
        self._in_replacement.add(new_worker)
        group.create_task(self._run_worker(new_worker, lambda error: problems.append(error.message)))
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_DEADLINE):
                await new_worker.settled.wait()
        if not new_worker.is_ready:
            reason = problems[0] if problems else f"not ready within {READY_DEADLINE:g} s"
            record("replacing_failed", logging.ERROR, process=new_worker.watch.name, error=reason)
            await new_worker.watch.stop(0)
            return f"{new_worker.watch.name}: {reason}"
        self._in_replacement.discard(new_worker)
        self._serving[index] = new_worker
        self._in_replacement.add(old_worker)
        group.create_task(old_worker.watch.stop(self._retire_timeout, RETIRE_SIGNAL))
        return None
