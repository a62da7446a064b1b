"""Answers of the Responses API: items, events in their order, ends, and that a stream is the whole answer."""

import json
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.responses.custom_input import CustomInputReader
from antiphon.dialects.responses.encode import (
    ResponseBuilder,
    ResponsesStreamEncoder,
    encode_event,
    encode_response,
)
from antiphon.dialects.responses.wire_types import AnswerReasoning, TextDeltaEvent
from antiphon.dialects.services import ResponseMeta
from antiphon.domain.context import RequestProgress
from antiphon.domain.events import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    ThinkingBlock,
    TokenScore,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    UsageSource,
)
from antiphon.domain.stored_responses import SealedReasoning
from antiphon.errors import ContextLengthExceeded, EngineDied, ProviderBroken, RateLimited
from antiphon_testing.scripted_engine import FakeClock
from tests.support.response_events import check_events
from tests.support.responses_call import call

META = ResponseMeta("a", 7, "m")
USAGE = Usage(10, 4, 3, 1, cache_write_tokens=2)
DONE = Finished(0, FinishReason.STOP)
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "f"},
    {"type": "custom", "name": "apply_patch"},
    {"type": "namespace", "name": "mcp", "description": "", "tools": [{"type": "function", "name": "g"}]},
    {"type": "tool_search", "execution": "client"},
]
TURN = (
    ReasoningDelta(0, "h", 1),
    ReasoningDelta(0, "m", 1),
    TextDelta(0, "It ", 1),
    TextDelta(0, "is", 1),
    ToolCallStarted(0, 0, "c1", "f"),
    ToolCallDelta(0, 0, '{"a":'),
    ToolCallDelta(0, 0, "1}"),
    ToolCallStarted(0, 1, "c2", "apply_patch"),
    ToolCallDelta(0, 1, '{"input": "one'),
    ToolCallDelta(0, 1, ' two"}'),
    ToolCallStarted(0, 2, "c3", "mcp__g"),
    ToolCallDelta(0, 2, "{}"),
    ToolCallStarted(0, 3, "c4", "tool_search"),
    ToolCallDelta(0, 3, '{"query": "x"}'),
    Finished(0, FinishReason.TOOL_CALLS),
)


def builder(**fields: Any) -> ResponseBuilder:
    body = {"input": "Hi", "tools": TOOLS} | fields
    return ResponseBuilder(
        META, call(**body), FakeClock(), lambda reasoning: f"sealed {reasoning.text}", RequestProgress()
    )


