"""Gemini's answers become events, and what is no answer becomes an error."""

import json
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
    TokenScore,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    UsageSource,
)
from antiphon.domain.messages import Message, Role, ToolCall
from antiphon.domain.request import Conversation, GenerationRequest, Output, Reasoning
from antiphon.engines.vendors.base import StreamFailure, VendorError, VendorModel
from antiphon.engines.vendors.gemini.dialect import GeminiUpstream

MODEL = VendorModel("m", "google")
UPSTREAM = GeminiUpstream()
STARTED = Started(0, source=UsageSource.ESTIMATED)
USED = {"promptTokenCount": 9, "candidatesTokenCount": 4, "totalTokenCount": 13}
USAGE = Usage(9, 4, source=UsageSource.REPORTED)


def ask(*messages: Message, shown: bool = True, **output: Any) -> GenerationRequest:
    prompt = Conversation(messages or (Message(Role.USER, "hi" * 8),), reasoning=Reasoning(shown=shown))
    return GenerationRequest("m", (prompt,), output=Output(**output))


def say(*parts: object, **candidate: Any) -> dict[str, Any]:
    """A chunk with one candidate."""
    return {"candidates": [{"content": {"role": "model", "parts": parts}, **candidate}]}


def end(reason: str = "STOP", **candidate: Any) -> dict[str, Any]:
    return {"candidates": [{"finishReason": reason, **candidate}], "usageMetadata": USED}


def stream(*chunks: object, request: GenerationRequest | None = None) -> list[Event]:
    decoder = UPSTREAM.start_stream(request or ask(), MODEL)
    events = [event for chunk in chunks for event in decoder.feed("", json.dumps(chunk).encode())]
    assert not decoder.is_complete
    return [*events, *decoder.close()]


def read(answer: object, request: GenerationRequest | None = None) -> list[Event]:
    body = json.dumps(answer, indent=2).encode()
    return list(UPSTREAM.decode_answer(request or ask(), MODEL, body))


def fail(*chunks: object) -> VendorError:
    with pytest.raises(StreamFailure) as caught:
        stream(*chunks)
    return caught.value.error


# --- texts, thoughts and calls ------------------------------------------------------------------------------


def test_texts_become_deltas():
    assert stream(say({"text": "Hel"}), say({"text": ""}), say({"text": "lo"}), end()) == [
        STARTED,
        TextDelta(0, "Hel"),
        TextDelta(0, "lo"),
        Finished(0, FinishReason.STOP),
        USAGE,
    ]


def test_signatures_become_blocks_with_their_places():
    chunks = (
        say({"text": "Hm", "thought": True}),
        say({"text": ".", "thought": True, "thoughtSignature": "b25l"}),
        say({"text": "Hel"}),
        say({"text": "lo", "thoughtSignature": "dHdv"}),
        say({"text": "", "thoughtSignature": "dHJp"}),
    )
    block = {"type": "gemini_part"}
    assert stream(*chunks, end())[1:-2] == [
        ReasoningDelta(0, "Hm"),
        ReasoningDelta(0, "."),
        ThinkingBlock(
            0, block | {"at": 2, "part": {"text": ".", "thought": True, "thoughtSignature": "b25l"}}
        ),
        TextDelta(0, "Hel"),
        TextDelta(0, "lo"),
        ThinkingBlock(0, block | {"at": 3, "part": {"text": "lo", "thoughtSignature": "dHdv"}}),
        ThinkingBlock(0, block | {"at": 5, "part": {"thoughtSignature": "dHJp"}}),
    ]


def test_reasoning_is_hidden_where_it_is_not_wanted():
    chunks = (say({"text": "Hm.", "thought": True}), say({"text": "So."}), end())
    request = ask(shown=False)
    assert stream(*chunks, request=request)[1:-2] == [TextDelta(0, "So.")]


def test_calls_have_compact_arguments_and_signatures():
    call = {"id": "abc", "name": "look", "args": {"at": "the  sea", "zoom": 1.0}}
    parts = ({"functionCall": call, "thoughtSignature": "c2ln"}, {"functionCall": {"name": "wait"}})
    whole = {"candidates": [say(*parts)["candidates"][0] | {"finishReason": "STOP"}], "usageMetadata": USED}
    for events in (stream(say(*parts), end()), read(whole)):
        assert events[1:4] == [
            ToolCallStarted(0, 0, "abc", "look", signature="c2ln"),
            ToolCallDelta(0, 0, '{"at":"the  sea","zoom":1.0}'),
            ToolCallStarted(0, 1, "call_0_0_1", "wait"),
        ]
        assert events[4:6] == [ToolCallDelta(0, 1, "{}"), Finished(0, FinishReason.TOOL_CALLS)]


