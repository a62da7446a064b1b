"""The process that checks: it is killed and replaced, nobody waits for it, and what it says is remembered."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from antiphon.constraints.checker import Checker, CheckLimits
from antiphon.domain.constraint import Constraint, ConstraintKind
from antiphon.errors import EngineBusy, EngineError, InvalidValue
from tests.constraints import hostile
from tests.constraints.hostile import HOSTILE
from tests.constraints.support import TOKENS

KIND = ConstraintKind
BOMB = Constraint(KIND.REGEX, hostile.BOMB, field="guided_regex")
SOUND = Constraint(KIND.CHOICE, '["yes", "no"]')
MILLION = Constraint(KIND.JSON_SCHEMA, json.dumps({"enum": [f"value {at}" for at in range(1_000_000)]}))
DEFAULT = CheckLimits()


@asynccontextmanager
async def checking(limits: CheckLimits = DEFAULT) -> AsyncIterator[Checker]:
    checker = Checker(TOKENS, limits)
    try:
        yield checker
    finally:
        await checker.aclose()


@pytest.mark.timeout(180)
async def test_hostile_grammars_end_within_the_caps_and_the_event_loop_goes_on():
    pauses: list[float] = []

    async def beat() -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.005)
            pauses.append(loop.time() - before)

    async with checking() as checker, asyncio.TaskGroup() as group:
        await checker.grammar(SOUND)
        beating = group.create_task(beat())
        for constraint in [*HOSTILE.values(), MILLION]:
            with suppress(InvalidValue):
                await checker.grammar(constraint)
        assert await checker.grammar(SOUND)
        beating.cancel()
    assert sorted(pauses)[len(pauses) // 2] < 0.1 and max(pauses) < 1.0


async def test_a_grammar_that_passes_the_cap_ends_the_process_which_is_replaced():
    async with checking(CheckLimits(seconds=0.3)) as checker:
        await checker.grammar(SOUND)
        first = checker.pid
        with pytest.raises(InvalidValue, match="guided_regex takes too much time"):
            await checker.grammar(BOMB)
        assert checker.pid is None
        again = Constraint(BOMB.kind, BOMB.source, field="another")
        with pytest.raises(InvalidValue) as refusal:
            await checker.grammar(again)
        assert refusal.value.param == "another" and checker.pid is None, "the refusal was not remembered"
        await checker.grammar(Constraint(KIND.REGEX, "ab"))
        assert checker.pid not in (None, first)


async def test_a_process_that_dies_or_stands_still_refuses_and_never_passes():
    async with checking(CheckLimits(patience=0.5)) as checker:
        await checker.grammar(SOUND)
        assert checker.pid
        os.kill(checker.pid, signal.SIGSTOP)
        with pytest.raises(InvalidValue):
            await checker.grammar(Constraint(KIND.REGEX, "a"))
        await checker.grammar(Constraint(KIND.REGEX, "b"))
        assert checker.pid
        os.kill(checker.pid, signal.SIGKILL)
        with suppress(InvalidValue):  # unless its end was seen first, and another asked
            assert "/c/" in await checker.grammar(Constraint(KIND.REGEX, "c"))
    with pytest.raises(EngineError):
        async with checking(CheckLimits(start=0.01)) as slow:
            await slow.grammar(SOUND)


async def test_what_is_remembered_stays_within_its_bytes():
    async with checking(CheckLimits(remembered=64 * 1024)) as checker:
        for at in range(100):
            await checker.grammar(Constraint(KIND.REGEX, f"a{{{at + 1}}}"))
        assert 0 < checker.held <= 64 * 1024
        process = checker.pid
        await checker.grammar(Constraint(KIND.REGEX, "a{100}"))
        assert checker.pid == process


async def test_too_large_a_source_is_refused_unread_and_too_many_waiting_are_told_so():
    async with checking(CheckLimits(waiting=0)) as checker:
        with pytest.raises(InvalidValue, match="bytes"):
            await checker.grammar(Constraint(KIND.REGEX, "a" * 300_000))
        with pytest.raises(EngineBusy):
            await checker.grammar(SOUND)
        assert checker.pid is None


async def test_a_caller_that_leaves_takes_its_grammar_along():
    async with checking() as checker:
        await checker.grammar(SOUND)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await checker.grammar(BOMB)
        assert await checker.grammar(Constraint(KIND.REGEX, "x"))
