"""The openai client calls tools with cantor: what comes is a call of one of them with arguments that satisfy
its schema, the same streamed and buffered."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import openai
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from models.cantor.score import render_prompt
from tests.contract.calls import ASKED, CITY, WEATHER, tool
from tests.contract.conftest import Target

TIME: Any = {
    "type": "object",
    "properties": {"time": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["time"],
}


ALARM = tool("set_alarm", TIME, "Set an alarm.")
TOOLS = [WEATHER, ALARM]
HELLO: Any = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture
def model(cantor: Target) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=cantor.base_url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


@dataclass
class Said:
    """What one choice said; read from chunks or from an answer."""

    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    reason: str = ""
    logprobs: list[Any] = field(default_factory=list)

    def take(self, delta: Any) -> None:
        """A chunk's delta: a call's name and id come whole and first, under the next index."""
        self.text += delta.content or ""
        for part in delta.tool_calls or ():
            if part.index == len(self.calls):
                assert part.id and part.type == "function" and part.function.name
                self.calls.append((part.function.name, ""))
            else:
                assert part.id is None and part.function.name is None
            assert part.index == len(self.calls) - 1
            name, arguments = self.calls[-1]
            self.calls[-1] = (name, arguments + part.function.arguments)


def said(client: openai.OpenAI, **asked: Any) -> list[Said]:
    """Every choice, which is the same streamed and buffered."""
    asked = {"model": "cantor", "messages": ASKED, "tools": TOOLS, "temperature": 0, "seed": 3} | asked
    whole = [Said() for _ in range(asked.get("n", 1))]
    for choice in client.chat.completions.create(**asked).choices:
        made = whole[choice.index]
        calls = choice.message.tool_calls or []
        assert len({call.id for call in calls}) == len(calls)
        made.text, made.reason = choice.message.content or "", choice.finish_reason
        made.calls = [
            (call.function.name, call.function.arguments) for call in calls if call.type == "function"
        ]
        made.logprobs = list(choice.logprobs.content or ()) if choice.logprobs else []
        assert choice.message.content is not None or calls
    parts = [Said() for _ in whole]
    for chunk in client.chat.completions.create(stream=True, **asked):
        for piece in chunk.choices:
            parts[piece.index].take(piece.delta)
            parts[piece.index].reason = piece.finish_reason or ""
            parts[piece.index].logprobs += (piece.logprobs.content or ()) if piece.logprobs else ()
    assert parts == whole
    return whole


def test_the_model_calls_a_tool_when_it_likes_and_talks_else(model: openai.OpenAI) -> None:
    (called,) = said(model)
    assert (called.text, called.reason) == ("", "tool_calls")
    assert called.calls == [("get_weather", '{"city": "Berlin"}')]
    (talked,) = said(model, messages=HELLO)
    assert talked.text and (talked.calls, talked.reason) == ([], "stop")


@pytest.mark.parametrize("temperature", [0, 1.8])
def test_a_call_is_made_where_it_has_to_be(model: openai.OpenAI, temperature: float) -> None:
    for choice in said(
        model, messages=HELLO, tool_choice="required", n=3, temperature=temperature, max_tokens=300
    ):
        assert choice.text == "" and choice.calls
        for name, arguments in choice.calls if choice.reason == "tool_calls" else ():
            Draft202012Validator({"get_weather": CITY, "set_alarm": TIME}[name]).validate(
                json.loads(arguments)
            )


def test_a_named_tool_is_the_one_that_is_called_once(model: openai.OpenAI) -> None:
    (called,) = said(model, tool_choice={"type": "function", "function": {"name": "set_alarm"}})
    assert [name for name, _ in called.calls] == ["set_alarm"] and called.reason == "tool_calls"
    allowed: Any = {"mode": "required", "tools": [{"type": "function", "function": {"name": "set_alarm"}}]}
    (called,) = said(model, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert {name for name, _ in called.calls} == {"set_alarm"}


def test_none_is_called_when_none_may_be(model: openai.OpenAI) -> None:
    (talked,) = said(model, tool_choice="none")
    assert talked.text and (talked.calls, talked.reason) == ([], "stop")
    assert "<tool_call>" not in talked.text


def test_a_call_that_is_cut_says_length_and_holds_what_was_made(model: openai.OpenAI) -> None:
    (whole,) = said(model, tool_choice="required", parallel_tool_calls=False)
    (cut,) = said(model, tool_choice="required", parallel_tool_calls=False, max_tokens=12)
    assert cut.reason == "length"
    (name, arguments), (_, complete) = cut.calls[0], whole.calls[0]
    assert name == "get_weather" and complete.startswith(arguments) and arguments != complete


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_the_notation_of_a_call_that_is_cut_is_no_content(model: openai.OpenAI, choice: str) -> None:
    for most in (1, 4):
        (cut,) = said(model, tool_choice=choice, max_tokens=most, logprobs=True)
        assert (cut.text, cut.calls, cut.reason) == ("", [], "length")
        assert len(cut.logprobs) == most


def test_a_stop_text_in_a_call_ends_it_as_incomplete(model: openai.OpenAI) -> None:
    (cut,) = said(model, tool_choice="required", stop="Berl")
    assert (cut.reason, cut.calls) == ("stop", [("get_weather", '{"city": "')])


def test_log_probabilities_are_those_of_all_tokens_of_a_call(model: openai.OpenAI) -> None:
    (called,) = said(model, logprobs=True)
    *tokens, end = [token.token for token in called.logprobs]
    assert end == "<|im_end|>"
    assert (
        "".join(tokens) == '<tool_call>{"name": "get_weather", "arguments": {"city": "Berlin"}}</tool_call>'
    )


def test_a_result_is_answered(model: openai.OpenAI) -> None:
    asked: Any = {"model": "cantor", "tools": TOOLS, "temperature": 0}
    first = model.chat.completions.create(messages=ASKED, **asked).choices[0].message
    assert first.tool_calls
    result: Any = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny"}
    turns: Any = [*ASKED, first.model_dump(), result]
    second = model.chat.completions.create(messages=turns, **asked).choices[0]
    assert second.message.content and "sunny" in second.message.content


ECHOES: dict[str, Any] = {
    "refusal": None,
    "annotations": [],
    "provider_specific_fields": {"refusal": None},
    "thinking_blocks": [{"type": "thinking", "thinking": "Hm."}],
    "parsed": None,
    "id": "m-1",
}
"""What clients add to an assistant's message that they send back."""


