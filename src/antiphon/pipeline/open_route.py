"""Opens one of a model's routes for a request, and tries other routes until the engine has begun.

After a failure of an engine or a vendor the next route is tried, with at most three attempts in all. A route
that does not support the request does not count as an attempt. An error that every route would repeat ends
the request.

A restarting engine refuses with a retryable error. If no other route is ready, the request waits for the
engine, at most `restart_patience` seconds. For a model that is being loaded it waits until its deadline. So
the death of an engine's process only delays queued requests. Nothing is tried again after the first event.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, TypeVar

from antiphon.domain.context import Context, EngineReport
from antiphon.domain.events import EventGroup, Usage
from antiphon.domain.ledger import CANCELLED, OK, RouteTry
from antiphon.domain.limits import Amounts, Limit, Measure, Subject
from antiphon.domain.models import RouteCounts
from antiphon.domain.values import Struct
from antiphon.engines.base import Engine, EngineState, LateUsageStream, RequestSize
from antiphon.engines.registry import Model, ModelRoute
from antiphon.errors import (
    AntiphonError,
    BudgetExceeded,
    ContextLengthExceeded,
    EngineBusy,
    EngineLost,
    EngineUnavailable,
    ErrorReport,
    InternalError,
    LargerThanLimit,
    ModelNotLoaded,
    ProviderBroken,
    ProviderFailed,
    ProviderKeyRefused,
    ProviderRateLimited,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
    UnsupportedParameter,
)
from antiphon.limits.base import Limiter
from antiphon.pipeline.account import RequestAccount
from antiphon.pipeline.late_settlements import MAX_WAIT_S
from antiphon.pipeline.routing import (
    LOADS_ON_REQUEST,
    choose_resting,
    choose_route,
    choose_unready,
    has_retry_after,
    is_full,
    load_parked_engines,
)
from antiphon.pipeline.spans import close_attempt, open_attempt
from antiphon.telemetry.logs import record
from antiphon.telemetry.metrics import Metrics

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

RESTING_ERRORS = (
    ProviderFailed,
    ProviderUnavailable,
    ProviderTimeout,
    ProviderRateLimited,
    ProviderKeyRefused,
    ProviderBroken,
)
"""The errors that rest a route. Errors about the request say nothing about the route."""

UNSUPPORTED = (UnsupportedParameter, ContextLengthExceeded)
"""The errors of a route that does not support a request. Another route may support it."""

EXHAUSTED_ERRORS = (RateLimited, BudgetExceeded, LargerThanLimit)
"""The errors of a limiter for an exhausted limit."""

RATE_LIMITED = ProviderRateLimited.code

NOTHING = Amounts()

MILLISECONDS = 1000


class RoutePolicy(Struct, frozen=True):
    """The options that all uses of routes share."""

    metrics: Metrics
    restart_patience: float
    """Seconds that a request waits for a restarting engine."""
    limiter: Limiter | None = None
    """Counts the requests in flight of all HTTP processes; None if there is only this process."""


class OpenRoute(Generic[T]):
    """A context in which a request has a route: from its choice, over the start of the engine, to the end of
    the answer. It yields the result of `start`, with `first_events` if that opened a stream.

    The request counts as in flight. The time to the first event is measured, and a failure rests the route,
    so that requests avoid it for a while. Each route that is tried is in the request's list of tries and in
    the metrics. `start` opens the engine's stream by `open_stream`, and the end of the context closes it.
    """

    __slots__ = (
        "_account",
        "_affinity",
        "_claim",
        "_counts",
        "_events",
        "_has_served",
        "_is_probe",
        "_model",
        "_policy",
        "_request_context",
        "_start",
        "_started_at",
        "_stream",
        "context",
        "first_events",
        "is_attempt",
        "route",
    )

    _counts: RouteCounts
    _events: AsyncIterator[EventGroup] | None

    def __init__(
        self,
        model: Model,
        start: "Callable[[OpenRoute[T]], Awaitable[T]]",
        context: Context,
        policy: RoutePolicy,
        account: RequestAccount | None = None,
        affinity: bytes | None = None,
    ) -> None:
        """`start` is called with each route that is tried, until it raises no error. `account`: None if
        `start` only prepares. `affinity`: requests with equal bytes prefer one route."""
        self._model = model
        self._start = start
        self._request_context = self.context = context
        """`context` has the span of the attempt, once it has begun."""
        self._policy = policy
        self._account = account
        self._affinity = affinity
        self.route = model.routes[0]
        self._stream: AbstractAsyncContextManager[AsyncIterator[EventGroup]] | None = None
        self.first_events: EventGroup = ()
        """The first events of the stream. The route is tried until they have come."""

    async def __aenter__(self) -> T:
        """Raises the error of the last try, or ProviderUnavailable or ProviderRateLimited if no route can be
        tried."""
        model, context, account, search = self._model, self._request_context, self._account, None
        route = choose_route(model, (), context.clock, self._affinity)
        while True:
            if route is None:
                search = search or self._begin_search()
                route = await search.choose()
            elif len(model.routes) > 1:
                load_parked_engines(model, route)
            self._take(route)
            try:
                if route.in_flight_limit is None or await self._count_in_limit(route.in_flight_limit):
                    result = await self._start(self)
                    if self._events is not None:  # a generation sends its request as its events are read
                        self.first_events = await anext(self._events)
                        self.record_first_event()
                    if search is not None:
                        search.record_fallback(route)
                    return result
            except AntiphonError as error:
                self._add_try(error.code)  # before the close, which a cancellation can interrupt
                search = search or self._begin_search()
                is_final = search.record_error(route, error, self.is_attempt)
                if account is not None and not is_final:
                    context.progress.report = EngineReport()  # that of the route holds no longer
                await self._close(error)
                if is_final:
                    search.record_fallback(None)
                    raise
            except BaseException as error:
                self._add_try(None)  # takes the code with which the request ends
                await self._close(error)
                raise
            else:
                await self._close(None)
                search = search or self._begin_search()
                search.add_full(route)
            route = None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the stream and the route. If the caller has left before a usage that is on its way, both are
        closed later, when it has come."""
        account, stream = self._account, self._stream
        if (
            error is not None
            and account is not None
            and not account.has_usage
            and isinstance(stream, LateUsageStream)
            and account.expects_usage(error, stream.has_arrived)
        ):
            account.settle_later(error, self._read_late_usage(stream))
        else:
            await self._close(error)

    @property
    def engine(self) -> Engine:
        """The engine of the route."""
        return self.route.engine

    async def begin_attempt(self, size: RequestSize, report: EngineReport) -> None:
        """Reserves the request's size, and counts an attempt. Call it just before the engine is called."""
        self.context.progress.report = report
        if self._account is not None:
            await self._account.reserve(self.route, size)
        self.is_attempt = True
        self.context.progress.attempts += 1
        self._started_at = self.context.clock.monotonic()
        if self.context.span is not None:
            self.context = open_attempt(self.route, self._model, self.context, self.context.span)

    async def open_stream(
        self, stream: AbstractAsyncContextManager[AsyncIterator[EventGroup]]
    ) -> AsyncIterator[EventGroup]:
        """Enters a stream, which the end of this context leaves."""
        events = self._events = await stream.__aenter__()
        self._stream = stream
        return events

    def record_first_event(self) -> None:
        """Records that the first event has arrived, so the route works."""
        route, progress, now = self.route, self.context.progress, self.context.clock.monotonic()
        seconds = now - self._started_at
        self._has_served = True
        route.state.add_latency(seconds, now)
        if self._is_probe:
            route.state.wake()
        progress.route = route.header
        progress.tries += (RouteTry(route.name, None, round(seconds * MILLISECONDS)),)
        self._counts.first_events.add(seconds)

    def _begin_search(self) -> "RouteSearch":
        return RouteSearch(self._model, self._request_context, self._policy.restart_patience, self._affinity)

    def _take(self, route: ModelRoute) -> None:
        """Counts the request as in flight on a route."""
        self.route, self.context = route, self._request_context
        self.is_attempt = False
        """Whether `begin_attempt` was called: the engine of this route gets the request."""
        self._has_served = False
        """Whether the first event has come."""
        self._claim: str | None = None
        self._events = None
        self._counts = self._policy.metrics.find_route(self._model.label, route.label)
        self._started_at = self.context.clock.monotonic()
        route.state.in_flight += 1
        self._counts.in_flight += 1
        self._is_probe = route.state.rests_until > 0
        if self._is_probe:
            route.state.is_probed = True

    async def _count_in_limit(self, max_in_flight: int) -> bool:
        """Counts the request in the route's limit of requests in flight over all processes. Returns whether
        the limit allows the request. All models of a pattern share the limit. Raises LimitsUnavailable."""
        limiter = self._policy.limiter
        if limiter is None:
            return self._counts.in_flight <= max_in_flight
        name = f"{self._model.label}\0{self.route.label}"
        limit = Limit(f"route:{name}", Subject.MODEL, name, Measure.CONCURRENT, max_in_flight, 0)
        claim = self.context.clock.unique()
        try:
            await limiter.reserve(claim, (limit,), NOTHING)
        except EXHAUSTED_ERRORS:
            return False
        self._claim = claim
        return True

    async def _read_late_usage(self, stream: LateUsageStream) -> Usage | None:
        try:
            return await stream.read_usage(MAX_WAIT_S)
        finally:
            await self._close(asyncio.CancelledError())

    async def _close(self, error: BaseException | None) -> None:
        """Ends the use of the route, and leaves the stream. `error`: None if the answer is complete."""
        state, counts, limiter = self.route.state, self._counts, self._policy.limiter
        state.in_flight -= 1
        counts.in_flight -= 1
        if self._is_probe:
            state.is_probed = False
        if self._claim is not None and limiter is not None:
            limiter.settle(self._claim, NOTHING)
        if self.is_attempt:
            outcome = OK if error is None else _name_outcome(error)
            counts.outcomes[outcome] += 1
            if self.context.span is not None:
                close_attempt(self.context.span, outcome, self.context.clock.monotonic() - self._started_at)
        if isinstance(error, RESTING_ERRORS):
            self._rest(error)
        elif error is None and self._has_served:
            state.failures = 0
            # A request that started before the rest says nothing about the route now.
            if state.failed_at is not None and self._started_at >= state.rested_at:
                seconds = round(self.context.clock.monotonic() - state.failed_at, 1)
                state.failed_at, state.is_key_refused = None, False
                names = {"model": self._model.label, "route": self.route.label}
                record("route_serves_again", logging.WARNING, **names, seconds=seconds)
        stream, self._stream = self._stream, None
        if stream is not None:
            trace = None if error is None else error.__traceback__
            await stream.__aexit__(None if error is None else type(error), error, trace)

    def _rest(self, error: AntiphonError) -> None:
        """Rests the route after a failure. Logs the first rest since a whole answer, and the first refusal of
        the server's key, because it lasts longer."""
        state, now = self.route.state, self.context.clock.monotonic()
        self._counts.rests += state.rest(error, self._started_at, now)
        if state.is_replaced:
            return
        is_key_refused = isinstance(error, ProviderKeyRefused) and not error.is_key_renewed
        is_first_refusal = is_key_refused and not state.is_key_refused
        if state.failed_at is None or is_first_refusal:
            record(
                "route_rests",
                logging.WARNING,
                model=self._model.label,
                route=self.route.label,
                code=error.code,
                cause=error.cause or error.message,
                seconds=round(state.rests_until - now, 1),
            )
        state.failed_at = now if state.failed_at is None else state.failed_at
        state.is_key_refused |= is_first_refusal

    def _add_try(self, code: str | None) -> None:
        """Adds a failed try to the request's list. `code`: the code of its error; None stands for the code
        with which the request ends. Repeated tries of a restarting engine become one try."""
        if self._account is None:
            return
        progress, name = self.context.progress, self.route.name
        duration_ms = round((self.context.clock.monotonic() - self._started_at) * MILLISECONDS)
        earlier_tries = progress.tries
        if (
            earlier_tries
            and code is not None
            and (earlier_tries[-1].route, earlier_tries[-1].error) == (name, code)
        ):
            duration_ms, earlier_tries = duration_ms + earlier_tries[-1].ms, earlier_tries[:-1]
        progress.tries = (*earlier_tries, RouteTry(name, code, duration_ms))


