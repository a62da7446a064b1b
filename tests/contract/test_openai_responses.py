"""OpenAI's own client calls /v1/responses of a local model: answers, streams, parsed output, two turns with
tools, and errors."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import openai
import pytest
from pydantic import BaseModel, Field

from tests.contract.conftest import Scripted, Target
from tests.support.response_events import check_events

pytestmark = pytest.mark.timeout(480)

CITY: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": CITY,
    "strict": False,
}
PATCH: Any = {"type": "custom", "name": "note", "description": "Writes a note."}
QUESTION = "What is the weather in Berlin?"


class Person(BaseModel):
    name: Annotated[str, Field(max_length=12)]
    age: Annotated[int, Field(ge=0, le=120)]


@pytest.fixture
def client(cantor: Target) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=cantor.base_url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def dump(value: Any) -> Any:
    return value.model_dump(mode="json", by_alias=True, exclude_unset=True)


def strip(response: Any) -> Any:
    """What does not change from one answer to the next."""
    found = dump(response)
    for name in ("id", "created_at", "completed_at"):
        del found[name]
    for item in found["output"]:
        del item["id"]
        item.pop("call_id", None)
    del found["usage"]["input_tokens_details"]
    return found


def ask(client: openai.OpenAI, **asked: Any) -> Any:
    """The response, which is the same streamed and buffered, and by the client's helper."""
    asked = {"model": "cantor", "temperature": 0, "max_output_tokens": 120} | asked
    responses: Any = client.responses
    whole = responses.create(**asked)
    events = list(responses.create(stream=True, **asked))
    check_events([dump(event) for event in events])
    assert strip(events[-1].response) == strip(whole)
    helper = {name: value for name, value in asked.items() if name != "text"}
    if "text" not in asked and whole.status == "completed":
        with responses.stream(**helper) as stream:
            final = stream.get_final_response()
        assert final.output_text == whole.output_text
    return whole


def test_a_text(client: openai.OpenAI) -> None:
    response = ask(client, input="Who are you?", instructions="Be short.")
    assert response.output_text and response.status == "completed"
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_two_turns_with_a_tool(client: openai.OpenAI) -> None:
    turn: list[Any] = [{"role": "user", "content": QUESTION}]
    called = ask(client, input=turn, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    (call,) = [item for item in called.output if item.type == "function_call"]
    assert call.name == "get_weather" and json.loads(call.arguments).keys() == {"city"}
    turn += [dump(item) for item in called.output]
    turn.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
    second = ask(client, input=turn, tools=[TOOL], tool_choice="none")
    assert second.output_text


def test_a_stored_response(client: openai.OpenAI) -> None:
    asked: Any = {"model": "cantor", "temperature": 0, "max_output_tokens": 20}
    first = client.responses.create(input="My name is Ada.", **asked)
    second = client.responses.create(input="Who are you?", previous_response_id=first.id, **asked)
    turn: Any = [{"role": "user", "content": "My name is Ada."}, *map(dump, first.output)]
    whole = client.responses.create(input=[*turn, {"role": "user", "content": "Who are you?"}], **asked)
    assert first.usage and second.usage and whole.usage
    assert second.usage.input_tokens == whole.usage.input_tokens > first.usage.input_tokens
    assert second.output_text == whole.output_text
    assert client.responses.retrieve(second.id).output_text == second.output_text
    (item,) = client.responses.input_items.list(second.id)
    assert dump(item)["content"][0]["text"] == "Who are you?"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as missing:
        client.responses.create(input="Hi", previous_response_id=second.id, **asked)
    assert missing.value.code == "previous_response_not_found"


def test_a_custom_tool_gets_raw_text(client: openai.OpenAI) -> None:
    called = ask(
        client, input="Write it down.", tools=[PATCH], tool_choice={"type": "custom", "name": "note"}
    )
    item = called.output[-1]
    assert (item.type, item.name) == ("custom_tool_call", "note")
    assert called.status == "incomplete" or not item.input.startswith('{"input"')


def test_a_parsed_answer(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(
        model="cantor", input="Name somebody, and say how old they are.", text_format=Person, temperature=0
    )
    assert isinstance(parsed.output_parsed, Person)
    with client.responses.stream(
        model="cantor", input="Name somebody, and say how old they are.", text_format=Person, temperature=0
    ) as stream:
        assert stream.get_final_response().output_parsed == parsed.output_parsed


def test_a_count_is_the_usage_of_the_prompt(client: openai.OpenAI) -> None:
    asked: Any = {"model": "cantor", "input": QUESTION, "tools": [TOOL], "instructions": "Be kind."}
    responses: Any = client.responses
    counted = responses.input_tokens.count(**asked)
    assert counted.input_tokens == responses.create(**asked, max_output_tokens=1).usage.input_tokens


def test_errors_are_the_clients_own(client: openai.OpenAI, scripted: Scripted) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="nobody", input="Hi")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.responses.create(model="cantor", input="water and bread " * 3000)
    assert long.value.code == "context_length_exceeded"
    with openai.OpenAI(base_url=scripted.base_url, api_key="none", max_retries=0) as other:
        stream = other.responses.create(model=scripted.model, input="die midway", stream=True)
        response = check_events([dump(event) for event in stream])
    assert response["error"] == {"code": "server_error", "message": "the engine's process ended"}