@pytest.mark.parametrize("most", [5, 10, 12, 60])
def test_an_answer_is_taken_back_wherever_it_was_cut(model: openai.OpenAI, most: int) -> None:
    asked: Any = {"model": "cantor", "tools": TOOLS, "temperature": 0}
    said = model.chat.completions.create(
        messages=ASKED, tool_choice="required", max_tokens=most, **asked
    ).choices[0].message.model_dump()  # fmt: skip
    calls = [call | {"provider_specific_fields": {}} for call in said["tool_calls"] or ()]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "sunny"} for call in calls]
    turns: Any = [*ASKED, said | ECHOES | {"tool_calls": calls}, *results, *HELLO]
    raw = model.chat.completions.with_raw_response.create(messages=turns, max_tokens=8, **asked)
    named = ["annotations", "provider_specific_fields", "id"]
    inner = ["tool_calls[].provider_specific_fields"] if calls else []
    ignored = raw.headers["x-antiphon-ignored"].split(", ")
    assert ignored == [f"messages[].{name}" for name in (*named, *inner, "thinking_blocks")]
    with model.chat.completions.create(messages=turns, max_tokens=8, stream=True, **asked) as stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert stream.response.headers["x-antiphon-ignored"].split(", ") == ignored
    assert text == (raw.parse().choices[0].message.content or "")


