"""The token engine's rules about closing: at once, wherever the sequence stands, and no other sequence feels
it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace

from antiphon.engines.base import (
    SequenceFinished,
    SequenceStarted,
    Steps,
    TextPiece,
    TokenEvent,
    TokenSegment,
)
from antiphon.testing.probe import Probe
from antiphon.testing.rules import beside, require, require_end


async def unread_sequences_hold_nothing(probe: Probe) -> None:
    events = probe.engine.generate(probe.request())
    await probe.close(events, "closing a generator that was never read ends at once")
    await probe.require_idle("a generator that was never read holds no sequence")


async def queued_sequences_close(probe: Probe) -> None:
    """Fills every slot, then closes one that waits."""
    async with AsyncExitStack() as stack:
        for index in range(probe.info.sequences):
            events = probe.engine.generate(probe.request(index % len(probe.prompts)))
            await _until_first_step(await stack.enter_async_context(aclosing(events)))
        waiting = probe.engine.generate(probe.request())
        await probe.close_while_waiting(waiting, 0.05, "a queued sequence closes at once")
        load = await probe.load()
        require(load.queued == 0, "a queued sequence that was closed does not wait any more")
    await probe.require_idle("sequences that were closed together free all that they held")


async def prefilling_sequences_close(probe: Probe) -> None:
    words = [token for prompt in probe.prompts for token in prompt]
    size = probe.info.context_length - 8
    prompt = tuple((words * (size // len(words) + 1))[:size])
    request = replace(probe.request(), segments=(TokenSegment(prompt),))
    for moment in (0.0, 0.02):
        events = probe.engine.generate(request)
        first = await anext(events)
        require(isinstance(first, SequenceStarted), "admission is told before the prompt is computed")
        await probe.close_while_waiting(
            events, moment, "a sequence closes at once while its prompt is computed"
        )
        await probe.require_idle("closing in prefill frees the sequence")


async def speaking_sequences_close(probe: Probe) -> None:
    for moment in (0.0, 0.01):
        events = probe.engine.generate(probe.request())
        await _until_first_step(events)
        await probe.close(events, "a sequence closes at once between two tokens")
        await probe.require_idle("closing in mid-stream frees the sequence")
        events = probe.engine.generate(probe.request())
        await _until_first_step(events)
        await probe.close_while_waiting(events, moment, "a sequence closes at once while a token is computed")
        await probe.require_idle("closing in mid-stream frees the sequence")


async def finished_sequences_close(probe: Probe) -> None:
    events = probe.engine.generate(probe.request(max_tokens=2))
    async for event in events:
        if isinstance(event, SequenceFinished):
            await probe.require_idle("when SequenceFinished comes the sequence is free already")
    await probe.close(events, "closing a finished sequence ends at once")


async def closing_disturbs_no_other(probe: Probe) -> None:
    if probe.info.sequences < 2:
        return
    expected = await probe.run(probe.request(1, max_tokens=24))
    leaver = probe.engine.generate(probe.request(0))
    await _until_first_step(leaver)
    async with beside(probe.run(probe.request(1, max_tokens=24))) as (other,), aclosing(leaver):
        for _ in range(3):
            await anext(leaver, None)
        await probe.close(leaver, "a sequence closes at once while others go on")
        run = await other
    if probe.tolerance == 0:
        require(run.tokens == expected.tokens, "closing one sequence changes nothing in another")


async def siblings_close_alone(probe: Probe) -> None:
    """The first of a group is closed in its prefill, then once more in mid-stream; the others go on."""
    if probe.info.sequences < 3:
        return
    expected = await probe.run(probe.request(max_tokens=12))
    for stage in ("prefill", "stream"):
        request = replace(probe.request(max_tokens=12), group=f"closing-{stage}")
        first = probe.engine.generate(replace(request, max_tokens=1000))
        await anext(first)
        siblings = (probe.run(replace(request, choice=choice)) for choice in (1, 2))
        async with beside(*siblings) as others:
            await asyncio.sleep(0)
            if stage == "stream":
                await _until_first_step(first)
            await probe.close(first, "the first of a group closes at once, though others wait for its prompt")
            rule = "siblings go on when the first one of their group is closed"
            runs = [await require_end(other, rule, probe.patience) for other in others]
        if probe.tolerance == 0:
            require(
                all(run.tokens == expected.tokens for run in runs),
                "closing a sibling changes nothing in the others",
            )


async def tokenizing_never_waits_for_decoding(probe: Probe) -> None:
    async with AsyncExitStack() as stack:
        for index in range(probe.info.sequences):
            events = probe.engine.generate(probe.request(index % len(probe.prompts)))
            await stack.enter_async_context(aclosing(events))
        text = probe.engine.tokenize([TextPiece("Hello world")], False)
        tokens = await require_end(text, "tokenizing runs beside decoding, never behind it", probe.patience)
        require(tokens, "text becomes tokens")


async def _until_first_step(events: AsyncGenerator[TokenEvent, None]) -> None:
    async for event in events:
        if isinstance(event, Steps):
            return


CLOSING_RULES = (
    unread_sequences_hold_nothing,
    queued_sequences_close,
    prefilling_sequences_close,
    speaking_sequences_close,
    finished_sequences_close,
    closing_disturbs_no_other,
    siblings_close_alone,
    tokenizing_never_waits_for_decoding,
)
