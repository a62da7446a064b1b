"""Starts a request on one of a model's routes, and tries the next route until the first event.

The next route is tried after a failure of an engine or a vendor, at most three attempts in all. A route that
cannot do the request is no attempt. A refusal that every route would repeat ends the request.

A restarting engine refuses with a retryable error. If no other route is ready, the request waits for it,
within its patience and its deadline. For a model that is being loaded it waits up to its deadline. So the
death of an engine's process costs queued requests only time.
Nothing is tried again after the first event.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import TypeVar

from antiphon.domain.context import Context
from antiphon.domain.events import Event
from antiphon.domain.request import GenerationRequest
from antiphon.engines.base import EngineState, RequestSize
from antiphon.engines.registry import Model, ModelRoute
from antiphon.errors import (
    AntiphonError,
    ContextLengthExceeded,
    EngineBusy,
    EngineLost,
    EngineUnavailable,
    ModelNotLoaded,
    ProviderFailed,
    ProviderRateLimited,
    ProviderTimeout,
    ProviderUnavailable,
    UnsupportedParameter,
)
from antiphon.pipeline.prepare import prepare
from antiphon.pipeline.route_use import RoutePolicy, RouteUse
from antiphon.pipeline.routing import (
    LOADS_ON_REQUEST,
    choose_resting,
    choose_route,
    choose_unready,
    find_affinity,
    is_full,
    is_held,
    request_loads,
)

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
"""Seconds before the first retry. An engine's process needs at least this long to come back."""

MAX_LOSSES = 1
"""Deaths of engine processes that one request survives. The request itself may cause the second."""

MAX_PAUSE_S = 0.5
"""Longest pause in seconds: short beside the loading of a model, long beside the cost of asking."""

MAX_ATTEMPTS = 3
"""The most attempts of one request. Waiting for a restarting engine is no attempt."""

FULL_RETRY_S = 1.0
"""Seconds that callers are told to wait when every route is full."""

FAILURES = (ProviderFailed, ProviderUnavailable, ProviderTimeout, ProviderRateLimited, EngineBusy)
"""The errors after which the next route is tried."""

INABILITIES = (UnsupportedParameter, ContextLengthExceeded)
"""The errors of a route that cannot do a request that another route may do."""

LIMITED = ProviderRateLimited.code

Reserve = Callable[[ModelRoute, RequestSize], Awaitable[None]]
"""Reserves a request of this size in its limits. Raises the refusal."""


async def pass_unlimited(route: ModelRoute, size: RequestSize) -> None:
    """A `Reserve` without limits."""


class StartedStream:
    """A stream whose first event has arrived, as a context that closes it."""

    __slots__ = ("_stream", "_use", "events", "first")

    def __init__(
        self,
        stream: AbstractAsyncContextManager[AsyncIterator[Event]],
        first: Event,
        events: AsyncIterator[Event],
        use: RouteUse,
    ) -> None:
        self._stream = stream
        self._use = use
        self.first = first
        self.events = events
        """Yields all events after the first one."""

    async def __aenter__(self) -> "StartedStream":
        return self

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Awaitable[bool | None]:
        self._use.close(error)
        return self._stream.__aexit__(kind, error, trace)


def attempt(
    model: Model, request: GenerationRequest, context: Context, policy: RoutePolicy, reserve: Reserve
) -> Awaitable[StartedStream]:
    """Returns the stream of the first route that works. Raises the error of the last try."""
    start = partial(_start_route, request=request, context=context, reserve=reserve)
    affinity = find_affinity(request) if model.prefers_prefix and len(model.routes) > 1 else None
    return try_routes(model, start, context, policy, affinity)


async def try_routes(
    model: Model,
    start: Callable[[RouteUse], Awaitable[T]],
    context: Context,
    policy: RoutePolicy,
    affinity: bytes | None = None,
) -> T:
    """Returns the result of `start` for the first route that works. Raises the error of the last try, or
    ProviderUnavailable or ProviderRateLimited if no route can be tried. `start` closes its use after a
    success."""
    search = RouteSearch(model, context, policy.patience)
    while True:
        route = search.choose(affinity)
        if route is None:
            await search.wait()
            continue
        use = RouteUse(route, model, context, policy)
        try:
            if route.in_flight_limit is None or await use.claim(model):
                return await start(use)
            search.add_full(route)
        except AntiphonError as error:
            use.close(error)
            use.add_try(error.code)
            if search.is_over(use, error):
                raise
        except BaseException as error:
            use.close(error)
            use.add_try(None)  # the end of the request tells why
            raise
        use.close()


