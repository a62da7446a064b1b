"""Empower's answers: the page's shape, the engine's frames, and what is streamed is what is buffered."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.empower.dialect import Empower, EmpowerChatCompletions
from antiphon.dialects.services import ResponseMeta
from antiphon.domain.collect import CollectedChoice, CollectedGeneration
from antiphon.domain.events import (
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
from antiphon.domain.messages import ToolCall
from antiphon.domain.request import Conversation, GenerationRequest, Output
from antiphon.errors import EngineDied, ModelNotFound

HEAD = ResponseMeta("abc", 7, "ada/pirate")
CHAT = EmpowerChatCompletions(report_unknown=False)


def call(prompts=1, choices=1):
    return GenerationCall(
        GenerationRequest("m", (Conversation(()),) * prompts, output=Output(choices=choices)), True
    )


def frames(events, **shape):
    chunks = CHAT.create_encoder(HEAD, call(**shape))
    text = b"".join(chunks.encode(event) for event in events) + chunks.end()
    lines = text.decode().split("\n\n")
    assert lines.pop() == "" and lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def answered(*choices, usage=None):
    return json.loads(CHAT.encode_answer(HEAD, call(), CollectedGeneration(choices, usage or Usage(3, 2))))


def test_a_buffered_answer_has_exactly_the_keys_of_the_page():
    assert answered(CollectedChoice(0, "Ahoy", FinishReason.STOP)) == {
        "id": "cmpl-abc",
        "created": 7,
        "model": "ada/pirate",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Ahoy"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def test_a_stream_has_roles_parts_and_an_end_with_usage():
    events = [
        Started(3),
        TextDelta(1, "b", 1),
        TextDelta(0, "a", 1),
        Finished(1, FinishReason.LENGTH, 1),
        Finished(0, FinishReason.STOP, 2),
        Usage(3, 5),
    ]
    found = frames(events, choices=2)
    said = [(frame["choices"][0]["index"], frame["choices"][0]["delta"]) for frame in found]
    assert said == [
        (0, {"role": "assistant"}),
        (1, {"role": "assistant"}),
        (1, {"content": "b"}),
        (0, {"content": "a"}),
        (1, {}),
        (0, {}),
    ]
    assert [frame["choices"][0]["finish_reason"] for frame in found] == [None] * 4 + ["length", "stop"]
    assert ["usage" in frame for frame in found] == [False] * 4 + [True] * 2
    assert found[4]["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert found[5]["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert {(frame["id"], frame["created"], frame["model"]) for frame in found} == {
        ("cmpl-abc", 7, "ada/pirate")
    }


def test_of_several_prompts_the_last_frame_says_what_all_took():
    events = [Started(9), Finished(1, FinishReason.STOP, 2), Finished(0, FinishReason.LENGTH, 3), Usage(9, 5)]
    found = frames(events, prompts=2)
    assert [frame.get("usage", {}).get("total_tokens") for frame in found] == [None, None, None, 14]
    assert found[-1]["choices"] == [{"index": 0, "delta": {}, "finish_reason": "length"}]


@pytest.mark.parametrize("choices", [1, 2])
def test_a_vendors_usage_comes_with_the_last_frame(choices: int):
    ends = [Finished(at, FinishReason.STOP) for at in range(choices)]
    events = [Started(9, source=UsageSource.ESTIMATED), TextDelta(0, "a"), *ends, Usage(3, 5)]
    *others, last = frames(events, choices=choices)
    assert not any("usage" in frame for frame in others)
    assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    assert last["choices"][0]["finish_reason"] == "stop"


def test_a_call_starts_with_its_whole_name_and_has_an_index():
    events = [
        Started(3),
        ToolCallStarted(0, 0, "c0", "get_weather", 4),
        ToolCallDelta(0, 0, '{"city":', 1),
        ToolCallDelta(0, 0, '"Rome"}', 1),
        ToolCallStarted(0, 1, "c1", "get_time", 4),
        Finished(0, FinishReason.TOOL_CALLS, 1),
        Usage(3, 11),
    ]
    parts = [part for frame in frames(events) for part in frame["choices"][0]["delta"].get("tool_calls", ())]
    assert parts == [
        {
            "index": 0,
            "id": "c0",
            "type": "function",
            "function": {"name": "get_weather", "arguments": ""},
        },
        {"index": 0, "function": {"arguments": '{"city":'}},
        {"index": 0, "function": {"arguments": '"Rome"}'}},
        {"index": 1, "id": "c1", "type": "function", "function": {"name": "get_time", "arguments": ""}},
    ]


def test_a_buffered_call_has_no_content():
    choice = CollectedChoice(0, "", FinishReason.TOOL_CALLS, calls=(ToolCall("c0", "get_weather", "{}"),))
    (found,) = answered(choice)["choices"]
    assert found["finish_reason"] == "tool_calls" and found["message"]["content"] is None
    function = {"name": "get_weather", "arguments": "{}"}
    assert found["message"]["tool_calls"] == [{"id": "c0", "type": "function", "function": function}]


THOUGHT = st.lists(st.text("ab<", min_size=1), max_size=3)


@given(thought=THOUGHT, said=THOUGHT, calls=st.integers(0, 2))
def test_thinking_stands_before_the_content_streamed_as_buffered(thought, said, calls):
    ids = [(at, f"c{at}") for at in range(calls)]
    events = [
        Started(3),
        *(ReasoningDelta(0, text) for text in thought),
        *(TextDelta(0, text) for text in said),
        *(ToolCallStarted(0, at, name, "f") for at, name in ids),
        Finished(0, FinishReason.STOP),
        Usage(3, 2),
    ]
    streamed = "".join(frame["choices"][0]["delta"].get("content", "") for frame in frames(events))
    made = tuple(ToolCall(name, "f", "") for _, name in ids)
    choice = CollectedChoice(0, "".join(said), FinishReason.STOP, calls=made, reasoning="".join(thought))
    (buffered,) = answered(choice)["choices"]
    assert streamed == (buffered["message"]["content"] or "")
    assert streamed == ("<thinking>" + "".join(thought) + "</thinking>" if thought else "") + "".join(said)


def test_errors_are_flat():
    error = ModelNotFound("the model 'x' does not exist", param="model")
    assert json.loads(Empower().encode_error(error)) == {
        "object": "error",
        "message": "the model 'x' does not exist",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    assert Empower().get_status(error) == 404


def test_a_broken_stream_ends_with_an_error_openai_clients_raise():
    chunks = CHAT.create_encoder(HEAD, call())
    said = chunks.encode_error(EngineDied("the engine's process ended"))
    assert b"[DONE]" not in said
    frame = json.loads(said.removeprefix(b"data: "))
    assert frame["error"]["object"] == "error" and frame["error"]["type"] == "server_error"


@pytest.mark.parametrize("reason", list(FinishReason))
def test_every_reason_has_a_name(reason):
    assert answered(CollectedChoice(0, "", reason))["choices"][0]["finish_reason"] == str(reason)
