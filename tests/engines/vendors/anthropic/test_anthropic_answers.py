"""Anthropic's answers and errors: what ends a stream, what cannot be read, and what is withheld."""

import json
from collections.abc import Iterator
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
    ThinkingBlock,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    UsageSource,
)
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, GenerationRequest, Reasoning
from antiphon.engines.vendors.anthropic.decode import decode_answer
from antiphon.engines.vendors.anthropic.dialect import AnthropicUpstream
from antiphon.engines.vendors.base import StreamFailure, VendorError, VendorModel
from antiphon.engines.vendors.profiles import VendorProfile
from antiphon.wire.anthropic import ERROR_STATUSES
from tests.support.vendors import anthropic_server
from tests.support.vendors.anthropic_server import KEY, answer_call, list_models, sign
from tests.support.vendors.conversations import BY_NAME
from tests.support.vendors.vendor_exchange import RefusedCall, VendorExchange

UPSTREAM = AnthropicUpstream()
PROFILE = VendorProfile(max_output=8000, modalities=("text", "image"), reasoning=True)
MODEL = VendorModel("claude-m", "anthropic", PROFILE)
HI = Conversation((Message(Role.USER, "Hi."),))
REQUEST = GenerationRequest("m", (HI,))
HIDDEN = GenerationRequest("m", (Conversation(HI.messages, reasoning=Reasoning(shown=False)),))
STARTED = Started(9, source=UsageSource.ESTIMATED)

START = {
    "type": "message_start",
    "message": {"type": "message", "content": [], "usage": {"input_tokens": 9, "output_tokens": 1}},
}
END = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 4}}
STOP = {"type": "message_stop"}
TEXT = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
CALL = {"type": "tool_use", "id": "c", "name": "clock", "input": {}}


def open_block(index: int, **block: object) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def change(index: int, kind: str, **delta: object) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind} | delta}


def close_block(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def feed(*events: dict[str, Any], request: GenerationRequest = REQUEST) -> Iterator[Event]:
    decoder = UPSTREAM.start_stream(request, MODEL)
    for event in events:
        yield from decoder.feed(event["type"], json.dumps(event).encode())
    yield from decoder.close()


def open_exchange(model: str) -> VendorExchange:
    return VendorExchange(UPSTREAM, answer_call, VendorModel(model, "anthropic", PROFILE), KEY, "/v1")


def chat(is_buffered: bool = False) -> GenerationRequest:
    return BY_NAME["a chat"].build_request(0, (), is_buffered)


def test_the_events_of_a_stream_come_in_order():
    events = list(
        feed(
            START,
            {"type": "ping"},
            open_block(0, type="thinking", thinking="", signature=""),
            change(0, "thinking_delta", thinking="So"),
            change(0, "signature_delta", signature="s"),
            close_block(0),
            TEXT | {"index": 1},
            change(1, "text_delta", text="It is"),
            close_block(1),
            open_block(2, **CALL),
            change(2, "input_json_delta", partial_json=""),
            change(2, "input_json_delta", partial_json='{"a":'),
            change(2, "input_json_delta", partial_json="1}"),
            close_block(2),
            open_block(3, **(CALL | {"id": "d"})),
            close_block(3),
            {"type": "something_new", "content": 1},
            END | {"delta": {"stop_reason": "tool_use"}},
            STOP,
        )
    )
    assert events == [
        STARTED,
        ReasoningDelta(0, "So"),
        ThinkingBlock(0, {"type": "thinking", "thinking": "So", "signature": "s"}),
        TextDelta(0, "It is"),
        ToolCallStarted(0, 0, "c", "clock"),
        ToolCallDelta(0, 0, '{"a":'),
        ToolCallDelta(0, 0, "1}"),
        ToolCallStarted(0, 1, "d", "clock"),
        ToolCallDelta(0, 1, "{}"),
        Finished(0, FinishReason.TOOL_CALLS),
        Usage(9, 4, source=UsageSource.REPORTED),
    ]


def test_reasoning_between_texts_and_calls_has_its_place():
    def think(index: int) -> tuple[dict[str, Any], ...]:
        block = open_block(index, type="thinking", thinking="", signature="")
        return block, change(index, "signature_delta", signature=f"s{index}"), close_block(index)

    stream = (
        *think(0),
        TEXT | {"index": 1},
        change(1, "text_delta", text="One."),
        close_block(1),
        *think(2),
        open_block(3, **CALL),
        close_block(3),
        *think(4),
        END,
    )
    blocks = [event.block for event in feed(START, *stream, STOP) if isinstance(event, ThinkingBlock)]
    assert [block["signature"] for block in blocks] == ["s0", "s2", "s4"]
    places = [None, {"text": 4, "calls": 0}, {"text": 4, "calls": 1}]
    assert [block.get("after") for block in blocks] == places


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("end_turn", FinishReason.STOP),
        ("stop_sequence", FinishReason.STOP),
        ("max_tokens", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.LENGTH),
        ("refusal", FinishReason.CONTENT_FILTER),
    ],
)
def test_each_stop_reason_has_its_meaning(said: str, reason: FinishReason):
    events = list(feed(START, TEXT, close_block(0), END | {"delta": {"stop_reason": said}}, STOP))
    assert events[1] == Finished(0, reason)