def test_calls_may_hold_whatever_a_model_wrote(model: openai.OpenAI) -> None:
    def prompt(arguments: Any) -> str:
        call = {"id": "c", "type": "function", "function": {"name": "set_alarm", "arguments": arguments}}
        turns = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}]
        body = {"messages": turns, "tools": TOOLS}
        return str(model.post("/apply-template", body=body, cast_to=dict[str, str])["prompt"])

    assert prompt({"days": [1]}) == prompt('{"days": [1]}')
    assert prompt("") == prompt("{}")
    for text in ('{"time": "7:3', "seven", "[1]", '{"time": "a", "time": "b"}'):
        assert f'"arguments": {text}}}</tool_call>' in prompt(text)


def test_usage_counts_the_tools_that_are_shown(model: openai.OpenAI) -> None:
    def prompt(**more: Any) -> int:
        answer = model.chat.completions.create(model="cantor", messages=HELLO, max_tokens=1, **more)
        assert answer.usage is not None
        return int(answer.usage.prompt_tokens)

    assert prompt(tools=TOOLS) == prompt(tools=TOOLS, tool_choice="none") > prompt(tools=[WEATHER]) > prompt()


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}, {"type": "object", "properties": {}}])
def test_a_tool_without_properties_is_called_without_arguments(model: openai.OpenAI, parameters: Any) -> None:
    body = {"prompt": '{} "arguments": {}}</tool_call>', "return_token_strs": True}
    made = model.post("/tokenize", body=body, cast_to=dict[str, Any])
    closing = [token for token, text in zip(made["tokens"], made["token_strs"], strict=True) if "}" in text]
    (called,) = said(
        model, tools=[tool("now", parameters)], tool_choice="required", parallel_tool_calls=False,
        logit_bias={str(token): -100 for token in closing}, max_tokens=60,
    )  # fmt: skip
    assert (called.calls, called.reason) == ([("now", "{}")], "tool_calls")


LOOSE = {
    "type": "object",
    "properties": {"a": {"type": "array", "uniqueItems": True, "items": {"type": "null"}}},
}


def test_an_unsupported_keyword_is_named_or_refused_if_strict(model: openai.OpenAI) -> None:
    choice: Any = {"type": "function", "function": {"name": "f"}}
    asked: Any = {"model": "cantor", "messages": HELLO, "tool_choice": choice, "max_tokens": 60}
    raw = model.chat.completions.with_raw_response.create(tools=[tool("f", LOOSE)], **asked)
    assert raw.headers["x-antiphon-relaxed"] == "tools[0].function.parameters: uniqueItems"
    with pytest.raises(openai.BadRequestError, match="uniqueItems") as caught:
        model.chat.completions.create(tools=[tool("f", LOOSE, strict=True)], **asked)
    assert (caught.value.code, caught.value.param) == (
        "unsupported_parameter",
        "tools[0].function.parameters",
    )
    assert (
        "x-antiphon-relaxed"
        not in model.chat.completions.with_raw_response.create(
            tools=TOOLS, **asked | {"tool_choice": "auto"}
        ).headers
    )


MOOD: Any = {
    "type": "object",
    "properties": {"mood": {"enum": ["good", "bad"]}, "tag": {"const": "<tool_call>"}},
    "required": ["mood", "tag"],
    "additionalProperties": False,
}
AS_MOOD: Any = {"type": "json_schema", "json_schema": {"name": "mood", "schema": MOOD, "strict": True}}


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_beside_a_format_an_answer_is_calls_or_of_it(model: openai.OpenAI, temperature: float) -> None:
    asked: Any = {"response_format": AS_MOOD, "temperature": temperature, "max_tokens": 200}
    called = said(model, **asked)[0] if not temperature else None
    assert called is None or (called.calls, called.text) == ([("get_weather", '{"city": "Berlin"}')], "")
    for choice in said(model, messages=HELLO, n=6, **asked):
        assert bool(choice.calls) != bool(choice.text)
        if choice.text:
            Draft202012Validator(MOOD).validate(json.loads(choice.text))
            assert choice.reason == "stop"


