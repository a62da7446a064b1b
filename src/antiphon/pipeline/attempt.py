"""Starts a request on the first of a model's routes that begins, and again while nothing was begun.

An engine that restarts refuses with a retryable error. The request waits for it, up to a patience and its own
deadline, so that the death of an engine's process costs those who were queued nothing but time. While another
route is ready, nobody waits. After the first event nothing is tried again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import cycle
from types import TracebackType
from typing import TypeVar

from antiphon.domain.context import Context
from antiphon.domain.events import Event
from antiphon.domain.request import GenerationRequest
from antiphon.engines.base import EngineState, RequestSize
from antiphon.engines.registry import ModelRoute
from antiphon.errors import EngineLost, EngineUnavailable

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
"""Seconds before the first retry; an engine's process takes at least this long to come back."""

MAX_LOSSES = 1
"""Engine processes that may end while one request waits; at the second it may be what ends them."""

MAX_PAUSE_S = 0.5
"""Seconds between later retries: short beside a model's loading time, long beside the cost of asking."""

Reserve = Callable[[ModelRoute, RequestSize], Awaitable[None]]
"""Takes a request of this size out of its limits. Raises what refuses it."""


async def pass_unlimited(route: ModelRoute, size: RequestSize) -> None:
    """`Reserve` where nothing is limited."""


class StartedStream:
    """A stream that has begun, as a context that closes it."""

    __slots__ = ("_stream", "events", "first")

    def __init__(
        self,
        stream: AbstractAsyncContextManager[AsyncIterator[Event]],
        first: Event,
        events: AsyncIterator[Event],
    ) -> None:
        self._stream = stream
        self.first = first
        self.events = events
        """Those after the first."""

    async def __aenter__(self) -> "StartedStream":
        return self

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Awaitable[bool | None]:
        return self._stream.__aexit__(kind, error, trace)


def attempt(
    routes: tuple[ModelRoute, ...],
    request: GenerationRequest,
    context: Context,
    patience: float,
    reserve: Reserve,
) -> Awaitable[StartedStream]:
    """The stream of the first route that begins. Raises what the last try raised."""
    start = partial(_start_route, request=request, context=context, reserve=reserve)
    return try_routes(routes, start, context, patience)


async def try_routes(
    routes: tuple[ModelRoute, ...],
    start: Callable[[ModelRoute], Awaitable[T]],
    context: Context,
    patience: float,
) -> T:
    """What `start` gives for the first route that begins, within `patience` seconds and the request's own
    deadline. Raises what the last try raised."""
    give_up = context.clock.monotonic() + patience
    if context.deadline is not None:
        give_up = min(give_up, context.deadline)
    pause, losses = FIRST_PAUSE_S, 0
    for route in cycle(routes):
        try:
            return await start(route)
        except EngineUnavailable as error:
            losses += isinstance(error, EngineLost)
            if route is not routes[-1]:
                continue
            given_up = losses > MAX_LOSSES or all(map(_has_failed, routes))
            if given_up or context.clock.monotonic() + pause >= give_up:
                raise
        await asyncio.sleep(pause)
        pause = min(pause * 2, MAX_PAUSE_S)
    raise ValueError("a model has at least one route")


def _has_failed(route: ModelRoute) -> bool:
    return route.engine.state() is EngineState.FAILED


async def _start_route(
    route: ModelRoute, *, request: GenerationRequest, context: Context, reserve: Reserve
) -> StartedStream:
    """One try. Closed again when it has no first event."""
    prepared = await route.engine.prepare(request, context)
    await reserve(route, prepared.size)
    context.progress.attempts += 1
    stream = prepared.stream(context)
    events = await stream.__aenter__()
    try:
        return StartedStream(stream, await anext(events), events)
    except BaseException as error:
        await stream.__aexit__(type(error), error, error.__traceback__)
        raise
