"""The process that checks: it is killed and replaced, nobody waits for it, and what it says is remembered."""

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from antiphon.constraints.checker import Checker, CheckLimits
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.domain.values import replace
from antiphon.errors import EngineBusy, EngineUnavailable, InvalidValue
from antiphon.telemetry.logs import FIELDS, LOGGER
from tests.support import hostile_constraints as hostile
from tests.support.constraint_texts import TOKENS
from tests.support.hostile_constraints import HOSTILE
from tests.support.waiting import await_until

KIND = ConstraintKind
BOMB = Constraint(KIND.REGEX, hostile.BOMB, field="guided_regex")
SOUND = Constraint(KIND.CHOICE, '["yes", "no"]')
DEFAULT = CheckLimits()
start_process = asyncio.create_subprocess_exec
EACH_FIELD = (
    *("nested repeats", "references that double", "a long text with a pattern"),
    *("Lark of two ways", "GBNF with repeats"),
)
PATIENT = CheckLimits(patience=60.0)
"""Of a machine that gives the process little of its CPU."""


def build_million() -> Constraint:
    """It takes 100 MB and a second, which only the tests that check it should."""
    return Constraint(KIND.JSON_SCHEMA, json.dumps({"enum": [f"value {at}" for at in range(1_000_000)]}))


@asynccontextmanager
async def checking(limits: CheckLimits = DEFAULT) -> AsyncIterator[Checker]:
    checker = Checker(TOKENS, limits)
    try:
        yield checker
    finally:
        await checker.aclose()


@pytest.mark.timeout(480)
@pytest.mark.parametrize(
    ("names", "seconds"),
    [
        pytest.param(tuple(HOSTILE), DEFAULT.seconds, id="all", marks=pytest.mark.soak),
        pytest.param(EACH_FIELD, 0.5, id="each field"),
    ],
)
async def test_hostile_grammars_end_within_their_limits(names: tuple[str, ...], seconds: float):
    """The soak checks all, with the seconds of a server."""
    pauses: list[float] = []
    work: list[float] = []
    """CPU seconds of this thread in each pause. A machine may stall it, which is nobody's work."""

    async def beat() -> None:
        loop = asyncio.get_running_loop()
        while True:
            before, worked = loop.time(), time.thread_time()
            await asyncio.sleep(0.005)
            pauses.append(loop.time() - before)
            work.append(time.thread_time() - worked)

    async with checking(replace(PATIENT, seconds=seconds)) as checker, asyncio.TaskGroup() as group:
        await checker.check(SOUND)
        beating = group.create_task(beat())
        for constraint in [*map(HOSTILE.__getitem__, names), build_million()]:
            with suppress(InvalidValue):
                await checker.check(constraint)
        assert (await checker.check(SOUND)).text
        beating.cancel()
    assert sorted(pauses)[len(pauses) // 2] < 0.1 and max(work) < 1.0


async def test_a_grammar_over_its_limit_ends_the_process_alone():
    async with checking(replace(PATIENT, seconds=0.3)) as checker:
        await checker.check(SOUND)
        first = checker.pid
        with pytest.raises(InvalidValue, match="guided_regex takes too much time"):
            await checker.check(BOMB)
        assert checker.pid is None
        again = Constraint(BOMB.kind, BOMB.source, field="another")
        with pytest.raises(InvalidValue) as refusal:
            await checker.check(again)
        assert refusal.value.param == "another" and checker.pid is None, "the refusal was not remembered"
        await checker.check(Constraint(KIND.REGEX, "ab"))
        assert checker.pid not in (None, first)


async def test_a_stalled_process_is_not_the_constraints_fault():
    """Working, it would have been ended by its cap of CPU."""
    async with checking() as checker:
        await checker.check(SOUND)
        os.kill(pid_of(checker), signal.SIGSTOP)
        checker._limits = CheckLimits(patience=0.5)
        constraint = Constraint(KIND.REGEX, "a")
        with pytest.raises(EngineBusy, match="too busy") as refusal:
            await checker.check(constraint)
        assert refusal.value.retry_after and "0.5 s" in (refusal.value.cause or "")
        checker._limits = DEFAULT
        assert "/a/" in (await checker.check(constraint)).text, "the refusal was remembered"


async def test_a_process_that_is_killed_or_ended_before_is_replaced_and_asked_again():
    async with checking() as checker:
        await checker.check(SOUND)
        for number, letter in ((signal.SIGKILL, "c"), (signal.SIGTERM, "e")):
            before = pid_of(checker)
            os.kill(before, signal.SIGSTOP)
            async with asyncio.TaskGroup() as group:
                asked = group.create_task(checker.check(Constraint(KIND.REGEX, letter)))
                await asyncio.sleep(0)
                os.kill(before, number)
                os.kill(before, signal.SIGCONT)
            assert f"/{letter}/" in asked.result().text and pid_of(checker) != before
        before, process = pid_of(checker), checker._process
        assert process is not None and process.stdin is not None
        process.stdin.close()
        assert "/d/" in (await checker.check(Constraint(KIND.REGEX, "d"))).text
        assert pid_of(checker) != before


async def start_and_see_end(*command: Any, **options: Any) -> asyncio.subprocess.Process:
    """Starts a process, and returns when it has ended and its input is closed."""
    process = await start_process(*command, **options)
    stdin = process.stdin
    assert stdin is not None
    await await_until(stdin.is_closing, what="the input of the process is closed")
    return process


@pytest.mark.parametrize("start", [start_process, start_and_see_end])
async def test_a_process_that_does_not_start_is_tried_again_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, start: Any
):
    """As where the package is being replaced just then: half of it is of another release."""
    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    package = tmp_path / "antiphon"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('no such name in it')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("antiphon.constraints.checker.FIRST_PAUSE", 30.0)
    caplog.set_level(logging.ERROR, LOGGER.name)
    async with checking() as checker:
        with pytest.raises(EngineUnavailable) as refusal:
            await checker.check(SOUND)
        assert "no such name in it" in (refusal.value.cause or "")
        assert "no such name" not in refusal.value.message and refusal.value.retry_after
        with pytest.raises(EngineUnavailable):
            await checker.check(SOUND)
        (logged,) = [getattr(each, FIELDS) for each in caplog.records]
        assert "no such name in it" in logged["problem"], "and it rests before it is started again"
        monkeypatch.undo()
        checker._paused_until = 0.0
        assert await patiently(checker, SOUND)


