"""Runs a function of this package on untrusted data, in a process that has hard limits and can be killed.

A template, regular expression or schema can run forever or use all memory, and native code cannot be
interrupted from inside. `run_job` is the caller's side. `python -m antiphon.processes.sandbox` is the helper:
it reads one job as JSON from standard input and writes its answer as JSON to standard output. Only functions
of this package can be jobs. This protects against hostile data, not against hostile native code.
"""

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from antiphon.errors import AntiphonError, ErrorReport, ServerBusy

if TYPE_CHECKING:
    from asyncio import StreamReader
    from asyncio.subprocess import Process

PACKAGE = "antiphon."
"""The package of job functions."""

INTERPRETER_VARIABLES = frozenset(
    "PATH HOME LANG LC_ALL LC_CTYPE TMPDIR LD_LIBRARY_PATH VIRTUAL_ENV "
    "PYTHONPATH PYTHONHOME PYTHONUTF8 PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX".split()
)
"""The variables that Python needs to start. None is a credential."""

NOTHING: Mapping[str, str] = MappingProxyType({})

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""A helper cannot start threads; numpy would start some on import."""

START_DEADLINE = 20.0
"""Seconds for the start of the interpreter. It runs only our own code, so it is slow only on a busy
machine."""

START_CPU = 2
"""CPU seconds for the start, in addition to the job's."""

OPEN_FILES = 64
"""The most open files: enough to import the job's modules."""

CHUNK = 65536

RETRY_AFTER = 5.0
"""The retry delay for callers in seconds, if the machine is too busy."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one job."""

    seconds: float = 2.0
    """CPU seconds after the start of the function. A busy machine needs more time for a job, but no more
    CPU."""
    patience: float = 20.0
    """Seconds of wall clock after the start of the function. They end a job that waits instead of
    computing."""
    memory: int = 256 * 1024 * 1024
    """Bytes of address space, including the interpreter's."""
    answer: int = 4 * 1024 * 1024
    """The most bytes of the result's JSON."""
    writes: int = 0
    """The most bytes of one file that the job writes."""


class Stop(StrEnum):
    """Why a job was stopped."""

    TIME = "time"
    """It exceeded its CPU seconds."""
    WAIT = "wait"
    """It waited too long, for example for the machine, or another process ended it."""
    MEMORY = "memory"
    ANSWER = "answer"
    """Its answer was larger than its limit."""
    CRASH = "crash"
    """The process died, for example because the function raised an exception."""


class JobStopped(Exception):
    """The job exceeded a limit or failed. The caller knows the origin of the data, and converts this to a
    suitable error."""

    def __init__(self, stop: Stop, message: str) -> None:
        super().__init__(message)
        self.stop = stop

    def raise_if_waited(self) -> None:
        """Raises ServerBusy if a busy machine delayed the job. Only for jobs that wait for nothing else, so
        that their data are not the reason."""
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
    """Runs the function `module:name` with the payload and returns its result, both of JSON's types.
    `variables`: further environment variables for the job.

    Raises the AntiphonError that the function raised, or JobStopped. The process ends before this call
    returns, also if the call is cancelled.
    """
    try:
        process = await _start(limits, variables)
    except OSError as problem:
        raise JobStopped(Stop.WAIT, f"the helper cannot be started: {problem.strerror}") from None
    try:
        answer = await _converse(process, json.dumps({"target": target, "payload": payload}).encode(), limits)
    finally:
        code = await _finish(process)
    return _parse_answer(answer, code)


def was_killed(code: int | None) -> bool:
    """Whether another process or the kernel ended the process: by an operator's signal, or when memory is
    short. The data cannot cause this."""
    import signal

    return code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)


def kill(process: "Process", number: int = 9) -> None:
    """Sends a signal to a process that can have ended. It replaces `Process.kill`, which can read the exit
    status before asyncio does."""
    import os

    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


async def _start(limits: Limits, variables: Mapping[str, str]) -> "Process":
    """Starts the helper's process with the given variables and no credentials."""
    import asyncio
    import os

    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "antiphon.processes.sandbox", json.dumps(asdict(limits))),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name in INTERPRETER_VARIABLES}
        | dict(variables),
    )


async def _finish(process: "Process") -> int:
    """Ends the helper, if it still runs, and returns its exit status."""
    kill(process)
    if process.stdout is not None:
        while await process.stdout.read(CHUNK):  # unread output would keep the pipe open
            pass
    return await process.wait()


