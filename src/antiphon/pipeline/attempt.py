"""Starts a request on one of a model's routes, and tries other routes until the first event arrives.

After a failure of an engine or a vendor the next route is tried, with at most three attempts in all. A route
that does not support the request does not count as an attempt. An error that every route would repeat ends
the request.

A restarting engine refuses with a retryable error. If no other route is ready, the request waits for the
engine, at most `restart_patience` seconds. For a model that is being loaded it waits until its deadline. So
the death of an engine's process only delays queued requests. Nothing is tried again after the first event.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import TypeVar

from antiphon.domain.context import Context
from antiphon.domain.events import Event, Usage
from antiphon.domain.request import GenerationRequest
from antiphon.engines.base import EngineState, LateUsageStream, RequestSize
from antiphon.engines.registry import Model, ModelRoute
from antiphon.errors import (
    AntiphonError,
    ContextLengthExceeded,
    EngineBusy,
    EngineLost,
    EngineUnavailable,
    ErrorReport,
    ModelNotLoaded,
    ProviderFailed,
    ProviderKeyRefused,
    ProviderRateLimited,
    ProviderTimeout,
    ProviderUnavailable,
    UnsupportedParameter,
)
from antiphon.pipeline.prepare import prepare
from antiphon.pipeline.routing import (
    LOADS_ON_REQUEST,
    RoutePolicy,
    RouteUse,
    choose_resting,
    choose_route,
    choose_unready,
    find_affinity,
    has_retry_after,
    is_full,
    load_parked_engines,
)
from antiphon.telemetry.logs import record

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
"""Seconds before the first retry. An engine's process needs at least this long to come back."""

MAX_ENGINE_DEATHS = 1
"""Deaths of engine processes after which a request is tried again. The request may itself cause the second
death."""

MAX_PAUSE_S = 0.5
"""The longest pause in seconds. It is short compared with loading a model, and long compared with a retry."""

MAX_ATTEMPTS = 3
"""The most attempts of one request. Waiting for a restarting engine is no attempt."""

FULL_RETRY_S = 1.0
"""Seconds that callers are told to wait when every route is full."""

ROUTE_FAILURES = (
    ProviderFailed,
    ProviderUnavailable,
    ProviderTimeout,
    ProviderRateLimited,
    ProviderKeyRefused,
    EngineBusy,
)
"""The errors after which the next route is tried."""

UNSUPPORTED = (UnsupportedParameter, ContextLengthExceeded)
"""The errors of a route that does not support a request. Another route may support it."""

RATE_LIMITED = ProviderRateLimited.code

Reserve = Callable[[ModelRoute, RequestSize], Awaitable[None]]
"""Reserves a request of this size in its limits. Raises the refusal."""


async def pass_unlimited(route: ModelRoute, size: RequestSize) -> None:
    """A `Reserve` without limits."""


