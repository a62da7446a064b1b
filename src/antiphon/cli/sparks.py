"""Figures over time as one line of text."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

HEIGHTS = "▁▂▃▄▅▆▇█"
HOUR, DAY = 3600, 24 * 3600
MONDAY = 3 * DAY
"""Seconds from a Monday to the beginning of 1970."""

FINEST = (("hour", 2 * DAY), ("day", 92 * DAY), ("week", 400 * DAY))
"""In which stretches a time is drawn that is no longer than so many seconds; else in months."""


def stretch(since: int, until: int) -> str:
    """In which stretches a time is drawn."""
    return next((name for name, most in FINEST if until - since <= most), "month")


def beginnings(of: str, since: int, until: int) -> list[int]:
    """The Unix seconds in which the stretches of a time begin, the first maybe before it."""
    if of == "month":
        return _months(since, until)
    length = {"hour": HOUR, "day": DAY, "week": 7 * DAY}[of]
    shift = MONDAY if of == "week" else 0
    return list(range(since - (since + shift) % length, until, length))


def _months(since: int, until: int) -> list[int]:
    found, at = [], datetime.fromtimestamp(since, UTC).replace(day=1, hour=0, minute=0, second=0)
    while at.timestamp() < until:
        found.append(int(at.timestamp()))
        at = (at + timedelta(days=32)).replace(day=1)
    return found


def series(said: Mapping[int, int], at: Sequence[int]) -> list[int]:
    """A figure for each of the stretches; where nothing is said nothing was."""
    return [said.get(each, 0) for each in at]


def folded(figures: Sequence[int], width: int) -> list[int]:
    """At most `width` sums of neighbours, of as many each; the latest are whole."""
    each = max(1, -(-len(figures) // width))
    begins = len(figures) % each
    parts = [figures[:begins]] if begins else []
    parts += [figures[at : at + each] for at in range(begins, len(figures), each)]
    return [sum(part) for part in parts]


def spark(figures: Sequence[int], highest: int | None = None) -> str:
    """A bar for each figure, as high as it is of the highest; a blank for none."""
    top = max(figures, default=0) if highest is None else highest
    return "".join(_bar(each, top) for each in figures)


def _bar(figure: int, top: int) -> str:
    if figure <= 0 or top <= 0:
        return " "
    return HEIGHTS[min(len(HEIGHTS) - 1, (figure * len(HEIGHTS) - 1) // top)]
