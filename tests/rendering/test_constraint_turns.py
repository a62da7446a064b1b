"""An engine checks constraints as they come, so no caller has more than two there."""

import asyncio

import pytest

from antiphon.domain.context import Context
from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.errors import InvalidValue, Overloaded
from antiphon.rendering.renderer import CHECK_LIMITS, Renderer
from antiphon_testing import ScriptedTokenEngine
from tests.rendering.scripted_renderer import answer, asking
from tests.support.chat_templates import prove_here
from tests.support.waiting import settle


class Slow(ScriptedTokenEngine):
    """Checks when it is let, and refuses; `begun` holds what it was given."""

    def __init__(self):
        super().__init__()
        self.begun = []
        self.let = asyncio.Semaphore(0)

    async def check(self, constraint):
        self.begun.append(constraint.source[:3])
        await self.let.acquire()
        raise InvalidValue("too complex", param=constraint.field)


async def refused(renderer, name, number=0):
    constraint = Constraint(ConstraintKind.REGEX, f"{name}{number}")
    actor = Actor(ActorKind.SERVICE_KEY, name)
    with pytest.raises(InvalidValue):
        await answer(renderer, asking(constraint=constraint), Context("r", actor))


async def test_one_callers_constraints_keep_nobody_elses_waiting():
    engine = Slow()
    renderer = Renderer(engine, prove=prove_here)
    await renderer.profile()
    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(refused(renderer, "ada", number))
        await settle()
        group.create_task(refused(renderer, "bob"))
        await settle()
        assert engine.begun == ["ada"] * CHECK_LIMITS.at_once_per_actor + ["bob"]
        for _ in range(7):
            engine.let.release()
            await settle()
    assert engine.begun.count("ada") == 6


async def test_so_many_of_one_caller_may_wait():
    engine = Slow()
    renderer = Renderer(engine, prove=prove_here)
    await renderer.profile()
    most = CHECK_LIMITS.at_once_per_actor + CHECK_LIMITS.queue_per_actor
    async with asyncio.TaskGroup() as group:
        jobs = [group.create_task(refused(renderer, "ada", number)) for number in range(most)]
        await settle()
        with pytest.raises(Overloaded, match="64 constraints of yours may wait") as told:
            await refused(renderer, "ada", "one more")
        assert told.value.retry_after
        for job in jobs[1:]:
            job.cancel()
        engine.let.release()
    engine.let.release()
    await refused(renderer, "ada")
    assert len(engine.begun) == CHECK_LIMITS.at_once_per_actor + 1
