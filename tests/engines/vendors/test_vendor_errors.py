"""What a vendor's error becomes, and what its message shows."""

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from math import inf

import pytest

from antiphon.engines.vendors.base import VendorError
from antiphon.engines.vendors.errors import SecretFilter, build_error, read_retry_after
from antiphon.engines.vendors.openai.wire_types import decode_error
from antiphon.errors import (
    AntiphonError,
    ContextLengthExceeded,
    ProviderFailed,
    ProviderKeyRefused,
    ProviderModelMissing,
    ProviderRateLimited,
    ProviderRefused,
    ProviderTimeout,
    ProviderUnavailable,
)

KEY = "a-key-without-any-form"
SECRETS = SecretFilter((KEY,), ("llm.corp.example",))


def build(status: int, message: str = "told", kind: str = "") -> AntiphonError:
    return build_error("first", status, VendorError(message, kind), {}, SECRETS)


@pytest.mark.parametrize(
    ("status", "kind", "expected", "own"),
    [
        (400, "", ProviderRefused, 400),
        (400, "context_length_exceeded", ContextLengthExceeded, 400),
        (401, "", ProviderKeyRefused, 502),
        (402, "", ProviderUnavailable, 503),
        (403, "", ProviderKeyRefused, 502),
        (403, "content_flagged", ProviderRefused, 400),
        (404, "", ProviderModelMissing, 404),
        (408, "", ProviderTimeout, 504),
        (413, "", ProviderRefused, 400),
        (422, "", ProviderRefused, 400),
        (429, "", ProviderRateLimited, 429),
        (429, "insufficient_quota", ProviderUnavailable, 503),
        (500, "", ProviderFailed, 502),
        (502, "", ProviderFailed, 502),
        (503, "", ProviderUnavailable, 503),
        (504, "", ProviderFailed, 502),
        (529, "", ProviderUnavailable, 503),
    ],
)
def test_each_status_has_its_error(status: int, kind: str, expected: type[AntiphonError], own: int):
    error = build(status, kind=kind)
    assert type(error) is expected and error.status == own
    assert "first" in error.message


def test_a_prompt_that_openrouters_moderation_flags_is_the_callers_fault():
    body = (
        b'{"error": {"code": 403, "message": "your input was flagged",'
        b' "metadata": {"reasons": ["violence"], "flagged_input": "hit"}}}'
    )
    error = build_error("first", 403, decode_error(body), {}, SECRETS)
    assert type(error) is ProviderRefused and "your input was flagged" in error.message


@pytest.mark.parametrize(("status", "kind"), [(401, ""), (402, ""), (403, ""), (429, "insufficient_quota")])
def test_what_only_the_operator_mends_says_so(status: int, kind: str):
    error = build(status, "your key sk-12345678901234 has no money", kind)
    assert "the operator must" in error.message and "money" not in error.message


@pytest.mark.parametrize(
    "secret",
    [
        KEY,
        "llm.corp.example",
        "http://10.1.2.3:8000/v1/chat",
        "https://llm.other.example/v1?key=AIzaSyA0123456789abcdef",
        "10.1.2.3:8000",
        "169.254.169.254",
        "[fd00::1]:8000",
        "sk-proj-0123456789abcdef",
        "sk-ant-api03-0123456789",
        "gsk_0123456789abcdef",
        "Bearer eyJhbGciOiJIUzI1NiJ9.abc",
        "AIzaSyA0123456789abcdef",
        "sk-*********************cdef",
    ],
)
def test_no_message_shows_a_key_or_an_address(secret: str):
    message = build(400, f"odd thing {secret}, try again").message
    assert secret not in message
    assert message.startswith("the provider first refused the request: odd thing ")
    assert message.endswith(", try again")


@pytest.mark.parametrize(
    "told",
    [
        "Unrecognized key response_format_and_more in api_parameters_of_this_call",
        "temperature must be between 0.0 and 2.0",
        "This model's maximum context length is 8192 tokens, at 12:30:45",
        "version 1.2.3.4.5 is too old",
        "api-version-of-the-client is odd",
    ],
)
def test_usual_messages_are_passed_on_whole(told: str):
    assert build(400, told).message.endswith(f": {told}")


@pytest.mark.parametrize(
    "part", ["a", "a.", "-", "sk-", "sk-1", "://", "a:", "[:", "Bearer ", "Bearer sk-", "1.1.1.", "\0", "%"]
)
def test_the_time_for_a_message_does_not_grow_with_its_square(part: str):
    """Quadratic work for a text of this length takes 0.3 s or more, ten times."""
    message, began_at = part * (8192 // len(part)), time.process_time()
    for _ in range(10):
        build(400, message)
    assert time.process_time() - began_at < 0.8


@pytest.mark.parametrize(
    "secret", ["x.http://host/a", "-http://host/a", "1http://host/a", "_http://host/a", "a://b://host/a"]
)
def test_an_address_is_hidden_after_any_character(secret: str):
    assert "host" not in build(400, f"odd {secret}").message


def test_messages_are_one_short_line():
    message = build(400, "a\r\nset-cookie: b\x00" + "c" * 1000).message
    assert message.isprintable() and len(message) < 600


@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({"retry-after": "7"}, 7, 7),
        ({"retry-after": "1.5"}, 1.5, 1.5),
        ({"retry-after": "-3"}, 0, 0),
        ({"retry-after-ms": "250"}, 0.25, 0.25),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25, 0.25),
    ],
)
def test_retry_after_is_a_number(headers: dict[str, str], low: float, high: float):
    found = read_retry_after(headers)
    assert found is not None and low <= found <= high


@pytest.mark.parametrize(
    ("later", "low", "high"), [(timedelta(hours=1), 3000, 3600), (-timedelta(minutes=1), 0, 0)]
)
def test_retry_after_counts_until_a_date(later: timedelta, low: float, high: float):
    found = read_retry_after({"retry-after": format_datetime(datetime.now(UTC) + later, usegmt=True)})
    assert found is not None and low <= found <= high


@pytest.mark.parametrize("value", ["", "soon", "nan", "12:30"])
def test_an_odd_retry_after_is_none(value: str):
    assert read_retry_after({"retry-after": value}) is None


def test_a_retry_after_in_the_body_is_used():
    error = build_error("first", 429, VendorError("", retry_after=9.0), {}, SECRETS)
    assert error.retry_after == 9.0
    error = build_error("first", 429, VendorError("", retry_after=9.0), {"retry-after": "2"}, SECRETS)
    assert error.retry_after == 2.0


@pytest.mark.parametrize("seconds", [86_400.0, 1e300, inf])
def test_a_retry_after_of_more_than_an_hour_is_an_hour(seconds: float):
    error = build_error("first", 429, VendorError(""), {"retry-after": str(seconds)}, SECRETS)
    assert error.retry_after == 3600
    error = build_error("first", 429, VendorError("", retry_after=seconds), {}, SECRETS)
    assert error.retry_after == 3600
