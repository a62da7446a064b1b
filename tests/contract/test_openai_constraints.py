"""The openai client asks for JSON, a schema, a choice, a regex, a grammar: it gets that, or a refusal."""

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.contract.conftest import Target

HELLO: Any = [{"role": "user", "content": "Who are you?"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}

LOOK: Any = {"type": "function", "function": {"name": "look"}}


@pytest.fixture
def model(cantor: Target) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=cantor.base_url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def said(client: openai.OpenAI, **asked: Any) -> tuple[str, str]:
    """Text and finish reason, which are the same streamed and buffered."""
    asked = {"model": "cantor", "messages": HELLO, "temperature": 1.5, "seed": 3, "max_tokens": 80} | asked
    (choice,) = client.chat.completions.create(**asked).choices
    parts = [part for chunk in client.chat.completions.create(stream=True, **asked) for part in chunk.choices]
    assert "".join(part.delta.content or "" for part in parts) == choice.message.content
    assert parts[-1].finish_reason == choice.finish_reason
    return choice.message.content or "", choice.finish_reason


@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": FORMAT},
        {"response_format": {"type": "json_object", "schema": PERSON}},
        {"extra_body": {"guided_json": PERSON}},
        {"extra_body": {"guided_json": json.dumps(PERSON), "guided_whitespace_pattern": "[ ]?"}},
        {"extra_body": {"structured_outputs": {"json": PERSON}}},
    ],
)
def test_json_of_a_schema(model: openai.OpenAI, asked: dict[str, Any]) -> None:
    text, reason = said(model, **asked)
    found = json.loads(text)
    assert reason == "stop" and {*found} == {"name", "age"}
    assert len(found["name"]) <= 9 and found["age"] <= 120


def test_a_text_that_is_cut_says_length(model: openai.OpenAI) -> None:
    text, reason = said(model, response_format=FORMAT, max_tokens=5)
    assert reason == "length" and text.startswith('{"name": "')


@pytest.mark.parametrize(
    ("name", "value", "pattern"),
    [
        ("regex", "[a-c]{3}-\\d{3}", "[a-c]{3}-\\d{3}"),
        ("choice", ["yes", "no", 'per"haps'], 'yes|no|per"haps'),
        ("grammar", 'start: A B\nA: /x+/\nB: "!"', "x+!"),
        ("grammar", 'root ::= ("ab" | "c"){2} "."', "(ab|c){2}\\."),
    ],
)
def test_texts(model: openai.OpenAI, name: str, value: Any, pattern: str) -> None:
    for body in ({f"guided_{name}": value}, {"structured_outputs": {name: value}}):
        text, reason = said(model, extra_body=body)
        assert reason == "length" or re.fullmatch(pattern, text), text


ENDING = [
    {"guided_regex": "[ab]{3}"},
    {"guided_choice": ["left", "right"]},
    {"guided_grammar": 'root ::= "hello"'},
    {"guided_json": {"enum": ["a"]}},
    {"response_format": FORMAT | {"json_schema": {"name": "two", "schema": {"enum": ["a", "b"]}}}},
    {"structured_outputs": {"regex": "x"}},
    {"tools": [LOOK], "tool_choice": {"type": "function", "function": {"name": "look"}}},
    {"tools": [LOOK], "tool_choice": "required", "parallel_tool_calls": False},
]
"""Constraints that leave nothing but the end after some tokens."""


@pytest.mark.parametrize("asked", ENDING, ids=lambda asked: list(asked)[-1])
@pytest.mark.parametrize("logprobs", [False, True])
def test_no_constraint_ends_a_choice_before_min_tokens(
    model: openai.OpenAI, asked: dict[str, Any], logprobs: bool
) -> None:
    body = {**asked, "min_tokens": 60, "logprobs": logprobs}
    with pytest.raises(openai.BadRequestError, match="no token is left that may be drawn"):
        model.chat.completions.create(model="cantor", messages=HELLO, max_tokens=80, extra_body=body)


def test_a_constraint_that_can_go_on_goes_on_to_min_tokens(model: openai.OpenAI) -> None:
    asked: Any = {"model": "cantor", "messages": HELLO, "max_tokens": 30}
    for least in (4, 20):
        body = {"guided_regex": "[ab]+", "min_tokens": least}
        answer = model.chat.completions.create(**asked, extra_body=body)
        assert answer.usage is not None and answer.usage.completion_tokens >= least
        assert re.fullmatch("[ab]+", answer.choices[0].message.content or "")


def test_what_of_a_schema_the_model_is_not_shown_is_named(model: openai.OpenAI) -> None:
    schema = {"schema": {"enum": ["a"]}, "strict": True}
    for more, named in (
        ({}, None),
        ({"name": "n"}, "response_format.json_schema.name"),
        (
            {"name": "n", "description": "one letter"},
            "response_format.json_schema.name, response_format.json_schema.description",
        ),
    ):
        asked: Any = {"type": "json_schema", "json_schema": schema | more}
        for stream in (False, True):
            raw = model.chat.completions.with_raw_response.create(
                model="cantor", messages=HELLO, extra_body={"response_format": asked}, stream=stream
            )
            assert raw.headers.get("x-antiphon-ignored") == named