async def test_a_process_that_starts_too_slowly_is_said_to():
    async with checking(CheckLimits(start=0.01)) as slow:
        with pytest.raises(EngineUnavailable) as refusal:
            await slow.check(SOUND)
        assert "0.01 s" in (refusal.value.cause or "") and slow.pid is None


def pid_of(checker: Checker) -> int:
    assert checker.pid
    return checker.pid


async def patiently(checker: Checker, constraint: Constraint) -> str:
    """The grammar, when the process is there."""
    async with asyncio.timeout(60):
        while True:
            try:
                return (await checker.check(constraint)).text
            except EngineUnavailable as absent:
                await asyncio.sleep(absent.retry_after or 0)


async def test_what_is_remembered_stays_within_its_bytes():
    async with checking(CheckLimits(remembered=64 * 1024)) as checker:
        for at in range(100):
            await checker.check(Constraint(KIND.REGEX, f"a{{{at + 1}}}"))
        assert 0 < checker.held_bytes <= 64 * 1024
        process = checker.pid
        await checker.check(Constraint(KIND.REGEX, "a{100}"))
        assert checker.pid == process


async def test_large_sources_and_too_many_waiting_are_refused():
    async with checking(CheckLimits(waiting=0)) as checker:
        with pytest.raises(InvalidValue, match="bytes"):
            await checker.check(Constraint(KIND.REGEX, "a" * 300_000))
        with pytest.raises(EngineBusy):
            await checker.check(SOUND)
        assert checker.pid is None


async def test_a_caller_that_leaves_takes_its_grammar_along():
    async with checking() as checker:
        await checker.check(SOUND)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await checker.check(BOMB)
        assert (await checker.check(Constraint(KIND.REGEX, "x"))).text
