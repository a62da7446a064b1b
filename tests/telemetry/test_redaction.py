"""What is found in texts and taken out, what is left alone, and that no text takes long."""

import json
import time

import pytest

from antiphon.domain.recording import Redaction
from antiphon.telemetry.redaction import PATTERNS, redacted, redacted_json

ALL = frozenset(Redaction)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("write to ann.b+c@mail.example.org today", "write to [email] today"),
        ("<ANN@EXAMPLE.ORG>", "<[email]>"),
        ("my key is sk-proj-abcdefghijklmnop1234", "my key is [key]"),
        ("ak_ABCDEFGHIJKLMNOP0123", "[key]"),
        ("Bearer eyJhbGciOiJFUzI1.eyJzdWIiOiIxMjM0.c2lnbmF0dXJl ok", "Bearer [key] ok"),
        ("pay 4111 1111 1111 1111 now", "pay [card] now"),
        ("4111-1111-1111-1111", "[card]"),
        ("call +49 (30) 1234-567.", "call [phone]."),
        ("call 0049 30 1234567 or 030 1234567", "call [phone] or [phone]"),
        ("from 192.168.1.20:8080", "from [address]:8080"),
        ("at 2001:db8:0:1:1:1:1:1 and fe80::1 now", "at [address] and [address] now"),
    ],
)
def test_what_is_found(text, left):
    assert redacted(text, ALL) == left


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 42, or 3.14159, in 2026.",
        "order 4111111111111112",  # no card: its last digit is another
        "version 1.2.3 at 12:30:45",
        "a @ b, @ann, ann@localhost",
        "sketch-book and pk-1",
        "def f(x): return x * 1000000",
        "2026-11-22T01:02:03",
    ],
)
def test_what_is_left_alone(text):
    assert redacted(text, ALL) == text


def test_only_what_was_asked_for_is_taken_out():
    text = "ann@example.org 192.168.1.20"
    assert redacted(text, {Redaction.EMAIL}) == "[email] 192.168.1.20"
    assert redacted(text, ()) == text


def test_strings_of_json_are_read_as_they_mean():
    said = '"messages": [{"role": "user", "content": "ann\\u0040example.org"}]'
    body = "{" + said + ', "n": 4, "ann@example.org": null}'
    assert json.loads(redacted_json(body, ALL)) == {
        "messages": [{"role": "user", "content": "[email]"}],
        "n": 4,
        "[email]": None,
    }
    assert redacted_json("no json ann@example.org", ALL) == "no json [email]"
    deep = '{"a":' * 400 + '"ann@example.org"' + "}" * 400
    assert "ann@" not in redacted_json(deep, ALL)
    assert "ann@" not in redacted_json("[" * 100_000 + '"ann@example.org"', ALL)


@pytest.mark.parametrize("kind", ALL, ids=str)
@pytest.mark.parametrize(
    "piece",
    ["1", "1 ", "1.", "1:", "a@", "a.", "a@a.", "sk-", "+1", "(0", "0 ", "eyJa.", "::", "ff:", "4-", "a"],
)
def test_no_text_takes_long(kind, piece):
    text = piece * (200_000 // len(piece))
    began = time.perf_counter()
    PATTERNS[kind].sub("", text)
    assert time.perf_counter() - began < 5.0