async def _converse(process: "Process", job: bytes, limits: Limits) -> bytes:
    """Sends the job and returns the answer; empty if the helper died first. Raises JobStopped if the helper
    takes too long."""
    import asyncio

    if process.stdin is None or process.stdout is None:
        raise JobStopped(Stop.CRASH, "the helper has no pipes")
    if not process.stdin.is_closing():  # otherwise the helper is dead, and its exit status has the reason
        process.stdin.write(job)
        process.stdin.close()
    seconds = START_DEADLINE
    try:
        async with asyncio.timeout(seconds):
            await process.stdout.read(1)
        seconds = limits.patience
        async with asyncio.timeout(seconds):
            return await _read_bounded(process.stdout, limits.answer)
    except TimeoutError:
        raise JobStopped(Stop.WAIT, f"it did not end within {seconds:g} s") from None


async def _read_bounded(stream: "StreamReader", most: int) -> bytes:
    """Reads a stream to its end. Raises JobStopped if it has more than `most` bytes."""
    answer = bytearray()
    while chunk := await stream.read(CHUNK):
        answer += chunk
        if len(answer) > most:
            raise JobStopped(Stop.ANSWER, f"its answer has more than {most} bytes")
    return bytes(answer)


def _parse_answer(answer: bytes, code: int) -> object:
    """Returns the job's result. Raises the AntiphonError of the function, or JobStopped."""
    import signal

    if code in (-signal.SIGPROF, -signal.SIGXCPU):
        raise JobStopped(Stop.TIME, "it took too much time")
    try:
        parsed = json.loads(answer)
    except ValueError:
        raise _to_job_stopped(code) from None
    if "result" in parsed:
        return parsed["result"]
    if "error" in parsed:
        raise ErrorReport(**parsed["error"]).to_exception()
    raise JobStopped(Stop(parsed["stop"]), parsed["message"])


def _to_job_stopped(code: int) -> JobStopped:
    """Returns the error for a helper that ended without a complete answer. `code`: its exit status."""
    import signal

    if code == -signal.SIGALRM or was_killed(code):
        return JobStopped(Stop.WAIT, f"the helper was ended by {signal.Signals(-code).name}")
    return JobStopped(Stop.CRASH, f"the helper ended with status {code} and no answer")


# --- the helper's side --------------------------------------------------------------------------------------


def main() -> None:
    """Runs one job. The first byte of the output marks the start of the function."""
    import os

    limits = Limits(**json.loads(sys.argv[1]))
    _confine(limits)
    os.environ.update(ONE_THREAD)
    job = json.loads(sys.stdin.buffer.read())
    function = _load_function(job["target"])
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    _set_timers(limits)
    sys.stdout.buffer.write(_run_function(function, job["payload"]))
    sys.stdout.buffer.flush()


def _confine(limits: Limits) -> None:
    """Sets the limits of this process."""
    import math
    import resource

    cpu = math.ceil(limits.seconds) + START_CPU
    for kind, most in (
        (resource.RLIMIT_AS, limits.memory),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_FSIZE, limits.writes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
    ):
        resource.setrlimit(kind, (most, most))


def _set_timers(limits: Limits) -> None:
    """Sets timers that end this process at its limits, even without its parent."""
    import signal

    signal.setitimer(signal.ITIMER_PROF, limits.seconds)
    signal.setitimer(signal.ITIMER_REAL, limits.patience + 1)


def _load_function(target: str) -> Callable[[Mapping[str, object]], object]:
    """Imports the function `module:name`. Raises ValueError for a function outside this package."""
    module, _, name = target.partition(":")
    if not module.startswith(PACKAGE):
        raise ValueError(f"{target} is not a function of this package")
    function: Callable[[Mapping[str, object]], object] = getattr(import_module(module), name)
    return function


def _run_function(function: Callable[[Mapping[str, object]], object], payload: Mapping[str, object]) -> bytes:
    """Runs the function, and encodes its result or its AntiphonError. Any other exception ends the helper."""
    try:
        return json.dumps({"result": function(payload)}).encode()
    except AntiphonError as error:
        return json.dumps({"error": asdict(ErrorReport.from_error(error))}).encode()
    except MemoryError:
        return json.dumps({"stop": Stop.MEMORY, "message": "it exceeded its memory limit"}).encode()


if __name__ == "__main__":
    main()
