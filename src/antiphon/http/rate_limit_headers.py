"""How a request's limits stand, in the headers that OpenAI's answers have: of the limits of a minute that are
for it the tightest of requests, and the tightest of tokens."""

import math
from collections.abc import Iterable

from antiphon.domain.limits import LimitStatus, Measure, Window

NAMES = tuple(
    f"x-ratelimit-{what}-{kind}"
    for kind in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
)
"""Every header there may be."""

_REQUESTS, _TOKENS = (tuple(name.encode() for name in NAMES[at : at + 3]) for at in (0, 3))

SIXTY, THOUSAND = 60, 1000
MINUTE, REQUESTS, CONCURRENT, COST = Window.MINUTE, Measure.REQUESTS, Measure.CONCURRENT, Measure.COST

Headers = list[tuple[bytes, bytes]]


def limit_headers(standings: Iterable[LimitStatus]) -> Headers:
    """None where nothing of that kind is limited by the minute."""
    requests: LimitStatus | None = None
    tokens: LimitStatus | None = None
    for each in standings:
        limit = each.limit
        if limit.window is not MINUTE or limit.measure is COST or limit.measure is CONCURRENT:
            continue
        if limit.measure is REQUESTS:
            requests = each if requests is None or _room(each) < _room(requests) else requests
        else:
            tokens = each if tokens is None or _room(each) < _room(tokens) else tokens
    headers: Headers = []
    if requests is not None:
        headers += _said(_REQUESTS, requests)
    if tokens is not None:
        headers += _said(_TOKENS, tokens)
    return headers


def _said(names: tuple[bytes, ...], standing: LimitStatus) -> Headers:
    amount, remaining, reset = names
    return [
        (amount, b"%d" % standing.limit.amount),
        (remaining, b"%d" % standing.remaining),
        (reset, duration(standing.reset)),
    ]


def _room(standing: LimitStatus) -> tuple[int, int]:
    return standing.remaining, standing.limit.amount


def duration(seconds: float) -> bytes:
    """As OpenAI writes it: `120ms`, `1s`, `8.64s`, `6m0s`, `1h0m0s`; never less than it is."""
    thousandths = math.ceil(seconds * THOUSAND)
    if thousandths < SIXTY * THOUSAND:
        if thousandths < THOUSAND and thousandths:
            return b"%dms" % thousandths
        return b"%gs" % (thousandths / THOUSAND)
    whole, part = divmod(thousandths, THOUSAND)
    minutes, left = divmod(whole, SIXTY)
    hours, minutes = divmod(minutes, SIXTY)
    fraction = b".%03d" % part if part else b""
    return (b"%dh" % hours if hours else b"") + b"%dm%d%bs" % (minutes, left, fraction.rstrip(b"0"))