def test_an_empty_answer_is_complete():
    expected = [STARTED, Finished(0, FinishReason.STOP), Usage(9, 4, source=UsageSource.REPORTED)]
    assert list(feed(START, END, STOP)) == expected
    for is_buffered in (False, True):
        events = list(open_exchange("empty").iterate(chat(is_buffered)))
        assert [type(event) for event in events] == [Started, Finished, Usage]


@pytest.mark.parametrize(
    "events",
    [
        (),
        (START,),
        (START, TEXT),
        (START, TEXT, close_block(0)),
        (START, TEXT, close_block(0), END),
        (START, STOP),
        (START, TEXT, END, STOP),
        (START, END | {"delta": {"stop_reason": "pause_turn"}}, STOP),
        (START, END | {"delta": {"stop_reason": "new_reason"}}, STOP),
        (START, START, END, STOP),
        (TEXT, close_block(0), END, STOP),
        (END, STOP),
        (START, TEXT, TEXT, END, STOP),
        (START, TEXT, change(1, "text_delta", text="a"), close_block(0), END, STOP),
        (START, TEXT, change(0, "thinking_delta", thinking="a"), close_block(0), END, STOP),
        (START, TEXT, change(0, "input_json_delta", partial_json="a"), close_block(0), END, STOP),
        (START, TEXT, change(0, "new_delta", new="a"), close_block(0), END, STOP),
        (START, open_block(0, type="new_block"), close_block(0), END, STOP),
        (START, open_block(0, **(CALL | {"input": [1]})), close_block(0), END, STOP),
        ({"type": "message_start", "message": {"type": "message", "content": []}}, END, STOP),
    ],
)
def test_a_stream_out_of_order_is_not_complete(events: tuple[dict[str, Any], ...]):
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        list(feed(*events))


@pytest.mark.parametrize("content", [[], [{"type": "text", "text": "a"}]])
def test_an_end_with_calls_needs_a_call(content: list[dict[str, Any]]):
    with pytest.raises(ValueError, match="calls and has none"):
        list(feed(START, TEXT, close_block(0), END | {"delta": {"stop_reason": "tool_use"}}, STOP))
    whole = {"type": "message", "content": content, "stop_reason": "tool_use"}
    body = json.dumps(whole | {"usage": {"input_tokens": 9, "output_tokens": 4}}).encode()
    with pytest.raises(ValueError, match="calls and has none"):
        list(decode_answer(body, shows_reasoning=True))


def test_what_follows_the_end_changes_nothing():
    whole = (START, TEXT, change(0, "text_delta", text="Hi"), close_block(0), END, STOP)
    failure = {"type": "error", "error": {"type": "api_error", "message": "boom"}}
    assert list(feed(*whole, STOP, failure)) == list(feed(*whole))


def test_every_cut_of_a_stream_is_noticed():
    exchange = open_exchange("claude-m")
    request = BY_NAME["one call"].build_request(0)
    parts = exchange.send(request).parts
    for end in range(len(parts)):
        with pytest.raises(ValueError, match="message_stop"):
            list(exchange.read_stream(request, parts[:end]))
    with pytest.raises(ValueError, match="message_stop"):
        list(open_exchange("cut").iterate(chat()))


@pytest.mark.parametrize("is_buffered", [False, True])
def test_a_paused_turn_is_not_complete(is_buffered: bool):
    with pytest.raises(ValueError, match="pause_turn"):
        list(open_exchange("paused").iterate(chat(is_buffered)))


