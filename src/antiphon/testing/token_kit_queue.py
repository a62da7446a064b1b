"""The token engine's rules of its queue: how many may wait, who is refused, and that siblings never are."""

import asyncio
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace

from antiphon.engines.base import SequenceStarted, TokenRequest
from antiphon.errors import AntiphonError, EngineBusy, Overloaded
from antiphon.testing.probe import GREEDY, Probe
from antiphon.testing.rules import beside, require, require_end, require_soon


async def a_full_queue_refuses(probe: Probe) -> None:
    """Fills every sequence and the queue, each request of an actor of its own."""
    if probe.queue is None:
        return
    async with AsyncExitStack() as stack:
        for index in range(probe.info.sequences):
            await _begin(probe, stack, _running(probe, index))
        waiting = [
            probe.run(replace(probe.request(max_tokens=1), actor=f"waiting-{index}"))
            for index in range(probe.queue)
        ]
        async with beside(*waiting):
            await _require_queued(probe, probe.queue)
            error = await _refusal(probe, replace(probe.request(max_tokens=1), actor="late"))
            require(
                isinstance(error, EngineBusy), "a sequence beyond a full queue is refused with EngineBusy"
            )
            require(error is not None and (error.retry_after or 0) > 0, "EngineBusy says when to try again")
            sibling = replace(probe.request(max_tokens=1), actor="running-0", group="g0", choice=1)
            async with beside(probe.run(sibling)) as (joined,):
                await _require_queued(probe, probe.queue + 1)
                require(not joined.done(), "a sibling of a sequence that is there is never refused")
    await probe.require_idle("sequences that were closed while they waited hold nothing")


async def one_actor_does_not_fill_the_queue(probe: Probe) -> None:
    limit = probe.queue_per_actor
    if limit is None or (probe.queue is not None and limit >= probe.queue):
        return
    async with AsyncExitStack() as stack:
        for index in range(probe.info.sequences):
            await _begin(probe, stack, _running(probe, index))
        waiting = [probe.run(replace(probe.request(max_tokens=1), actor="greedy")) for _ in range(limit)]
        async with beside(*waiting):
            await _require_queued(probe, limit)
            error = await _refusal(probe, replace(probe.request(max_tokens=1), actor="greedy"))
            require(
                isinstance(error, Overloaded), "an actor with too many waiting is refused with Overloaded"
            )
            require(error is not None and (error.retry_after or 0) > 0, "Overloaded says when to try again")
            async with beside(probe.run(replace(probe.request(max_tokens=1), actor="other"))) as (other,):
                await _require_queued(probe, limit + 1)
                require(not other.done(), "another actor's sequence may still wait")


async def lower_priorities_come_first_of_one_actor(probe: Probe) -> None:
    """What an actor asks for later overtakes what it asked for before, and takes no other actor's turn."""
    if probe.queue is not None and probe.queue < 3:
        return
    order: list[str] = []

    async def admission(name: str, actor: str, priority: int) -> None:
        request = replace(probe.request(max_tokens=1), actor=actor, priority=priority)
        async with aclosing(probe.engine.generate(request)) as events:
            await anext(events)
            order.append(name)

    async with AsyncExitStack() as stack, AsyncExitStack() as last:
        for index in range(probe.info.sequences):
            await _begin(probe, stack if index else last, _running(probe, index))
        tasks = []
        for name, actor, priority in (("late", "a", 7), ("other", "b", -5), ("first", "a", -3)):
            tasks += await stack.enter_async_context(beside(admission(name, actor, priority)))
            await _require_queued(probe, len(tasks))
        await last.aclose()
        await require_end(
            asyncio.gather(*tasks), "who waits is admitted when a place is free", probe.patience
        )
    require(order.index("first") < order.index("late"), "of one actor the lowest priority is admitted first")
    require(order[0] != "other", "a priority takes no other actor's turn")


def _running(probe: Probe, index: int) -> TokenRequest:
    """One that goes on until it is closed, or its context is full."""
    endless = replace(GREEDY, ignore_eos=True)
    return replace(probe.request(sampling=endless), actor=f"running-{index}", group=f"g{index}")


async def _begin(probe: Probe, stack: AsyncExitStack, request: TokenRequest) -> None:
    events = await stack.enter_async_context(aclosing(probe.engine.generate(request)))
    require(isinstance(await anext(events), SequenceStarted), "admission is told first")


async def _require_queued(probe: Probe, count: int) -> None:
    async def is_reached() -> bool:
        return (await probe.load()).queued == count

    await require_soon(is_reached, "queued counts the sequences that wait", probe.patience)


async def _refusal(probe: Probe, request: TokenRequest) -> AntiphonError | None:
    """What a request ends with at once; None when it waits."""
    try:
        async with asyncio.timeout(probe.patience):
            await probe.run(request)
    except AntiphonError as error:
        return error
    except TimeoutError:
        return None
    return None


QUEUE_RULES = (
    a_full_queue_refuses,
    one_actor_does_not_fill_the_queue,
    lower_priorities_come_first_of_one_actor,
)
