"""How a request's limits stand, in the headers that OpenAI's answers have: of the limits of a minute that are
for it the tightest of requests, and the tightest of tokens."""

import math
from collections.abc import Iterable

from antiphon.domain.limits import Measure, Standing, Window

REQUESTS = (Measure.REQUESTS,)
TOKENS = (Measure.TOKENS, Measure.INPUT_TOKENS, Measure.OUTPUT_TOKENS)
COUNTED = ((b"requests", REQUESTS), (b"tokens", TOKENS))

NAMES = tuple(
    f"x-ratelimit-{what}-{kind}"
    for kind in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
)
"""Every header there may be."""

SIXTY, THOUSAND = 60, 1000
MINUTE = Window.MINUTE


def limit_headers(standings: Iterable[Standing]) -> list[tuple[bytes, bytes]]:
    """None where nothing of that kind is limited by the minute."""
    headers: list[tuple[bytes, bytes]] = []
    sliding = [each for each in standings if each.limit.window is MINUTE]
    for kind, measures in COUNTED if sliding else ():
        found = [each for each in sliding if each.limit.measure in measures]
        if found:
            tightest = found[0] if len(found) == 1 else min(found, key=_room)
            headers += (
                (b"x-ratelimit-limit-" + kind, b"%d" % tightest.limit.amount),
                (b"x-ratelimit-remaining-" + kind, b"%d" % tightest.remaining),
                (b"x-ratelimit-reset-" + kind, duration(tightest.reset).encode()),
            )
    return headers


def _room(standing: Standing) -> tuple[int, int]:
    return standing.remaining, standing.limit.amount


def duration(seconds: float) -> str:
    """As OpenAI writes it: `120ms`, `1s`, `8.64s`, `6m0s`, `1h0m0s`; never less than it is."""
    whole, part = divmod(math.ceil(seconds * THOUSAND), THOUSAND)
    if part and not whole:
        return f"{part}ms"
    minutes, left = divmod(whole, SIXTY)
    hours, minutes = divmod(minutes, SIXTY)
    fraction = f".{part:03d}".rstrip("0") if part else ""
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{left}{fraction}s"
