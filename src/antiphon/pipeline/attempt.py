"""Starts the generation, again while nothing was begun and the failure allows it; never after the first
token.

An engine that restarts refuses with a retryable error. The request waits for it, up to a patience and its
own deadline,
so that the death of an engine's process costs those who were queued nothing but time.
"""

import asyncio
from collections.abc import AsyncGenerator

from antiphon.domain.context import Context
from antiphon.domain.events import Event
from antiphon.domain.request import GenerationRequest
from antiphon.engines.base import Engine, EngineState
from antiphon.errors import AntiphonError, EngineUnavailable

FIRST_PAUSE = 0.05
"""Seconds before the first retry; an engine's process takes at least this long to come back."""

LONGEST_PAUSE = 0.5
"""Seconds between later retries: short beside a model's loading time, long beside the cost of asking."""


async def attempt(
    engine: Engine, request: GenerationRequest, context: Context, patience: float
) -> AsyncGenerator[Event, None]:
    """Events of the first try that starts. Raises what the last try raised."""
    give_up = context.clock.monotonic() + min(patience, context.remaining() or patience)
    pause = FIRST_PAUSE
    while True:
        began = False
        try:
            async with engine.stream(request, context) as events:
                async for event in events:
                    began = True
                    yield event
            return
        except AntiphonError as error:
            if began or not _may_come_back(engine, error, context.clock.monotonic() + pause < give_up):
                raise
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)


def _may_come_back(engine: Engine, error: AntiphonError, time_left: bool) -> bool:
    """An engine that was given up does not; an overload is the caller's to wait out."""
    return isinstance(error, EngineUnavailable) and time_left and engine.state() is not EngineState.FAILED
