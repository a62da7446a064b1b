"""Checks constraints in a separate process, and caches the results.

The process starts with the first constraint and checks one constraint at a time. A constraint that ends the
process is refused, and the next constraint starts a new process. If the machine or another program ended the
process, the constraint is not refused: the caller should try again.
"""

import asyncio
import json
import logging
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from msgspec import Struct, convert, to_builtins

from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.segmented_lru import SegmentedLRU
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.errors import (
    EngineBusy,
    EngineError,
    EngineUnavailable,
    ErrorReport,
    InvalidValue,
    RequestError,
)
from antiphon.processes.sandbox import INTERPRETER_VARIABLES, kill, was_killed
from antiphon.telemetry.logs import record

HEADER_BYTES = 4
"""The bytes of the length before each frame."""

TRIALS = 2
"""How many processes are tried for one constraint if something other than the constraint ends them."""

EXIT_PATIENCE = 5.0
"""Seconds that a process has to end after it closed its output."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before the process is started again after it failed to start. The first pause is short, because an
update of a package ends soon. Later pauses are longer, because a broken package stays broken."""

RETRY_AFTER = 2.0
"""Retry delay in seconds for callers when the machine is too busy."""

MAX_RESULTS = 65_536
"""The most cached results."""

MAX_LAST_ERROR = 300
"""The most characters of a process's last error line."""


class CheckLimits(Struct, frozen=True):
    """Limits of checking one constraint."""

    source: int = 262_144
    """The most bytes of the caller's source."""
    seconds: float = 2.0
    """Seconds of CPU for one constraint."""
    patience: float = 15.0
    """Seconds of wall clock for one constraint, for busy machines."""
    start: float = 60.0
    """Seconds of wall clock for the process to start and read the vocabulary."""
    memory: int = 512 * 1024 * 1024
    """The most bytes of the process's address space."""
    grammar: int = 8 * 1024 * 1024
    """The most bytes of a compiled grammar's text."""
    waiting: int = 64
    """The most constraints that can wait to be checked."""
    remembered: int = 8 * 1024 * 1024
    """The most bytes of cached constraints and results."""


class _NothingSent(EOFError):
    """The process had ended before the value was sent."""


class CheckerVocabulary(Protocol):
    """The attributes of `matching.TokenTable` that the checker needs. This module must not import the
    compiler."""

    @property
    def pieces(self) -> tuple[bytes, ...]: ...
    @property
    def ends(self) -> tuple[int, ...]: ...


CheckResult = Grammar | ErrorReport
"""A grammar, or the reason why there is none."""