class StartedStream:
    """A stream whose first event has arrived, as a context that closes it."""

    __slots__ = ("_stream", "_use", "events", "first_event")

    def __init__(
        self,
        stream: AbstractAsyncContextManager[AsyncIterator[Event]],
        first_event: Event,
        events: AsyncIterator[Event],
        use: RouteUse,
    ) -> None:
        self._stream = stream
        self._use = use
        self.first_event = first_event
        self.events = events
        """Yields all events after the first one."""

    async def __aenter__(self) -> "StartedStream":
        return self

    @property
    def has_arrived(self) -> bool:
        """Whether the whole answer has come: see `LateUsageStream`."""
        return isinstance(self._stream, LateUsageStream) and self._stream.has_arrived

    async def read_usage(self, seconds: float) -> Usage | None:
        """Reads on to the usage: see `LateUsageStream`."""
        stream = self._stream
        return await stream.read_usage(seconds) if isinstance(stream, LateUsageStream) else None

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
    ProviderUnavailable or ProviderRateLimited if no route can be tried. `start` closes the `RouteUse` after a
    success."""
    search = RouteSearch(model, context, policy.restart_patience)
    while True:
        route = search.choose(affinity)
        if route is None:
            await search.pause()
            continue
        use = RouteUse(route, model, context, policy)
        try:
            if route.in_flight_limit is None or await use.count_in_limit():
                result = await start(use)
                search.record_fallback(route)
                return result
            search.add_full(route)
        except AntiphonError as error:
            use.close(error)
            use.add_try(error.code)
            if search.record_error(use, error):
                search.record_fallback(None)
                raise
        except BaseException as error:
            use.close(error)
            use.add_try(None)  # takes the code with which the request ends
            raise
        use.close()


class RouteSearch:
    """The routes that one request has tried, and why each failed."""

    __slots__ = (
        "_attempts",
        "_context",
        "_engine_deaths",
        "_failure",
        "_failures",
        "_found_full_route",
        "_is_exhausted",
        "_model",
        "_pause",
        "_restart_patience",
        "_restarting",
        "_skipped",
        "_unsupported",
        "_wait_until",
    )

    def __init__(self, model: Model, context: Context, restart_patience: float) -> None:
        """`restart_patience`: the most seconds to wait for a restarting engine."""
        self._model = model
        self._context = context
        self._restart_patience = restart_patience
        self._wait_until: float | None = None
        """When the request stops waiting for a restarting engine; None before the first failure. A request
        can be in the queue for longer than the patience before its engine dies."""
        self._attempts = self._engine_deaths = 0
        self._pause = FIRST_PAUSE_S
        self._skipped: tuple[ModelRoute, ...] = ()
        """The routes that are not tried again."""
        self._restarting: tuple[ModelRoute, ...] = ()
        """The routes whose engine is not available, and is tried again after a pause."""
        self._found_full_route = False
        self._is_exhausted = False
        """Whether no further attempt is allowed, or the deadline is over."""
        self._failure: AntiphonError | None = None
        self._failures: dict[ModelRoute, ErrorReport] = {}
        """The latest error of each route that failed, in the order of the first ones."""
        self._unsupported: dict[ModelRoute, AntiphonError] = {}

    def choose(self, affinity: bytes | None) -> ModelRoute | None:
        """Returns the next route to try; None if the request should wait. Raises the error of the request if
        no route is left."""
        if self._is_exhausted:
            raise self._build_error()
        model, clock = self._model, self._context.clock
        skipped = self._skipped + self._restarting
        route = choose_route(model, skipped, clock, affinity)
        if route is not None:
            if len(model.routes) > 1:
                load_parked_engines(model, route)
            return route
        route = choose_resting(model, skipped, clock.monotonic()) or choose_unready(model, skipped)
        if route is None and not self._restarting:
            raise self._build_error()
        return route

    async def pause(self) -> None:
        """Pauses for a restarting or loading engine. Raises the error of the last try if the pause would end
        too late."""
        is_loading = any(route.engine.state() in LOADS_ON_REQUEST for route in self._restarting)
        now, deadline = self._context.clock.monotonic(), self._context.deadline
        if self._wait_until is None:
            self._wait_until = now + self._restart_patience
        if not is_loading:
            deadline = self._wait_until if deadline is None else min(self._wait_until, deadline)
        if deadline is not None and now + self._pause >= deadline:
            raise self._build_error()
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, MAX_PAUSE_S)
        self._restarting = ()

    def add_full(self, route: ModelRoute) -> None:
        """Skips a route whose limit of requests in flight is reached over all processes."""
        self._skipped += (route,)
        self._found_full_route = True

    def record_error(self, use: RouteUse, error: AntiphonError) -> bool:
        """Returns whether an error ends the request. If not, records the error of the route."""
        self._attempts += use.has_begun and not isinstance(error, EngineUnavailable)
        self._engine_deaths += isinstance(error, EngineLost)
        if not isinstance(error, UNSUPPORTED):
            self._failures[use.route] = ErrorReport.from_error(error)
        if self._is_final(error):
            return True
        progress = self._context.progress
        # What the failed route reported does not hold for the next one.
        progress.unread, progress.relaxed, progress.has_own_schemas = (), (), False
        progress.sent_at = None
        error.with_traceback(None)  # the traceback refers to a frame that refers to this search
        if _can_wait(use.route, error):
            self._restarting += (use.route,)
        else:
            self._skipped += (use.route,)
        if isinstance(error, UNSUPPORTED):
            self._unsupported[use.route] = error
            return False
        # Only the operator can correct a refused key. The caller can try again after any other failure.
        if self._failure is None or not isinstance(error, ProviderKeyRefused):
            self._failure = error
        self._is_exhausted = not isinstance(error, EngineUnavailable) and (
            self._attempts >= MAX_ATTEMPTS or self._context.remaining() == 0
        )
        return False

    def _is_final(self, error: AntiphonError) -> bool:
        """Whether an error ends the request, because every route would repeat it."""
        if isinstance(error, UNSUPPORTED):
            return len(self._model.routes) == 1
        if isinstance(error, EngineUnavailable):
            return self._engine_deaths > MAX_ENGINE_DEATHS
        return not isinstance(error, ROUTE_FAILURES)

    def record_fallback(self, served: ModelRoute | None) -> None:
        """Logs a request that needed a second route after a failure. `served`: the route that serves; None if
        the request fails."""
        failures = self._failures
        if not failures or (len(failures) == 1 and served in (None, *failures)):
            return
        record(
            "fallback",
            request_id=self._context.request_id,
            model=self._model.label,
            failed=[route.label for route in failures],
            codes=[error.code for error in failures.values()],
            causes=[error.cause or "" for error in failures.values()],
            served=None if served is None else served.label,
        )

    def _build_error(self) -> AntiphonError:
        """Returns the error of a request that has no route left, and deletes it here. An object in the
        traceback must not store the error."""
        failure, self._failure = self._failure, None
        unsupported, self._unsupported = self._unsupported, {}
        if failure is not None:
            self.record_fallback(None)
            failure.retry_after = self._find_retry_after()
            return failure
        untried = [route for route in self._model.routes if route not in self._skipped]
        if self._found_full_route or any(map(is_full, untried)):
            return ProviderUnavailable(
                f"every route of {self._model.name} that can serve this request is full; try again",
                retry_after=FULL_RETRY_S,
            )
        now = self._context.clock.monotonic()
        rate_limited = [route for route in untried if has_retry_after(route, now)]
        return (
            _build_rest_error(rate_limited, now)
            if rate_limited
            else _build_unsupported_error(self._model, unsupported)
        )

    def _find_retry_after(self) -> float | None:
        """Returns the seconds after which the first route can be tried again; None if no vendor has said
        any. Only the routes that fail or rest count."""
        now = self._context.clock.monotonic()
        told = [error.retry_after for error in self._failures.values() if error.retry_after is not None]
        told += [route.state.held_until - now for route in self._model.routes if has_retry_after(route, now)]
        if not told:
            return None
        rests = [
            route.state.rests_until - now
            for route in self._failures
            if not has_retry_after(route, now) and route.state.rests_until > now
        ]
        return min(told + rests)


def _can_wait(route: ModelRoute, error: AntiphonError) -> bool:
    """Whether the engine of a route is worth waiting for after an error."""
    if not isinstance(error, EngineUnavailable) or isinstance(error, ModelNotLoaded):
        return False
    return route.engine.state() is not EngineState.FAILED


def _build_rest_error(resting: Sequence[ModelRoute], now: float) -> AntiphonError:
    """Returns the last error of the route that is available again first, with the seconds until then."""
    next_route = min(resting, key=lambda route: route.state.held_until)
    seconds_left = math.ceil(next_route.state.held_until - now)
    vendor_failure = next_route.state.vendor_failure
    error_type = (
        ProviderRateLimited
        if vendor_failure is not None and vendor_failure.code == RATE_LIMITED
        else ProviderUnavailable
    )
    reason = "" if vendor_failure is None else f": {vendor_failure.message}"
    return error_type(
        f"the route {next_route.name} rests for another {seconds_left} s{reason}", retry_after=seconds_left
    )


def _build_unsupported_error(model: Model, unsupported: Mapping[ModelRoute, AntiphonError]) -> AntiphonError:
    """Returns one error for a request that no route supports. It names each route, and the field if it is the
    same for all."""
    too_long = [error for error in unsupported.values() if isinstance(error, ContextLengthExceeded)]
    if too_long:
        return too_long[-1]
    reasons = "; ".join(f"{route.name}: {error.message}" for route, error in unsupported.items())
    params = {error.param for error in unsupported.values()}
    return UnsupportedParameter(
        f"no route of {model.name} supports this request: {reasons}",
        param=next(iter(params)) if len(params) == 1 else None,
    )


async def _start_route(
    use: RouteUse, *, request: GenerationRequest, context: Context, reserve: Reserve
) -> StartedStream:
    """Starts the stream on one route, and waits for its first event. Closes the stream if it fails before."""
    prepared = await prepare(use.route.engine, request, context)
    await reserve(use.route, prepared.size)
    use.begin_attempt()
    stream = prepared.stream(use.context)
    events = await stream.__aenter__()
    try:
        first_event = await anext(events)
    except BaseException as error:
        await stream.__aexit__(type(error), error, error.__traceback__)
        raise
    use.record_first_event()
    return StartedStream(stream, first_event, events, use)
