"""Whether a constraint can be kept, asked of a process that can be killed; answers are remembered.

The process is started when first needed, checks one constraint at a time, and is replaced when it ends over
one. Nothing here compiles anything, and a constraint without an answer is refused. What the machine or
somebody else did to the process is not said of the constraint: the caller is asked to try again.
"""

import asyncio
import json
import logging
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from msgspec import convert, to_builtins

from antiphon.constraints.grammar import Grammar
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
from antiphon.processes.sandbox import INTERPRETER_VARIABLES, kill, was_ended
from antiphon.telemetry.logs import record

HEADER = 4
"""Bytes of the length before each frame."""

TRIALS = 2
"""Processes that one constraint is given when somebody else ends them."""

EXIT_PATIENCE = 5.0
"""Seconds that a process gets to be gone after it closed its output."""

FIRST_REST, LONGEST_REST = 0.5, 30.0
"""Seconds before a process is started again that did not come up: a package that is just being replaced is
whole soon, one that is broken stays so."""

RETRY_AFTER = 2.0
"""Seconds that callers are told to wait when the machine is too busy."""

ENTRIES = 65_536
"""Answers that are remembered, of the least size."""

MAX_LAST_ERROR = 300
"""Characters of a process' last words that are kept."""


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """Limits of checking one constraint."""

    source: int = 262_144
    """Bytes of what the caller wrote."""
    seconds: float = 2.0
    """Of CPU."""
    patience: float = 15.0
    """Of wall clock, for machines that are busy."""
    start: float = 60.0
    """Of wall clock for the process to start and read the vocabulary."""
    memory: int = 512 * 1024 * 1024
    """Bytes of address space of the process."""
    grammar: int = 8 * 1024 * 1024
    """Bytes of a compiled grammar's text."""
    waiting: int = 64
    """Constraints that may wait for their turn."""
    remembered: int = 8 * 1024 * 1024
    """Bytes of constraints and answers that are kept."""


class CheckerVocabulary(Protocol):
    """A vocabulary: `matching.TokenTable` without its import."""

    @property
    def pieces(self) -> tuple[bytes, ...]: ...
    @property
    def ends(self) -> tuple[int, ...]: ...


CheckResult = Grammar | ErrorReport
"""A grammar, or why there is none."""


