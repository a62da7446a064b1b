"""One answer through chat completions, Responses and Messages: streamed and buffered it is the same, and
wherever it breaks, what came before is there and the dialect's own error ends it."""

import json
from collections.abc import AsyncGenerator, Callable
from typing import Any, NamedTuple

import pytest

from antiphon.domain.events import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from antiphon.errors import EngineDied
from tests.support.http_server import LooseEngine, Reply, serving
from tests.support.response_events import check_events

ANSWER: tuple[Event, ...] = (
    Started(5),
    ReasoningDelta(0, "Where ", 1),
    ReasoningDelta(0, "is it?", 2),
    TextDelta(0, "I ", 1),
    TextDelta(0, "look.", 2),
    ToolCallStarted(0, 0, "c1", "get_weather"),
    ToolCallDelta(0, 0, '{"city": '),
    ToolCallDelta(0, 0, '"Rome"}'),
    ToolCallStarted(0, 1, "c2", "get_time"),
    ToolCallDelta(0, 1, "{}"),
    Finished(0, FinishReason.TOOL_CALLS),
    Usage(5, 9),
)

TURN = [{"role": "user", "content": "Hi"}]
TOOLS = ("get_weather", "get_time")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


class Said(NamedTuple):
    """What a client has of an answer."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """The id and the arguments of each call."""
    usage: tuple[int, int] | None = None


class BreakingEngine(LooseEngine):
    """An engine that dies after a number of events."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.events_left = len(ANSWER)

    async def _answer(self) -> AsyncGenerator[Event, None]:
        for event in ANSWER[: self.events_left]:
            yield event
        if self.events_left < len(ANSWER):
            raise EngineDied("the engine ended")


def list_said(events: tuple[Event, ...]) -> Said:
    """What a client has after these events."""
    calls: dict[int, tuple[str, str]] = {}
    said = Said()
    for event in events:
        match event:
            case ReasoningDelta():
                said = said._replace(reasoning=said.reasoning + event.text)
            case TextDelta():
                said = said._replace(text=said.text + event.text)
            case ToolCallStarted():
                calls[event.index] = (event.id, "")
            case ToolCallDelta():
                id_, arguments = calls[event.index]
                calls[event.index] = (id_, arguments + event.arguments)
            case Usage():
                said = said._replace(usage=(event.prompt_tokens, event.completion_tokens))
    return said._replace(calls=tuple(calls.values()))


def read_chat(answer: Any) -> Said:
    message, usage = answer["choices"][0]["message"], answer["usage"]
    return Said(
        message["reasoning_content"],
        message["content"],
        tuple((each["id"], each["function"]["arguments"]) for each in message["tool_calls"]),
        (usage["prompt_tokens"], usage["completion_tokens"]),
    )


def read_chat_events(events: list[Any]) -> tuple[Said, Any]:
    """What the events say, and the error at their end; None after a complete answer."""
    said, error = Said(), None
    calls: dict[int, tuple[str, str]] = {}
    if events[-1] == "[DONE]":
        events = events[:-1]
    else:
        error = events.pop()["error"]
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            said = said._replace(
                reasoning=said.reasoning + (delta.get("reasoning_content") or ""),
                text=said.text + (delta.get("content") or ""),
            )
            for call in delta.get("tool_calls") or ():
                id_, arguments = calls.get(call["index"], (call.get("id", ""), ""))
                calls[call["index"]] = (id_, arguments + call["function"].get("arguments", ""))
        if event.get("usage"):
            usage = event["usage"]
            said = said._replace(usage=(usage["prompt_tokens"], usage["completion_tokens"]))
    return said._replace(calls=tuple(calls.values())), error


def read_response(response: Any) -> Said:
    items, usage = response["output"], response["usage"]
    return Said(
        "".join(part["text"] for item in items if item["type"] == "reasoning" for part in item["content"]),
        "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"]),
        tuple((item["call_id"], item["arguments"]) for item in items if item["type"] == "function_call"),
        usage and (usage["input_tokens"], usage["output_tokens"]),
    )


def read_response_events(events: list[Any]) -> tuple[Said, Any]:
    if events[-1] == "[DONE]":
        return read_response(check_events(events[:-1])), None
    response = check_events(events)
    assert response["status"] == "failed" and response["usage"] is None
    said, calls = Said(), list[tuple[str, str]]()
    for event in events:
        match event["type"]:
            case "response.reasoning_text.delta":
                said = said._replace(reasoning=said.reasoning + event["delta"])
            case "response.output_text.delta":
                said = said._replace(text=said.text + event["delta"])
            case "response.output_item.added" if event["item"]["type"] == "function_call":
                calls.append((event["item"]["call_id"], ""))
            case "response.function_call_arguments.delta":
                calls[-1] = (calls[-1][0], calls[-1][1] + event["delta"])
    return said._replace(calls=tuple(calls)), response["error"]