class Checker:
    """Checks constraints against one vocabulary. Belongs to one event loop."""

    def __init__(self, vocabulary: CheckerVocabulary, limits: CheckLimits = CheckLimits()) -> None:
        self._vocabulary = vocabulary
        self._limits = limits
        self._process: Process | None = None
        self._check_lock = asyncio.Lock()
        self._waiting = 0
        self._results: SegmentedLRU[Constraint, CheckResult] = SegmentedLRU(limits.remembered, MAX_RESULTS)
        self._pause = 0.0
        """Seconds of the pause after the last failed start."""
        self._paused_until = 0.0
        """The loop time when the pause ends."""
        self._start_problem: str | None = None
        """Why the last start failed."""

    async def check(self, constraint: Constraint) -> Grammar:
        """Returns the grammar of a constraint that the engine can follow. Raises a RequestError that refuses
        the constraint, or EngineBusy or EngineUnavailable if the constraint could not be checked."""
        self._require_small(constraint)
        result = self._results.get(constraint) or await self._check_in_turn(constraint)
        if isinstance(result, Grammar):
            return result
        # A constraint of the kind `calls` has a field for each part, and a refusal names one of these fields.
        # Other results are cached for any field, so the error gets the field of this constraint.
        param = result.param if constraint.kind is ConstraintKind.CALLS else constraint.field
        raise ErrorReport(result.code, result.message, param).to_exception()

    async def aclose(self) -> None:
        """Ends the process."""
        await self._end()

    @property
    def pid(self) -> int | None:
        """The id of the process, while there is one."""
        return self._process.pid if self._process else None

    @property
    def held_bytes(self) -> int:
        """The size of cached constraints and results in bytes."""
        return self._results.held_size

    def _require_small(self, constraint: Constraint) -> None:
        """Raises InvalidValue if the source of a constraint has too many bytes."""
        size, max_size = len(constraint.source.encode("utf-8", "surrogatepass")), self._limits.source
        if size > max_size:
            raise InvalidValue(
                f"{constraint.field} has {size} bytes, more than {max_size}; make it shorter",
                param=constraint.field,
            )

    # --- the process

    async def _check_in_turn(self, constraint: Constraint) -> CheckResult:
        """Waits until no other constraint is being checked, then checks this constraint and caches the
        result. Raises EngineBusy if too many constraints wait."""
        if self._waiting >= self._limits.waiting:
            raise EngineBusy("too many constraints wait to be checked; try again", retry_after=1.0)
        self._waiting += 1
        try:
            async with self._check_lock:
                if earlier_result := self._results.get(constraint):
                    return earlier_result
                result = await self._ask_process(constraint)
                self._results.put(constraint, result, _estimate_size(constraint, result))
                return result
        finally:
            self._waiting -= 1

    async def _ask_process(self, constraint: Constraint) -> CheckResult:
        """Returns the result of the process. If the constraint makes the process exceed its limits, returns a
        refusal. Raises EngineBusy if the machine is too busy for a result."""
        job = to_builtins(constraint)
        for _ in range(TRIALS):
            process = await self._ensure_process()
            try:
                reply = await self._exchange(process, job, self._limits.patience)
            except TimeoutError:  # a process that computes reaches its CPU limit much earlier
                await self._end()
                raise self._build_busy_error(f"it had no result within {self._limits.patience:g} s") from None
            except ValueError:
                await self._end()
                return _build_refusal(constraint)
            except _NothingSent:
                await self._end()
            except (EOFError, OSError):
                if not was_killed(await self._await_exit(process)):
                    return _build_refusal(constraint)
            except BaseException:
                await self._end()
                raise
            else:
                return _read_result(reply)
        raise self._build_busy_error("it was killed from outside")

    async def _ensure_process(self) -> Process:
        """Returns a process that is ready. Raises EngineUnavailable if it does not start, or during the pause
        after a failed start."""
        if self._process is not None and self._process.returncode is None:
            return self._process
        clock = asyncio.get_running_loop().time
        if clock() >= self._paused_until:
            self._start_problem = await self._start()
            if self._start_problem is None and self._process is not None:
                self._pause = 0.0
                return self._process
            self._pause = min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE)
            self._paused_until = clock() + self._pause
            record("checker_not_started", logging.ERROR, problem=self._start_problem, rests=self._pause)
        raise EngineUnavailable(
            "the process that checks constraints did not start; try again",
            retry_after=max(self._paused_until - clock(), FIRST_PAUSE),
            cause=f"the process that checks constraints did not start: {self._start_problem}",
        )

    async def _start(self) -> str | None:
        """Starts the process. Returns why it does not start; None after a success."""
        limits = self._limits
        vocabulary = {
            "pieces": [piece.decode("latin-1") for piece in self._vocabulary.pieces],
            "ends": self._vocabulary.ends,
        }
        await self._end()
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "antiphon.constraints.checking_process"),
                *(str(limits.seconds), str(limits.memory)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if name in INTERPRETER_VARIABLES},
            )
            await self._exchange(process, vocabulary, limits.start)
        except TimeoutError:
            await self._end()
            return f"it was not ready within {limits.start:g} s"
        except (EOFError, OSError, ValueError) as problem:
            return await self._read_last_error(problem)
        except BaseException:
            await self._end()
            raise
        return None

    async def _read_last_error(self, problem: Exception) -> str:
        """Returns the last error line of a process that failed to start. It contains no text of callers,
        because the process had received none."""
        process = self._process
        if process is None or process.stderr is None:
            return f"{type(problem).__name__}: {problem}"
        status = await self._await_exit(process)
        lines = (await process.stderr.read()).decode(errors="replace").split("\n")
        last_line = next((line for line in reversed(lines) if line), "it wrote nothing")
        return f"status {status}: {last_line[:MAX_LAST_ERROR]}"

    async def _exchange(self, process: Process, value: object, seconds: float) -> dict[str, object]:
        """Sends a value as one frame, and returns the reply. Raises EOFError, OSError, TimeoutError,
        ValueError, or _NothingSent if the process has ended."""
        if process.stdin is None or process.stdout is None or process.stdin.is_closing():
            raise _NothingSent
        body = json.dumps(value).encode()
        async with asyncio.timeout(seconds):
            process.stdin.write(len(body).to_bytes(HEADER_BYTES, "big") + body)
            await process.stdin.drain()
            size = int.from_bytes(await process.stdout.readexactly(HEADER_BYTES), "big")
            if size > self._limits.grammar:
                raise ValueError("the reply is too large")
            reply: dict[str, object] = json.loads(await process.stdout.readexactly(size))
        return reply

    async def _await_exit(self, process: Process) -> int | None:
        """Waits for the process to end, and kills it if it takes too long. Returns its exit status."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_PATIENCE):
                await process.wait()
        await self._end()
        return process.returncode

    def _build_busy_error(self, cause: str) -> EngineBusy:
        """Returns the error for a machine that is too busy to check a constraint."""
        message = "the machine is too busy to compile constraints; try again"
        return EngineBusy(
            message, retry_after=RETRY_AFTER, cause=f"the process that checks constraints: {cause}"
        )

    async def _end(self) -> None:
        """Kills the checking process, if there is one, and waits until it has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        kill(process)
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()


def _read_result(reply: Mapping[str, object]) -> CheckResult:
    """Returns the result in a reply. Raises the error in the reply, unless the error refuses the
    constraint."""
    if (grammar := reply.get("grammar")) is not None:
        return convert(grammar, Grammar)
    if isinstance(error := reply.get("error"), dict):
        report = ErrorReport(**error)
        if isinstance(report.to_exception(), RequestError):
            return report
        raise report.to_exception()
    raise EngineError("the process that checks constraints sent an unknown reply")


def _build_refusal(constraint: Constraint) -> ErrorReport:
    """Returns the refusal of a constraint that exceeds the limits of the checking process."""
    return ErrorReport(
        InvalidValue.code,
        f"{constraint.field} takes too much time or memory to compile; make it simpler",
        constraint.field,
    )


def _estimate_size(constraint: Constraint, result: CheckResult) -> int:
    """Returns the approximate bytes of a cached constraint and its result."""
    size = len(repr(result) if isinstance(result, Grammar) else result.message)
    return 4 * (len(constraint.source) + len(constraint.prelude) + size) + 1024