class Checker:
    """Checks constraints against one vocabulary. Belongs to one event loop."""

    def __init__(self, words: CheckerVocabulary, limits: CheckLimits = CheckLimits()) -> None:
        self._words = words
        self._limits = limits
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._answers: SegmentedLRU[Constraint, CheckResult] = SegmentedLRU(limits.remembered, ENTRIES)
        self._rest = self._rests_until = 0.0
        """Seconds of the rest after the last start that failed, and when it ends, in the loop's time."""
        self._fault: str | None = None
        """Why that start failed."""

    async def check(self, constraint: Constraint) -> Grammar:
        """The grammar of a constraint that can be kept. Raises the RequestError that refuses it, or
        EngineBusy or EngineUnavailable when it could not be asked."""
        self._require_small(constraint)
        answer = self._answers.get(constraint) or await self._check_in_turn(constraint)
        if isinstance(answer, Grammar):
            return answer
        # The source of calls names the fields of what is in it. Others are remembered for any field.
        param = answer.param if constraint.kind is ConstraintKind.CALLS else constraint.field
        raise ErrorReport(answer.code, answer.message, param).to_exception()

    async def aclose(self) -> None:
        """Ends the process."""
        await self._end()

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._process.pid if self._process else None

    @property
    def held_bytes(self) -> int:
        """Bytes of what is remembered."""
        return self._answers.held_size

    def _require_small(self, constraint: Constraint) -> None:
        size, most = len(constraint.source.encode("utf-8", "surrogatepass")), self._limits.source
        if size > most:
            raise InvalidValue(
                f"{constraint.field} has {size} bytes, more than {most}", param=constraint.field
            )

    # --- asking

    async def _check_in_turn(self, constraint: Constraint) -> CheckResult:
        if self._waiting >= self._limits.waiting:
            raise EngineBusy("too many constraints wait to be checked; try again", retry_after=1.0)
        self._waiting += 1
        try:
            async with self._turn:
                if known := self._answers.get(constraint):
                    return known
                answer = await self._answer(constraint)
                self._answers.put(constraint, answer, _estimate_size(constraint, answer))
                return answer
        finally:
            self._waiting -= 1

    async def _answer(self, constraint: Constraint) -> CheckResult:
        """The process's answer. A process that ends over its limits has answered too. Raises EngineBusy where
        the machine kept it from answering."""
        job = to_builtins(constraint)
        for _ in range(TRIALS):
            process = await self._ensure_process()
            try:
                said = await self._exchange(process, job, self._limits.patience)
            except TimeoutError:  # it is ended long before where it works, so it did not
                await self._end()
                raise self._build_busy_error(f"it had no answer within {self._limits.patience:g} s") from None
            except ValueError:
                await self._end()
                return _build_refusal(constraint)
            except (EOFError, OSError):
                if not was_ended(await self._await_exit(process)):
                    return _build_refusal(constraint)
            except BaseException:
                await self._end()
                raise
            else:
                return _read_result(said)
        raise self._build_busy_error("it was killed from outside")

    async def _ensure_process(self) -> Process:
        """A process that is ready to answer. Raises EngineUnavailable when it does not start; later attempts
        wait longer each time."""
        if self._process is not None and self._process.returncode is None:
            return self._process
        clock = asyncio.get_running_loop().time
        if clock() >= self._rests_until:
            self._fault = await self._start()
            if self._fault is None and self._process is not None:
                self._rest = 0.0
                return self._process
            self._rest = min(max(2 * self._rest, FIRST_REST), LONGEST_REST)
            self._rests_until = clock() + self._rest
            record("checker_not_started", logging.ERROR, problem=self._fault, rests=self._rest)
        raise EngineUnavailable(
            "the process that checks constraints did not start; try again",
            retry_after=max(self._rests_until - clock(), FIRST_REST),
            cause=f"the process that checks constraints did not start: {self._fault}",
        )

    async def _start(self) -> str | None:
        """Starts the process; returns the problem if it did not come up."""
        limits = self._limits
        words = {
            "pieces": [piece.decode("latin-1") for piece in self._words.pieces],
            "ends": self._words.ends,
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
            await self._exchange(process, words, limits.start)
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
        """The last error line of a process that did not come up; it had got nothing from a caller."""
        process = self._process
        if process is None or process.stderr is None:
            return f"{type(problem).__name__}: {problem}"
        status = await self._await_exit(process)
        lines = (await process.stderr.read()).decode(errors="replace").split("\n")
        return f"status {status}: {next(filter(None, reversed(lines)), 'it said nothing')[:MAX_LAST_ERROR]}"

    async def _exchange(self, process: Process, value: object, seconds: float) -> dict[str, object]:
        """One frame there and one back. Raises EOFError, OSError, TimeoutError or ValueError."""
        if process.stdin is None or process.stdout is None:
            raise EOFError
        body = json.dumps(value).encode()
        async with asyncio.timeout(seconds):
            process.stdin.write(len(body).to_bytes(HEADER, "big") + body)
            await process.stdin.drain()
            size = int.from_bytes(await process.stdout.readexactly(HEADER), "big")
            if size > self._limits.grammar:
                raise ValueError("the answer is too large")
            said: dict[str, object] = json.loads(await process.stdout.readexactly(size))
        return said

    async def _await_exit(self, process: Process) -> int | None:
        """The exit status of a process that ends by itself or was ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_PATIENCE):
                await process.wait()
        await self._end()
        return process.returncode

    def _build_busy_error(self, cause: str) -> EngineBusy:
        message = "the machine is too busy to compile constraints; try again"
        return EngineBusy(
            message, retry_after=RETRY_AFTER, cause=f"the process that checks constraints: {cause}"
        )

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        kill(process)
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()


def _read_result(said: Mapping[str, object]) -> CheckResult:
    """Decodes an answer; raises an error for anything but a grammar or a refusal."""
    if (grammar := said.get("grammar")) is not None:
        return convert(grammar, Grammar)
    if isinstance(error := said.get("error"), dict):
        report = ErrorReport(**error)
        if isinstance(report.to_exception(), RequestError):
            return report
        raise report.to_exception()
    raise EngineError("the process that checks constraints said nothing that is known")


def _build_refusal(constraint: Constraint) -> ErrorReport:
    return ErrorReport(
        InvalidValue.code,
        f"{constraint.field} takes too much time or memory to compile; make it simpler",
        constraint.field,
    )


def _estimate_size(constraint: Constraint, answer: CheckResult) -> int:
    """Bytes that remembering takes, about."""
    size = len(repr(answer) if isinstance(answer, Grammar) else answer.message)
    return 4 * (len(constraint.source) + len(constraint.prelude) + size) + 1024
