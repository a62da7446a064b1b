"""The rate-limit headers of OpenAI's dialect, and of dialects with others."""

import math
from collections.abc import Callable, Iterable

from antiphon.dialects.http_types import Headers
from antiphon.domain.limits import LimitStatus, Measure, Window
from antiphon.http.protocol import HeaderList

RATE_LIMIT_HEADERS = tuple(
    f"x-ratelimit-{value}-{measure}"
    for measure in ("requests", "tokens")
    for value in ("limit", "remaining", "reset")
)
"""The names of all rate-limit headers."""


_REQUESTS, _TOKENS = (
    tuple(name.encode() for name in RATE_LIMIT_HEADERS[start : start + 3]) for start in (0, 3)
)


MINUTE_SECONDS, HOUR_MINUTES, SECOND_MILLISECONDS = 60, 60, 1000


MINUTE, REQUESTS, CONCURRENT, COST = Window.MINUTE, Measure.REQUESTS, Measure.CONCURRENT, Measure.COST


def build_limit_headers(
    statuses: Iterable[LimitStatus], build_own: Callable[[str, LimitStatus], Headers] | None = None
) -> HeaderList:
    """Returns the rate-limit headers of the tightest limit of requests per minute, and of the tightest limit
    of tokens per minute. The list is empty if there is no such limit. `build_own` returns a dialect's own
    headers for `requests` or `tokens`."""
    tightest_requests: LimitStatus | None = None
    tightest_tokens: LimitStatus | None = None
    for status in statuses:
        limit = status.limit
        if limit.window is not MINUTE or limit.measure is COST or limit.measure is CONCURRENT:
            continue
        if limit.measure is REQUESTS:
            if tightest_requests is None or _is_tighter(status, tightest_requests):
                tightest_requests = status
        elif tightest_tokens is None or _is_tighter(status, tightest_tokens):
            tightest_tokens = status
    headers: HeaderList = []
    for measure, (amount, remaining, reset), tightest in (
        ("requests", _REQUESTS, tightest_requests),
        ("tokens", _TOKENS, tightest_tokens),
    ):
        if tightest is not None:
            headers += (
                (amount, b"%d" % tightest.limit.amount),
                (remaining, b"%d" % tightest.remaining),
                (reset, format_duration(tightest.reset)),
            )
            if build_own is not None:
                headers += build_own(measure, tightest)
    return headers


def _is_tighter(status: LimitStatus, tightest: LimitStatus) -> bool:
    """Whether less of a limit remains, or as much of a smaller one."""
    return (status.remaining, status.limit.amount) < (tightest.remaining, tightest.limit.amount)


def format_duration(seconds: float) -> bytes:
    """Formats a duration as OpenAI does, rounded up: `120ms`, `1s`, `8.64s`, `6m0s`, `1h0m0s`."""
    total_milliseconds = math.ceil(seconds * SECOND_MILLISECONDS)
    if total_milliseconds < MINUTE_SECONDS * SECOND_MILLISECONDS:
        if total_milliseconds < SECOND_MILLISECONDS and total_milliseconds:
            return b"%dms" % total_milliseconds
        return b"%gs" % (total_milliseconds / SECOND_MILLISECONDS)
    total_seconds, milliseconds = divmod(total_milliseconds, SECOND_MILLISECONDS)
    minutes, seconds_left = divmod(total_seconds, MINUTE_SECONDS)
    hours, minutes = divmod(minutes, HOUR_MINUTES)
    fraction = b".%03d" % milliseconds if milliseconds else b""
    return (b"%dh" % hours if hours else b"") + b"%dm%d%bs" % (minutes, seconds_left, fraction.rstrip(b"0"))
