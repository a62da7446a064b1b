"""The notation of times and durations in options of commands."""

import re
import time
from datetime import UTC, datetime

from antiphon.errors import SettingsError

UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}


DURATION = re.compile(r"([0-9]{1,9})([smhdw])")


def now() -> int:
    """Returns the current Unix time in seconds."""
    return int(time.time())


def parse_duration(text: str) -> int:
    """Parses a duration, such as `30d`, `12h`, `15m`, `90s` or `2w`, to seconds. Raises SettingsError."""
    seconds = _parse_seconds(text)
    if seconds is None:
        raise SettingsError(f"{text!r} is no duration; write it as 90s, 15m, 12h, 30d or 2w")
    return seconds


def parse_past(text: str) -> int:
    """Parses a duration before now, or a date, to Unix seconds. Raises SettingsError."""
    seconds = _parse_seconds(text)
    return parse_time(text) if seconds is None else now() - seconds


def parse_time(text: str) -> int:
    """Parses a duration from now, or a date, to Unix seconds. Raises SettingsError.

    A date without a time zone is in UTC.
    """
    seconds = _parse_seconds(text)
    if seconds is not None:
        return now() + seconds
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"{text!r} is no time; write it as 12h, 30d, 2030-01-31 or 2030-01-31T12:00"
        ) from None
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp())


def _parse_seconds(text: str) -> int | None:
    match = DURATION.fullmatch(text)
    return int(match[1]) * UNIT_SECONDS[match[2]] if match else None
