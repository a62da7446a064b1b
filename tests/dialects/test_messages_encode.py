"""Answers of the Messages API: blocks, streams in which one block is open at a time, ends and errors."""

import asyncio
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.messages.encode import MessagesStreamEncoder, encode_error, encode_message
from antiphon.dialects.services import ResponseMeta
from antiphon.domain.collect import collect
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
from antiphon.domain.request import GenerationRequest, Output
from antiphon.domain.values import replace
from antiphon.errors import (
    AuthenticationFailed,
    BodyTooLarge,
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineBusy,
    InvalidValue,
    ModelNotFound,
    ProviderBroken,
    ProviderFailed,
    RateLimited,
)
from tests.support.message_events import check_message_events

META = ResponseMeta("1", 0, "m")
CALL = GenerationCall(GenerationRequest("m", ()))
USAGE = Usage(10, 4, 3, 1, cache_write_tokens=2)


def stream(*events: Event, usage: Usage = USAGE, call: GenerationCall = CALL) -> list[Any]:
    """The data of a stream's events. The name before each is its type."""
    encoder = MessagesStreamEncoder(META, call, "req-1")
    encoded = b"".join(encoder.encode(event) for event in (Started(10, 3), *events, usage)) + encoder.end()
    data = []
    for block in encoded.decode().split("\n\n")[:-1]:
        name, line = block.split("\n")
        data.append(json.loads(line.removeprefix("data: ")))
        assert name == f"event: {data[-1]['type']}"
    return data


def buffered(*events: Event, usage: Usage = USAGE, call: GenerationCall = CALL) -> Any:
    async def groups():
        yield (Started(10, 3), *events, usage)

    return json.loads(encode_message(META, call, asyncio.run(collect(groups()))))


TURN = (
    ReasoningDelta(0, "hm", 1),
    TextDelta(0, "It ", 1),
    TextDelta(0, "is", 1),
    ToolCallStarted(0, 0, "c1", "f"),
    ToolCallDelta(0, 0, '{"a":'),
    ToolCallDelta(0, 0, "1}"),
    ToolCallStarted(0, 1, "c2", "g"),
    Finished(0, FinishReason.TOOL_CALLS),
)


def test_each_block_ends_before_the_next_begins():
    assert [
        event["type"].removeprefix("content_block_") + str(event.get("index", "")) for event in stream(*TURN)
    ] == [
        "message_start",
        *("start0", "delta0", "delta0", "stop0"),
        *("start1", "delta1", "delta1", "stop1"),
        *("start2", "delta2", "delta2", "stop2"),
        *("start3", "delta3", "stop3"),
        "message_delta",
        "message_stop",
    ]


def test_a_streamed_answer_is_the_buffered_one():
    message = check_message_events(stream(*TURN))
    assert message == buffered(*TURN)
    assert message["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "antiphon"},
        {"type": "text", "text": "It is", "citations": None},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}, "caller": {"type": "direct"}},
        {"type": "tool_use", "id": "c2", "name": "g", "input": {}, "caller": {"type": "direct"}},
    ]
    assert message["stop_reason"] == "tool_use"


@given(st.lists(st.sampled_from(["text", "reasoning", "call", "more"]), max_size=12))
def test_any_order_of_events_is_a_stream_of_blocks(kinds):
    events: list[Event] = []
    calls = 0
    for kind in kinds:
        if kind == "text":
            events.append(TextDelta(0, "t"))
        elif kind == "reasoning":
            events.append(ReasoningDelta(0, "r"))
        elif kind == "call":
            events += (ToolCallStarted(0, calls, f"c{calls}", "f"), ToolCallDelta(0, calls, "{}"))
            calls += 1
        else:
            events.append(TextDelta(0, "more"))
    check_message_events(stream(*events, Finished(0, FinishReason.STOP)))


