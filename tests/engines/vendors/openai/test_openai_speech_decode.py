"""Speech in answers of OpenAI's format: where it ends, and what is counted of it."""

import json
from contextlib import suppress
from typing import Any

import pytest

from antiphon.domain.collect import Speech, collect
from antiphon.domain.context import Context
from antiphon.domain.events import (
    Event,
    Finished,
    FinishReason,
    SpeechDelta,
    Started,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    UsageSource,
)
from antiphon.domain.identity import LOCAL_ANONYMOUS
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import (
    Conversation,
    GenerationRequest,
    Output,
    Prediction,
    SpeechOptions,
    VendorOptions,
)
from antiphon.engines.registry import Model, ModelRoute
from antiphon.engines.vendors.base import NO_ATTRIBUTES, VendorModel
from antiphon.engines.vendors.engine import bound_size
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.pipeline.account import RequestAccount
from antiphon.pipeline.plans import build_plan
from antiphon.pipeline.recorded_answer import RecordedAnswer
from antiphon.pipeline.rules import RuleSet
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import ScriptedEngine
from tests.support.vendors.vendor_exchange import iterate_async

SPOKEN = VendorOptions(modalities=("text", "audio"), audio=SpeechOptions("pcm16", "alloy"))
PROMPT = Conversation((Message(Role.USER, "Say hello."),))
MODEL = VendorModel("m-1", "first")
USAGE = {"prompt_tokens": 11, "completion_tokens": 5}
STARTED = Started(0, source=UsageSource.ESTIMATED)
CALL = {"index": 0, "id": "call_1", "function": {"name": "clock", "arguments": ""}}


def request_of(choices: int = 1) -> GenerationRequest:
    return GenerationRequest("m", (PROMPT,), output=Output(choices=choices), vendor_options=SPOKEN)


def part(reason: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": reason}]}


def feed(*chunks: Any, choices: int = 1) -> list[Event]:
    """The events of a stream of these chunks."""
    decoder = OpenAIUpstream().start_stream(request_of(choices), MODEL)
    events = [event for chunk in chunks for event in decoder.feed("", json.dumps(chunk).encode())]
    return [*events, *decoder.feed("", b"[DONE]"), *decoder.close()]


def test_speech_ends_with_its_time_of_expiry():
    events = feed(part(audio={"id": "a", "transcript": "Hi"}), part(audio={"expires_at": 7}),
                  {"choices": [], "usage": USAGE})  # fmt: skip
    assert events == [
        STARTED,
        SpeechDelta(0, "a", transcript="Hi"),
        SpeechDelta(0, expires_at=7),
        Finished(0, FinishReason.STOP),
        Usage(11, 5, source=UsageSource.REPORTED),
    ]


def test_a_told_reason_goes_before_the_usual_one():
    events = feed(part(audio={"data": "AAAA"}), part("length"), part(audio={"expires_at": 7}))
    assert events[-2] == Finished(0, FinishReason.LENGTH)


def test_speech_can_be_followed_by_calls():
    events = feed(part(audio={"data": "AAAA"}), part(tool_calls=[CALL]), part(audio={"expires_at": 7}))
    assert events[2:5] == [
        ToolCallStarted(0, 0, "call_1", "clock"),
        SpeechDelta(0, expires_at=7),
        ToolCallDelta(0, 0, "{}"),
    ]
    assert events[5] == Finished(0, FinishReason.TOOL_CALLS)


def test_each_choice_must_end():
    last = part(audio={"expires_at": 7})
    with pytest.raises(ValueError, match="before its finish"):
        feed(part(audio={"data": "AAAA"}), part(index=1, audio={"data": "AAAA"}), last, choices=2)
    with pytest.raises(ValueError, match="before its finish"):
        feed(last, part(audio={"data": "AAAA"}))


async def test_a_whole_answer_has_the_whole_speech():
    speech = {"id": "a", "data": "AAAA", "transcript": "Hi", "expires_at": 7}
    message = {"role": "assistant", "content": None, "audio": speech}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE}
    events = OpenAIUpstream().decode_answer(request_of(), MODEL, json.dumps(body).encode())
    (choice,) = (await collect(iterate_async(events))).choices
    assert (choice.text, choice.speech) == ("", Speech("a", "AAAA", "Hi", 7))


async def test_parts_of_speech_are_joined_as_one_text():
    parts = [SpeechDelta(0, "a", "AAA", "H"), SpeechDelta(0, data="A", transcript="i")]
    end = Finished(0, FinishReason.STOP)
    events: list[Event] = [STARTED, *parts, end, Usage(1, 1)]
    (choice,) = (await collect(iterate_async(events))).choices
    assert choice.speech == Speech("a", "AAAA", "Hi", None)


async def test_speech_without_usage_is_estimated_by_its_length():
    second = SpeechDelta(0, "a", "A" * 64_000, "Hello.")
    metrics, model = Metrics(), Model("m", (ModelRoute(ScriptedEngine()),), 1)
    plan = build_plan(model, LOCAL_ANONYMOUS, RuleSet())
    with suppress(GeneratorExit):
        async with RequestAccount(plan, "m", Context("req-1"), metrics, None) as account:
            account.count([STARTED, second])
            raise GeneratorExit
    whole = feed(part(audio={"id": "a", "data": "A" * 64_000, "transcript": "Hello."}), part("stop"))[-1]
    assert isinstance(whole, Usage) and whole.source is UsageSource.ESTIMATED
    assert metrics.completion_tokens["m"] == whole.completion_tokens == 22


def test_a_record_keeps_what_was_said_and_no_recording():
    answer = RecordedAnswer()
    answer.add(feed(part(audio={"data": "A" * 64_000}), part("stop", audio={"transcript": "Hi"})))
    assert json.loads(answer.to_json()) == {
        "choices": [{"index": 0, "text": "", "finish_reason": "stop", "transcript": "Hi"}]
    }


def test_a_prediction_is_reserved_as_output_too():
    plain = GenerationRequest("m", (PROMPT,), output=Output(max_tokens=9, choices=2))
    predicted = GenerationRequest(
        "m",
        (PROMPT,),
        output=Output(max_tokens=9, choices=2),
        vendor_options=VendorOptions(prediction=Prediction("nöt")),
    )
    call = OpenAIUpstream().encode(plain, MODEL, NO_ATTRIBUTES)
    sizes = [bound_size(each, call, MODEL).output_tokens for each in (plain, predicted)]
    assert sizes == [18, 26]
