"""Starts a request on the first route of a model that works, and retries until the first event.

A restarting engine refuses with a retryable error. The request waits for it, within its patience and its
deadline. So the death of an engine's process costs queued requests only time. If another route is ready, no
request waits. Nothing is retried after the first event.
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
"""Seconds before the first retry. An engine's process needs at least this long to come back."""

MAX_LOSSES = 1
"""Deaths of engine processes that one request survives. The request itself may cause the second."""

MAX_PAUSE_S = 0.5
"""Longest pause in seconds: short beside the loading of a model, long beside the cost of asking."""

Reserve = Callable[[ModelRoute, RequestSize], Awaitable[None]]
"""Reserves a request of this size in its limits. Raises the refusal."""


async def pass_unlimited(route: ModelRoute, size: RequestSize) -> None:
    """A `Reserve` without limits."""


class StartedStream:
    """A stream whose first event has arrived, as a context that closes it."""

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
        """Yields all events after the first one."""

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
    """Returns the stream of the first route that works. Raises the error of the last try."""
    start = partial(_start_route, request=request, context=context, reserve=reserve)
    return try_routes(routes, start, context, patience)


async def try_routes(
    routes: tuple[ModelRoute, ...],
    start: Callable[[ModelRoute], Awaitable[T]],
    context: Context,
    patience: float,
) -> T:
    """Returns the result of `start` for the first route that works, within `patience` seconds and the
    request's deadline. Raises the error of the last try."""
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
    """Whether the route's engine was given up."""
    return route.engine.state() is EngineState.FAILED


async def _start_route(
    route: ModelRoute, *, request: GenerationRequest, context: Context, reserve: Reserve
) -> StartedStream:
    """Tries one route. Closes the stream if it fails before its first event."""
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
