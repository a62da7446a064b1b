"""Times on a command line: durations and dates, and what is neither."""

import time
from datetime import UTC, datetime

import pytest

from antiphon.cli.serve_options import parse_model
from antiphon.cli.times import parse_duration, parse_time
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


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        ("small=models/a.gguf", "small", "models/a.gguf"),
        ("org/name=models/a.gguf", "org/name", "models/a.gguf"),
        ("org/name=hf:o/r:a.gguf", "org/name", "hf:o/r:a.gguf"),
        ("org/name=/models/a=b.gguf", "org/name", "/models/a=b.gguf"),
        ("hf:o/r:a=b.gguf", "a=b", "hf:o/r:a=b.gguf"),
        ("/models/a=b.gguf", "a=b", "/models/a=b.gguf"),
        ("./models/a=b.gguf", "a=b", "./models/a=b.gguf"),
        ("models/here=b.gguf", "here=b", "models/here=b.gguf"),
    ],
)
def test_a_model_s_name_can_have_a_slash(text, name, path, tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "here=b.gguf").touch()
    monkeypatch.chdir(tmp_path)
    parsed = parse_model(text)
    assert (parsed["name"], parsed["path"]) == (name, path)


def test_the_demo_model_can_get_a_name_with_a_slash():
    assert parse_model("org/demo=cantor")["name"] == "org/demo"
    assert str(parse_model("org/demo=cantor")["path"]).endswith("cantor.gguf")
