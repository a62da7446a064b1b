"""Starts the generation; again while nothing was begun and the failure allows it, never after a token.

An engine that restarts refuses with a retryable error. The request waits for it, up to a patience and its own
deadline, so that the death of an engine's process costs those who were queued nothing but time.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TypeVar

from antiphon.domain.context import Context
from antiphon.domain.events import Event
from antiphon.domain.request import GenerationRequest
from antiphon.engines.base import Engine, EngineState
from antiphon.errors import EngineLost, EngineUnavailable

T = TypeVar("T")

FIRST_PAUSE = 0.05
"""Seconds before the first retry; an engine's process takes at least this long to come back."""

MOST_LOSSES = 1
"""Engine processes that may end while one request waits; at the second it may be what ends them."""

LONGEST_PAUSE = 0.5
"""Seconds between later retries: short beside a model's loading time, long beside the cost of asking."""


async def attempt(
    engine: Engine, request: GenerationRequest, context: Context, patience: float
) -> AsyncGenerator[Event, None]:
    """Events of the first try that starts. Raises what the last try raised."""
    trial = partial(_tried, engine, request, context)
    stream, events, first = await patiently(engine, trial, context, patience)
    async with stream:
        yield first
        async for event in events:
            yield event


async def patiently(
    engine: Engine, trial: Callable[[], Awaitable[T]], context: Context, patience: float
) -> T:
    """What the first try gives that starts, within `patience` seconds and the request's own deadline. Raises
    what the last try raised."""
    left = context.remaining()
    give_up = context.clock.monotonic() + (patience if left is None else min(patience, left))
    pause, losses = FIRST_PAUSE, 0
    while True:
        context.progress.attempts += 1
        try:
            return await trial()
        except EngineUnavailable as error:
            losses += isinstance(error, EngineLost)
            given_up = engine.state() is EngineState.FAILED or losses > MOST_LOSSES
            if given_up or context.clock.monotonic() + pause >= give_up:
                raise
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)


async def _tried(
    engine: Engine, request: GenerationRequest, context: Context
) -> tuple[AsyncExitStack, AsyncIterator[Event], Event]:
    """One try: what must be closed, the events, and the first of them. Closed again when it has none."""
    async with AsyncExitStack() as stack:
        events = await stack.enter_async_context(engine.stream(request, context))
        first = await anext(events)
        return stack.pop_all(), events, first