def test_calls_without_ids_get_ids_of_their_own():
    earlier = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("call_0_0_0", "wait", "{}"),))
    calls = say({"functionCall": {"name": "wait"}}, {"functionCall": {"name": "wait"}})
    for answer, ids in (
        (calls | {"responseId": "xY-9"}, ["call_xY-9_0_0", "call_xY-9_0_1"]),
        (calls, ["call_1_0_0", "call_1_0_1"]),
    ):
        events = stream(answer, end(), request=ask(Message(Role.USER, "hi"), earlier))
        assert [event.id for event in events if isinstance(event, ToolCallStarted)] == ids


def test_several_candidates_are_choices():
    chunks = (
        {"candidates": [{"index": 1, "content": {"parts": [{"text": "b"}]}}]},
        say({"text": "a"}),
        end("MAX_TOKENS", index=1),
        end(),
    )
    assert stream(*chunks, request=ask(choices=2))[1:] == [
        TextDelta(1, "b"),
        TextDelta(0, "a"),
        Finished(1, FinishReason.LENGTH),
        Finished(0, FinishReason.STOP),
        USAGE,
    ]


# --- log-probabilities --------------------------------------------------------------------------------------


def test_log_probabilities_come_with_their_text():
    def choose(token: str, value: float, **more: Any) -> dict[str, Any]:
        return {"token": token, "logProbability": value, **more}

    first = {
        "chosenCandidates": [choose("Hé", -0.5, tokenId=7), choose("l", -1.0)],
        "topCandidates": [{"candidates": [choose("Hé", -0.5, tokenId=7), choose("x", -2.5)]}, {}],
    }
    last = {"chosenCandidates": [choose("lo", -0.25)]}
    chunks = (say({"text": "Hél"}, logprobsResult=first), say({"text": "lo"}), end(logprobsResult=last))
    scored = (
        TokenScore(7, "Hé".encode(), -0.5, ((7, "Hé".encode(), -0.5), (-1, b"x", -2.5)), 0),
        TokenScore(-1, b"l", -1.0, (), 2),
    )
    assert stream(*chunks, request=ask(logprobs=2))[1:-1] == [
        TextDelta(0, "Hél", scores=scored),
        TextDelta(0, "lo"),
        Finished(0, FinishReason.STOP, scores=(TokenScore(-1, b"lo", -0.25, (), 3),)),
    ]
    assert stream(*chunks)[1:-1] == [TextDelta(0, "Hél"), TextDelta(0, "lo"), Finished(0, FinishReason.STOP)]


# --- finishes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("STOP", FinishReason.STOP),
        ("MAX_TOKENS", FinishReason.LENGTH),
        *((each, FinishReason.CONTENT_FILTER) for each in ("SAFETY", "RECITATION", "BLOCKLIST", "SPII")),
        ("PROHIBITED_CONTENT", FinishReason.CONTENT_FILTER),
        ("IMAGE_SAFETY", FinishReason.CONTENT_FILTER),
    ],
)
def test_reasons_that_end_an_answer(reason: str, expected: FinishReason):
    assert stream(say({"text": "a"}), end(reason))[2] == Finished(0, expected)


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "OTHER", "LANGUAGE", "SOMETHING_NEW"])
def test_other_reasons_are_failures(reason: str):
    error = fail(say({"text": "a"}), end(reason, finishMessage="print(1)"))
    assert error == VendorError(f"the answer ended with finishReason {reason}: print(1)", reason)


def test_a_missing_signature_is_the_callers_fault():
    assert fail(end("MISSING_THOUGHT_SIGNATURE")).status == 400