def test_the_counts_are_divided_by_the_cache():
    usage = buffered(*TURN)["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (5, 4)
    assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (3, 2)
    assert usage["output_tokens_details"] == {"thinking_tokens": 1}
    started = stream(*TURN)[0]["message"]["usage"]
    assert (started["input_tokens"], started["cache_read_input_tokens"]) == (7, 3)


@pytest.mark.parametrize(
    ("finished", "reason", "sequence", "details"),
    [
        (Finished(0, FinishReason.STOP), "end_turn", None, None),
        (Finished(0, FinishReason.STOP, stop="END"), "stop_sequence", "END", None),
        (Finished(0, FinishReason.LENGTH), "max_tokens", None, None),
        (
            Finished(0, FinishReason.CONTENT_FILTER),
            "refusal",
            None,
            {"type": "refusal", "category": None, "explanation": None},
        ),
    ],
)
def test_the_end_says_why(finished, reason, sequence, details):
    for message in (buffered(finished), check_message_events(stream(finished))):
        assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
        assert message["stop_details"] == details
        assert message["content"] == [{"type": "text", "text": "", "citations": None}]


def test_blocks_of_a_vendor_come_back_as_they_are():
    thought = {"type": "thinking", "thinking": "so", "signature": "Eq=="}
    hidden = {"type": "redacted_thinking", "data": "x"}
    events = (
        ReasoningDelta(0, "so"),
        ThinkingBlock(0, thought),
        ThinkingBlock(0, hidden),
        TextDelta(0, "A"),
        Finished(0, FinishReason.STOP),
    )
    text = {"type": "text", "text": "A", "citations": None}
    for message in (buffered(*events), check_message_events(stream(*events))):
        assert message["content"] == [thought, hidden, text]


def test_blocks_of_a_vendor_keep_their_places_among_text_and_calls():
    """Anthropic refuses reasoning that comes back at another place."""
    thoughts = [{"type": "thinking", "thinking": text, "signature": f"{text}="} for text in ("x", "y", "z")]
    events = (
        ReasoningDelta(0, "x"),
        ThinkingBlock(0, thoughts[0]),
        TextDelta(0, "A"),
        ReasoningDelta(0, "y"),
        ThinkingBlock(0, thoughts[1] | {"after": {"text": 1, "calls": 0}}),
        ToolCallStarted(0, 0, "c1", "f"),
        ReasoningDelta(0, "z"),
        ThinkingBlock(0, thoughts[2] | {"after": {"text": 1, "calls": 1}}),
        TextDelta(0, "B"),
        Finished(0, FinishReason.STOP),
    )
    call = {"type": "tool_use", "id": "c1", "name": "f", "input": {}, "caller": {"type": "direct"}}
    first, last = ({"type": "text", "text": text, "citations": None} for text in "AB")
    expected = [thoughts[0], first, thoughts[1], call, thoughts[2], last]
    for message in (buffered(*events), check_message_events(stream(*events))):
        assert message["content"] == expected


@pytest.mark.parametrize(
    "block",
    [
        {"type": "thinking", "thinking": "so", "signature": ""},
        {"offset": 0, "part": {"thoughtSignature": "x", "text": "so", "thought": True}},
        {"type": "thinking", "thinking": "so", "signature": "x", "after": {"text": -1}},
    ],
)
def test_blocks_of_other_forms_leave_the_reasoning(block):
    events = (
        ReasoningDelta(0, "so"),
        ThinkingBlock(0, block),
        TextDelta(0, ""),
        ToolCallStarted(0, 0, "c1", "f"),
        Finished(0, FinishReason.TOOL_CALLS),
    )
    thought = {"type": "thinking", "thinking": "so", "signature": "antiphon"}
    for message in (buffered(*events), check_message_events(stream(*events))):
        assert message["content"][0] == thought and len(message["content"]) == 2


def test_a_streamed_block_has_its_text_once():
    thought = {"type": "thinking", "thinking": "so", "signature": "Eq=="}
    events = (ThinkingBlock(0, thought), TextDelta(0, "A"), Finished(0, FinishReason.STOP))
    for message in (buffered(*events), check_message_events(stream(*events))):
        assert message["content"][0] == thought


def test_arguments_that_were_cut_are_empty():
    events = (
        ToolCallStarted(0, 0, "c1", "f"),
        ToolCallDelta(0, 0, '{"a":'),
        Finished(0, FinishReason.LENGTH),
    )
    assert buffered(*events)["content"][0]["input"] == {}


@pytest.mark.parametrize(
    ("error", "status", "name"),
    [
        (InvalidValue("messages must be a list"), 400, "invalid_request_error"),
        (AuthenticationFailed("no"), 401, "authentication_error"),
        (ModelNotFound("no"), 404, "not_found_error"),
        (BodyTooLarge("no"), 413, "request_too_large"),
        (RateLimited("no"), 429, "rate_limit_error"),
        (EngineBusy("no"), 503, "overloaded_error"),
        (ProviderFailed("no"), 502, "api_error"),
        (DeadlineExceeded("no"), 504, "timeout_error"),
    ],
)
def test_errors_have_the_types_that_clients_know(error, status, name):
    assert error.status == status
    assert json.loads(encode_error(error, "req-1")) == {
        "type": "error",
        "error": {"type": name, "message": error.message},
        "request_id": "req-1",
    }


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ContextLengthExceeded("Shorten it.", lengths=(9000, 8191)),
            r"prompt is too long: 9000 tokens > 8191 maximum\. Shorten it\. ",
        ),
        (ContextLengthExceeded("Shorten it."), r"prompt is too long\. Shorten it\. "),
        (ContextLengthExceeded("the vendor: prompt is too long: 9 tokens > 8 maximum"), "the vendor: prompt"),
    ],
)
def test_a_prompt_that_is_too_long_is_told_in_anthropics_words(error, message):
    """LangChain and pydantic-ai know the error by the words; Claude Code reads both numbers."""
    assert re.match(message, json.loads(encode_error(error))["error"]["message"])