def parse(encoded: bytes) -> list[Any]:
    """The data of events. The name before each is its type."""
    events: list[Any] = []
    for block in encoded.decode().split("\n\n")[:-1]:
        if block == "data: [DONE]":
            events.append("[DONE]")
            continue
        name, line = block.split("\n")
        events.append(json.loads(line.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def stream(*events: Event, usage: Usage = USAGE, **fields: Any) -> list[Any]:
    """A stream's events, without [DONE]."""
    encoder = ResponsesStreamEncoder(builder(**fields))
    encoded = b"".join(encoder.encode(event) for event in (Started(10, 3), *events, usage)) + encoder.end()
    parsed = parse(encoded)
    assert parsed.pop() == "[DONE]"
    return parsed


def buffered(*events: Event, usage: Usage = USAGE, **fields: Any) -> Any:
    built = builder(**fields)
    for event in (Started(10, 3), *events, usage):
        list(built.add(event))
    return json.loads(encode_response(built.response))


def kinds(events: Sequence[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_a_text_has_its_events_in_their_order():
    events = stream(TextDelta(0, "Hi"), DONE)
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(9))


def test_tools_and_instructions_are_encoded_once_for_all_events():
    """Each event with the response would encode the megabytes of an agent's tools again."""
    built = builder(instructions="Be kind.", text={"format": {"type": "json_object"}})
    for value in (built.response.tools, built.response.instructions, built.response.text):
        assert isinstance(value, msgspec.Raw)
    (created, _) = built.start()
    response = parse(encode_event(created))[0]["response"]
    assert [tool["type"] for tool in response["tools"]] == [tool["type"] for tool in TOOLS]
    assert (response["instructions"], response["text"]) == ("Be kind.", {"format": {"type": "json_object"}})


def test_the_bytes_of_an_events_text_are_those_of_its_type():
    encoder = ResponsesStreamEncoder(builder())
    text = 'Köln "\\\n\x01 🎉'
    for event in (Started(10), ReasoningDelta(0, "r"), TextDelta(0, "a")):
        encoder.encode(event)
    expected = TextDeltaEvent(
        sequence_number=encoder._builder._next_number,
        item_id="msg_a_1",
        output_index=1,
        content_index=0,
        delta=text,
    )
    assert encoder.encode(TextDelta(0, text)) == encode_event(expected)


def test_a_streamed_answer_is_the_buffered_one():
    response = check_events(stream(*TURN))
    assert response == buffered(*TURN)
    assert [(item["type"], item["id"]) for item in response["output"]] == [
        ("reasoning", "rs_a_0"),
        ("message", "msg_a_1"),
        ("function_call", "fc_a_2"),
        ("custom_tool_call", "ctc_a_3"),
        ("function_call", "fc_a_4"),
        ("tool_search_call", "tsc_a_5"),
    ]
    call, custom, named, search = response["output"][2:]
    assert (call["call_id"], call["name"], call["arguments"]) == ("c1", "f", '{"a":1}')
    assert "namespace" not in call
    assert (custom["call_id"], custom["name"], custom["input"]) == ("c2", "apply_patch", "one two")
    assert (named["namespace"], named["name"]) == ("mcp", "g")
    assert (search["execution"], search["arguments"]) == ("client", {"query": "x"})
    assert response["status"] == "completed" and response["completed_at"] == 1_800_000_000


def renumber(events: Sequence[Any]) -> list[Any]:
    """Copies of events with the numbers of their places, so that the numbers tell nothing."""
    return [event | {"sequence_number": place} for place, event in enumerate(events)]


@pytest.mark.parametrize("fields", [{}, {"reasoning": {"summary": "auto"}}], ids=["content", "summary"])
def test_an_event_that_is_dropped_doubled_or_moved_is_found(fields):
    """The check itself, on which the other tests rely."""
    right = stream(*TURN[:4], TextDelta(0, "No.", is_refusal=True), *TURN[4:], **fields)
    check_events(renumber(right))
    for place, event in enumerate(right):
        others = [*right[:place], *right[place + 1 :]]
        moved = [[*others[:other], event, *others[other:]] for other in range(len(right)) if other != place]
        for changed in (others, [*right[:place], event, *right[place:]], *moved):
            with pytest.raises(AssertionError):
                check_events(renumber(changed))


@given(st.lists(st.sampled_from(["text", "refusal", "reasoning", "call", "custom", "search"]), max_size=12))
def test_any_order_of_events_is_a_stream_of_items(names):
    """makecindy#4509: Codex shows nothing of an item whose deltas came before it, or that shares its
    index."""
    events: list[Event] = []
    for number, name in enumerate(names):
        if name in ("text", "refusal"):
            events.append(TextDelta(0, "t", is_refusal=name == "refusal"))
        elif name == "reasoning":
            events.append(ReasoningDelta(0, "r"))
        else:
            tool = {"call": "f", "custom": "apply_patch", "search": "tool_search"}[name]
            events += (ToolCallStarted(0, number, f"c{number}", tool), ToolCallDelta(0, number, "{}"))
    assert check_events(stream(*events, DONE)) == buffered(*events, DONE)


def test_reasoning_is_one_part_however_many_deltas_it_has():
    """vllm-project/vllm#35184: each delta had its own content_index."""
    thoughts = [ReasoningDelta(0, str(number)) for number in range(20)]
    events = stream(*thoughts, TextDelta(0, "A"), DONE)
    assert {event["content_index"] for event in events if "reasoning_text" in event["type"]} == {0}
    (item, _) = check_events(events)["output"]
    assert item["content"] == [{"type": "reasoning_text", "text": "".join(map(str, range(20)))}]
    assert item["summary"] == []


def test_with_a_summary_the_reasoning_is_the_summary():
    response = check_events(stream(*TURN, reasoning={"summary": "auto"}))
    assert response == buffered(*TURN, reasoning={"summary": "auto"})
    item = response["output"][0]
    assert (item["summary"], item["content"]) == ([{"type": "summary_text", "text": "hm"}], [])
    assert response["reasoning"] == {"effort": None, "summary": "auto"}


def test_reasoning_is_sealed_if_it_is_included():
    asked: dict[str, Any] = {"include": ["reasoning.encrypted_content"]}
    events = stream(*TURN, **asked)
    response = check_events(events)
    assert response == buffered(*TURN, **asked)
    assert response["output"][0]["encrypted_content"] == "sealed hm"
    assert "encrypted_content" not in stream(*TURN)[0]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert "encrypted_content" not in added[0]


BLOCK = {"type": "thinking", "thinking": "hm", "signature": "Eq=="}
HIDDEN = {"type": "redacted_thinking", "data": "x"}


def test_blocks_of_a_vendor_are_sealed_for_the_client_or_for_the_store():
    turn = (ReasoningDelta(0, "hm"), ThinkingBlock(0, BLOCK), TextDelta(0, "A"), DONE)
    seals: list[SealedReasoning] = []

    def seal(reasoning: SealedReasoning) -> str:
        seals.append(reasoning)
        return "sealed"

    for fields in ({"stores": True}, {"include": ["reasoning.encrypted_content"]}, {}):
        built = ResponseBuilder(META, call(**fields), FakeClock(), seal, RequestProgress())
        for event in (Started(10), *turn, USAGE):
            list(built.add(event))
        shown, stored = built.output[0], built.list_stored_items()[0]
        assert isinstance(shown, AnswerReasoning) and isinstance(stored, AnswerReasoning)
        assert (shown.encrypted_content == "sealed") == ("include" in fields)
        assert (stored.encrypted_content == "sealed") == bool(fields)
    assert seals == [SealedReasoning("hm", "m", blocks=(BLOCK,))] * 2


def test_blocks_outside_of_reasoning_are_an_item_at_the_end():
    turn = (ThinkingBlock(0, HIDDEN), TextDelta(0, "A"), ThinkingBlock(0, BLOCK), TextDelta(0, "B"), DONE)
    asked: dict[str, Any] = {"include": ["reasoning.encrypted_content"]}
    response = check_events(stream(*turn, **asked))
    assert response == buffered(*turn, **asked)
    message, reasoning = response["output"]
    assert (message["content"][0]["text"], reasoning["content"]) == ("AB", [])
    assert reasoning["encrypted_content"] == "sealed "
    assert len(check_events(stream(*turn))["output"]) == 1


def test_usage_has_all_details():
    """jundot/omlx#1008 and exo-explore/exo#1885: clients break without them."""
    assert buffered(*TURN)["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 2},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 14,
    }
    plain = buffered(TextDelta(0, "A"), DONE, usage=Usage(1, 1))["usage"]
    assert plain["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}
    assert plain["output_tokens_details"] == {"reasoning_tokens": 0}
    assert buffered(DONE, usage=Usage(1, 1, source=UsageSource.ESTIMATED))["usage"] is None


@pytest.mark.parametrize(
    ("reason", "why"),
    [(FinishReason.LENGTH, "max_output_tokens"), (FinishReason.CONTENT_FILTER, "content_filter")],
)
def test_a_cut_answer_is_incomplete(reason, why):
    events = stream(TextDelta(0, "Hi"), Finished(0, reason))
    assert kinds(events)[-1] == "incomplete"
    response = check_events(events)
    assert response == buffered(TextDelta(0, "Hi"), Finished(0, reason))
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": why})
    assert (response["output"][0]["status"], response["completed_at"]) == ("incomplete", None)


def test_a_cut_call_stays_with_what_it_has():
    """vllm-project/vllm#37937: an IndexError, or half of the JSON in a completed call."""
    for tool, field, part in (("f", "arguments", '{"input": "ab'), ("apply_patch", "input", "ab")):
        cut = (
            ToolCallStarted(0, 0, "c", tool),
            ToolCallDelta(0, 0, '{"input": "ab'),
            Finished(0, FinishReason.LENGTH),
        )
        events = stream(*cut)
        response = check_events(events)
        assert kinds(events)[-1] == "incomplete" and not any(kind.endswith("done") for kind in kinds(events))
        assert response == buffered(*cut)
        assert response["status"] == response["output"][0]["status"] == "incomplete"
        assert response["output"][0][field] == part
    bare = check_events(stream(ToolCallStarted(0, 0, "c", "f"), Finished(0, FinishReason.LENGTH)))
    assert (bare["output"][0]["arguments"], bare["output"][0]["status"]) == ("", "incomplete")


def test_a_whole_call_is_completed_also_if_the_answer_is_cut_after_it():
    whole = (
        ToolCallStarted(0, 0, "c", "f"),
        ToolCallDelta(0, 0, '{"a":1}'),
        Finished(0, FinishReason.LENGTH),
    )
    response = check_events(stream(*whole))
    assert (response["status"], response["output"][0]["status"]) == ("incomplete", "completed")


def test_a_call_without_arguments_has_one_delta():
    """LangChain joins the deltas."""
    events = stream(ToolCallStarted(0, 0, "c", "f"), Finished(0, FinishReason.TOOL_CALLS))
    assert [event["delta"] for event in events if event["type"].endswith("delta")] == ["{}"]


def test_arguments_go_to_their_own_call():
    """Vendors' calls without arguments get empty ones at the end, when another call is open."""
    events = (
        ToolCallStarted(0, 0, "c1", "f"),
        ToolCallStarted(0, 1, "c2", "f"),
        ToolCallDelta(0, 1, '{"a":1}'),
        ToolCallDelta(0, 0, "{}"),
        Finished(0, FinishReason.TOOL_CALLS),
    )
    response = check_events(stream(*events))
    assert [item["arguments"] for item in response["output"]] == ["{}", '{"a":1}']


@pytest.mark.parametrize("between", [ToolCallStarted(0, 1, "c2", "f"), TextDelta(0, "text")])
def test_arguments_behind_the_end_of_their_call_break_the_answer(between):
    built = builder()
    for event in (Started(1), ToolCallStarted(0, 0, "c1", "f"), ToolCallDelta(0, 0, '{"a":'), between):
        list(built.add(event))
    with pytest.raises(ProviderBroken, match="mixed"):
        list(built.add(ToolCallDelta(0, 0, "1}")))


def test_an_empty_answer_is_an_empty_message():
    response = check_events(stream(DONE))
    assert response == buffered(DONE)
    assert response["output"][0]["content"] == [
        {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    ]


def test_a_refusal_of_a_vendor_is_a_part_of_its_own():
    events = (TextDelta(0, "No", is_refusal=True), TextDelta(0, ".", is_refusal=True), DONE)
    response = check_events(stream(*events))
    assert response["output"][0]["content"] == [{"type": "refusal", "refusal": "No."}]


def test_text_has_its_log_probabilities():
    scores = [(TokenScore(5, piece, -0.5, ((5, piece, -0.5), (6, b"o", -2.0))),) for piece in (b"a", b"b")]
    texts = (TextDelta(0, "a", 1, scores[0]), TextDelta(0, "b", 1, scores[1]), DONE)
    response = check_events(stream(*texts, top_logprobs=2))
    assert response == buffered(*texts, top_logprobs=2)
    first, second = response["output"][0]["content"][0]["logprobs"]
    assert first == {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [
            {"token": "a", "logprob": -0.5, "bytes": [97]},
            {"token": "o", "logprob": -2.0, "bytes": [111]},
        ],
    }
    assert second["token"] == "b"


INPUTS = [
    "plain",
    "",
    'quotes " and \\ backslash',
    "lines\n\ttabs \r\x01",
    "Köln 日本 🎉🎉",
    "*** Begin Patch\n+print('a\\n')\n*** End Patch",
]


@given(
    st.one_of(st.sampled_from(INPUTS), st.text()),
    st.booleans(),
    st.lists(st.integers(1, 7), max_size=40),
    st.sampled_from(['{"input": ', '{"input":', ' {\n "input" : ']),
)
def test_a_custom_call_has_the_raw_text_however_it_is_split(text, is_ascii, sizes, opening):
    """ds4#745: the call came back as a function's, and Codex aborted it."""
    arguments = opening + json.dumps(text, ensure_ascii=is_ascii) + "}"
    deltas: list[Event] = []
    for size in [*sizes, len(arguments)]:
        if arguments[:size]:
            deltas.append(ToolCallDelta(0, 0, arguments[:size]))
        arguments = arguments[size:]
    events = (
        ToolCallStarted(0, 0, "c", "apply_patch"), *deltas, Finished(0, FinishReason.TOOL_CALLS),
    )  # fmt: skip
    (item,) = check_events(stream(*events))["output"]
    assert (item["type"], item["input"], item["status"]) == ("custom_tool_call", text, "completed")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"patch": "x"}', '{"patch": "x"}'),
        (r'{"input": "a\ud83db"}', "a\ufffdb"),
        (r'{"input": "a\ude00b"}', "a\ufffdb"),
        (r'{"input": "a\ud83d\n"}', "a\ufffd\n"),
    ],
)
def test_arguments_of_another_form_are_the_text(arguments, text):
    events = (ToolCallStarted(0, 0, "c", "apply_patch"), ToolCallDelta(0, 0, arguments), DONE)
    assert check_events(stream(*events))["output"][0]["input"] == text


def test_a_long_patch_takes_no_longer_for_each_part():
    reader = CustomInputReader()
    begin = time.process_time()
    reader.read('{"input": "')
    for _ in range(80_000):
        reader.read("abcd")
    reader.read('"}')
    assert (reader.finish(), reader.text) == ("", "abcd" * 80_000)
    assert time.process_time() - begin < 2


def test_an_answer_that_breaks_has_failed_and_says_why():
    """openai/codex#24973: the error was null, and the cause was lost."""
    encoder = ResponsesStreamEncoder(builder())
    encoded = b"".join(encoder.encode(event) for event in (Started(10), *TURN[:7]))
    events = parse(encoded + encoder.encode_error(EngineDied("the engine ended")))
    response = check_events(events)
    assert (response["status"], response["error"]) == (
        "failed",
        {"code": "server_error", "message": "the engine ended"},
    )
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert kinds(events)[-1] == "failed" and "output_item.done" not in kinds(events)[-4:]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RateLimited("try again in 1s"), "rate_limit_exceeded"),
        (ContextLengthExceeded("too long"), "context_length_exceeded"),
    ],
)
def test_the_code_of_a_failure_is_one_on_which_codex_acts(error, code):
    events = parse(ResponsesStreamEncoder(builder()).encode_error(error))
    assert kinds(events) == ["created", "in_progress", "failed"]
    assert check_events(events)["error"]["code"] == code


