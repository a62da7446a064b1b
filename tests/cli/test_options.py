"""Times on a command line: durations and dates, and what is neither."""

import time
from datetime import UTC, datetime

import pytest

from antiphon.cli.options import parse_duration, parse_time
from antiphon.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000), ("2w", 1_209_600)]
)
def test_a_duration_is_counted_from_now(text, seconds):
    assert parse_duration(text) == seconds
    before = int(time.time())
    assert before + seconds <= parse_time(text) <= int(time.time()) + seconds


def test_a_date_is_utc_unless_it_says_another_zone():
    at = int(datetime(2030, 1, 31, 12, tzinfo=UTC).timestamp())
    assert parse_time("2030-01-31") == at - 12 * 3600
    assert parse_time("2030-01-31T12:00") == parse_time("2030-01-31T13:00+01:00") == at


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1y", "1.5h", "²d", "tomorrow", "2030-02-31"])
def test_anything_else_is_refused(text):
    with pytest.raises(SettingsError, match="write it as"):
        parse_time(text)


@pytest.mark.parametrize("text", ["", "30", "2030-01-31"])
def test_a_date_is_no_parse_duration(text):
    with pytest.raises(SettingsError, match="no duration"):
        parse_duration(text)