def test_a_broken_stream_ends_with_an_error():
    encoded = MessagesStreamEncoder(META, CALL, "req-1").encode_error(EngineBusy("no"))
    assert encoded.startswith(b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"')
    assert b'"request_id":"req-1"' in encoded


@pytest.mark.parametrize("mode", [stream, buffered])
def test_the_context_that_ended_an_answer_is_told(mode):
    """Claude Code then compacts, instead of asking for more tokens."""
    allowed = replace(CALL.request, output=Output(max_tokens=4))
    call = replace(CALL, request=allowed)
    events = (TextDelta(0, "a"), Finished(0, FinishReason.LENGTH))

    def tell(usage: Usage) -> str:
        answer = mode(*events, usage=usage, call=call)
        reason: str = answer["stop_reason"] if mode is buffered else answer[-2]["delta"]["stop_reason"]
        return reason

    assert tell(Usage(10, 4)) == "max_tokens"
    assert tell(Usage(10, 3)) == "model_context_window_exceeded"
    assert tell(Usage(10, 3, source=UsageSource.REPORTED)) == "max_tokens"


def test_parts_of_two_calls_at_once_are_a_broken_stream():
    """Clients add each part to the block that is open: the input of a call would be lost, as in LiteLLM
    25321."""
    started = ToolCallStarted(0, 0, "c0", "f"), ToolCallStarted(0, 1, "c1", "f")
    with pytest.raises(ProviderBroken):
        stream(*started, ToolCallDelta(0, 0, '{"a":1}'))
    # A vendor's call without arguments gets them at its end, whatever began meanwhile.
    ends = ToolCallDelta(0, 0, "{}"), ToolCallDelta(0, 1, "{}"), Finished(0, FinishReason.TOOL_CALLS)
    blocks = check_message_events(stream(*started, *ends))["content"]
    assert [block["input"] for block in blocks] == [{}, {}]


@pytest.mark.parametrize("mode", [lambda *events: check_message_events(stream(*events)), buffered])
def test_the_signature_of_a_call_is_in_a_block_before_it(mode):
    events = (
        ReasoningDelta(0, "r"),
        ToolCallStarted(0, 0, "c0", "f", signature="sig+/=="),
        ToolCallDelta(0, 0, "{}"),
        ToolCallStarted(0, 1, "c1", "f"),
        ToolCallDelta(0, 1, "{}"),
        Finished(0, FinishReason.TOOL_CALLS),
    )
    content = mode(*events)["content"]
    assert [block["type"] for block in content] == ["thinking", "thinking", "tool_use", "tool_use"]
    assert content[1] == {"type": "thinking", "thinking": "", "signature": "antiphon-call:sig+/=="}
