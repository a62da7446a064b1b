"""Runs a function on untrusted data, in a process that has hard limits and can be killed.

A template, regular expression or schema can run forever or use all memory, and native code cannot be
interrupted from inside. `run_job` is the caller's side. `python -m antiphon.processes.sandbox` is the helper
process: it reads one job as JSON from standard input and writes the output as JSON to standard output. The
sandbox protects against hostile data, not against hostile native code.
"""

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from antiphon.domain.values import Struct, asdict
from antiphon.errors import AntiphonError, ErrorReport, ServerBusy

if TYPE_CHECKING:
    from asyncio import StreamReader
    from asyncio.subprocess import Process

INTERPRETER_VARIABLES = frozenset(
    "PATH HOME LANG LC_ALL LC_CTYPE TMPDIR LD_LIBRARY_PATH VIRTUAL_ENV "
    "PYTHONPATH PYTHONHOME PYTHONUTF8 PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX".split()
)
"""The variables that Python needs to start. None is a credential."""

NOTHING: Mapping[str, str] = MappingProxyType({})

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""A helper process cannot start threads; numpy would start some on import."""

START_DEADLINE = 20.0
"""Seconds for the start of the interpreter. It runs only our own code, so it is slow only on a busy
machine."""

START_CPU = 2
"""CPU seconds for the start of the interpreter, in addition to the job's CPU seconds."""

OPEN_FILES = 64
"""The most open files: enough to import the job's modules."""

READ_BYTES = 65536
"""The most bytes of one read."""

RETRY_AFTER = 5.0
"""The retry delay for callers in seconds, if the machine is too busy."""


class Limits(Struct, frozen=True):
    """Limits of one job."""

    seconds: float = 2.0
    """CPU seconds after the start of the function. A busy machine needs more time for a job, but no more
    CPU."""
    patience: float = 20.0
    """Seconds of wall clock after the start of the function. This limit ends a job that waits instead of
    computing."""
    memory: int = 256 * 1024 * 1024
    """Bytes of address space, including the interpreter's."""
    output: int = 4 * 1024 * 1024
    """The most bytes of the output, which is the result as JSON."""
    writes: int = 0
    """The most bytes of one file that the job writes."""


class Stop(StrEnum):
    """Why a job was stopped."""

    TIME = "time"
    """It exceeded its CPU seconds."""
    WAIT = "wait"
    """It waited too long, for example for the machine, or another process ended it."""
    MEMORY = "memory"
    OUTPUT = "output"
    """Its output was larger than its limit."""
    CRASH = "crash"
    """The process died, for example because the function raised an exception."""


class JobStopped(Exception):
    """The job exceeded a limit or failed. The caller knows the origin of the data, and converts this to a
    suitable error."""

    def __init__(self, stop: Stop, message: str) -> None:
        super().__init__(message)
        self.stop = stop

    def raise_if_machine_was_busy(self) -> None:
        """Raises ServerBusy if the job waited too long. Use it only for jobs that wait for nothing but the
        machine: their data cannot be the reason."""
        if self.stop is Stop.WAIT:
            problem = "the machine is too busy for the helper process of this request; try again"
            raise ServerBusy(problem, retry_after=RETRY_AFTER, cause=f"a helper's job: {self}")


JobRunner = Callable[[str, Mapping[str, object], Limits, Mapping[str, str]], Awaitable[object]]
"""Runs a job as `run_job` does."""


async def run_job(
    target: str,
    payload: Mapping[str, object],
    limits: Limits = Limits(),
    variables: Mapping[str, str] = NOTHING,
) -> object:
    """Runs the function `target`, written as `module:name`, with the payload. Returns its result. Payload and
    result have JSON's types. `variables`: further environment variables for the job.

    Raises the AntiphonError that the function raised, or JobStopped. The process ends before this call
    returns, also if the call is cancelled.
    """
    process = await _start(limits, variables)
    try:
        output = await _send_job(process, json.dumps({"target": target, "payload": payload}).encode(), limits)
    finally:
        exit_status = await _finish(process)
    return _parse_output(output, exit_status)


def was_killed(exit_status: int | None) -> bool:
    """Whether another process or the kernel ended the process: by an operator's signal, or when memory is
    short. The data cannot cause this."""
    import signal

    return exit_status in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)


def kill(process: "Process", signal_number: int = 9) -> None:
    """Sends a signal to a process that can have ended. It replaces `Process.kill`, which can read the exit
    status before asyncio does."""
    import os

    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal_number)


async def _start(limits: Limits, variables: Mapping[str, str]) -> "Process":
    """Starts the helper process. Raises JobStopped. A cancelled call ends when the process that it has
    started has ended: without this, the event loop kills the process and does not wait for its end."""
    import asyncio

    async with asyncio.TaskGroup() as group:
        start = group.create_task(_try_start(limits, variables))
        try:
            result = await asyncio.shield(start)
        except asyncio.CancelledError:
            result = await start
            if not isinstance(result, OSError):
                await _finish(result)
            raise
    if isinstance(result, OSError):
        raise JobStopped(Stop.WAIT, f"the helper cannot be started: {result.strerror}")
    return result