def test_a_silence_has_numbered_events():
    """openai/codex#31539: Codex reads no comments. diegosouzapw/OmniRoute#14330: a heartbeat before
    created, or without its fields."""
    encoder = ResponsesStreamEncoder(builder())
    parts = [encoder.keep_alive(), encoder.keep_alive(), encoder.encode(Started(10))]
    parts += [encoder.keep_alive(), encoder.encode(TextDelta(0, "Hi")), encoder.keep_alive()]
    parts += [encoder.encode(TextDelta(0, "!")), encoder.encode(DONE), encoder.keep_alive()]
    parts += [encoder.encode(USAGE), encoder.end()]
    events = parse(b"".join(parts))[:-1]
    assert kinds(events)[:5] == ["created", "in_progress", "in_progress", "in_progress", "output_item.added"]
    assert kinds(events).count("keepalive") == 2
    response = check_events(events, has_silences=True)
    assert response == buffered(TextDelta(0, "Hi!"), DONE)


def test_a_response_has_the_temperature_that_the_models_profile_sets():
    progress = RequestProgress()
    built = ResponseBuilder(META, call(), FakeClock(), lambda _: "", progress)
    early: list[Any] = list(built.start())
    progress.report.temperature, progress.report.top_p = 0.3, 0.9
    for event in (Started(1), TextDelta(0, "Hi"), DONE, USAGE):
        list(built.add(event))
    assert [each.response.temperature for each in early] == [1, 1]
    assert (built.response.temperature, built.response.top_p) == (0.3, 0.9)


def test_a_response_repeats_the_request_and_has_all_fields():
    """ogx-ai/ogx#6054: verbosity null fails the schema."""
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    asked: dict[str, Any] = {
        "instructions": "Be kind.",
        "metadata": {"a": "b"},
        "max_output_tokens": 9,
        "temperature": 0.5,
    }
    response = buffered(DONE, **asked, text={"format": schema}, tool_choice="none", safety_identifier="ada")
    assert {name: response[name] for name in asked} == asked
    assert response["text"] == {"format": schema | {"strict": None, "description": None}}
    assert (response["tool_choice"], response["safety_identifier"]) == ("none", "ada")
    assert (response["store"], response["background"], response["service_tier"]) == (False, False, "default")
    assert response["tools"][0] == TOOLS[0] | {"description": None, "parameters": None, "strict": None}
    assert response["tools"][1:] == TOOLS[1:]
    assert "verbosity" not in buffered(DONE)["text"]
    assert len(response) >= 31