def read_message(message: Any) -> Said:
    blocks, usage = message["content"], message["usage"]
    return Said(
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        tuple((each["id"], json.dumps(each["input"])) for each in blocks if each["type"] == "tool_use"),
        (usage["input_tokens"], usage["output_tokens"]),
    )


def read_message_events(events: list[Any]) -> tuple[Said, Any]:
    said, calls = Said(), list[tuple[str, str]]()
    for event in events:
        match event["type"]:
            case "content_block_start" if event["content_block"]["type"] == "tool_use":
                calls.append((event["content_block"]["id"], ""))
            case "content_block_delta":
                delta = event["delta"]
                said = said._replace(
                    reasoning=said.reasoning + delta.get("thinking", ""),
                    text=said.text + delta.get("text", ""),
                )
                if "partial_json" in delta:
                    calls[-1] = (calls[-1][0], calls[-1][1] + delta["partial_json"])
            case "message_delta":
                usage = event["usage"]
                said = said._replace(usage=(usage["input_tokens"], usage["output_tokens"]))
    kinds = [event["type"] for event in events]
    is_whole = kinds[-1] == "message_stop"
    assert is_whole or (kinds[-1] == "error" and "message_stop" not in kinds)
    return said._replace(calls=tuple(calls)), None if is_whole else events[-1]["error"]


class Api(NamedTuple):
    path: str
    body: dict[str, Any]
    read: Callable[[Any], Said]
    read_events: Callable[[list[Any]], tuple[Said, Any]]
    error: dict[str, str]
    """The error of a stream."""


MESSAGE = "the engine ended"
APIS = {
    "chat": Api(
        "/v1/chat/completions",
        {
            "messages": TURN,
            "tools": [{"type": "function", "function": {"name": n, "parameters": SCHEMA}} for n in TOOLS],
            "stream_options": {"include_usage": True},
        },
        read_chat,
        read_chat_events,
        {"type": "server_error", "message": MESSAGE},
    ),
    "responses": Api(
        "/v1/responses",
        {"input": TURN, "tools": [{"type": "function", "name": n, "parameters": SCHEMA} for n in TOOLS]},
        read_response,
        read_response_events,
        {"code": "server_error", "message": MESSAGE},
    ),
    "messages": Api(
        "/v1/messages",
        {
            "messages": TURN,
            "max_tokens": 99,
            "thinking": {"type": "adaptive"},
            "tools": [{"name": n, "input_schema": SCHEMA} for n in TOOLS],
        },
        read_message,
        read_message_events,
        {"type": "overloaded_error", "message": MESSAGE},
    ),
}


async def ask(served: Any, api: Api, *, stream: bool) -> Reply:
    body = {name: value for name, value in api.body.items() if stream or name != "stream_options"}
    reply: Reply = await served.ask(api.path, {"model": "m", "stream": stream} | body)
    return reply


@pytest.mark.parametrize("name", APIS)
async def test_an_answer_that_breaks_anywhere_keeps_its_beginning_and_ends_with_the_dialects_error(name):
    api, engine = APIS[name], BreakingEngine()
    async with serving(engine) as served:
        for engine.events_left in range(len(ANSWER)):
            buffered = await ask(served, api, stream=False)
            assert buffered.status >= 500 and buffered.error["message"] == MESSAGE
            assert set(buffered.json()) <= {"error", "type", "request_id"}
            streamed = await ask(served, api, stream=True)
            assert b"[DONE]" not in streamed.body
            if engine.events_left == 0:  # no byte was sent
                assert (streamed.status, streamed.error) == (buffered.status, buffered.error)
                continue
            said, error = api.read_events(streamed.events())
            assert error | api.error == error
            assert said == list_said(ANSWER[: engine.events_left]), engine.events_left
        engine.events_left = len(ANSWER)
        assert (await ask(served, api, stream=True)).status == 200


async def test_an_answer_is_the_same_streamed_and_buffered_by_each_api():
    async with serving(BreakingEngine()) as served:
        for name, api in APIS.items():
            whole = (await ask(served, api, stream=False)).json()
            streamed, error = api.read_events((await ask(served, api, stream=True)).events())
            assert error is None
            assert api.read(whole) == streamed == list_said(ANSWER), name
