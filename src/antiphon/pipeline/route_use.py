"""The use of a route by one request: from the choice of the route to the end of the request's stream.

A use counts as in flight. It measures the time to the first event, and rests the route after a failure. Each
use writes the route's metrics and the request's list of tries.
"""

import asyncio
from dataclasses import dataclass

from antiphon.domain.context import Context
from antiphon.domain.ledger import CANCELLED, OK, RouteTry
from antiphon.domain.limits import Amounts, Limit, Measure, Subject
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
from antiphon.telemetry.metrics import Metrics

RESTING = (ProviderFailed, ProviderUnavailable, ProviderTimeout, ProviderRateLimited, ProviderBroken)
"""The failures that rest a route. A refusal of the request says nothing about the route."""

FULL = (RateLimited, BudgetExceeded, LargerThanLimit)
"""The errors of a limiter without room."""

NOTHING = Amounts()

MILLISECONDS = 1000


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """What all uses of routes share."""

    metrics: Metrics
    patience: float
    """Seconds that a request waits for a restarting engine."""
    limiter: Limiter | None = None
    """Counts the requests in flight of all HTTP processes; None if there is only this process."""


class RouteUse:
    """One request's use of a route."""

    __slots__ = (
        "_began",
        "_claim",
        "_context",
        "_is_open",
        "_is_probe",
        "_labels",
        "_policy",
        "has_begun",
        "has_served",
        "route",
    )

    def __init__(self, route: ModelRoute, model: Model, context: Context, policy: RoutePolicy) -> None:
        """Counts the request as in flight."""
        self.route = route
        self.has_begun = False
        """Whether the engine was asked."""
        self.has_served = False
        """Whether the first event came."""
        self._context = context
        self._policy = policy
        self._claim: str | None = None
        self._is_open = True
        self._labels = labels = (model.label, route.label)
        self._began = context.clock.monotonic()
        state = route.state
        state.in_flight += 1
        policy.metrics.routes_in_flight[labels] += 1
        self._is_probe = state.rests_until > 0
        if self._is_probe:
            state.is_probed = True

    async def claim(self) -> bool:
        """Takes a place in the route's limit over all processes. Returns whether there is one. All names of a
        pattern share the places. Raises LimitsUnavailable."""
        most, limiter = self.route.in_flight_limit, self._policy.limiter
        if most is None:
            return True
        if limiter is None:
            return self._policy.metrics.routes_in_flight[self._labels] <= most
        name = "\0".join(self._labels)
        limit = Limit(f"route:{name}", Subject.MODEL, name, Measure.CONCURRENT, most, 0)
        claim = self._context.clock.unique()
        try:
            await limiter.reserve(claim, (limit,), NOTHING)
        except FULL:
            return False
        self._claim = claim
        return True

    def begin(self) -> None:
        """Counts an attempt: the engine is asked now."""
        self.has_begun = True
        self._context.progress.attempts += 1
        self._began = self._context.clock.monotonic()

    def serve(self) -> None:
        """Notes the first event: the route works."""
        now, progress = self._context.clock.monotonic(), self._context.progress
        seconds = now - self._began
        self.has_served = True
        self.route.state.measure(seconds, now)
        if self._is_probe:
            self.route.state.wake()
        progress.route = self.route.header
        progress.tries += (RouteTry(self.route.name, None, round(seconds * MILLISECONDS)),)
        self._policy.metrics.route_first_events[self._labels].add(seconds)

    def close(self, error: BaseException | None = None) -> None:
        """Ends the use, once. `error`: what ended it; None if the stream is complete."""
        if not self._is_open:
            return
        self._is_open = False
        state, metrics = self.route.state, self._policy.metrics
        state.in_flight -= 1
        metrics.routes_in_flight[self._labels] -= 1
        if self._is_probe:
            state.is_probed = False
        if self._claim is not None and self._policy.limiter is not None:
            self._policy.limiter.settle(self._claim, NOTHING)
        if self.has_begun:
            metrics.route_attempts[*self._labels, _name_outcome(error)] += 1
        if isinstance(error, RESTING):
            self._rest(error)
        elif error is None and self.has_served:
            state.forgive()

    def _rest(self, error: AntiphonError) -> None:
        """Rests the route after a failure."""
        if self.route.state.rest(error, self._began, self._context.clock.monotonic()):
            self._policy.metrics.route_rests[self._labels] += 1

    def add_try(self, code: str | None) -> None:
        """Adds a try that did not serve to the request's list. `code`: of its error; None takes the code with
        which the request ends. Repeated tries of a restarting engine are one try."""
        progress, name = self._context.progress, self.route.name
        ms = round((self._context.clock.monotonic() - self._began) * MILLISECONDS)
        earlier = progress.tries
        if earlier and code is not None and (earlier[-1].route, earlier[-1].error) == (name, code):
            ms, earlier = ms + earlier[-1].ms, earlier[:-1]
        progress.tries = (*earlier, RouteTry(name, code, ms))


def _name_outcome(error: BaseException | None) -> str:
    """Returns how an attempt ended: `ok`, `cancelled` by the caller, or the code of its error."""
    if error is None:
        return OK
    if isinstance(error, AntiphonError):
        return error.code
    left = isinstance(error, GeneratorExit | asyncio.CancelledError)
    return CANCELLED if left else InternalError.code
