"""The state of a route in one process: its circuit breaker, its speed, and its requests in flight.

A route that fails rests: requests avoid it for some time. Each further failure doubles the time. A vendor's
Retry-After prolongs it, and a refused key of the server makes it an hour. After the rest one request at a
time tries the route, until one gets its first event. `pipeline.routing` asks before it chooses a route.
"""

import math
from collections import deque
from math import exp2

from antiphon.errors import AntiphonError, ErrorReport, ProviderKeyRefused

FIRST_REST_S = 1.0
"""Seconds of the rest after the first failure."""

MAX_REST_S = 60.0
"""The longest rest in seconds without a vendor's Retry-After."""

MAX_RETRY_AFTER_S = 3600.0
"""The most seconds of a vendor's Retry-After. The vendors' errors shorten a longer one to this, so that a
wrong value stops a route for an hour and not for days."""

KEY_REST_S = 3600.0
"""Seconds of the rest after a vendor refused the server's key. A reload ends it earlier."""

HALF_LIFE_S = 10.0
"""Seconds in which a measured latency loses half of its weight."""

MIN_LATENCY_S = 0.001
"""Seconds below which latencies count as equal."""

SPEED_SAMPLES = 128
"""The most recent answers of a route from which its speed is known."""

SPEED_PERCENTILE = 0.95

MIN_SAMPLES = 8
"""Answers below which the speed of a route is unknown. One slow answer is easy to ask for."""

MIN_SPEED_TOKENS = 64
"""Output tokens below which an answer tells no speed. A short answer mostly waits for its first token, so
callers could make a route look slow by many of them."""


class RouteSpeed:
    """The output tokens per second that a vendor's finished answers with one choice had, from the moment in
    which the request was sent. Requests that end early are charged by it."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=SPEED_SAMPLES)

    def add(self, tokens: int, seconds: float) -> None:
        """Adds a finished answer. `tokens` includes hidden reasoning."""
        if tokens >= MIN_SPEED_TOKENS:
            self._samples.append(tokens / max(seconds, MIN_LATENCY_S))

    def estimate(self) -> float | None:
        """Returns the 95th percentile; None before enough answers have shown a speed."""
        if len(self._samples) < MIN_SAMPLES:
            return None
        return sorted(self._samples)[math.ceil(len(self._samples) * SPEED_PERCENTILE) - 1]


class RouteState:
    """The state of one route in this process. Times are monotonic seconds."""

    __slots__ = (
        "_latency",
        "_measured_at",
        "failed_at",
        "failures",
        "held_until",
        "in_flight",
        "is_key_refused",
        "is_probed",
        "is_replaced",
        "rested_at",
        "rests_until",
        "speed",
        "vendor_failure",
    )

    def __init__(self) -> None:
        self.in_flight = 0
        """Requests that run on the route, streams included."""
        self.failures = 0
        """Failures since the last request that ended without an error."""
        self.failed_at: float | None = None
        """The start of the first rest since the latest whole answer; None after a whole answer."""
        self.is_key_refused = False
        """Whether the vendor refused the server's key since the latest whole answer."""
        self.rested_at = 0.0
        """The start of the latest rest."""
        self.rests_until = 0.0
        """The end of the latest rest; 0 if the route does not rest."""
        self.held_until = 0.0
        """The time until which the vendor wants no request, by its Retry-After."""
        self.is_probed = False
        """Whether one request is trying the route after a rest."""
        self.is_replaced = False
        """Whether a reload has removed the route, or given it another source. Only requests that started
        before use this state, so the log tells none of its later rests: nothing could end them."""
        self.vendor_failure: ErrorReport | None = None
        """The error that came with the Retry-After of `held_until`."""
        self.speed = RouteSpeed()
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
        backoff = 0.0
        if is_new:
            self.failures += 1
            self.rested_at = now
            backoff = min(MAX_REST_S, FIRST_REST_S * exp2(min(self.failures - 1, 32)))
            if isinstance(error, ProviderKeyRefused) and not error.is_key_renewed:
                backoff = KEY_REST_S
        retry_after = error.retry_after or 0.0
        self.rests_until = max(self.rests_until, now + backoff, now + retry_after)
        if retry_after > 0 and now + retry_after > self.held_until:
            self.held_until = now + retry_after
            self.vendor_failure = ErrorReport.from_error(error)
        return is_new

    def end_key_rest(self, now: float) -> None:
        """Ends the rest after a refused key, because the key may be another one now. The next request tries
        the route. Requests that started before do not rest it again."""
        if self.is_key_refused:
            self.rests_until = max(now, self.held_until) if self.rests_until else 0.0
            self.rested_at = now
            self.is_key_refused = False