def test_a_blocked_prompt_is_refused():
    error = fail({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": USED})
    assert error == VendorError("the prompt was blocked (PROHIBITED_CONTENT)", "PROHIBITED_CONTENT", 400)


def test_feedback_beside_an_answer_does_not_block_it():
    feedback = {"promptFeedback": {"safetyRatings": [{"category": "A", "probability": "LOW"}]}}
    assert stream(feedback, say({"text": "a"}) | feedback, end())[1] == TextDelta(0, "a")


@pytest.mark.parametrize(
    "chunks",
    [
        (),
        ({"usageMetadata": USED},),
        (say({"text": "a"}),),
        (say({"text": "a"}) | {"usageMetadata": USED},),
    ],
)
def test_an_answer_without_its_finish_is_broken(chunks: tuple[object, ...]):
    with pytest.raises(ValueError, match="before its finish"):
        stream(*chunks)


def test_each_candidate_must_finish():
    with pytest.raises(ValueError, match="before its finish"):
        stream(say({"text": "a"}), end(), request=ask(choices=2))


@pytest.mark.parametrize(
    "late", [{"text": "b"}, {"functionCall": {"name": "wait"}}, {"text": "", "thoughtSignature": "b25l"}]
)
def test_content_after_the_finish_is_nonsense(late: object):
    with pytest.raises(ValueError, match="after its finish"):
        stream(say({"text": "a"}), end(), say(late))


def test_a_second_other_finish_reason_is_nonsense():
    with pytest.raises(ValueError, match="two finish reasons"):
        stream(say({"text": "a"}), end(), end("SAFETY"))


def test_an_empty_chunk_after_the_finish_is_none():
    events = stream(say({"text": "a"}), end(), say({"text": ""}, finishReason="STOP"))
    assert events[2:] == [Finished(0, FinishReason.STOP), USAGE]


@pytest.mark.parametrize(
    "part",
    [
        {"inlineData": {"mimeType": "image/png", "data": "aWJt"}, "thoughtSignature": "b25l"},
        {"executableCode": {"language": "PYTHON", "code": "1"}},
        {"functionCall": {"name": "wait", "willContinue": True}},
        {"functionCall": {"partialArgs": [{"jsonPath": "$.a", "stringValue": "b"}], "name": "wait"}},
        {"functionCall": {"args": {}}},
        {"functionCall": {"name": "wait", "args": [1]}},
    ],
)
def test_parts_that_cannot_be_passed_on_are_errors(part: object):
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        stream(say(part), end())


def test_a_candidate_that_was_not_asked_for_is_an_error():
    with pytest.raises(ValueError, match="not asked for"):
        stream(end(index=1))


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'{"candidates": 1}', b"\xff"])
def test_nonsense_is_an_error(data: bytes):
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        UPSTREAM.start_stream(ask(), MODEL).feed("", data)


# --- usage --------------------------------------------------------------------------------------------------


def test_the_last_usage_counts():
    early = say({"text": "a"}) | {"usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 1}}
    told = {
        "promptTokenCount": 30,
        "toolUsePromptTokenCount": 5,
        "cachedContentTokenCount": 20,
        "candidatesTokenCount": 7,
        "thoughtsTokenCount": 3,
        "totalTokenCount": 45,
        "trafficType": "ON_DEMAND",
    }
    assert stream(early, end() | {"usageMetadata": told})[-1] == Usage(35, 10, 20, 3, UsageSource.REPORTED)


@pytest.mark.parametrize("told", [{}, {"usageMetadata": {"promptTokenCount": 9, "totalTokenCount": 9}}])
def test_usage_that_is_not_told_is_an_estimate(told: dict[str, Any]):
    events = stream(say({"text": "x" * 40}) | told, {"candidates": [{"finishReason": "STOP"}]})
    assert events[-1] == Usage(4, 10, source=UsageSource.ESTIMATED)


@pytest.mark.parametrize("lie", [{"cachedContentTokenCount": 10}, {"candidatesTokenCount": -1}])
def test_usage_that_cannot_be_true_is_an_estimate(lie: dict[str, int]):
    told = {"promptTokenCount": 9, "candidatesTokenCount": 1} | lie
    last = {"candidates": [{"finishReason": "STOP"}], "usageMetadata": told}
    assert stream(say({"text": "x" * 40}), last)[-1] == Usage(4, 10, source=UsageSource.ESTIMATED)


# --- errors -------------------------------------------------------------------------------------------------

BUSY = {
    "error": {
        "code": 429,
        "message": "You exceeded your quota.",
        "status": "RESOURCE_EXHAUSTED",
        "details": [
            {"@type": "type.googleapis.com/google.rpc.Help", "links": [{"url": "https://a.example"}]},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "17.5s"},
        ],
    }
}
SAID = VendorError("You exceeded your quota.", "RESOURCE_EXHAUSTED", 429, 17.5)


def test_errors_are_read_alone_or_in_a_list():
    for body in (BUSY, [BUSY]):
        assert UPSTREAM.decode_error(429, json.dumps(body, indent=2).encode()) == SAID
        assert fail(say({"text": "a"}), body) == SAID
        with pytest.raises(StreamFailure):
            read(body)


def test_a_wrong_key_is_told_apart():
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]
    error = {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT", "details": details}
    found = UPSTREAM.decode_error(400, json.dumps({"error": error}).encode())
    assert found == VendorError("API key not valid.", "API_KEY_INVALID", 401)


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"[]", b'{"error": "no"}', b"[[]]"])
def test_errors_in_other_forms_have_no_message(body: bytes):
    assert UPSTREAM.decode_error(502, body) == VendorError("")


@pytest.mark.parametrize("delay", ["soon", "-3s", "infs", "nans", 17, None])
def test_delays_in_other_forms_are_none(delay: object):
    error = {"code": 503, "message": "a", "status": "UNAVAILABLE", "details": [{"retryDelay": delay}, "b"]}
    assert UPSTREAM.decode_error(503, json.dumps({"error": error}).encode()) == VendorError(
        "a", "UNAVAILABLE", 503
    )
