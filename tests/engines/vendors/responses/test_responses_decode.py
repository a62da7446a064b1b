"""Streams of OpenAI's Responses API: broken ones, and those of servers that know the format less well."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec
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
    UsageSource,
)
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, GenerationRequest, Output, RawPrompt
from antiphon.engines.vendors.base import NO_ATTRIBUTES, StreamFailure, VendorModel
from antiphon.engines.vendors.responses.dialect import ResponsesUpstream
from antiphon.engines.vendors.sse import EventSplitter
from tests.support.vendors.conversations import ALL_BY_NAME
from tests.support.vendors.responses_server import USAGE, build_response, iterate_events, write_event

MODEL = VendorModel("gpt-m", "open")
REQUEST = GenerationRequest("m", (Conversation((Message(Role.USER, "Say hello."),)),))
STARTED = Started(0, source=UsageSource.ESTIMATED)
REPORTED = Usage(125, 40, 100, 15, UsageSource.REPORTED, cache_write_tokens=5)
UNREADABLE = (ValueError, msgspec.MsgspecError)

TEXT: Any = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "Hello"}]}
CALL: Any = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "clock", "arguments": "{}"}
DONE: Any = {"status": "completed", "usage": USAGE}


def read(events: Iterable[Any], request: GenerationRequest = REQUEST, named: bool = False) -> list[Event]:
    """The events of a stream. `named`: whether its events have names before their data."""
    splitter, decoder = EventSplitter(), ResponsesUpstream().start_stream(request, MODEL)
    found: list[Event] = []
    for event in events:
        data = write_event(event) if named else b"data: %b\n\n" % json.dumps(event).encode()
        for name, payload in splitter.feed(data):
            found += decoder.feed(name, payload)
    return [*found, *decoder.close()]


def add(index: int, item: Any) -> Any:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def complete(index: int, item: Any) -> Any:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def change(kind: str, index: int, delta: str, **more: Any) -> Any:
    return {"type": f"response.{kind}.delta", "output_index": index, "delta": delta} | more


def end(**fields: Any) -> Any:
    response = DONE | fields
    return {"type": f"response.{response['status']}", "response": response}


HELLO = (TextDelta(0, "Hello"), Finished(0, FinishReason.STOP), REPORTED)


@pytest.mark.parametrize(
    "events",
    [
        [add(0, TEXT | {"content": []}), change("output_text", 0, "Hello"), complete(0, TEXT), end()],
        [add(0, TEXT | {"content": []}), complete(0, TEXT), end()],
        [complete(0, TEXT), end()],
        [end(output=[TEXT])],
        [change("output_text", 0, "Hello"), end(), change("output_text", 0, "more")],
        [{"type": "response.of_tomorrow", "x": 1}, {"type": "keepalive"}, complete(0, TEXT), end()],
    ],
    ids=["all events", "no deltas", "no beginnings", "only the end", "more after the end", "unknown events"],
)
@pytest.mark.parametrize("named", [True, False])
def test_an_answer_is_the_same_however_its_events_come(events: list[Any], named: bool):
    assert read(events, named=named) == [STARTED, *HELLO]


def test_an_answer_breaks_wherever_its_stream_is_cut():
    for name in ("reasoning between calls", "several turns", "a cut answer"):
        request = ALL_BY_NAME[name].build_request(0)
        body = json.loads(ResponsesUpstream().encode(request, MODEL, NO_ATTRIBUTES).body)
        whole = list(iterate_events(build_response(body)))
        assert isinstance(read(whole, request, named=True)[-1], Usage)
        for length in range(len(whole)):
            with pytest.raises(ValueError, match="ended before its last event"):
                read(whole[:length], request, named=True)


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (end(status="failed", error={"code": "rate_limit_exceeded", "message": "said"}), 429),
        (end(status="failed", error={"code": "invalid_prompt", "message": "said"}), 400),
        (end(status="failed", error={"code": "server_error", "message": "said"}), None),
        ({"type": "error", "code": "rate_limit_exceeded", "message": "said", "param": None}, 429),
        ({"type": "error", "error": {"code": "server_overloaded", "message": "said"}}, 503),
        (end(status="cancelled", error=None), None),
    ],
)
@pytest.mark.parametrize("begins", [False, True])
def test_an_answer_that_failed_is_an_error(event: Any, status: int | None, begins: bool):
    events = [change("output_text", 0, "Hel")] if begins else []
    with pytest.raises(StreamFailure, match=r"said|status cancelled") as failed:
        read([*events, event])
    assert failed.value.error.status == status


@pytest.mark.parametrize(
    "events",
    [
        [add(0, {"type": "web_search_call", "id": "ws_1"}), end()],
        [complete(0, TEXT | {"content": [{"type": "image", "data": "x"}]}), end()],
        [change("function_call_arguments", 0, "{}"), end()],
        [add(0, CALL), add(0, CALL), end()],
        [add(0, CALL), complete(0, CALL | {"name": "weather"}), end()],
        [add(0, CALL | {"name": ""}), end()],
        [complete(0, TEXT), end(status="incomplete")],
        [complete(0, TEXT), end(status="incomplete", incomplete_details={"reason": "of_tomorrow"})],
        [complete(0, TEXT), {"type": "response.completed", "response": {"status": "in_progress"}}],
        [{"no": "type"}],
    ],
)
def test_an_answer_whose_content_would_be_lost_is_an_error(events: list[Any]):
    with pytest.raises(UNREADABLE):
        read(events)


@pytest.mark.parametrize("body", [b"{}", b'{"status": "in_progress"}', b'{"status": "queued"}', b"[]"])
def test_a_whole_answer_without_an_end_is_an_error(body: bytes):
    with pytest.raises(UNREADABLE):
        list(ResponsesUpstream().decode_answer(REQUEST, MODEL, body))


def test_an_error_in_the_place_of_an_answer_is_an_error():
    body = b'{"status": "failed", "output": [], "error": {"code": "server_error", "message": "said"}}'
    with pytest.raises(StreamFailure, match="said"):
        list(ResponsesUpstream().decode_answer(REQUEST, MODEL, body))


def test_calls_are_told_apart_by_their_places():
    second = CALL | {"call_id": "d", "name": "weather", "arguments": ""}
    events = read(
        [
            add(0, CALL | {"arguments": ""}), add(1, second),
            change("function_call_arguments", 1, '{"a"'), change("function_call_arguments", 1, ":1}"),
            complete(0, CALL | {"arguments": ""}), complete(1, second | {"arguments": '{"a":1}'}), end(),
        ]
    )  # fmt: skip
    assert events[1:-2] == [
        ToolCallStarted(0, 0, "c", "clock"),
        ToolCallStarted(0, 1, "d", "weather"),
        ToolCallDelta(0, 1, '{"a"'),
        ToolCallDelta(0, 1, ":1}"),
        ToolCallDelta(0, 0, "{}"),
    ]
    assert events[-2] == Finished(0, FinishReason.TOOL_CALLS)


def test_a_call_that_the_limit_cut_stays_as_it_is():
    details = {"reason": "max_output_tokens"}
    begun = [add(0, CALL | {"arguments": ""}), change("function_call_arguments", 0, '{"a')]
    events = read([*begun, end(status="incomplete", incomplete_details=details)])
    assert events[2:4] == [ToolCallDelta(0, 0, '{"a'), Finished(0, FinishReason.LENGTH)]


def test_the_reasoning_of_open_models_is_read():
    events = read(
        [change("reasoning_text", 0, "2+"), change("reasoning_text", 0, "2"), complete(1, TEXT), end()]
    )
    assert events[1:3] == [ReasoningDelta(0, "2+"), ReasoningDelta(0, "2")]


@pytest.mark.parametrize(
    "usage",
    [None, {}, {"input_tokens": -1, "output_tokens": 5}, {"input_tokens": 9, "output_tokens": 1 << 40}],
)
def test_an_impossible_usage_is_replaced_by_an_estimate(usage: Any):
    last = read([complete(0, TEXT), end(usage=usage)])[-1]
    assert isinstance(last, Usage)
    assert (last.completion_tokens, last.source) == (2, UsageSource.ESTIMATED)


def test_text_completions_are_read_as_those_of_chats_api():
    request = GenerationRequest("m", (RawPrompt("Once"),), output=Output(max_tokens=5))
    body = json.dumps({"choices": [{"index": 0, "text": "upon", "finish_reason": "length"}]}).encode()
    events = list(ResponsesUpstream().decode_answer(request, MODEL, body))
    assert events[1:3] == [TextDelta(0, "upon"), Finished(0, FinishReason.LENGTH)]
