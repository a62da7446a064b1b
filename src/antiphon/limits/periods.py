"""Days, weeks and months of UTC: when the one of a moment began, and when it ends."""

from datetime import UTC, datetime, timedelta

from antiphon.domain.limits import Window

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
