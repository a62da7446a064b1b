"""Answers of OpenAI's format, whole and streamed, and of servers that know the format less well."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.collect import CollectedGeneration, collect
from antiphon.domain.events import (
    Event,
    EventGroup,
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
from antiphon.domain.request import Conversation, GenerationRequest, Output, RawPrompt, Reasoning
from antiphon.engines.vendors.base import StreamDecoder, StreamFailure, VendorModel
from antiphon.engines.vendors.errors import SecretFilter, build_error
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.sse import EventSplitter

MODEL = VendorModel("m-1", "first")
USAGE = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
REPORTED = Usage(11, 5, source=UsageSource.REPORTED)


SHOWN, HIDDEN = Reasoning(), Reasoning(shown=False)


def chat(reasoning: Reasoning = SHOWN, **options: Any) -> GenerationRequest:
    prompt = Conversation((Message(Role.USER, "Say hello."),), reasoning=reasoning)
    return GenerationRequest("m", (prompt,), output=Output(**options))


def text(**options: Any) -> GenerationRequest:
    return GenerationRequest("m", (RawPrompt("Once"),), output=Output(**options))


def part(finish: str | None = None, index: int = 0, logprobs: object = None, **delta: Any) -> dict[str, Any]:
    """A chunk with one choice."""
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}]}


def told(usage: object) -> dict[str, Any]:
    """A chunk with the usage alone."""
    return {"choices": [], "usage": usage}


def write(*chunks: object, done: bool = True) -> bytes:
    """The bytes of a stream."""
    lines = [b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks]
    return b"".join(lines) + (b"data: [DONE]\n\n" if done else b"")


def feed(decoder: StreamDecoder, pieces: Iterable[bytes]) -> list[Event]:
    """The events of a stream that comes in these pieces, its end included."""
    splitter, events = EventSplitter(), list[Event]()
    for piece in pieces:
        for name, data in splitter.feed(piece):
            events += decoder.feed(name, data)
    if not decoder.is_complete:
        for name, data in splitter.finish():
            events += decoder.feed(name, data)
    return [*events, *decoder.close()]


def stream(request: GenerationRequest, *chunks: object, done: bool = True) -> list[Event]:
    return feed(OpenAIUpstream().start_stream(request, MODEL), [write(*chunks, done=done)])


def read_whole(request: GenerationRequest, *choices: object, usage: object = USAGE) -> list[Event]:
    body = json.dumps({"choices": choices, "usage": usage}).encode()
    return list(OpenAIUpstream().decode_answer(request, MODEL, body))


def join(events: Sequence[Event]) -> CollectedGeneration:
    async def iterate() -> AsyncIterator[EventGroup]:
        yield events

    return asyncio.run(collect(iterate()))


def call_part(index: int | None, name: str | None, arguments: object, call_id: str | None) -> dict[str, Any]:
    """A part of a call as servers write it."""
    made: dict[str, Any] = {"function": {"arguments": arguments} | ({"name": name} if name else {})}
    made |= {} if index is None else {"index": index}
    return made | ({} if call_id is None else {"id": call_id, "type": "function"})


def find_calls(events: Sequence[Event]) -> list[tuple[str, str, str]]:
    """The id, name and arguments of every call of the first choice."""
    return [(call.id, call.name, call.arguments) for call in join(events).choices[0].calls]


# --- whole and streamed -------------------------------------------------------------------------------------


def test_a_text_is_the_same_whole_and_streamed():
    streamed = stream(
        chat(), part(role="assistant", content=""), part(content="Hel"), part(content="lo"), part("stop"),
        told(USAGE),
    )  # fmt: skip
    whole = read_whole(chat(), {"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"})
    assert streamed == [
        Started(0, source=UsageSource.ESTIMATED),
        TextDelta(0, "Hel"),
        TextDelta(0, "lo"),
        Finished(0, FinishReason.STOP),
        REPORTED,
    ]
    assert join(streamed) == join(whole)


def test_several_choices_and_prompts_keep_their_numbers():
    request = GenerationRequest("m", (RawPrompt("a"), RawPrompt("b")), output=Output(choices=2))
    ends = [{"index": at, "text": f"t{at}", "finish_reason": "length"} for at in (3, 1, 0, 2)]
    whole = join(read_whole(request, *ends))
    streamed = join(stream(request, *({"choices": [end]} for end in ends), told(USAGE)))
    assert [choice.text for choice in whole.choices] == ["t0", "t1", "t2", "t3"]
    assert whole == streamed


def test_reasoning_of_either_name_is_the_same():
    request = chat()
    for name in ("reasoning", "reasoning_content"):
        message: dict[str, Any] = {"content": "4", name: "2+2"}
        whole = join(read_whole(request, {"index": 0, "message": message, "finish_reason": "stop"}))
        halves: list[dict[str, Any]] = [{name: "2+"}, {name: "2"}]
        streamed = stream(request, *(part(**half) for half in halves), part("stop", content="4"))
        assert whole.choices[0].reasoning == "2+2"
        assert join(streamed).choices == whole.choices


def test_hidden_reasoning_is_not_shown_and_counts():
    request = chat(HIDDEN)
    events = stream(request, part(reasoning="x" * 40), part("stop", content="4"))
    assert not any(isinstance(event, ReasoningDelta) for event in events)
    assert events[-1] == Usage(3, 11, source=UsageSource.ESTIMATED)


def test_a_content_of_parts_is_read():
    content = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "yes"},
    ]
    whole = join(read_whole(chat(), {"index": 0, "message": {"content": content}, "finish_reason": "stop"}))
    assert (whole.choices[0].reasoning, whole.choices[0].text) == ("hm", "yes")
    assert join(stream(chat(), part("stop", content=content))).choices == whole.choices


def test_thinking_blocks_come_back():
    block = {"type": "thinking", "thinking": "hm", "signature": "s"}
    events = stream(chat(), part(thinking_blocks=[block]), part("stop", content="4"))
    assert join(events).choices[0].thinking_blocks == (block,)


# --- calls --------------------------------------------------------------------------------------------------


def test_parallel_calls_stream_their_arguments():
    events = stream(
        chat(),
        part(role="assistant", content=None, tool_calls=[call_part(0, "look", "", "a")]),
        part(tool_calls=[call_part(0, None, '{"at"', None)]),
        part(tool_calls=[call_part(1, "wait", "", "b"), call_part(0, None, ": 1}", None)]),
        part("tool_calls"),
    )
    calls = [
        call_part(None, "look", '{"at": 1}', "a"),
        call_part(None, "wait", "", "b"),
    ]
    whole = read_whole(chat(), {"message": {"tool_calls": calls}, "finish_reason": "tool_calls"})
    assert find_calls(events) == [("a", "look", '{"at": 1}'), ("b", "wait", "{}")]
    assert find_calls(whole) == find_calls(events)
    assert join(events).choices[0].reason is FinishReason.TOOL_CALLS


def test_a_cut_call_gets_no_invented_arguments():
    events = stream(chat(), part(tool_calls=[call_part(0, "look", "", "a")]), part("length"))
    assert find_calls(events) == [("a", "look", "")]


def test_a_signature_comes_back():
    call = call_part(0, "look", "{}", "a") | {"extra_content": {"google": {"thought_signature": "sig"}}}
    events = stream(chat(), part("tool_calls", tool_calls=[call]))
    assert join(events).choices[0].calls[0].signature == "sig"


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param(
            [[call_part(None, "look", "{}", "a")], [call_part(None, "wait", "{}", "b")]], id="no number"
        ),
        pytest.param([[call_part(0, "look", "{}", "a")], [call_part(0, "wait", "{}", "b")]], id="one number"),
        pytest.param([[call_part(5, "look", "{}", "a")], [call_part(9, "wait", "{}", "b")]], id="gaps"),
        pytest.param([[call_part(None, "look", {}, "a"), call_part(None, "wait", {}, "b")]], id="objects"),
        pytest.param(
            [
                [call_part(None, "look", "{", "a")],
                [call_part(None, None, "}", None)],
                [call_part(None, "wait", "{}", "b")],
            ],
            id="parts without number",
        ),
        pytest.param(
            [
                [call_part(0, "look", "{", "a")],
                [call_part(0, "look", "}", "a")],
                [call_part(1, "wait", "{}", "b")],
            ],
            id="names repeated",
        ),
    ],
)
def test_calls_of_odd_servers_stay_apart(chunks: list[list[object]]):
    events = stream(chat(), *(part(tool_calls=calls) for calls in chunks), part("stop"))
    assert find_calls(events) == [("a", "look", "{}"), ("b", "wait", "{}")]
    assert [event.index for event in events if isinstance(event, ToolCallStarted)] == [0, 1]
    assert join(events).choices[0].reason is FinishReason.TOOL_CALLS


def test_calls_without_an_id_get_different_ones():
    call = {"message": {"tool_calls": [call_part(None, "look", "{}", None)] * 2}, "finish_reason": "stop"}
    ids = {id_ for _ in range(2) for id_, _, _ in find_calls(read_whole(chat(), call))}
    assert len(ids) == 4 and all(ids)


def test_a_call_without_a_name_breaks_the_answer():
    with pytest.raises(ValueError, match="no name"):
        stream(chat(), part(tool_calls=[call_part(0, None, "{}", "a")]))


# --- log-probabilities --------------------------------------------------------------------------------------


def score(token: str, value: float, piece: bytes | None = None, *others: str) -> dict[str, Any]:
    top = [{"token": each, "logprob": -9.0, "bytes": list(each.encode())} for each in others]
    return {"token": token, "logprob": value, "bytes": piece and list(piece), "top_logprobs": top}


def test_scores_of_chats_keep_every_token():
    chunks = [
        part(content="He", logprobs={"content": [score("He", -0.5, b"He", "He", "Hi")]}),
        part(content="", logprobs={"content": [score("\ufffd", -0.25, b"\xc3")]}),
        part(content="é", logprobs={"content": [score("\ufffd", -0.125, b"\xa9")]}),
        part("stop", logprobs={"content": [score("<end>", -1.0)]}),
    ]
    scores = join(stream(chat(logprobs=2), *chunks)).choices[0].scores
    assert scores is not None
    assert [(each.piece, each.logprob) for each in scores] == [
        (b"He", -0.5),
        (b"\xc3", -0.25),
        (b"\xa9", -0.125),
        (b"<end>", -1.0),
    ]
    assert [piece for _, piece, _ in scores[0].alternatives] == [b"He", b"Hi"]
    unasked = join(stream(chat(), *chunks)).choices[0]
    assert unasked.scores is None and unasked.text == "Heé"


def test_scores_of_calls_and_reasoning_are_kept():
    events = stream(
        chat(logprobs=0),
        part(reasoning="hm", logprobs={"content": [score("hm", -0.5)]}),
        part(tool_calls=[call_part(0, "look", "{}", "a")], logprobs={"content": [score("{}", -0.25)]}),
        part("tool_calls"),
    )
    scores = join(events).choices[0].scores
    assert scores is not None and [each.logprob for each in scores] == [-0.5, -0.25]
    hidden = stream(
        chat(HIDDEN, logprobs=0),
        part(reasoning="hm", logprobs={"content": [score("hm", -0.5)]}),
        part("stop", content="a", logprobs={"content": [score("a", -0.25)]}),
    )
    shown = join(hidden).choices[0].scores
    assert shown is not None and [each.logprob for each in shown] == [-0.25]


def test_scores_of_texts_have_offsets():
    arrays = {
        "tokens": ["On", "ce"],
        "token_logprobs": [None, -0.5],
        "top_logprobs": [None, {"ce": -0.5, "ly": -2.0}],
    }
    end = {"index": 0, "text": "Once", "finish_reason": "stop", "logprobs": arrays}
    whole = join(read_whole(text(logprobs=2, echo=True), end)).choices[0].scores
    assert whole is not None
    assert [(each.piece, each.logprob, each.offset) for each in whole] == [(b"On", None, 0), (b"ce", -0.5, 2)]
    assert [piece for _, piece, _ in whole[1].alternatives] == [b"ce", b"ly"]
    halves = [
        {"index": 0, "text": token, "logprobs": {"tokens": [token], "token_logprobs": [-0.5]}}
        for token in ("On", "ce")
    ]
    last = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    streamed = stream(text(logprobs=0), *({"choices": [half]} for half in halves), last)
    scores = join(streamed).choices[0].scores
    assert scores is not None and [each.offset for each in scores] == [0, 2]


def test_a_servers_own_offsets_go_before_lengths():
    arrays = {"tokens": ["<s>", "On", "ce"], "token_logprobs": [None, -1.0, -0.5]}
    for told, found in (([0, 0, 2], [0, 0, 2]), ([-1, -1, -1], [0, 3, 5]), ([0], [0, 3, 5])):
        end = {"text": "Once", "finish_reason": "stop", "logprobs": arrays | {"text_offset": told}}
        scores = join(read_whole(text(logprobs=0, echo=True), end)).choices[0].scores
        assert scores is not None and [each.offset for each in scores] == found


def test_no_more_alternatives_are_shown_than_asked_for():
    others = [{"token": token, "logprob": -1.0} for token in "abc"]
    entry = {"token": "a", "logprob": -1.0, "top_logprobs": others}
    arrays = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0, "b": -2.0}]}
    for most in (0, 1):
        end = {"message": {"content": "a"}, "finish_reason": "stop", "logprobs": {"content": [entry]}}
        last = {"text": "a", "finish_reason": "stop", "logprobs": arrays}
        for answer in (read_whole(chat(logprobs=most), end), read_whole(text(logprobs=most), last)):
            scores = join(answer).choices[0].scores
            assert scores is not None and len(scores[0].alternatives) == most


def test_scores_that_a_server_does_not_give_are_none():
    end = {"message": {"content": "a"}, "finish_reason": "stop", "logprobs": None}
    assert join(read_whole(chat(logprobs=1), end)).choices[0].scores is None


def test_scores_of_unequal_length_break_the_answer():
    arrays = {"tokens": ["On", "ce"], "token_logprobs": [-0.5]}
    with pytest.raises(ValueError, match="shorter"):
        read_whole(text(logprobs=0), {"text": "Once", "finish_reason": "stop", "logprobs": arrays})


# --- usage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (USAGE, REPORTED),
        (
            USAGE
            | {
                "prompt_tokens_details": {"cached_tokens": 8},
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
            Usage(11, 5, 8, 3, UsageSource.REPORTED),
        ),
        (USAGE | {"prompt_cache_hit_tokens": 8}, Usage(11, 5, 8, 0, UsageSource.REPORTED)),
        (USAGE | {"prompt_tokens_details": None, "completion_tokens_details": {}}, REPORTED),
        (
            {
                "prompt_tokens": 11,
                "completion_tokens": 5,
                "total_tokens": 20,
                "completion_tokens_details": {"reasoning_tokens": 4},
            },
            Usage(11, 9, 0, 4, UsageSource.REPORTED),
        ),
        ({"prompt_tokens": 11, "completion_tokens": 5}, REPORTED),
        (USAGE | {"total_tokens": 2_000_000_000}, REPORTED),
        (USAGE | {"total_tokens": 116}, Usage(11, 105, source=UsageSource.REPORTED)),
        (
            USAGE | {"total_tokens": 900, "completion_tokens_details": {"reasoning_tokens": 3}},
            Usage(11, 5, 0, 3, UsageSource.REPORTED),
        ),
    ],
    ids=[
        "plain",
        "details",
        "deepseek",
        "empty details",
        "hidden reasoning",
        "no total",
        "wrong total",
        "only in the total",
        "both",
    ],
)
def test_usage_is_the_vendors(usage: object, expected: Usage):
    end = {"message": {"content": "Hello"}, "finish_reason": "stop"}
    assert read_whole(chat(), end, usage=usage)[-1] == expected
    assert stream(chat(), part("stop", content="Hello"), told(usage))[-1] == expected
    last = part("stop", content="Hello") | {"usage": usage}
    assert stream(chat(), last)[-1] == expected
    assert (
        stream(chat(), part(content="Hello") | {"usage": {}}, part("stop") | {"usage": usage})[-1] == expected
    )


@pytest.mark.parametrize("usage", [None, {}, {"total_tokens": 7}, {"prompt_tokens": 7, "total_tokens": 7}])
def test_usage_that_is_missing_is_estimated(usage: object):
    end = {"message": {"content": "Hello you"}, "finish_reason": "stop"}
    expected = Usage(3, 3, source=UsageSource.ESTIMATED)
    assert read_whole(chat(), end, usage=usage)[-1] == expected
    assert stream(chat(), part("stop", content="Hello you"), told(usage))[-1] == expected


@pytest.mark.parametrize(
    "lie",
    [
        {"prompt_tokens": -1},
        {"completion_tokens": -1, "total_tokens": None},
        {"prompt_tokens": 10**30},
        {"prompt_tokens_details": {"cached_tokens": 12}},
        {"prompt_tokens_details": {"cached_tokens": -1}},
        {"completion_tokens_details": {"reasoning_tokens": 6}},
    ],
)
def test_usage_that_cannot_be_true_is_estimated(lie: dict[str, object]):
    usage = {"prompt_tokens": 11, "completion_tokens": 5} | lie
    end = {"message": {"content": "Hello you"}, "finish_reason": "stop"}
    expected = Usage(3, 3, source=UsageSource.ESTIMATED)
    assert read_whole(chat(), end, usage=usage)[-1] == expected
    assert stream(chat(), part("stop", content="Hello you"), told(usage))[-1] == expected


# --- ends ---------------------------------------------------------------------------------------------------


def test_a_stream_may_end_without_its_mark():
    events = stream(chat(), part("stop", content="a"), told(USAGE), done=False)
    assert events[-1] == REPORTED


def test_what_follows_the_mark_is_not_read():
    decoder = OpenAIUpstream().start_stream(chat(), MODEL)
    rest = b"data: [DONE]\n\ndata: {]\n\n"
    assert feed(decoder, [write(part("stop", content="a"), told(USAGE), done=False) + rest])[-1] == REPORTED


@pytest.mark.parametrize("done", [True, False])
def test_a_missing_finish_is_a_failure(done: bool):
    with pytest.raises(ValueError, match="before its finish"):
        stream(chat(), part(content="a"), told(USAGE), done=done)
    with pytest.raises(ValueError, match="before its finish"):
        stream(chat(choices=2), part("stop", content="a"), told(USAGE), done=done)
    with pytest.raises(ValueError, match="before its finish"):
        read_whole(chat(), {"message": {"content": "a"}, "finish_reason": None})


@pytest.mark.parametrize("reason", ["error", "abort", "insufficient_system_resource"])
def test_a_reason_that_is_a_failure_is_one(reason: str):
    with pytest.raises(StreamFailure, match=reason):
        stream(chat(), part(content="a"), part(reason))


def test_repeated_ends_and_empty_reasons_are_tolerated():
    again = part("stop", role="assistant", content="") | {"usage": USAGE}
    events = stream(chat(), part("", content="a"), part("stop"), again)
    assert join(events).choices[0].text == "a" and events[-1] == REPORTED


@pytest.mark.parametrize("first", ["stop", "length"])
def test_a_second_other_finish_reason_is_a_failure(first: str):
    chunks = part(first, content="a"), part("content_filter")
    with pytest.raises(ValueError, match="two finish reasons"):
        stream(chat(), *chunks)
    calls = part(tool_calls=[call_part(0, "f", "{}", "c")]), part("tool_calls"), part("stop")
    assert stream(chat(), *calls)[-2] == Finished(0, FinishReason.TOOL_CALLS)
    with pytest.raises(StreamFailure, match="finish_reason error"):
        stream(chat(), part(first, content="a"), part("error"))


@pytest.mark.parametrize(
    "chunk", [part(content="more"), part(index=1, content="b"), part(index=-1, content="b")]
)
def test_content_that_belongs_nowhere_is_a_failure(chunk: object):
    with pytest.raises(ValueError, match="not asked for"):
        stream(chat(), part("stop", content="a"), chunk)


def test_a_role_alone_starts_nothing():
    decoder = OpenAIUpstream().start_stream(chat(), MODEL)
    assert not decoder.feed("", json.dumps(part(role="assistant", content="")).encode())
    assert decoder.feed("", json.dumps(part(content="a")).encode()) == [
        Started(0, source=UsageSource.ESTIMATED),
        TextDelta(0, "a"),
    ]


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunk", "message", "status"),
    [
        ({"error": {"message": "boom", "type": "server_error"}}, "boom", None),
        ({"error": {"message": "boom", "code": 503}}, "boom", 503),
        ({"error": {"message": "boom", "code": "429"}}, "boom", 429),
        ({"error": {"message": "boom", "code": "rate_limit_exceeded"}}, "boom", 429),
        ({"error": {"message": "boom", "code": "context_length_exceeded"}}, "boom", 400),
        ({"error": "boom"}, "boom", None),
        ({"object": "error", "message": "boom", "type": "BadRequestError", "code": 400}, "boom", 400),
        ({"detail": "boom"}, "boom", None),
    ],
)
def test_an_error_in_a_stream_is_one(chunk: object, message: str, status: int | None):
    with pytest.raises(StreamFailure) as caught:
        stream(chat(), part(content="a"), chunk)
    assert (caught.value.error.message, caught.value.error.status) == (message, status)
    with pytest.raises(StreamFailure):
        list(OpenAIUpstream().decode_answer(chat(), MODEL, json.dumps(chunk).encode()))


def test_an_event_named_error_is_one():
    decoder = OpenAIUpstream().start_stream(chat(), MODEL)
    with pytest.raises(StreamFailure, match="boom"):
        feed(decoder, [b'event: error\ndata: {"message": "boom"}\n\n'])
    with pytest.raises(StreamFailure):
        feed(decoder, [b"event: error\ndata: boom\n\n"])


@pytest.mark.parametrize(
    ("body", "message", "kind"),
    [
        (b'{"error": {"message": "a", "code": "context_length_exceeded"}}', "a", "context_length_exceeded"),
        (b'{"error": {"message": "a", "code": 400, "type": "BadRequestError"}}', "a", "BadRequestError"),
        (b'[{"error": {"code": 400, "message": "a", "status": "INVALID_ARGUMENT"}}]', "a", ""),
        (b'{"message": {"detail": [{"loc": ["body", "n"], "msg": "odd"}]}}', "body.n: odd", ""),
        (b'{"detail": [{"loc": ["n"], "msg": "odd"}, {"loc": [0], "msg": "x"}]}', "n: odd; 0: x", ""),
        (b'{"error": "model not found"}', "model not found", ""),
        (b"<html><body>Bad gateway</body></html>", "", ""),
        (b"", "", ""),
        (b'{"error": {"message": 7}}', "", ""),
        (b'"boom"', "", ""),
    ],
)
def test_bodies_of_errors_are_read(body: bytes, message: str, kind: str):
    said = OpenAIUpstream().decode_error(400, body)
    assert (said.message, said.kind) == (message, kind)


def test_the_field_at_fault_is_kept_if_it_is_a_name():
    for param, kept in (("messages[0].content", "messages[0].content"), ("a b <script>", None), (7, None)):
        body = json.dumps({"error": {"message": "no", "param": param}}).encode()
        said = OpenAIUpstream().decode_error(400, body)
        assert build_error("first", 400, said, {}, SecretFilter(())).param == kept
        assert build_error("first", 500, said, {}, SecretFilter(())).param is None


# --- bytes --------------------------------------------------------------------------------------------------

STREAM = write(
    part(role="assistant", content="First: "),
    part(content="Grüße, 世界"),
    part(tool_calls=[call_part(0, "look", '{"a": "\\n\\n"}', "a")]),
    part("tool_calls"),
    told(USAGE),
)

EXPECTED = feed(OpenAIUpstream().start_stream(chat(), MODEL), [STREAM])

SPELLINGS = {
    "plain": STREAM,
    "crlf": STREAM.replace(b"\n\n", b"\r\n\r\n"),
    "cr": STREAM.replace(b"\n\n", b"\r\r"),
    "no space": STREAM.replace(b"data: ", b"data:"),
    "comments": b": keep-alive\n\n" + STREAM.replace(b"\n\n", b"\n\n: ping\n\n"),
    "names": STREAM.replace(b"data: ", b"event: message\nid: 7\nretry: 10\ndata: "),
    "mark": b"\xef\xbb\xbf" + STREAM,
    "blank lines": b"\n\n" + STREAM.replace(b"\n\n", b"\n\n\n\n"),
    "open end": STREAM.removesuffix(b"data: [DONE]\n\n") + b"data: [DONE]",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@given(cuts=st.lists(st.integers(0, 2000), max_size=6))
def test_any_cut_gives_the_same_events(spelling: str, cuts: list[int]):
    data = SPELLINGS[spelling]
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[begin:end] for begin, end in pairwise(places)]
    assert feed(OpenAIUpstream().start_stream(chat(), MODEL), pieces) == EXPECTED


@pytest.mark.parametrize("spelling", ["plain", "crlf"])
def test_single_bytes_give_the_same_events(spelling: str):
    data = SPELLINGS[spelling]
    pieces = [data[at : at + 1] for at in range(len(data))]
    assert feed(OpenAIUpstream().start_stream(chat(), MODEL), pieces) == EXPECTED


def test_arguments_are_never_empty():
    assert all(event.arguments for event in EXPECTED if isinstance(event, ToolCallDelta))