def test_a_format_holds_alone_where_none_may_be_called(model: openai.OpenAI) -> None:
    (talked,) = said(model, tool_choice="none", response_format=AS_MOOD)
    assert json.loads(talked.text)["tag"] == "<tool_call>" and not talked.calls


def test_a_call_that_has_to_be_made_is_made_beside_a_format(model: openai.OpenAI) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        (called,) = said(model, messages=HELLO, tool_choice=choice, response_format=AS_MOOD, max_tokens=300)
        assert called.calls and called.text == ""


@pytest.mark.parametrize(
    ("form", "good"),
    [
        ({"response_format": {"type": "json_object"}}, r"(?s)\{.*"),
        ({"guided_json": MOOD}, r"\{.*\}"),
        ({"guided_regex": "[a-c]{3}"}, "[a-c]{3}"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"guided_grammar": 'root ::= "yes" | "no"'}, "yes|no"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
    ],
)
def test_every_form_of_a_constraint_holds_beside_tools(model: openai.OpenAI, form: Any, good: str) -> None:
    extra = {"extra_body": form, "max_tokens": 60, "messages": HELLO}
    (talked,) = said(model, **extra)
    assert talked.calls or re.fullmatch(good, talked.text)


def test_a_format_without_schema_or_like_a_call_is_refused(model: openai.OpenAI) -> None:
    for form, param in (
        ({"guided_regex": ".*"}, "guided_regex"),
        ({"guided_json": {"type": "string", "minLength": 2, "maxLength": 1}}, "guided_json"),
    ):
        for choice in ("auto", "required"):
            if (param, choice) == ("guided_regex", "required"):
                continue
            with pytest.raises(openai.BadRequestError) as caught:
                said(model, extra_body=form, tool_choice=choice)
            assert caught.value.param == param


@pytest.mark.parametrize("base", ["v1", "fireworks/inference/v1", "empower/api/v1"])
def test_every_dialect_takes_answers_back_beside_a_format(cantor: Target, base: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    turn: Any = {"role": "assistant", "content": None, "refusal": None} | ECHOES | {"tool_calls": [call]}
    turns: Any = [*ASKED, turn, {"role": "tool", "tool_call_id": "c", "content": "sunny"}, *HELLO]
    asked: Any = {"model": "cantor", "messages": turns, "tools": TOOLS, "response_format": AS_MOOD}
    with openai.OpenAI(base_url=f"{cantor.url}/{base}", api_key="none", max_retries=0, timeout=60) as client:
        raw = client.chat.completions.with_raw_response.create(temperature=0, **asked)
        message = raw.parse().choices[0].message
        stream = client.chat.completions.create(temperature=0, stream=True, **asked)
        deltas = [chunk.choices[0].delta for chunk in stream if chunk.choices]
    assert "messages[].provider_specific_fields" in raw.headers["x-antiphon-ignored"].split(", ")
    assert "".join(delta.content or "" for delta in deltas) == (message.content or "")
    assert any(delta.tool_calls for delta in deltas) == bool(message.tool_calls)
    assert message.tool_calls or json.loads(message.content or "")["tag"] == "<tool_call>"


class Mood(BaseModel):
    mood: Literal["good", "bad"]


def test_the_client_parses_answers_of_a_format_beside_tools(model: openai.OpenAI) -> None:
    strict = tool("get_weather", CITY | {"additionalProperties": False}, strict=True)
    asked: Any = {"model": "cantor", "tools": [strict], "response_format": Mood, "temperature": 0}
    first = model.chat.completions.parse(messages=ASKED, **asked)
    answer: Any = first.choices[0].message
    (call,) = answer.tool_calls or []
    assert call.function.parsed_arguments == {"city": "Berlin"} and answer.parsed is None
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    second = model.chat.completions.parse(messages=[*ASKED, answer.model_dump(), result], **asked)
    said_then = second.choices[0].message
    assert said_then.tool_calls or isinstance(said_then.parsed, Mood)


REQUESTS = (
    "What is the weather in Berlin?", "Set an alarm for 7:30.", "Wake me at noon.", "Is it raining in Rome?",
    "How is the weather in Oslo today?", "I want an alarm at 6 pm.", "Weather in Tokyo", "Hello!",
    "What is the capital of France?", "Set the alarm for 9 o'clock for 3 days.",
)  # fmt: skip


def test_a_free_answer_equals_one_held_to_its_own_notation(
    model: openai.OpenAI,
) -> None:
    agreed = 0
    for request in REQUESTS:
        messages: Any = [{"role": "user", "content": request}]
        prompt = render_prompt({"messages": messages, "tools": TOOLS})
        free = (
            model.completions.create(model="cantor", prompt=prompt, temperature=0, max_tokens=200)
            .choices[0]
            .text
        )
        (held,) = said(model, messages=messages)
        calls = "\n".join(
            f'<tool_call>{{"name": "{name}", "arguments": {text}}}</tool_call>' for name, text in held.calls
        )
        valid = "<tool_call>" not in free or _is_valid(free)
        assert not valid or free.strip() == (calls or held.text).strip()
        agreed += valid
    assert agreed >= 3, "too few of the model's own answers were valid for this to say anything"


def _is_valid(text: str) -> bool:
    try:
        call = json.loads(text.strip().removeprefix("<tool_call>").removesuffix("</tool_call>"))
        parameters = {"get_weather": CITY, "set_alarm": TIME}[call["name"]] | {"additionalProperties": False}
        return Draft202012Validator(parameters).is_valid(call["arguments"])
    except (ValueError, KeyError):
        return False


# --- forced calls over many schemas -------------------------------------------------------------------------

LEAVES: tuple[Any, ...] = (
    {"type": "string", "maxLength": 12},
    {"type": "integer", "minimum": -5, "maximum": 500},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "boolean"},
    {"enum": ["red", "green", 3, None]},
    {"const": "fixed"},
    {"type": ["string", "null"], "maxLength": 8},
    {"type": "string", "pattern": "^[a-z]{2}-[0-9]{2}$"},
    {"type": "string", "format": "date"},
    {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "boolean"}]},
)


