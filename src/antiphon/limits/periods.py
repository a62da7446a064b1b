"""Days, weeks and months of UTC: when the one of a moment began, and when it ends."""

from datetime import UTC, datetime, timedelta

from antiphon.domain.limits import Window

SKEW_S = 3600.0
"""By which another machine's clock may be behind ours."""

DAYS = {Window.DAY: 1, Window.WEEK: 7}


def period(window: Window, at: float) -> tuple[int, int]:
    """Unix seconds of the beginning and of the end of the day, week (from Monday) or month that a moment is
    in. Raises ValueError for a window that slides."""
    day = datetime.fromtimestamp(at, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    match window:
        case Window.DAY | Window.WEEK:
            begin = day if window is Window.DAY else day - timedelta(days=day.weekday())
            end = begin + timedelta(days=DAYS[window])
        case Window.MONTH:
            begin = day.replace(day=1)
            end = (begin + timedelta(days=31)).replace(day=1)
        case Window.MINUTE:
            raise ValueError("a window that slides has no beginning")
    return int(begin.timestamp()), int(end.timestamp())


def bounds(window: Window, at: float) -> tuple[int, int, int]:
    """Beginning of a period, its end, and the end of the next one. A clock that shows about the time `at` is
    in one of the two."""
    begin, end = period(window, at - SKEW_S)
    return begin, end, period(window, end)[1]
