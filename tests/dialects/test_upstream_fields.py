"""Fields about the call to a vendor, as dialects read them."""

import math

import pytest

from antiphon.dialects.common.request_types import ChatCompletionRequest, StructuredOutputs
from antiphon.dialects.common.vendor_fields import (
    merge_extra_params,
    read_extra_headers,
    read_inference_timeout,
)
from antiphon.errors import InvalidValue, RequestError, UnsupportedParameter

OWN = frozenset(("temperature", "tools", "top_k", "messages", "inference_timeout"))
"""Fields of a dialect."""


@pytest.mark.parametrize(
    ("value", "seconds"), [(30, 30.0), (0.5, 0.5), ("31", 31.0), ("2.5", 2.5), ("1e2", 100.0)]
)
def test_a_time_is_a_number_or_a_text_with_one(value, seconds):
    assert read_inference_timeout(value) == seconds


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0, "got 0.0"),
        (-1.5, "got -1.5"),
        ("-3", "got -3.0"),
        ("0.0", "got 0.0"),
        (math.nan, "got nan"),
        ("nan", "got a string"),
        ("inf", "got a string"),
        ("soon", "got a string"),
        ("", "got an empty string"),
        ("1_000", "got a string"),
        (" 5", "got a string"),
        ("٣", "got a string"),
        ("1e999", "got inf"),
        (10**400, "got inf"),
    ],
    ids=repr,
)
def test_another_time_is_refused_by_name(value, told):
    with pytest.raises(InvalidValue, match=f"inference_timeout must be .* {told}$") as refused:
        read_inference_timeout(value)
    assert refused.value.param == "inference_timeout"


def merge(added: object, **fields: object):
    return merge_extra_params({"inference_extra_params": added, **fields}, OWN, ChatCompletionRequest)


def test_added_fields_are_sorted_by_who_knows_them():
    added = {"top_k": 3, "min_p": 1, "repetition_penalty": None, "reasoning": {"a": 1}, "store": None}
    merged = merge(added, temperature=0.5)
    assert merged.fields == {"inference_extra_params": added, "temperature": 0.5, "top_k": 3}
    assert merged.v1_values == {"min_p": 1.0}
    assert merged.unknown_fields == {"reasoning": {"a": 1}, "store": None}


def test_values_of_v1_have_its_wire_types():
    merged = merge({"structured_outputs": {"regex": "a+"}, "typical_p": 0.5})
    assert merged.v1_values == {"structured_outputs": StructuredOutputs(regex="a+"), "typical_p": 0.5}


def test_what_is_no_object_is_left_to_the_wire_type():
    fields = {"inference_extra_params": [1], "temperature": 0.5}
    merged = merge_extra_params(fields, OWN, ChatCompletionRequest)
    assert (merged.fields, merged.v1_values, merged.unknown_fields) == (fields, {}, {})
    assert merge_extra_params({}, OWN, ChatCompletionRequest).fields == {}


@pytest.mark.parametrize(
    ("added", "fields", "error", "name"),
    [
        ({"temperature": 1}, {"temperature": 0.5}, InvalidValue, "temperature"),
        ({"model": "x"}, {"model": "m"}, UnsupportedParameter, "model"),
        ({"messages": []}, {}, UnsupportedParameter, "messages"),
        ({"stream": True}, {}, UnsupportedParameter, "stream"),
        ({"inference_timeout": 1}, {}, UnsupportedParameter, "inference_timeout"),
        ({"min_p": 2}, {}, InvalidValue, "min_p"),
        ({"min_p": "a"}, {}, InvalidValue, "min_p"),
        ({"a b": 1}, {}, InvalidValue, "a b"),
        ({"": 1}, {}, InvalidValue, ""),
        ({"a" * 65: 1}, {}, InvalidValue, "a" * 64 + "..."),
    ],
    ids=str,
)
def test_a_field_that_cannot_be_added_is_refused(added, fields, error: type[RequestError], name):
    with pytest.raises(error) as refused:
        merge(added, **fields)
    assert refused.value.param == f"inference_extra_params.{name}"
    assert f"inference_extra_params.{name}" in refused.value.message


def test_a_field_that_is_null_in_the_body_can_be_added():
    assert merge({"temperature": 1}, temperature=None).fields["temperature"] == 1


def test_headers_have_lower_case_names():
    assert read_extra_headers({"X-Trace-Id": "a 1", "traceparent": ""}) == {
        "x-trace-id": "a 1",
        "traceparent": "",
    }


CREDENTIALS = (
    "Authorization X-API-Key api-key x-goog-api-key Cookie Set-Cookie Proxy-Authorization x-auth-token "
    "X-Amz-Security-Token cf-aig-authorization helicone-auth x-openai-api-key www-authenticate"
).split()
CONNECTION = (
    "Host Content-Length Content-Type Content-Encoding Transfer-Encoding Connection Keep-Alive TE Trailer "
    "Upgrade Expect Accept-Encoding User-Agent Proxy-Connection X-Forwarded-For Forwarded"
).split()


@pytest.mark.parametrize("name", CREDENTIALS + CONNECTION)
def test_a_header_of_credentials_or_connection_is_refused(name):
    with pytest.raises(UnsupportedParameter) as refused:
        read_extra_headers({"x-a": "1", name: "hidden"})
    assert refused.value.param == f"inference_extra_headers.{name}"
    assert "hidden" not in refused.value.message


@pytest.mark.parametrize("headers", [{"x a": "1"}, {"": "1"}, {"x:": "1"}, {"x" * 65: "1"}, {"é": "1"},
    {"x-a": "1\r\nhost: b"}, {"x-a": "\0"}, {"x-a": "é"}, {"x-a": "1", "X-A": "2"}])  # fmt: skip
def test_a_header_that_cannot_be_sent_is_refused(headers):
    with pytest.raises(InvalidValue, match="inference_extra_headers"):
        read_extra_headers(headers)