def build_schema(chosen: Random, depth: int = 0) -> Any:
    """An object with one to four properties, some of them lists and objects."""
    properties: dict[str, Any] = {}
    for name in chosen.sample(
        ["name", "size", "city_id", "on", "Größe", "x-y", 'quo"ted'], chosen.randint(1, 4)
    ):
        kind = chosen.random()
        if kind < 0.15 and depth < 2:
            properties[name] = build_schema(chosen, depth + 1)
        elif kind < 0.3:
            properties[name] = {"type": "array", "items": chosen.choice(LEAVES), "maxItems": 2}
        else:
            properties[name] = chosen.choice(LEAVES)
    required = chosen.sample(sorted(properties), chosen.randint(0, len(properties)))
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def forced(model: openai.OpenAI, schemas: int, calls: int) -> None:
    """Asks for so many calls; all that end by themselves parse and satisfy their schema."""
    whole = 0
    for at in range(calls):
        schema = build_schema(Random(at % schemas))
        answer = model.chat.completions.create(
            model="cantor", messages=HELLO, tools=[tool("f", schema, strict=True), WEATHER],
            tool_choice={"type": "function", "function": {"name": "f"}}, temperature=1.2, seed=at,
            max_tokens=400,
        )  # fmt: skip
        (choice,) = answer.choices
        if choice.finish_reason == "length":
            continue
        (call,) = choice.message.tool_calls or []
        assert choice.finish_reason == "tool_calls" and call.type == "function" and call.function.name == "f"
        Draft202012Validator(schema).validate(json.loads(call.function.arguments))
        whole += 1
    assert whole >= calls * 0.9


def test_forced_calls_satisfy_their_schemas(model: openai.OpenAI) -> None:
    forced(model, 12, 12)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_many_forced_calls_satisfy_their_schemas(model: openai.OpenAI) -> None:
    forced(model, 50, 300)