def test_hidden_reasoning_shows_nowhere():
    block = open_block(0, type="thinking", thinking="", signature="")
    signature, end = change(0, "signature_delta", signature="s"), close_block(0)
    told = (START, block, change(0, "thinking_delta", thinking="Hush."), signature, end, END, STOP)
    assert [type(event) for event in feed(*told, request=HIDDEN)] == [Started, Finished, Usage]
    withheld = (START, block, signature, end, END, STOP)
    found = [event for event in feed(*withheld, request=HIDDEN) if isinstance(event, ThinkingBlock)]
    assert [event.block for event in found] == [{"type": "thinking", "thinking": "", "signature": "s"}]


async def test_omitted_reasoning_keeps_its_signature():
    exchange = open_exchange("claude-m")
    request = BY_NAME["reasoning"].build_request(0)
    (prompt,) = request.prompts
    assert isinstance(prompt, Conversation)
    hidden = Conversation(prompt.messages, reasoning=Reasoning("high", shown=False))
    found = list(exchange.iterate(msgspec.structs.replace(request, prompts=(hidden,))))
    assert not any(isinstance(event, ReasoningDelta) for event in found)
    assert ThinkingBlock(0, {"type": "thinking", "thinking": "", "signature": sign("")}) in found


def test_counts_of_a_stream_are_the_last_ones():
    first = {"input_tokens": 9, "cache_read_input_tokens": 3, "output_tokens": 1}
    start = {"type": "message_start", "message": {"type": "message", "content": [], "usage": first}}
    last = {
        "input_tokens": 10,
        "cache_read_input_tokens": None,
        "cache_creation_input_tokens": 2,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 5},
    }
    told = Usage(15, 7, 3, 5, UsageSource.REPORTED, cache_write_tokens=2)
    assert list(feed(start, END, END | {"usage": last}, STOP))[-1] == told


@pytest.mark.parametrize("lie", [{"output_tokens": -1}, {"cache_read_input_tokens": -3}])
def test_an_answer_whose_usage_cannot_be_true_is_refused(lie: dict[str, int]):
    start = {"type": "message_start", "message": {"type": "message", "content": [], "usage": {}}}
    usage = {"input_tokens": 9, "output_tokens": 7} | lie
    with pytest.raises(ValueError, match="cannot be true"):
        list(feed(start, END | {"usage": usage}, STOP))


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", anthropic_server.STATUSES)
def test_an_error_is_read(kind: str):
    with pytest.raises(RefusedCall) as refused:
        open_exchange(f"error-{kind}").send(chat())
    assert refused.value.status == anthropic_server.STATUSES[kind]
    assert refused.value.error == VendorError(f"said {kind}", kind, ERROR_STATUSES[kind])


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error": "a"}', b'{"type": "error"}', b"\xff"])
def test_an_error_in_another_form_has_no_message(body: bytes):
    assert UPSTREAM.decode_error(502, body) == VendorError("")


@pytest.mark.parametrize("kind", anthropic_server.STATUSES)
def test_an_error_event_has_the_status_of_its_kind(kind: str):
    events: list[Event] = []
    with pytest.raises(StreamFailure) as broken:
        events.extend(open_exchange(f"break-{kind}").iterate(chat()))
    assert broken.value.error.kind == kind
    assert broken.value.error.message == "said it in the stream"
    assert broken.value.error.status == {529: 503}.get(
        anthropic_server.STATUSES[kind], anthropic_server.STATUSES[kind]
    )


def test_an_error_before_the_first_block_has_no_event_before_it():
    decoder = UPSTREAM.start_stream(REQUEST, MODEL)
    assert not decoder.feed("message_start", json.dumps(START).encode())
    with pytest.raises(StreamFailure):
        decoder.feed("error", b'{"type": "error", "error": {"type": "overloaded_error", "message": "a"}}')


def test_an_error_in_the_place_of_an_answer_fails():
    body = b'{"type": "error", "error": {"type": "api_error", "message": "a"}}'
    with pytest.raises(StreamFailure) as failed:
        list(UPSTREAM.decode_answer(REQUEST, MODEL, body))
    assert failed.value.error == VendorError("a", "api_error", 500)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"type": "message"}', b'{"type": "message", "content": [1]}'])
def test_an_unreadable_answer_is_an_error(body: bytes):
    with pytest.raises(msgspec.MsgspecError):
        list(UPSTREAM.decode_answer(REQUEST, MODEL, body))


def test_models_are_listed():
    assert UPSTREAM.build_models_path() == "/models?limit=1000"
    assert UPSTREAM.decode_models(json.dumps(list_models()).encode()) == ("claude-m", "claude-n")
