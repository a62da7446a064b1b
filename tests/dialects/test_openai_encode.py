"""Answers and chunks on the wire: OpenAI's shapes, and the fast bytes equal to the wire type's own."""

import json
import math
from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.common import response_types
from antiphon.dialects.openai.dialect import OpenAI, OpenAIChatCompletions, OpenAICompletions
from antiphon.dialects.services import ResponseMeta
from antiphon.domain.collect import CollectedChoice, CollectedGeneration
from antiphon.domain.events import (
    CandidateTokens,
    Event,
    Finished,
    FinishReason,
    PackedScores,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenScore,
    Usage,
)
from antiphon.domain.request import GenerationRequest, Output, RawPrompt
from antiphon.errors import EngineDied, EngineUnavailable, InvalidValue, ModelNotFound, Overloaded

CHAT, TEXT = OpenAIChatCompletions(report_unknown=False), OpenAICompletions(report_unknown=False)
HEAD = ResponseMeta("f00d", 1_700_000_000, "m")
USAGE = Usage(5, 7, 2)
GENERATION = CollectedGeneration(
    (CollectedChoice(0, 'a"b', FinishReason.STOP), CollectedChoice(1, "", FinishReason.LENGTH)), USAGE
)
USAGE_JSON = {
    "prompt_tokens": 5,
    "completion_tokens": 7,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 2},
}


def call(choices=1, prompts=1, include_usage=False):
    request = GenerationRequest("m", (RawPrompt("p"),) * prompts, output=Output(choices=choices))
    return GenerationCall(request, stream=True, include_usage=include_usage)