async def _try_start(limits: Limits, variables: Mapping[str, str]) -> "Process | OSError":
    """Starts the helper process with these environment variables and those that Python needs. Returns the
    error if it cannot be started: the task group of `_start` would wrap what is raised."""
    import asyncio
    import os

    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "antiphon.processes.sandbox", json.dumps(asdict(limits))),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name in INTERPRETER_VARIABLES}
            | dict(variables),
        )
    except OSError as problem:
        return problem


async def _finish(process: "Process") -> int:
    """Ends the helper process, if it still runs, and returns its exit status."""
    kill(process)
    if process.stdout is not None:
        while await process.stdout.read(READ_BYTES):  # unread output would keep the pipe open
            pass
    return await process.wait()


async def _send_job(process: "Process", job: bytes, limits: Limits) -> bytes:
    """Sends the job and returns the output; empty if the helper process died before. Raises JobStopped if the
    helper process takes too long."""
    import asyncio

    if process.stdin is None or process.stdout is None:
        raise JobStopped(Stop.CRASH, "the helper has no pipes")
    if not process.stdin.is_closing():  # it closes when the helper is dead; the exit status tells why
        process.stdin.write(job)
        process.stdin.close()
    seconds = START_DEADLINE
    try:
        async with asyncio.timeout(seconds):
            await process.stdout.read(1)  # the helper writes it when the function starts
        seconds = limits.patience
        async with asyncio.timeout(seconds):
            return await _read_bounded(process.stdout, limits.output)
    except TimeoutError:
        raise JobStopped(Stop.WAIT, f"it did not end within {seconds:g} s") from None


async def _read_bounded(stream: "StreamReader", max_bytes: int) -> bytes:
    """Reads a stream to its end. Raises JobStopped if it has more than `max_bytes` bytes."""
    output = bytearray()
    while chunk := await stream.read(READ_BYTES):
        output += chunk
        if len(output) > max_bytes:
            raise JobStopped(Stop.OUTPUT, f"its output has more than {max_bytes} bytes")
    return bytes(output)


def _parse_output(output: bytes, exit_status: int) -> object:
    """Returns the job's result. Raises the AntiphonError of the function, or JobStopped."""
    import signal

    if exit_status in (-signal.SIGPROF, -signal.SIGXCPU):
        raise JobStopped(Stop.TIME, "it took too much time")
    try:
        parsed = json.loads(output)
    except ValueError:
        raise _to_job_stopped(exit_status) from None
    if "result" in parsed:
        return parsed["result"]
    if "error" in parsed:
        raise ErrorReport(**parsed["error"]).to_exception()
    raise JobStopped(Stop(parsed["stop"]), parsed["message"])


def _to_job_stopped(exit_status: int) -> JobStopped:
    """Returns the error for a helper process that ended without a complete output."""
    import signal

    if exit_status == -signal.SIGALRM or was_killed(exit_status):
        return JobStopped(Stop.WAIT, f"the helper was ended by {signal.Signals(-exit_status).name}")
    return JobStopped(Stop.CRASH, f"the helper ended with status {exit_status} and no output")


# --- the side of the helper process -------------------------------------------------------------------------


def main() -> None:
    """Runs one job. The first byte of the output marks the start of the function."""
    import os
    import signal

    limits = Limits(**json.loads(sys.argv[1]))
    _confine(limits)
    os.environ.update(ONE_THREAD)
    job = json.loads(sys.stdin.buffer.read())
    module, _, name = job["target"].partition(":")
    function: Callable[[Mapping[str, object]], object] = getattr(import_module(module), name)
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    # These end this process at its limits, even without its parent.
    signal.setitimer(signal.ITIMER_PROF, limits.seconds)
    signal.setitimer(signal.ITIMER_REAL, limits.patience + 1)
    sys.stdout.buffer.write(_run_function(function, job["payload"]))
    sys.stdout.buffer.flush()


def _confine(limits: Limits) -> None:
    """Sets the limits of this process."""
    import math
    import resource

    cpu = math.ceil(limits.seconds) + START_CPU
    for resource_id, limit in (
        (resource.RLIMIT_AS, limits.memory),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_FSIZE, limits.writes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
    ):
        resource.setrlimit(resource_id, (limit, limit))


def _run_function(function: Callable[[Mapping[str, object]], object], payload: Mapping[str, object]) -> bytes:
    """Runs the function, and encodes its result or its AntiphonError. Any other exception ends this
    process."""
    try:
        return json.dumps({"result": function(payload)}).encode()
    except AntiphonError as error:
        return json.dumps({"error": asdict(ErrorReport.from_error(error))}).encode()
    except MemoryError:
        return json.dumps({"stop": Stop.MEMORY, "message": "it exceeded its memory limit"}).encode()


if __name__ == "__main__":
    main()
