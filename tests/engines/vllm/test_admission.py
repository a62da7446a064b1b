"""Places of vLLM's sequences: callers take turns, siblings wait for their prompt, leaving frees."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

import pytest

from antiphon.engines.base import PromptTokens, TokenRequest
from antiphon.engines.vllm.admission import Admission, AdmissionLimits
from antiphon.errors import EngineBusy, Overloaded
from antiphon.task_group import task_group
from tests.support.waiting import await_until

LIMITS = AdmissionLimits(sequences=2, queue=3, queue_per_actor=2)


def ask(actor="a", group=None, priority=0):
    return TokenRequest(PromptTokens((1,)), 5, actor=actor, group=group, priority=priority)


def has_queued(admission, count):
    return admission.queue_length == count


class Holder:
    """A sequence that holds a place until `leave` is set."""

    def __init__(self, admission, request):
        self.admission, self.request = admission, request
        self.held, self.leave = asyncio.Event(), asyncio.Event()

    async def run(self):
        async with self.admission.hold_place(self.request):
            self.held.set()
            await self.leave.wait()


async def test_a_free_place_goes_to_the_caller_with_fewest():
    admission = Admission(LIMITS)
    order: list[object] = []
    async with task_group() as group, AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(admission.hold_place(ask("a")))

        async def wait(name, request):
            async with admission.hold_place(request):
                order.append(name)

        for count, (name, request) in enumerate(
            [("late", ask("a", priority=3)), ("first", ask("a", priority=-1)), ("other", ask("b"))]
        ):
            group.create_task(wait(name, request))
            await await_until(partial(has_queued, admission, count + 1))
        await stack.aclose()
    assert order[0] in ("other", "first") and order.index("first") < order.index("late")
    assert (admission.running, admission.queue_length) == (0, 0)


async def test_a_full_queue_refuses_all_but_siblings():
    admission = Admission(LIMITS)
    holders = [Holder(admission, ask("a", "g")), Holder(admission, ask("a"))]
    waiting = [Holder(admission, ask("b")), Holder(admission, ask("b")), Holder(admission, ask("c"))]
    async with task_group() as group:
        tasks = [group.create_task(each.run()) for each in holders]
        await await_until(lambda: admission.running == 2)
        tasks += [group.create_task(each.run()) for each in waiting[:2]]
        await await_until(lambda: admission.queue_length == 2)
        with pytest.raises(Overloaded):
            async with admission.hold_place(ask("b")):
                pass
        tasks.append(group.create_task(waiting[2].run()))
        await await_until(lambda: admission.queue_length == 3)
        with pytest.raises(EngineBusy):
            async with admission.hold_place(ask("d")):
                pass
        sibling = Holder(admission, ask("a", "g"))
        tasks.append(group.create_task(sibling.run()))
        await await_until(lambda: admission.queue_length == 4)
        tasks[2].cancel()
        await await_until(lambda: admission.queue_length == 3)
        for each in (*holders, *waiting, sibling):
            each.leave.set()
    assert (admission.running, admission.queue_length, admission.refusal_count) == (0, 0, 2)


async def follow(admission, order):
    """A sibling that notes whether it has to compute the prompt."""
    async with admission.hold_place(ask(group="g")) as prefill, prefill.take_turn() as turn:
        order.append(turn.is_held)


async def test_siblings_wait_for_the_first_ones_prompt():
    admission = Admission(LIMITS)
    order: list[object] = []
    async with (
        task_group() as group,
        admission.hold_place(ask(group="g")) as prefill,
        prefill.take_turn() as turn,
    ):
        task = group.create_task(follow(admission, order))
        await await_until(lambda: admission.running == 2)
        assert not order
        turn.finish()
        await task
    assert order == [False], "it shares the prompt, and holds up no other sibling"


async def test_the_next_sibling_computes_an_unfinished_prompt():
    admission = Admission(LIMITS)
    order: list[object] = []
    async with task_group() as group, admission.hold_place(ask(group="g")) as prefill:
        async with prefill.take_turn():
            task = group.create_task(follow(admission, order))
            await await_until(lambda: admission.running == 2)
        await task
    assert order == [True]
