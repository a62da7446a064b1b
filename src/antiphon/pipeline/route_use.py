"""The use of a route by one request: from the choice of the route to the end of the request's stream.

A use counts as in flight. It measures the time to the first event. After a failure it rests the route, so
that requests avoid the route for a while. It writes the route's metrics and the request's list of tries.
"""

import asyncio

from antiphon.domain.context import Context
from antiphon.domain.ledger import CANCELLED, OK, RouteTry
from antiphon.domain.limits import Amounts, Limit, Measure, Subject
from antiphon.domain.values import Struct
from antiphon.engines.registry import Model, ModelRoute
from antiphon.errors import (
    AntiphonError,
    BudgetExceeded,
    InternalError,
    LargerThanLimit,
    ProviderBroken,
    ProviderFailed,
    ProviderRateLimited,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
)
from antiphon.limits.base import Limiter
from antiphon.pipeline.spans import close_attempt, open_attempt
from antiphon.telemetry.metrics import Metrics

RESTING_ERRORS = (ProviderFailed, ProviderUnavailable, ProviderTimeout, ProviderRateLimited, ProviderBroken)
"""The errors that rest a route. Errors about the request say nothing about the route."""

EXHAUSTED_ERRORS = (RateLimited, BudgetExceeded, LargerThanLimit)
"""The errors of a limiter for an exhausted limit."""

NOTHING = Amounts()

MILLISECONDS = 1000


class RoutePolicy(Struct, frozen=True):
    """The options that all uses of routes share."""

    metrics: Metrics
    restart_patience: float
    """Seconds that a request waits for a restarting engine."""
    limiter: Limiter | None = None
    """Counts the requests in flight of all HTTP processes; None if there is only this process."""


class RouteUse:
    """One request's use of a route."""

    __slots__ = (
        "_claim",
        "_counts",
        "_is_open",
        "_is_probe",
        "_limiter",
        "_model",
        "_started_at",
        "context",
        "has_begun",
        "has_served",
        "route",
    )

    def __init__(self, route: ModelRoute, model: Model, context: Context, policy: RoutePolicy) -> None:
        """Counts the request as in flight."""
        state = route.state
        counts = policy.metrics.find_route(model.label, route.label)
        state.in_flight += 1
        counts.in_flight += 1
        self.route = route
        self.has_begun = self.has_served = False
        self.context = context
        """The request's context. Once the attempt has begun, it has the attempt's span."""
        self._model = model
        self._counts = counts
        self._limiter = policy.limiter
        self._claim: str | None = None
        self._is_open = True
        self._started_at = context.clock.monotonic()
        self._is_probe = state.rests_until > 0
        if self._is_probe:
            state.is_probed = True

    async def count_in_limit(self) -> bool:
        """Counts the request in the route's limit of requests in flight over all processes. Returns whether
        the limit allows the request. All models of a pattern share the limit. Raises LimitsUnavailable."""
        max_in_flight, limiter = self.route.in_flight_limit, self._limiter
        if max_in_flight is None:
            return True
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

    def begin_attempt(self) -> None:
        """Counts an attempt. Call it just before the engine is called."""
        self.has_begun = True
        self.context.progress.attempts += 1
        self._started_at = self.context.clock.monotonic()
        if self.context.span is not None:
            self.context = open_attempt(self.route, self._model, self.context, self.context.span)

    def record_first_event(self) -> None:
        """Records that the first event has arrived, so the route works."""
        route, progress, now = self.route, self.context.progress, self.context.clock.monotonic()
        seconds = now - self._started_at
        self.has_served = True
        route.state.add_latency(seconds, now)
        if self._is_probe:
            route.state.wake()
        progress.route = route.header
        progress.tries += (RouteTry(route.name, None, round(seconds * MILLISECONDS)),)
        self._counts.first_events.add(seconds)

    def close(self, error: BaseException | None = None) -> None:
        """Ends the use. Only the first call has an effect. `error`: None if the stream is complete."""
        if not self._is_open:
            return
        self._is_open = False
        state, counts = self.route.state, self._counts
        state.in_flight -= 1
        counts.in_flight -= 1
        if self._is_probe:
            state.is_probed = False
        if self._claim is not None and self._limiter is not None:
            self._limiter.settle(self._claim, NOTHING)
        if self.has_begun:
            outcome = OK if error is None else _name_outcome(error)
            counts.outcomes[outcome] += 1
            if self.context.span is not None:
                close_attempt(self.context.span, outcome, self.context.clock.monotonic() - self._started_at)
        if error is None:
            state.failures = 0 if self.has_served else state.failures
        elif isinstance(error, RESTING_ERRORS):
            counts.rests += state.rest(error, self._started_at, self.context.clock.monotonic())

    def add_try(self, code: str | None) -> None:
        """Adds a failed try to the request's list. `code`: the code of its error; None stands for the code
        with which the request ends. Repeated tries of a restarting engine become one try."""
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


def _name_outcome(error: BaseException) -> str:
    """Returns the outcome of a failed attempt: `cancelled` if the caller left, or the code of its error."""
    if isinstance(error, AntiphonError):
        return error.code
    is_cancelled = isinstance(error, GeneratorExit | asyncio.CancelledError)
    return CANCELLED if is_cancelled else InternalError.code