def test_a_raw_prompt_may_be_constrained_too(model: openai.OpenAI) -> None:
    body = {"guided_choice": ["red", "blue"]}
    answer = model.completions.create(model="cantor", prompt="A colour:", n=3, extra_body=body)
    assert all(choice.text in ("red", "blue") for choice in answer.choices)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"guided_json": {"not": {}}}, "guided_json", "not"),
    ({"guided_json": {"$ref": "https://schemas.example/a.json"}}, "guided_json", "$ref"),
    ({"guided_regex": "(?=a)"}, "guided_regex", "lookaround"),
    ({"guided_regex": "((a{1000}){1000}){1000}"}, "guided_regex", ""),
    ({"guided_grammar": "start: <a>"}, "guided_grammar", "<"),
    ({"guided_choice": []}, "guided_choice", "list"),
    ({"guided_choice": ["a"], "guided_regex": "a"}, "guided_choice", "exclude each other"),
    ({"guided_choice": ["a"], "response_format": FORMAT}, "guided_choice", "exclude each other"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "together"),
    ({"guided_choice": ["a"], "guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "together"),
    ({"guided_json": {}, "guided_whitespace_pattern": "["}, "guided_whitespace_pattern", "line ends"),
    ({"guided_json": {}, "guided_whitespace_pattern": f"[{' ' * 300}]"}, "guided_whitespace_pattern", "256"),
    (
        {"structured_outputs": {"json": {}, "whitespace_pattern": "x"}},
        "structured_outputs.whitespace_pattern",
        "line ends",
    ),
    (
        {
            "structured_outputs": {"json": {}, "whitespace_pattern": " "},
            "guided_whitespace_pattern": "[",
        },
        "structured_outputs.whitespace_pattern",
        "exclude each other",
    ),
    (
        {
            "guided_json": {},
            "guided_whitespace_pattern": " ",
            "structured_outputs": {"whitespace_pattern": "["},
        },
        "structured_outputs.whitespace_pattern",
        "exclude each other",
    ),
    ({"structured_outputs": {}}, "structured_outputs", "has no constraint"),
    (
        {"structured_outputs": {"json_object": False, "json": None}},
        "structured_outputs",
        "has no constraint",
    ),
    ({"structured_outputs": {}, "guided_regex": "a"}, "structured_outputs", "has no constraint"),
    ({"guided_choice": ["a"], "ignore_eos": True}, "ignore_eos", "constraint"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
    ({"response_format": {"type": "xml"}}, "response_format.type", ""),
    ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag", "unknown"),
]


@pytest.mark.parametrize(("body", "param", "named"), REFUSED)
def test_what_cannot_be_kept_is_refused_by_name(
    model: openai.OpenAI, body: dict[str, Any], param: str, named: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        model.chat.completions.create(model="cantor", messages=HELLO, extra_body=body)
    assert refusal.value.param == param and named in refusal.value.message


def test_an_engine_that_takes_no_constraints_refuses_them(puppet: openai.OpenAI, scripted: Target) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        puppet.chat.completions.create(model=scripted.model, messages=HELLO, extra_body={"guided_regex": "a"})
    assert refusal.value.param == "guided_regex"


OPEN = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["a"],
    "additionalProperties": {"type": "string", "maxLength": 2},
}
OPEN_FORMAT = {"type": "json_schema", "json_schema": {"name": "open", "schema": OPEN}}
OPEN_TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": OPEN}}
SIGNS = {"a": 40, "u": 42, "0": 40, "6": 40, "\\": 43, '"': 44, ",": 46, "}": 36, '": "': 46, '", "': 46}
"""Biases of tokens, of which texts are made that repeat their keys and spell them with escapes."""


@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": {"type": "json_object", "schema": OPEN}},
        {"response_format": OPEN_FORMAT},
        {"tools": [OPEN_TOOL], "tool_choice": "required"},
        {"tools": [OPEN_TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
    ],
    ids=["json_object", "json_schema", "tools", "tool"],
)
def test_no_key_is_repeated_or_spelled_with_escapes(model: openai.OpenAI, asked: dict[str, Any]) -> None:
    likely = {}
    for sign, bias in SIGNS.items():
        body = {"model": "cantor", "prompt": f"\n{sign}", "add_special_tokens": False}
        found = model.post("/../tokenize", cast_to=dict[str, Any], body=body)
        likely[found["tokens"][-1]] = bias
    more: Any = {"logit_bias": likely, "temperature": 2, "n": 8, "max_tokens": 60, "seed": 1} | asked
    for choice in model.chat.completions.create(model="cantor", messages=HELLO, **more).choices:
        calls = [call.function.arguments for call in choice.message.tool_calls or []]
        for text in calls or [choice.message.content or ""]:
            strings = re.findall(r'("(?:\\.|[^"\\])*")(:?)', text)
            keys = [string for string, colon in strings if colon]
            assert len({*keys}) == len(keys) > 1
            assert keys == [json.dumps(json.loads(key), ensure_ascii=False) for key in keys]