def lines(data: bytes) -> list[Any]:
    assert data == b"" or data.endswith(b"\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in data.decode().split("\n\n") if line]


def test_a_buffered_chat_has_openais_shape():
    answer = json.loads(CHAT.encode_answer(HEAD, call(), GENERATION))
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
    answer = json.loads(TEXT.encode_answer(HEAD, call(), GENERATION))
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
def test_a_streamed_choice_opens_with_its_role_and_closes_once(include_usage):
    chunks = CHAT.create_encoder(HEAD, call(2, include_usage=include_usage))
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
    chunks = TEXT.create_encoder(HEAD, call(prompts=2, include_usage=include_usage))
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
    chat = response_types.ChatCompletionChunk(
        id="chatcmpl-f00d",
        choices=[response_types.ChatChunkChoice(index=choice, delta=response_types.Delta(content=text))],
        **names,
    )
    plain = response_types.Completion(
        id="cmpl-f00d", choices=[response_types.TextChoice(index=choice, text=text)], **names
    )
    for operation, expected in ((CHAT, chat), (TEXT, plain)):
        chunks = operation.create_encoder(HEAD, call(256, include_usage=include_usage))
        assert chunks.encode(TextDelta(choice, text)) == b"data: %b\n\n" % msgspec.json.encode(expected)
        assert chunks.encode(TextDelta(choice, text)) == b"data: %b\n\n" % msgspec.json.encode(expected)


@pytest.mark.parametrize("name", ["\x00", 'a"\x00"b', "\\u0000", "é"])
def test_a_models_name_cannot_confuse_a_chunk(name):
    chunks = CHAT.create_encoder(ResponseMeta("f00d", 1, name), call())
    (chunk,) = lines(chunks.encode(TextDelta(0, "text")))
    assert (chunk["model"], chunk["choices"][0]["delta"]) == (name, {"content": "text"})


# --- log-probabilities ---

HALF = TokenScore(7, b"\xe2\x98", -0.5, ((7, b"\xe2\x98", -0.5), (9, b"a", -math.inf)), 1)
SCORES = (
    TokenScore(1, b"<s>", None),
    TokenScore(5, b" a", -1.5, ((6, b" b", -0.25), (8, b" b", -3.0)), 0),
    HALF,
)
CHAT_ENTRIES = [
    {
        "token": " a",
        "logprob": -1.5,
        "bytes": [32, 97],
        "top_logprobs": [
            {"token": " b", "logprob": -0.25, "bytes": [32, 98]},
            {"token": " b", "logprob": -3.0, "bytes": [32, 98]},
        ],
    },
    {
        "token": "bytes:\\xe2\\x98",
        "logprob": -0.5,
        "bytes": [0xE2, 0x98],
        "top_logprobs": [
            {"token": "bytes:\\xe2\\x98", "logprob": -0.5, "bytes": [0xE2, 0x98]},
            {"token": "a", "logprob": -9999.0, "bytes": [97]},
        ],
    },
]
TEXT_COLUMNS = {
    "tokens": ["<s>", " a", "bytes:\\xe2\\x98"],
    "token_logprobs": [None, -1.5, -0.5],
    "top_logprobs": [
        None,
        {" b": -0.25, " a": -1.5},
        {"bytes:\\xe2\\x98": -0.5, "a": -9999.0},
    ],
    "text_offset": [0, 0, 1],
}


def scored(scores):
    return CollectedGeneration((CollectedChoice(0, " a☃", FinishReason.STOP, scores),), USAGE)


def asked(logprobs):
    return GenerationCall(GenerationRequest("m", (RawPrompt("p"),), output=Output(logprobs=logprobs)))


def test_a_chats_log_probabilities_are_entries():
    answer = json.loads(CHAT.encode_answer(HEAD, asked(2), scored(SCORES[1:])))
    assert answer["choices"][0]["logprobs"] == {"content": CHAT_ENTRIES, "refusal": None}
    ChatCompletion.model_validate(answer, strict=True)


def test_a_texts_log_probabilities_are_arrays():
    answer = json.loads(TEXT.encode_answer(HEAD, asked(2), scored(SCORES)))
    assert answer["choices"][0]["logprobs"] == TEXT_COLUMNS
    plain = json.loads(TEXT.encode_answer(HEAD, asked(0), scored(SCORES)))["choices"][0]["logprobs"]
    assert plain == TEXT_COLUMNS | {"top_logprobs": None}


def test_a_choice_without_a_token_has_empty_log_probabilities():
    (choice,) = json.loads(CHAT.encode_answer(HEAD, asked(0), scored(())))["choices"]
    assert choice["logprobs"] == {"content": [], "refusal": None}
    (choice,) = json.loads(TEXT.encode_answer(HEAD, asked(1), scored(())))["choices"]
    assert choice["logprobs"] == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def test_streamed_entries_are_the_buffered_ones():
    events: list[Event] = [
        TextDelta(0, " a", 1, SCORES[:2]),
        TextDelta(0, "☃", 2, SCORES[2:]),
        Finished(0, FinishReason.STOP),
    ]
    parts = [
        chunk["choices"][0]["logprobs"]
        for event in events
        for chunk in lines(TEXT.create_encoder(HEAD, asked(2)).encode(event))
    ]
    assert parts[2] is None
    assert {name: parts[0][name] + parts[1][name] for name in TEXT_COLUMNS} == TEXT_COLUMNS
    chunks = CHAT.create_encoder(HEAD, asked(2))
    (text,) = lines(chunks.encode(TextDelta(0, " a☃", 3, SCORES[1:])))
    (end,) = lines(chunks.encode(Finished(0, FinishReason.STOP, 1, SCORES[1:])))
    for chunk in (text, end):
        assert chunk["choices"][0]["logprobs"]["content"] == CHAT_ENTRIES
        ChatCompletionChunk.model_validate(chunk)
    assert chunks.encode(CandidateTokens(3)) == b""


def test_many_packed_scores_are_written_like_the_same_one_by_one():
    count, pieces = 1000, tuple(bytes((value,)) for value in range(256))
    values = array("f", [math.nan, *(-place / 8 for place in range(1, count))])
    wide = array("f", [-place / 16 for place in range(2 * count)])
    ids = array("i", [place % 256 for place in range(2 * count)])
    packed = PackedScores([place % 256 for place in range(count)], range(count), values, pieces, 2, ids, wide)
    assert len(packed) == count and packed[-1] == tuple(packed)[-1] and packed[0].alternatives == ()
    for operation in (CHAT, TEXT):
        assert operation.encode_answer(HEAD, asked(2), scored(packed)) == operation.encode_answer(
            HEAD, asked(2), scored(tuple(packed))
        )


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
def test_errors_use_openais_envelope_and_streams_lack_done(error, kind):
    envelope = {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}
    assert json.loads(OpenAI().encode_error(error)) == envelope
    data = CHAT.create_encoder(HEAD, call()).encode_error(error)
    assert lines(data) == [envelope] and b"[DONE]" not in data


# --- token ids, ranks, and the usage so far ---

TOLD = CollectedGeneration(
    (
        CollectedChoice(0, "a", FinishReason.STOP, ids=(5, 2)),
        CollectedChoice(1, "b", FinishReason.LENGTH, ids=(6,)),
    ),
    USAGE,
    ((1, 2, 3),),
)


def telling(**changes):
    output = Output(choices=2, token_ids=True)
    return GenerationCall(GenerationRequest("m", (RawPrompt("p"),), output=output), stream=True, **changes)


def test_token_ids_stand_beside_what_they_are_of():
    chat = json.loads(CHAT.encode_answer(HEAD, telling(), TOLD))
    assert chat["prompt_token_ids"] == [1, 2, 3]
    assert [choice["token_ids"] for choice in chat["choices"]] == [[5, 2], [6]]
    text = json.loads(TEXT.encode_answer(HEAD, telling(), TOLD))
    assert [(c["prompt_token_ids"], c["token_ids"]) for c in text["choices"]] == [
        ([1, 2, 3], [5, 2]),
        ([1, 2, 3], [6]),
    ]
    plain = CHAT.encode_answer(HEAD, call(), GENERATION) + TEXT.encode_answer(HEAD, call(), GENERATION)
    assert b"token_ids" not in plain and b"prompt_logprobs" not in plain


@pytest.mark.parametrize("operation", [CHAT, TEXT])
def test_streamed_token_ids_come_per_chunk_after_the_prompts(operation):
    chunks = operation.create_encoder(HEAD, telling())
    events: list[Event] = [
        Started(3, prompts=((1, 2, 3),)),
        TextDelta(0, "a", 1, ids=(5,)),
        TextDelta(1, "echoed"),
        Finished(0, FinishReason.STOP, 1, ids=(2,)),
        Finished(1, FinishReason.LENGTH, 1, ids=(6,)),
    ]
    flat = [chunk for event in events for chunk in lines(chunks.encode(event))]
    parts = [(c["index"], c["token_ids"]) for chunk in flat for c in chunk["choices"]]
    assert parts == [(0, []), (1, []), (0, [5]), (1, []), (0, [2]), (1, [6])]
    prompts = [chunk.get("prompt_token_ids") for chunk in flat]
    in_choices = [c.get("prompt_token_ids") for chunk in flat for c in chunk["choices"]]
    none = [None] * 6
    if operation is CHAT:
        assert (prompts, in_choices) == ([[1, 2, 3], *none[1:]], none)
    else:
        assert (prompts, in_choices) == (none, [[1, 2, 3], [1, 2, 3], *none[2:]])


def test_the_usage_so_far_grows_to_the_last():
    chunks = CHAT.create_encoder(
        HEAD,
        GenerationCall(
            GenerationRequest("m", (RawPrompt("p"),), output=Output(running_usage=True)),
            stream=True,
            include_usage=True,
        ),
    )
    events: list[Event] = [
        Started(5, 2),
        ReasoningDelta(0, "hm", 3),
        TextDelta(0, "a", 2),
        Finished(0, FinishReason.STOP, 2),
        USAGE,
    ]
    told = [chunk["usage"] for event in events for chunk in lines(chunks.encode(event))]
    assert [usage["completion_tokens"] for usage in told] == [0, 3, 5, 7, 7]
    assert told[-1] == told[-2] == USAGE_JSON


def test_ranks_are_as_reported_or_the_place_among_the_likeliest():
    row = TokenScore(5, b" a", -1.5, ((6, b" b", -0.25), (8, b"\xe2", -0.75), (9, b"c", -0.75)), 0, 4)
    best = TokenScore(6, b" b", -math.inf, ((6, b" b", -0.25),), 0, 1)
    scores = (TokenScore(1, b"<s>", None), row, best)
    generation = CollectedGeneration((CollectedChoice(0, "a", FinishReason.STOP),), USAGE, (), (scores,))
    expected = [
        None,
        {
            "5": {"logprob": -1.5, "rank": 4, "decoded_token": " a"},
            "6": {"logprob": -0.25, "rank": 1, "decoded_token": " b"},
            "8": {"logprob": -0.75, "rank": 2, "decoded_token": "bytes:\\xe2"},
            "9": {"logprob": -0.75, "rank": 2, "decoded_token": "c"},
        },
        {"6": {"logprob": -9999.0, "rank": 1, "decoded_token": " b"}},
    ]
    assert json.loads(CHAT.encode_answer(HEAD, call(), generation))["prompt_logprobs"] == expected
    assert (
        json.loads(TEXT.encode_answer(HEAD, call(), generation))["choices"][0]["prompt_logprobs"] == expected
    )