class RouteSearch:
    """The routes that one request has tried, and why each failed."""

    __slots__ = (
        "_attempts",
        "_context",
        "_failure",
        "_give_up",
        "_inabilities",
        "_is_refused_place",
        "_losses",
        "_model",
        "_pause",
        "_skipped",
        "_waiting",
    )

    def __init__(self, model: Model, context: Context, patience: float) -> None:
        """`patience`: the most seconds to wait for a restarting engine."""
        self._model = model
        self._context = context
        self._give_up = context.clock.monotonic() + patience
        if context.deadline is not None:
            self._give_up = min(self._give_up, context.deadline)
        self._attempts = self._losses = 0
        self._pause = FIRST_PAUSE_S
        self._skipped: tuple[ModelRoute, ...] = ()
        """The routes that are not tried again."""
        self._waiting: tuple[ModelRoute, ...] = ()
        """The routes whose engine is not available, and is tried again after a pause."""
        self._is_refused_place = False
        self._failure: AntiphonError | None = None
        self._inabilities: dict[ModelRoute, AntiphonError] = {}

    def choose(self, affinity: bytes | None) -> ModelRoute | None:
        """Returns the next route to try; None if the request should wait. Raises the error of the request if
        no route is left."""
        model, clock = self._model, self._context.clock
        skipped = self._skipped + self._waiting
        route = choose_route(model, skipped, clock, affinity)
        if route is not None:
            if len(model.routes) > 1:
                request_loads(model, route)
            return route
        route = choose_resting(model, skipped, clock.monotonic()) or choose_unready(model, skipped)
        if route is None and not self._waiting:
            raise self._build_error()
        return route

    async def wait(self) -> None:
        """Waits a moment for a restarting or loading engine. Raises the error of the last try if it is too
        late."""
        is_loading = any(route.engine.state() in LOADS_ON_REQUEST for route in self._waiting)
        end = self._context.deadline if is_loading else self._give_up
        if end is not None and self._context.clock.monotonic() + self._pause >= end:
            raise self._build_error()
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, MAX_PAUSE_S)
        self._waiting = ()

    def add_full(self, route: ModelRoute) -> None:
        """Notes that a route has no place in its limit over all processes."""
        self._skipped += (route,)
        self._is_refused_place = True

    def is_over(self, use: RouteUse, error: AntiphonError) -> bool:
        """Returns whether an error ends the request. Otherwise notes why the try failed."""
        self._attempts += use.has_begun and not isinstance(error, EngineUnavailable)
        self._losses += isinstance(error, EngineLost)
        if self._is_final(error):
            return True
        progress = self._context.progress
        progress.unread, progress.relaxed, progress.has_own_schemas = (), (), False  # told of this route
        error.with_traceback(None)  # it refers to the frame that refers to this search
        if _can_wait(use.route, error):
            self._waiting += (use.route,)
        else:
            self._skipped += (use.route,)
        if isinstance(error, INABILITIES):
            self._inabilities[use.route] = error
        else:
            self._failure = error
        return False

    def _is_final(self, error: AntiphonError) -> bool:
        """Whether no further route is tried after an error."""
        if isinstance(error, INABILITIES):
            return len(self._model.routes) == 1
        if isinstance(error, EngineUnavailable):
            return self._losses > MAX_LOSSES
        is_last = self._attempts >= MAX_ATTEMPTS or self._context.remaining() == 0
        return is_last or not isinstance(error, FAILURES)

    def _build_error(self) -> AntiphonError:
        """Returns the error of a request that has no route left, and forgets it: an error that is raised must
        not be kept here."""
        failure, self._failure = self._failure, None
        inabilities, self._inabilities = self._inabilities, {}
        if failure is not None:
            return failure
        left = [route for route in self._model.routes if route not in self._skipped]
        if self._is_refused_place or any(map(is_full, left)):
            return ProviderUnavailable(
                f"every route of {self._model.name} that can serve this request is full; try again",
                retry_after=FULL_RETRY_S,
            )
        now = self._context.clock.monotonic()
        held = [route for route in left if is_held(route, now)]
        return _build_rest_error(held, now) if held else _join_inabilities(self._model, inabilities)


def _can_wait(route: ModelRoute, error: AntiphonError) -> bool:
    """Whether the engine of a route is worth waiting for after an error."""
    if not isinstance(error, EngineUnavailable) or isinstance(error, ModelNotLoaded):
        return False
    return route.engine.state() is not EngineState.FAILED


def _build_rest_error(held: Sequence[ModelRoute], now: float) -> AntiphonError:
    """Returns the error that rested the route whose rest ends first, with the rest that is left."""
    first = min(held, key=lambda route: route.state.held_until)
    left = math.ceil(first.state.held_until - now)
    failure = first.state.vendor_failure
    cls = ProviderRateLimited if failure is not None and failure.code == LIMITED else ProviderUnavailable
    reason = "" if failure is None else f": {failure.message}"
    return cls(f"the route {first.name} rests for another {left} s{reason}", retry_after=left)


def _join_inabilities(model: Model, inabilities: Mapping[ModelRoute, AntiphonError]) -> AntiphonError:
    """Returns one error for a request that no route can do. It names the field and each route."""
    too_long = [each for each in inabilities.values() if isinstance(each, ContextLengthExceeded)]
    if too_long:
        return too_long[-1]
    told = "; ".join(f"{route.name}: {each.message}" for route, each in inabilities.items())
    params = {each.param for each in inabilities.values()}
    return UnsupportedParameter(
        f"no route of {model.name} can do this request: {told}",
        param=next(iter(params)) if len(params) == 1 else None,
    )


async def _start_route(
    use: RouteUse, *, request: GenerationRequest, context: Context, reserve: Reserve
) -> StartedStream:
    """Tries one route. Closes the stream if it fails before its first event."""
    prepared = await prepare(use.route.engine, request, context)
    await reserve(use.route, prepared.size)
    use.begin()
    stream = prepared.stream(use.context)
    events = await stream.__aenter__()
    try:
        first = await anext(events)
    except BaseException as error:
        await stream.__aexit__(type(error), error, error.__traceback__)
        raise
    use.serve()
    return StartedStream(stream, first, events, use)
