"""Answers and chunks on the wire: OpenAI's shapes, and the fast bytes equal to the wire type's own."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from antiphon.dialects.base import Call, Head
from antiphon.dialects.openai import wire
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.domain.collect import Choice, Generation
from antiphon.domain.events import Event, Finished, FinishReason, Started, TextDelta
from antiphon.domain.request import GenerationRequest, Output, RawPrompt
from antiphon.domain.usage import Usage
from antiphon.errors import EngineDied, EngineUnavailable, InvalidValue, ModelNotFound, Overloaded

CHAT, TEXT = OpenAI().operations
HEAD = Head("f00d", 1_700_000_000, "m")
USAGE = Usage(5, 7, 2)
GENERATION = Generation((Choice(0, 'a"b', FinishReason.STOP), Choice(1, "", FinishReason.LENGTH)), USAGE)
USAGE_JSON = {
    "prompt_tokens": 5,
    "completion_tokens": 7,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 2},
}


def call(choices=1, prompts=1, include_usage=False):
    request = GenerationRequest("m", (RawPrompt("p"),) * prompts, output=Output(choices=choices))
    return Call(request, stream=True, include_usage=include_usage)


def lines(data: bytes) -> list[Any]:
    assert data == b"" or data.endswith(b"\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in data.decode().split("\n\n") if line]


def test_a_buffered_chat_has_openais_shape():
    answer = json.loads(CHAT.answer(HEAD, GENERATION))
    assert answer == {
        "id": "chatcmpl-f00d",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": 'a"b', "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            },
            {
                "index": 1,
                "message": {"role": "assistant", "content": "", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            },
        ],
        "usage": USAGE_JSON,
    }
    ChatCompletion.model_validate(answer, strict=True)


def test_a_buffered_text_has_openais_shape():
    answer = json.loads(TEXT.answer(HEAD, GENERATION))
    assert answer == {
        "id": "cmpl-f00d",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [
            {"index": 0, "text": 'a"b', "logprobs": None, "finish_reason": "stop"},
            {"index": 1, "text": "", "logprobs": None, "finish_reason": "length"},
        ],
        "usage": USAGE_JSON,
    }
    Completion.model_validate(answer, strict=True)


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_streamed_chat_opens_each_choice_with_its_role_and_closes_it_once(include_usage):
    chunks = CHAT.chunks(HEAD, call(2, include_usage=include_usage))
    events: list[Event] = [
        Started(5),
        TextDelta(1, "é"),
        Finished(1, FinishReason.LENGTH),
        Finished(0, FinishReason.STOP),
        USAGE,
    ]
    told = [lines(chunks.encode(event)) for event in events]
    flat = [chunk for batch in told for chunk in batch]
    deltas = [(c["index"], c["delta"], c["finish_reason"]) for chunk in flat for c in chunk["choices"]]
    assert deltas == [
        (0, {"role": "assistant", "content": "", "refusal": None}, None),
        (1, {"role": "assistant", "content": "", "refusal": None}, None),
        (1, {"content": "é"}, None),
        (1, {}, "length"),
        (0, {}, "stop"),
    ]
    for chunk in flat:
        ChatCompletionChunk.model_validate(chunk, strict=False)
        assert (chunk["id"], chunk["object"], chunk["model"]) == (
            "chatcmpl-f00d",
            "chat.completion.chunk",
            "m",
        )
        assert all(choice["logprobs"] is None for choice in chunk["choices"])
    if include_usage:
        assert (flat[-1]["choices"], flat[-1]["usage"]) == ([], USAGE_JSON)
        assert all(chunk["usage"] is None for chunk in flat[:-1])
    else:
        assert told[-1] == [] and all("usage" not in chunk for chunk in flat)
    assert chunks.end() == b"data: [DONE]\n\n"


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_streamed_text_holds_text_and_one_end_for_each_choice(include_usage):
    chunks = TEXT.chunks(HEAD, call(prompts=2, include_usage=include_usage))
    events: list[Event] = [
        Started(5),
        TextDelta(1, "a"),
        Finished(0, FinishReason.STOP),
        Finished(1, FinishReason.LENGTH),
        USAGE,
    ]
    flat = [chunk for event in events for chunk in lines(chunks.encode(event))]
    parts = [(c["index"], c["text"], c["finish_reason"]) for chunk in flat for c in chunk["choices"]]
    assert parts == [(1, "a", None), (0, "", "stop"), (1, "", "length")]
    assert [chunk.get("usage", "absent") for chunk in flat] == (
        [None, None, None, USAGE_JSON] if include_usage else ["absent"] * 3
    )
    for chunk in flat[:1]:
        assert (chunk["id"], chunk["object"]) == ("cmpl-f00d", "text_completion")


@given(text=st.text(min_size=1), choice=st.integers(0, 255), include_usage=st.booleans())
def test_the_fast_bytes_of_a_chunk_are_those_of_its_wire_type(text, choice, include_usage):
    usage = None if include_usage else msgspec.UNSET
    names: Any = {"created": 1_700_000_000, "model": "m", "usage": usage}
    chat = wire.ChatCompletionChunk(
        id="chatcmpl-f00d",
        choices=[wire.ChatChunkChoice(index=choice, delta=wire.Delta(content=text))],
        **names,
    )
    plain = wire.Completion(id="cmpl-f00d", choices=[wire.TextChoice(index=choice, text=text)], **names)
    for operation, expected in ((CHAT, chat), (TEXT, plain)):
        chunks = operation.chunks(HEAD, call(256, include_usage=include_usage))
        assert chunks.encode(TextDelta(choice, text)) == b"data: %b\n\n" % msgspec.json.encode(expected)
        assert chunks.encode(TextDelta(choice, text)) == b"data: %b\n\n" % msgspec.json.encode(expected)


@pytest.mark.parametrize("name", ["\x00", 'a"\x00"b', "\\u0000", "é"])
def test_a_models_name_cannot_confuse_a_chunk(name):
    chunks = CHAT.chunks(Head("f00d", 1, name), call())
    (chunk,) = lines(chunks.encode(TextDelta(0, "text")))
    assert (chunk["model"], chunk["choices"][0]["delta"]) == (name, {"content": "text"})


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidValue("n must be", param="n"), "invalid_request_error"),
        (ModelNotFound("no such model", param="model"), "invalid_request_error"),
        (Overloaded("busy"), "rate_limit_error"),
        (EngineUnavailable("away"), "server_error"),
        (EngineDied("died"), "server_error"),
    ],
)
def test_errors_have_openais_envelope_and_end_a_stream_without_done(error, kind):
    envelope = {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}
    assert json.loads(OpenAI().error(error)) == envelope
    data = CHAT.chunks(HEAD, call()).error(error)
    assert lines(data) == [envelope] and b"[DONE]" not in data
