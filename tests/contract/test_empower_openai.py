"""Empower's dialect through OpenAI's client, as Empower's users call it: its base URL, every parameter of the
page, tools, JSON, streams, errors."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.contract.conftest import KEY, Scripted, Target

HELLO: Any = [{"role": "user", "content": "Who are you?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}

pytestmark = pytest.mark.timeout(480)
"""The first of them starts a server too."""


def client_of(target: Target, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{target.url}/empower/api/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def empower(cantor: Target) -> Iterator[openai.OpenAI]:
    with client_of(cantor) as made:
        yield made


@pytest.fixture
def puppet(scripted: Scripted) -> Iterator[openai.OpenAI]:
    with client_of(scripted) as made:
        yield made


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    """The answer, or with `stream` its chunks."""
    asked: Any = {"model": "cantor", "messages": HELLO, "temperature": 0, "max_tokens": 24} | fields
    return client.chat.completions.create(**asked)


def text(client: openai.OpenAI, **fields: Any) -> str:
    found: str = ask(client, **fields).choices[0].message.content or ""
    return found


def test_every_parameter_of_the_page_is_taken(empower):
    answer = ask(
        empower,
        n=2,
        max_tokens=8,
        temperature=0.5,
        top_p=0.9,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        stream=False,
        extra_body={"ignore_eos": True},
    )
    assert answer.id.startswith("cmpl-") and answer.model == "cantor" and answer.created > 1_600_000_000
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert answer.usage.completion_tokens == 16
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 16


def test_an_answer_has_no_more_keys_than_the_page(empower):
    raw = empower.chat.completions.with_raw_response.create(model="cantor", messages=HELLO, max_tokens=4)
    whole = json.loads(raw.content)
    assert whole.keys() == {"id", "created", "model", "choices", "usage"}
    assert whole["choices"][0].keys() == {"index", "message", "finish_reason"}
    assert whole["choices"][0]["message"].keys() == {"role", "content"}
    assert whole["usage"].keys() == {"prompt_tokens", "completion_tokens", "total_tokens"}


def test_what_is_left_out_is_256_tokens(empower):
    asked: Any = empower.chat.completions.create(
        model="cantor", messages=HELLO, extra_body={"ignore_eos": True}
    )
    assert asked.usage.completion_tokens == 256


def test_the_three_forms_of_messages(empower):
    said = text(empower)
    assert text(empower, messages="Who are you?") == said
    both = ask(empower, messages=["Who are you?", "What is two plus two?"])
    other = text(empower, messages="What is two plus two?")
    assert [choice.message.content for choice in both.choices] == [said, other]


@pytest.mark.parametrize("fields", [{}, {"n": 3, "temperature": 1, "seed": 5}], ids=["one", "three"])
def test_what_is_streamed_is_what_is_buffered(empower, fields):
    whole = ask(empower, **fields)
    said: dict[int, str] = {}
    ends: dict[int, str] = {}
    usage: dict[int, Any] = {}
    roles: list[str] = []
    for chunk in ask(empower, stream=True, **fields):
        (choice,) = chunk.choices
        roles += [choice.delta.role] if choice.delta.role else []
        said[choice.index] = said.get(choice.index, "") + (choice.delta.content or "")
        if choice.finish_reason:
            ends[choice.index], usage[choice.index] = choice.finish_reason, chunk.usage
        else:
            assert chunk.usage is None
    assert said == {choice.index: choice.message.content for choice in whole.choices}
    assert ends == {choice.index: choice.finish_reason for choice in whole.choices}
    assert roles == ["assistant"] * len(whole.choices)
    assert {each.prompt_tokens for each in usage.values()} == {whole.usage.prompt_tokens}
    assert sum(each.completion_tokens for each in usage.values()) == whole.usage.completion_tokens


def test_any_calls_a_tool_and_its_name_comes_whole(empower):
    asked: Any = {"tools": [WEATHER], "tool_choice": "any", "max_tokens": 60}
    whole = ask(empower, **asked)
    (call,) = whole.choices[0].message.tool_calls
    assert whole.choices[0].finish_reason == "tool_calls" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments).keys() == {"city"}
    parts = [
        part
        for chunk in ask(empower, stream=True, **asked)
        for part in chunk.choices[0].delta.tool_calls or ()
    ]
    assert [part.function.name for part in parts] == ["get_weather"] + [None] * (len(parts) - 1)
    assert "".join(part.function.arguments for part in parts) == call.function.arguments
    assert {part.index for part in parts} == {0}


def test_a_call_and_its_result_go_back_unchanged(empower):
    first = ask(empower, tools=[WEATHER], tool_choice="any", max_tokens=60).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": '{"weather": "rain"}'}
    turn = [*HELLO, first.model_dump(exclude_none=True), result]
    assert text(empower, messages=turn, tools=[WEATHER], tool_choice="none")


def test_json_mode(empower):
    asked = [{"role": "user", "content": "Give me a JSON object with name Ann and age 7."}]
    said = text(
        empower, messages=asked, response_format={"type": "json_object"}, max_tokens=200, temperature=0
    )
    assert isinstance(json.loads(said), dict)


def test_thinking_is_refused_on_a_model_that_does_not_think(empower):
    assert text(empower, extra_body={"include_thinking": False})
    with pytest.raises(openai.BadRequestError, match="include_thinking") as refused:
        ask(empower, extra_body={"include_thinking": True})
    assert refused.value.param == "include_thinking"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.01}, "temperature"),
        ({"frequency_penalty": -2.01}, "frequency_penalty"),
        ({"presence_penalty": 2.01}, "presence_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"logit_bias": {"50": 1}}, "logit_bias"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"extra_body": {"surprise": 1}}, "surprise"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_a_bad_request_that_names_it(empower, fields, param):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(empower, **fields)
    assert (refused.value.param, refused.value.type) == (param, "invalid_request_error")
    assert isinstance(refused.value.body, dict) and refused.value.body["object"] == "error"


def test_a_prompt_that_leaves_no_room_is_refused_with_the_limit(empower):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(empower, max_tokens=100_000)
    assert refused.value.code == "context_length_exceeded"


def test_an_unknown_model_is_not_found(empower):
    with pytest.raises(openai.NotFoundError) as refused:
        ask(empower, model="IlyaGusev/saiga_mistral_7b_lora")
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


def test_names_hold_slashes(puppet):
    assert ask(puppet, model="org/scripted").model == "org/scripted"


def test_a_stream_that_breaks_raises(puppet):
    with pytest.raises(openai.APIError, match="process ended"):
        for _ in ask(puppet, model="scripted", messages="die midway", stream=True):
            pass


def test_the_key_is_a_bearer(keyed):
    with client_of(keyed, KEY) as client:
        assert ask(client, model="scripted").choices
    with client_of(keyed, "wrong") as client, pytest.raises(openai.AuthenticationError) as refused:
        ask(client, model="scripted")
    assert isinstance(refused.value.body, dict) and refused.value.body["object"] == "error"
