"""The token engine's rules about the queue and about closing.

Closing works at once, at any point of a sequence, and does not affect other sequences. The queue is bounded,
in total and for one actor; siblings are never refused.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

from antiphon.domain.values import replace
from antiphon.engines.base import (
    SequenceFinished,
    SequenceStarted,
    Steps,
    TextPiece,
    TokenEvent,
    TokenRequest,
    TokenSegment,
)
from antiphon.errors import AntiphonError, EngineBusy, Overloaded
from antiphon.testing.rules import require, require_end, require_soon, run_beside
from antiphon.testing.token_kit.probe import GREEDY, TokenProbe


async def check_closing_unread(probe: TokenProbe) -> None:
    """Closes a generator that was never read, and requires the engine to be idle afterwards."""
    events = probe.engine.generate(probe.build_request())
    await probe.close(events, "closing a generator that was never read ends at once")
    await probe.require_idle("a generator that was never read holds no sequence")


async def check_closing_queued(probe: TokenProbe) -> None:
    """Fills every place, then closes a waiting sequence."""
    async with AsyncExitStack() as stack:
        for index in range(probe.info.sequences):
            events = probe.engine.generate(probe.build_request(index % len(probe.prompts)))
            await _read_to_first_step(await stack.enter_async_context(aclosing(events)))
        waiting = probe.engine.generate(probe.build_request())
        await probe.close_while_waiting(waiting, 0.05, "a queued sequence closes at once")
        load = await probe.get_load()
        require(load.queued == 0, "a queued sequence that was closed does not wait any more")
    await probe.require_idle("sequences that were closed together free all their resources")


async def check_closing_in_prefill(probe: TokenProbe) -> None:
    words = [token for prompt in probe.prompts for token in prompt]
    size = probe.info.context_length - 8
    prompt = tuple((words * (size // len(words) + 1))[:size])
    request = replace(probe.build_request(), segments=(TokenSegment(prompt),))
    for delay_s in (0.0, 0.02):
        events = probe.engine.generate(request)
        first = await anext(events)
        require(isinstance(first, SequenceStarted), "SequenceStarted comes before the prompt is computed")
        await probe.close_while_waiting(
            events, delay_s, "a sequence closes at once while its prompt is computed"
        )
        await probe.require_idle("closing in prefill frees the sequence")


async def check_closing_in_decode(probe: TokenProbe) -> None:
    for delay_s in (0.0, 0.01):
        events = probe.engine.generate(probe.build_request())
        await _read_to_first_step(events)
        await probe.close(events, "a sequence closes at once between two tokens")
        await probe.require_idle("closing in mid-stream frees the sequence")
        events = probe.engine.generate(probe.build_request())
        await _read_to_first_step(events)
        await probe.close_while_waiting(
            events, delay_s, "a sequence closes at once while a token is computed"
        )
        await probe.require_idle("closing in mid-stream frees the sequence")


async def check_closing_finished(probe: TokenProbe) -> None:
    events = probe.engine.generate(probe.build_request(max_tokens=2))
    async for event in events:
        if isinstance(event, SequenceFinished):
            await probe.require_idle("the sequence's resources are free before SequenceFinished")
    await probe.close(events, "closing a finished sequence ends at once")


async def check_closing_isolation(probe: TokenProbe) -> None:
    """Requires other sequences to be unchanged when one is closed."""
    if probe.info.sequences < 2:
        return
    expected = await probe.run(probe.build_request(1, max_tokens=24))
    closed_events = probe.engine.generate(probe.build_request(0))
    await _read_to_first_step(closed_events)
    async with (
        run_beside(probe.run(probe.build_request(1, max_tokens=24))) as (other,),
        aclosing(closed_events),
    ):
        for _ in range(3):
            await anext(closed_events, None)
        await probe.close(closed_events, "a sequence closes at once while others go on")
        run = await other
    if probe.tolerance == 0:
        require(run.tokens == expected.tokens, "closing one sequence changes nothing in another")


async def check_closing_siblings(probe: TokenProbe) -> None:
    """Closes the first sequence of a group in its prefill, then the first sequence of another group in
    mid-stream. The other sequences continue."""
    if probe.info.sequences < 3:
        return
    expected = await probe.run(probe.build_request(max_tokens=12))
    for stage in ("prefill", "stream"):
        request = replace(probe.build_request(max_tokens=12), group=f"closing-{stage}")
        first = probe.engine.generate(replace(request, max_tokens=1000))
        await anext(first)
        siblings = (probe.run(replace(request, choice=choice)) for choice in (1, 2))
        async with run_beside(*siblings) as others:
            await asyncio.sleep(0)
            if stage == "stream":
                await _read_to_first_step(first)
            await probe.close(first, "the first of a group closes at once, though others wait for its prompt")
            rule = "siblings go on when the first one of their group is closed"
            runs = [await require_end(other, rule, probe.patience) for other in others]
        if probe.tolerance == 0:
            require(
                all(run.tokens == expected.tokens for run in runs),
                "closing a sibling changes nothing in the others",
            )


async def check_tokenizing_while_decoding(probe: TokenProbe) -> None:
    async with AsyncExitStack() as stack:
        for index in range(probe.info.sequences):
            events = probe.engine.generate(probe.build_request(index % len(probe.prompts)))
            await stack.enter_async_context(aclosing(events))
        text = probe.engine.tokenize([TextPiece("Hello world")], False)
        tokens = await require_end(text, "tokenizing runs beside decoding, never behind it", probe.patience)
        require(tokens, "text becomes tokens")


async def _read_to_first_step(events: AsyncGenerator[TokenEvent, None]) -> None:
    """Reads events up to the first Steps."""
    async for event in events:
        if isinstance(event, Steps):
            return


CLOSING_RULES = (
    check_closing_unread,
    check_closing_queued,
    check_closing_in_prefill,
    check_closing_in_decode,
    check_closing_finished,
    check_closing_isolation,
    check_closing_siblings,
    check_tokenizing_while_decoding,
)


async def check_full_queue(probe: TokenProbe) -> None:
    """Fills all running places and the queue, each with a request of a different actor."""
    if probe.queue is None:
        return
    async with AsyncExitStack() as stack:
        for index in range(probe.info.sequences):
            await _start_sequence(probe, stack, _build_endless_request(probe, index))
        waiting = [
            probe.run(replace(probe.build_request(max_tokens=1), actor=f"waiting-{index}"))
            for index in range(probe.queue)
        ]
        async with run_beside(*waiting):
            await _require_queued(probe, probe.queue)
            error = await _find_refusal(probe, replace(probe.build_request(max_tokens=1), actor="late"))
            require(
                isinstance(error, EngineBusy), "a sequence beyond a full queue is refused with EngineBusy"
            )
            require(error is not None and (error.retry_after or 0) > 0, "EngineBusy says when to try again")
            sibling = replace(probe.build_request(max_tokens=1), actor="running-0", group="g0", choice=1)
            async with run_beside(probe.run(sibling)) as (sibling_task,):
                await _require_queued(probe, probe.queue + 1)
                require(not sibling_task.done(), "a sibling of a queued or running sequence is never refused")
    await probe.require_idle("sequences that were closed while they waited hold no resources")


async def check_queue_share(probe: TokenProbe) -> None:
    limit = probe.queue_per_actor
    if limit is None or (probe.queue is not None and limit >= probe.queue):
        return
    async with AsyncExitStack() as stack:
        for index in range(probe.info.sequences):
            await _start_sequence(probe, stack, _build_endless_request(probe, index))
        waiting = [
            probe.run(replace(probe.build_request(max_tokens=1), actor="greedy")) for _ in range(limit)
        ]
        async with run_beside(*waiting):
            await _require_queued(probe, limit)
            error = await _find_refusal(probe, replace(probe.build_request(max_tokens=1), actor="greedy"))
            require(
                isinstance(error, Overloaded), "an actor with too many waiting is refused with Overloaded"
            )
            require(error is not None and (error.retry_after or 0) > 0, "Overloaded says when to try again")
            async with run_beside(probe.run(replace(probe.build_request(max_tokens=1), actor="other"))) as (
                other,
            ):
                await _require_queued(probe, limit + 1)
                require(not other.done(), "another actor's sequence may still wait")


async def check_priorities(probe: TokenProbe) -> None:
    """Sends a later request of an actor with a lower priority number. It is admitted before the earlier
    request of the same actor, and before no request of another actor that has its turn."""
    if probe.queue is not None and probe.queue < 3:
        return
    order: list[str] = []

    async def admit(name: str, actor: str, priority: int) -> None:
        request = replace(probe.build_request(max_tokens=1), actor=actor, priority=priority)
        async with aclosing(probe.engine.generate(request)) as events:
            await anext(events)
            order.append(name)

    async with AsyncExitStack() as stack, AsyncExitStack() as last_stack:
        for index in range(probe.info.sequences):
            await _start_sequence(probe, stack if index else last_stack, _build_endless_request(probe, index))
        tasks = []
        for name, actor, priority in (("late", "a", 7), ("other", "b", -5), ("first", "a", -3)):
            tasks += await stack.enter_async_context(run_beside(admit(name, actor, priority)))
            await _require_queued(probe, len(tasks))
        await last_stack.aclose()
        await require_end(
            asyncio.gather(*tasks), "a waiting sequence is admitted when a place is free", probe.patience
        )
    require(order.index("first") < order.index("late"), "of one actor the lowest priority is admitted first")
    require(order[0] != "other", "a priority does not take another actor's turn")


def _build_endless_request(probe: TokenProbe, index: int) -> TokenRequest:
    """Builds a request that runs until it is closed, or until its context is full."""
    endless = replace(GREEDY, ignore_eos=True)
    return replace(probe.build_request(sampling=endless), actor=f"running-{index}", group=f"g{index}")


async def _start_sequence(probe: TokenProbe, stack: AsyncExitStack, request: TokenRequest) -> None:
    """Starts a sequence and requires SequenceStarted as its first event. The stack closes the sequence."""
    events = await stack.enter_async_context(aclosing(probe.engine.generate(request)))
    require(isinstance(await anext(events), SequenceStarted), "SequenceStarted comes first")


async def _require_queued(probe: TokenProbe, count: int) -> None:
    """Requires the load counters to reach this number of queued sequences soon."""

    async def is_reached() -> bool:
        return (await probe.get_load()).queued == count

    await require_soon(is_reached, "queued counts the sequences that wait", probe.patience)


async def _find_refusal(probe: TokenProbe, request: TokenRequest) -> AntiphonError | None:
    """Returns the error with which a request ends at once; None if it is not refused."""
    try:
        async with asyncio.timeout(probe.patience):
            await probe.run(request)
    except AntiphonError as error:
        return error
    except TimeoutError:
        return None
    return None


QUEUE_RULES = (
    check_full_queue,
    check_queue_share,
    check_priorities,
)
