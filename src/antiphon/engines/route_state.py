"""The state of a route in one process: its requests in flight, its latency, its failures and its rest.

A route that fails rests: requests avoid it for some time. Each further failure doubles the time. A vendor's
Retry-After prolongs it. After the rest one request at a time tries the route, until one gets its first event.
"""

from math import exp2

from antiphon.errors import AntiphonError, ErrorReport

FIRST_REST_S = 1.0
"""Seconds of the rest after the first failure."""

MAX_REST_S = 60.0
"""The longest rest in seconds without a vendor's Retry-After."""

MAX_VENDOR_REST_S = 3600.0
"""The longest rest in seconds by a vendor's Retry-After. The bound keeps a wrong value from stopping a route
for days."""

HALF_LIFE_S = 10.0
"""Seconds in which a measured latency loses half of its weight."""


MIN_LATENCY_S = 0.001
"""Seconds below which latencies count as equal."""


class RouteState:
    """The state of one route in this process. Times are monotonic seconds."""

    __slots__ = (
        "_latency",
        "_measured_at",
        "failures",
        "held_until",
        "in_flight",
        "is_probed",
        "rested_at",
        "rests_until",
        "vendor_failure",
    )

    def __init__(self) -> None:
        self.in_flight = 0
        """Requests that run on the route, streams included."""
        self.failures = 0
        """Failures since the last request that ended without an error."""
        self.rested_at = 0.0
        """The start of the latest rest."""
        self.rests_until = 0.0
        """The end of the latest rest; 0 if the route does not rest."""
        self.held_until = 0.0
        """The time until which the vendor wants no request, by its Retry-After."""
        self.is_probed = False
        """Whether one request is trying the route after a rest."""
        self.vendor_failure: ErrorReport | None = None
        """The error that came with the Retry-After of `held_until`."""
        self._latency = 0.0
        self._measured_at: float | None = None

    @property
    def has_latency(self) -> bool:
        """Whether a first event was measured."""
        return self._measured_at is not None

    def estimate_latency(self, now: float) -> float:
        """Returns the decayed mean of seconds to the first event. It decays while nothing is measured, so a
        slow route is tried again."""
        if self._measured_at is None:
            return MIN_LATENCY_S
        return max(MIN_LATENCY_S, self._latency * exp2((self._measured_at - now) / HALF_LIFE_S))

    def add_latency(self, seconds: float, now: float) -> None:
        """Adds a measured time to a first event to the mean. The older the mean is, the less it weighs."""
        if self._measured_at is None:
            self._latency = seconds
        else:
            self._latency = seconds + (self._latency - seconds) * exp2(
                (self._measured_at - now) / HALF_LIFE_S
            )
        self._measured_at = now

    def is_resting(self, now: float) -> bool:
        """Whether other requests must avoid the route: during its rest, and while one request tries it after
        the rest."""
        return self.rests_until > 0 and (self.is_probed or now < self.rests_until)

    def wake(self) -> None:
        """Ends the rest: a request got its first event."""
        self.rests_until = self.held_until = 0.0

    def rest(self, error: AntiphonError, request_started_at: float, now: float) -> bool:
        """Rests the route after a failure of a request. Returns whether a new rest has started. Failures of
        requests that started before the latest rest belong to that rest: they do not count again."""
        is_new = request_started_at >= self.rested_at
        if is_new:
            self.failures += 1
            self.rested_at = now
        backoff = min(MAX_REST_S, FIRST_REST_S * exp2(min(self.failures - 1, 32))) if is_new else 0.0
        retry_after = min(error.retry_after or 0.0, MAX_VENDOR_REST_S)
        self.rests_until = max(self.rests_until, now + backoff, now + retry_after)
        if retry_after > 0 and now + retry_after > self.held_until:
            self.held_until = now + retry_after
            self.vendor_failure = ErrorReport.from_error(error)
        return is_new
