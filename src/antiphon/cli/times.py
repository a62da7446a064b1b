"""Times as people write them on a command line."""

import re
import time
from datetime import UTC, datetime

from antiphon.errors import SettingsError

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
DURATION = re.compile(r"([0-9]{1,9})([smhdw])")


def now() -> int:
    """Unix seconds."""
    return int(time.time())


def parse_duration(text: str) -> int:
    """Seconds of `30d`, `12h`, `15m`, `90s`, `2w`. Raises SettingsError."""
    seconds = _seconds(text)
    if seconds is None:
        raise SettingsError(f"{text!r} is no duration; write it as 90s, 15m, 12h, 30d or 2w")
    return seconds


def parse_past(text: str) -> int:
    """The Unix second that was a duration ago, or in which a date begins, as `parse_time` reads it. Raises
    SettingsError."""
    seconds = _seconds(text)
    return parse_time(text) if seconds is None else now() - seconds


def parse_time(text: str) -> int:
    """The Unix second in which a duration from now ends, or a date begins, in UTC unless it says another
    zone. Raises SettingsError."""
    seconds = _seconds(text)
    if seconds is not None:
        return now() + seconds
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"{text!r} is no time; write it as 12h, 30d, 2030-01-31 or 2030-01-31T12:00"
        ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())


def _seconds(text: str) -> int | None:
    found = DURATION.fullmatch(text)
    return int(found[1]) * UNITS[found[2]] if found else None
