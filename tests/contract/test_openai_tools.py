"""The openai client calls tools with cantor: what comes is a call of one of them with arguments that satisfy
its schema, the same streamed and buffered."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import openai
import pytest
from jsonschema import Draft202012Validator

from models.cantor.score import render
from tests.contract.conftest import Target

CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TIME: Any = {
    "type": "object",
    "properties": {"time": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["time"],
}


def tool(name: str, parameters: Any, description: str = "", **more: Any) -> Any:
    function = {"name": name, "description": description, "parameters": parameters} | more
    return {"type": "function", "function": function}


WEATHER = tool("get_weather", CITY, "Get the weather of a city.")
ALARM = tool("set_alarm", TIME, "Set an alarm.")
TOOLS = [WEATHER, ALARM]
ASKED: Any = [{"role": "user", "content": "What is the weather in Berlin?"}]
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


def test_a_stop_text_in_a_call_ends_it_and_does_not_say_that_it_is_whole(model: openai.OpenAI) -> None:
    (cut,) = said(model, tool_choice="required", stop="Berl")
    assert (cut.reason, cut.calls) == ("stop", [("get_weather", '{"city": "')])


def test_log_probabilities_are_those_of_all_tokens_of_a_call(model: openai.OpenAI) -> None:
    (called,) = said(model, logprobs=True)
    text = "".join(token.token for token in called.logprobs)
    assert text == '<tool_call>{"name": "get_weather", "arguments": {"city": "Berlin"}}</tool_call>'


def test_a_result_is_answered(model: openai.OpenAI) -> None:
    asked: Any = {"model": "cantor", "tools": TOOLS, "temperature": 0}
    first = model.chat.completions.create(messages=ASKED, **asked).choices[0].message
    assert first.tool_calls
    result: Any = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny"}
    turns: Any = [*ASKED, first.model_dump(), result]
    second = model.chat.completions.create(messages=turns, **asked).choices[0]
    assert second.message.content and "sunny" in second.message.content


def test_usage_counts_the_tools_that_are_shown(model: openai.OpenAI) -> None:
    def prompt(**more: Any) -> int:
        answer = model.chat.completions.create(model="cantor", messages=HELLO, max_tokens=1, **more)
        assert answer.usage is not None
        return int(answer.usage.prompt_tokens)

    assert prompt(tools=TOOLS) == prompt(tools=TOOLS, tool_choice="none") > prompt(tools=[WEATHER]) > prompt()


LOOSE = {
    "type": "object",
    "properties": {"a": {"type": "array", "uniqueItems": True, "items": {"type": "null"}}},
}


def test_a_keyword_that_cannot_be_kept_is_named_and_refused_where_it_is_strict(model: openai.OpenAI) -> None:
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


def test_a_format_and_tools_that_may_be_called_exclude_each_other(model: openai.OpenAI) -> None:
    asked: Any = {"model": "cantor", "messages": HELLO, "tools": TOOLS, "max_tokens": 40}
    asked["response_format"] = {"type": "json_object"}
    with pytest.raises(openai.BadRequestError) as caught:
        model.chat.completions.create(**asked)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "response_format")
    answer = model.chat.completions.create(tool_choice="none", **asked).choices[0]
    assert (answer.message.content or "").startswith("{") and answer.message.tool_calls is None


REQUESTS = (
    "What is the weather in Berlin?", "Set an alarm for 7:30.", "Wake me at noon.", "Is it raining in Rome?",
    "How is the weather in Oslo today?", "I want an alarm at 6 pm.", "Weather in Tokyo", "Hello!",
    "What is the capital of France?", "Set the alarm for 9 o'clock for 3 days.",
)  # fmt: skip


def test_what_the_model_says_by_itself_is_what_it_says_when_it_is_held_to_the_notation(
    model: openai.OpenAI,
) -> None:
    agreed = 0
    for request in REQUESTS:
        messages: Any = [{"role": "user", "content": request}]
        prompt = render({"messages": messages, "tools": TOOLS})
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


def schema_of(chosen: Random, depth: int = 0) -> Any:
    """An object with one to four properties, some of them lists and objects."""
    properties: dict[str, Any] = {}
    for name in chosen.sample(
        ["name", "size", "city_id", "on", "Größe", "x-y", 'quo"ted'], chosen.randint(1, 4)
    ):
        kind = chosen.random()
        if kind < 0.15 and depth < 2:
            properties[name] = schema_of(chosen, depth + 1)
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
        schema = schema_of(Random(at % schemas))
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
    forced(model, 30, 30)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_many_forced_calls_satisfy_their_schemas(model: openai.OpenAI) -> None:
    forced(model, 50, 300)