class RouteSearch:
    """The routes that one request has tried without success, and why each failed. It begins with the first
    route that fails, is full, or is not ready."""

    __slots__ = (
        "_affinity",
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

    def __init__(
        self, model: Model, context: Context, restart_patience: float, affinity: bytes | None
    ) -> None:
        """`restart_patience`: the most seconds to wait for a restarting engine."""
        self._affinity = affinity
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

    async def choose(self) -> ModelRoute:
        """Returns the next route to try, after pauses for engines that restart or load. Raises the error of
        the request if no route is left."""
        model, clock = self._model, self._context.clock
        while not self._is_exhausted:
            skipped = self._skipped + self._restarting
            route = choose_route(model, skipped, clock, self._affinity)
            if route is not None:
                if len(model.routes) > 1:
                    load_parked_engines(model, route)
                return route
            route = choose_resting(model, skipped, clock.monotonic()) or choose_unready(model, skipped)
            if route is not None:
                return route
            if not self._restarting:
                break
            await self._pause_for_engine()
        raise self._build_error()

    async def _pause_for_engine(self) -> None:
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

    def record_error(self, route: ModelRoute, error: AntiphonError, is_attempt: bool) -> bool:
        """Returns whether an error ends the request. If not, records the error of the route. `is_attempt`:
        whether the route's engine was called."""
        self._attempts += is_attempt and not isinstance(error, EngineUnavailable)
        self._engine_deaths += isinstance(error, EngineLost)
        if not isinstance(error, UNSUPPORTED):
            self._failures[route] = ErrorReport.from_error(error)
        if self._is_final(error):
            return True
        error.with_traceback(None)  # the traceback refers to a frame that refers to this search
        if _can_wait(route, error):
            self._restarting += (route,)
        else:
            self._skipped += (route,)
        if isinstance(error, UNSUPPORTED):
            self._unsupported[route] = error
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


def _name_outcome(error: BaseException) -> str:
    """Returns the outcome of a failed attempt: `cancelled` if the caller left, or the code of its error."""
    if isinstance(error, AntiphonError):
        return error.code
    is_cancelled = isinstance(error, GeneratorExit | asyncio.CancelledError)
    return CANCELLED if is_cancelled else InternalError.code
