"""Whether a constraint can be kept, asked of a process that can be killed; answers are remembered.

The process is started when first needed, checks one constraint at a time, and is replaced when it ends over
one. Nothing here compiles anything, and a constraint without an answer is refused.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import Process
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from antiphon.domain.constraint import Constraint
from antiphon.error_reports import ErrorReport
from antiphon.errors import EngineBusy, EngineError, InvalidValue, RequestError
from antiphon.sandbox import INTERPRETER_VARIABLES, kill

HEADER = 4
"""Bytes of the length before each frame."""


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """What one constraint may take."""

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


class Words(Protocol):
    """A vocabulary: `matching.Tokens` without its import."""

    @property
    def pieces(self) -> tuple[bytes, ...]: ...
    @property
    def ends(self) -> tuple[int, ...]: ...


Answer = str | ErrorReport
"""A grammar, or why there is none."""


class Checker:
    """Checks constraints against one vocabulary. Belongs to one event loop."""

    def __init__(self, words: Words, limits: CheckLimits = CheckLimits()) -> None:
        self._words = words
        self._limits = limits
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._answers: OrderedDict[Constraint, Answer] = OrderedDict()
        self._held = 0
        """Bytes of what is remembered."""

    async def grammar(self, constraint: Constraint) -> str:
        """The compiler's text of a constraint that can be kept. Raises the RequestError that refuses it, or
        EngineBusy or EngineError when it could not be asked."""
        self._require_small(constraint)
        answer = self._recalled(constraint) or await self._asked(constraint)
        if isinstance(answer, str):
            return answer
        within = (answer.param or "").startswith(f"{constraint.field}[")  # one of several schemas
        raise ErrorReport(
            answer.code, answer.message, answer.param if within else constraint.field
        ).exception()

    async def aclose(self) -> None:
        """Ends the process."""
        await self._end()

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._process.pid if self._process else None

    @property
    def held(self) -> int:
        """Bytes of what is remembered."""
        return self._held

    def _require_small(self, constraint: Constraint) -> None:
        size, most = len(constraint.source.encode("utf-8", "surrogatepass")), self._limits.source
        if size > most:
            raise InvalidValue(
                f"{constraint.field} has {size} bytes, more than {most}", param=constraint.field
            )

    # --- memory

    def _recalled(self, constraint: Constraint) -> Answer | None:
        if constraint in self._answers:
            self._answers.move_to_end(constraint)
        return self._answers.get(constraint)

    def _remember(self, constraint: Constraint, answer: Answer) -> None:
        self._held += _size(constraint, answer)
        self._answers[constraint] = answer
        while self._held > self._limits.remembered:
            self._held -= _size(*self._answers.popitem(last=False))

    # --- asking

    async def _asked(self, constraint: Constraint) -> Answer:
        if self._waiting >= self._limits.waiting:
            raise EngineBusy("too many constraints wait to be checked; try again", retry_after=1.0)
        self._waiting += 1
        try:
            async with self._turn:
                if known := self._recalled(constraint):
                    return known
                answer = await self._answer(constraint)
                self._remember(constraint, answer)
                return answer
        finally:
            self._waiting -= 1

    async def _answer(self, constraint: Constraint) -> Answer:
        """What the process says; a process that ends over it has answered too."""
        process = await self._started()
        job = {
            "kind": constraint.kind,
            "source": constraint.source,
            "whitespace": constraint.whitespace,
            "prelude": constraint.prelude,
            "field": constraint.field,
        }
        try:
            said = await self._exchange(process, job, self._limits.patience)
        except (EOFError, OSError, TimeoutError, ValueError):
            await self._end()
            return ErrorReport(
                InvalidValue.code,
                f"{constraint.field} takes too much time or memory to compile; make it simpler",
                constraint.field,
            )
        except BaseException:
            await self._end()
            raise
        return _read(said)

    async def _started(self) -> Process:
        """The process that answers, ready. Raises EngineError when it does not start."""
        if self._process is not None and self._process.returncode is None:
            return self._process
        limits = self._limits
        process = self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "antiphon.constraints.checking"),
            *(str(limits.seconds), str(limits.memory)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name in INTERPRETER_VARIABLES},
        )
        words = {
            "pieces": [piece.decode("latin-1") for piece in self._words.pieces],
            "ends": self._words.ends,
        }
        try:
            await self._exchange(process, words, limits.start)
        except (EOFError, OSError, TimeoutError, ValueError):
            await self._end()
            raise EngineError(
                "the process that checks constraints did not start; leave the constraint out"
            ) from None
        except BaseException:
            await self._end()
            raise
        return process

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

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        kill(process)
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()


def _read(said: Mapping[str, object]) -> Answer:
    """An answer as the process wrote it; whatever is neither a grammar nor a refusal is an error."""
    if isinstance(grammar := said.get("grammar"), str) and grammar:
        return grammar
    if isinstance(error := said.get("error"), dict):
        report = ErrorReport(**error)
        if isinstance(report.exception(), RequestError):
            return report
        raise report.exception()
    raise EngineError("the process that checks constraints said nothing that is known")


def _size(constraint: Constraint, answer: Answer) -> int:
    """Bytes that remembering takes, about."""
    said = answer if isinstance(answer, str) else answer.message
    return 4 * (len(constraint.source) + len(constraint.prelude) + len(said)) + 1024
