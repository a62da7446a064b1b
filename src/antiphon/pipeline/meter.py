"""Says of every generation what it took and how it ended: one log record and the counters, once, whatever
happens.

A generation that is cut short counts the tokens that were made. Holds no limits and no prices.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from antiphon.domain.context import Clock, Context
from antiphon.domain.events import (
    Drafted,
    Event,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallBegun,
    ToolCallDelta,
)
from antiphon.domain.request import GenerationRequest
from antiphon.domain.usage import Usage
from antiphon.errors import AntiphonError, DeadlineExceeded, InternalError
from antiphon.telemetry.logs import record
from antiphon.telemetry.metrics import Generation, Metrics

OK = "ok"
CANCELLED = "cancelled"


@dataclass(slots=True)
class Tally:
    """What is known of one generation so far."""

    began: float
    """Monotonic seconds."""
    first_token: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    whole: bool = False
    """Whether the stream came to its end."""

    def add(self, event: Event, clock: Clock) -> None:
        """The commonest event first: a stream is nearly all deltas."""
        if isinstance(event, TextDelta):
            self.completion_tokens += event.tokens
        elif isinstance(event, Finished):
            self.completion_tokens += event.tokens
            self.finish_reasons.append(event.reason)
        elif isinstance(event, Started):
            self.first_token = clock.monotonic()
            self.prompt_tokens, self.cached_tokens = event.prompt_tokens, event.cached_tokens
        elif isinstance(event, ReasoningDelta | ToolCallBegun | ToolCallDelta | Drafted):
            self.completion_tokens += event.tokens
        elif isinstance(event, Usage):
            self.prompt_tokens, self.cached_tokens = event.prompt_tokens, event.cached_tokens
            self.completion_tokens = event.completion_tokens
            self.whole = True


async def metered(
    events: AsyncGenerator[Event, None], request: GenerationRequest, context: Context, metrics: Metrics
) -> AsyncGenerator[Event, None]:
    """The same events; settles when they end, for whatever reason."""
    clock = context.clock
    tally = Tally(clock.monotonic())
    metrics.generation_began(request.model)
    try:
        async with aclosing(events):
            async for event in events:
                tally.add(event, clock)
                yield event
    finally:
        status = OK if tally.whole else ending(sys.exception(), context)
        _settle(tally, status, request, context, metrics)


def ending(error: BaseException | None, context: Context) -> str:
    """How a request ended that is not whole: its error's code, or cancelled when the caller left. The edge
    cancels it at the deadline too, where it does not end by itself first."""
    if isinstance(error, AntiphonError):
        return error.code
    left = error is None or isinstance(error, GeneratorExit | asyncio.CancelledError)
    if not left:
        return InternalError.code
    return DeadlineExceeded.code if context.remaining() == 0 else CANCELLED


def _settle(
    tally: Tally, status: str, request: GenerationRequest, context: Context, metrics: Metrics
) -> None:
    total = context.clock.monotonic() - tally.began
    first = None if tally.first_token is None else tally.first_token - tally.began
    metrics.generation_ended(
        Generation(
            request.model,
            status,
            tally.prompt_tokens,
            tally.completion_tokens,
            tally.cached_tokens,
            total,
            first,
        )
    )
    record(
        "generation",
        request_id=context.request_id,
        actor=context.actor.id,
        model=request.model,
        status=status,
        prompt_tokens=tally.prompt_tokens,
        completion_tokens=tally.completion_tokens,
        cached_tokens=tally.cached_tokens,
        finish_reasons=tally.finish_reasons,
        ttft_ms=None if first is None else round(first * 1000, 1),
        total_ms=round(total * 1000, 1),
    )
