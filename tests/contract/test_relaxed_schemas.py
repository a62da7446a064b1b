"""Keywords of schemas that are not kept are named in a header, by every dialect, streamed and buffered."""

from typing import Any

import httpx2
import pytest

from tests.contract.conftest import Target

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = {"model": "cantor", "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 4}
PROMPT = {"model": "cantor", "prompt": "Who are you?", "max_tokens": 4}
SCHEMA = {
    "$schema": "http://json-schema.org/draft-04/schema#",
    "type": "object",
    "properties": {"a": {"type": "array", "uniqueItems": True}, "b": {"type": "string", "nullable": True}},
}


def build_format(schema: dict[str, Any], strict: bool = False) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": strict}}


FORMAT = build_format(SCHEMA)
FIELD = "response_format.json_schema.schema"
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"format": "odd"}}}}


def ask(cantor: Target, path: str, body: dict[str, Any]) -> httpx2.Response:
    url = f"{cantor.url}{path}"
    return httpx2.post(url, json=body, timeout=60)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, HELLO),
        (TEXT, PROMPT),
        ("/fireworks/inference/v1/chat/completions", HELLO),
        ("/fireworks/inference/v1/completions", PROMPT),
        ("/empower/api/v1/chat/completions", HELLO),
    ],
)
def test_keywords_of_a_response_format_are_named(
    cantor: Target, path: str, body: dict[str, Any], stream: bool
):
    reply = ask(cantor, path, body | {"response_format": FORMAT, "stream": stream})
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-antiphon-relaxed"] == f"{FIELD}: nullable, {FIELD}: uniqueItems"


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "response_format.schema"),
        ({"guided_json": SCHEMA}, "guided_json"),
        ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json"),
    ],
)
def test_keywords_are_named_after_the_field_of_their_schema(
    cantor: Target, asked: dict[str, Any], field: str
):
    reply = ask(cantor, CHAT, HELLO | asked)
    assert reply.headers["x-antiphon-relaxed"] == f"{field}: nullable, {field}: uniqueItems"


def test_formats_and_tools_are_named_together(cantor: Target):
    tools = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "none"}
    reply = ask(cantor, CHAT, HELLO | tools | {"response_format": FORMAT})
    names = (f"{FIELD}: nullable", f"{FIELD}: uniqueItems", "tools[0].function.parameters: format")
    assert reply.headers["x-antiphon-relaxed"] == ", ".join(names)


def test_a_reference_out_of_the_schema_is_refused_by_name(cantor: Target):
    schema = {"type": "object", "properties": {"a": {"$ref": "https://example.com/other"}}}
    reply = ask(cantor, CHAT, HELLO | {"guided_json": schema})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "guided_json")
    assert "$ref at #/properties/a" in reply.json()["error"]["message"]


WORDS = {"type": "string", "pattern": "^(?:\\S+\\s+){0,49}\\S+$", "maxLength": 500}


def test_a_length_that_cannot_be_counted_is_named_and_refused_where_strict(cantor: Target):
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 100_000}}}
    reply = ask(cantor, CHAT, HELLO | {"response_format": build_format(schema)})
    assert (reply.status_code, reply.headers["x-antiphon-relaxed"]) == (200, f"{FIELD}: maxLength")
    refusal = ask(cantor, CHAT, HELLO | {"response_format": build_format(schema, strict=True)})
    assert refusal.status_code == 400 and "maxLength at #/properties/a" in refusal.json()["error"]["message"]


@pytest.mark.parametrize(("repetitions", "status"), [(49, 200), (499, 400)])
def test_a_pattern_of_many_words_is_followed_or_refused_at_once(
    cantor: Target, repetitions: int, status: int
):
    """Before a stream begins, too."""
    pattern = str(WORDS["pattern"]).replace("49", str(repetitions))
    schema = WORDS | {"pattern": pattern, "maxLength": 10 * repetitions + 10}
    for stream in (False, True):
        asked = {"response_format": build_format(schema), "max_tokens": 40, "stream": stream}
        reply = ask(cantor, CHAT, HELLO | asked)
        assert reply.status_code == status, reply.text
        assert "error" not in reply.text or status == 400


def test_wide_alternatives_are_followed(cantor: Target):
    several = [{f"{name}{number}": {"type": "null"} for number in range(200)} for name in "ab"]
    alternatives = [{"type": "object", "properties": each, "additionalProperties": False} for each in several]
    asked = {"response_format": build_format({"anyOf": alternatives}), "max_tokens": 40}
    reply = ask(cantor, CHAT, HELLO | asked)
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        (
            {"type": "object", "patternProperties": {"(?=a)": {}}, "additionalProperties": False},
            ("patternProperties", "additionalProperties"),
        ),
        ({"type": "object", "properties": {"a": {"$ref": "#", "type": "object"}}}, ("type",)),
        (
            {"allOf": [{"type": "object", "patternProperties": {each: {}}} for each in ("a", "b")]},
            ("patternProperties",),
        ),
        ({"type": "string", "pattern": "^(?:a($|/))*$"}, ("pattern",)),
    ],
)
def test_what_the_compiler_cannot_combine_is_named(
    cantor: Target, schema: dict[str, Any], names: tuple[str, ...]
):
    reply = ask(cantor, CHAT, HELLO | {"response_format": build_format(schema)})
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-antiphon-relaxed"] == ", ".join(f"{FIELD}: {name}" for name in names)
