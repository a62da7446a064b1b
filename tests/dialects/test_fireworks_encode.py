"""Fireworks' answers, streams, errors and list of models: the shapes that its page and its service have."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from antiphon.dialects.fireworks.decode import FireworksCall
from antiphon.dialects.fireworks.dialect import (
    Fireworks,
    FireworksChatCompletions,
    FireworksCompletions,
    FireworksModels,
)
from antiphon.dialects.services import ModelEntry, ResponseMeta
from antiphon.domain.collect import CollectedChoice, CollectedGeneration
from antiphon.domain.events import (
    Finished,
    FinishReason,
    Started,
    TextDelta,
    TokenScore,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from antiphon.domain.messages import ToolCall
from antiphon.domain.models import Adapter, Profile
from antiphon.domain.request import EmbeddingFacts, GenerationRequest, Output, Pooling, RawPrompt
from antiphon.errors import (
    AuthenticationFailed,
    BodyTooLarge,
    DeadlineExceeded,
    EngineDied,
    EngineUnavailable,
    HeadersTooLarge,
    InvalidValue,
    MethodNotAllowed,
    ModelNotFound,
    Overloaded,
    UnsupportedMediaType,
)

DIALECT = Fireworks()
TEXT, CHAT, MODELS = (
    FireworksCompletions(report_unknown=False),
    FireworksChatCompletions(report_unknown=False),
    FireworksModels(),
)
HEAD = ResponseMeta("0123456789abcdef0123456789abcdef", 7, "accounts/fireworks/models/m")
NAMES = {"id": "01234567-89ab-cdef-0123-456789abcdef", "created": 7, "model": HEAD.model}
USAGE = Usage(25, 40, 5)
USAGE_JSON = {
    "prompt_tokens": 25,
    "completion_tokens": 40,
    "total_tokens": 65,
    "prompt_tokens_details": {"cached_tokens": 5},
}
FIRST = TokenScore(3, b"p", None, (), 0)
SECOND = TokenScore(4, b"a", -0.5, ((4, b"a", -0.5), (5, b"\xe2\x98", -1.5)), 1)
SCHEMAS = DIALECT.describe().schemas


def call(choices=1, prompts=1, logprobs=None, entries=False, token_ids=False):
    output = Output(choices=choices, logprobs=logprobs, token_ids=token_ids)
    request = GenerationRequest("m", (RawPrompt("p"),) * prompts, output=output)
    return FireworksCall(request, stream=True, include_usage=True, has_entries=entries)


def lines(data):
    assert data == b"" or data.endswith(b"\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in data.decode().split("\n\n") if line]


def frames(operation, events, asked=None):
    chunks = operation.create_encoder(HEAD, asked or call())
    found = lines(b"".join(chunks.encode(event) for event in events))
    assert chunks.end() == b"data: [DONE]\n\n"
    return found


def valid(name, value):
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": dict(SCHEMAS)}}
    Draft202012Validator(schema).validate(value)
    return value


def test_a_buffered_text_has_the_pages_shape():
    generation = CollectedGeneration(
        (CollectedChoice(0, "a", FinishReason.STOP), CollectedChoice(1, "", FinishReason.LENGTH)), USAGE
    )
    answer = json.loads(TEXT.encode_answer(HEAD, call(2), generation))
    assert valid("FireworksCompletion", answer) == NAMES | {
        "object": "text_completion",
        "choices": [
            {"index": 0, "text": "a", "logprobs": None, "finish_reason": "stop"},
            {"index": 1, "text": "", "logprobs": None, "finish_reason": "length"},
        ],
        "usage": USAGE_JSON,
    }


def test_a_buffered_chat_says_its_message_and_its_calls():
    calls = (ToolCall("c1", "add", '{"a": 1}'),)
    generation = CollectedGeneration((CollectedChoice(0, "", FinishReason.TOOL_CALLS, calls=calls),), USAGE)
    answer = valid("FireworksChatCompletion", json.loads(CHAT.encode_answer(HEAD, call(), generation)))
    (choice,) = answer["choices"]
    assert (answer["id"], answer["object"]) == (NAMES["id"], "chat.completion")
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert choice["message"]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    ]


# --- streams ---


def test_a_stream_ends_each_choice_with_the_requests_usage():
    events = [
        Started(25, 5),
        TextDelta(1, "b"),
        Finished(1, FinishReason.STOP),
        TextDelta(0, "a"),
        Finished(0, FinishReason.LENGTH),
        USAGE,
    ]
    found = frames(TEXT, events, call(2))
    parts = [(*(frame["choices"][0][name] for name in ("index", "text", "finish_reason")), frame["usage"])
             for frame in found]  # fmt: skip
    assert parts == [
        (1, "b", None, None),
        (0, "a", None, None),
        (1, "", "stop", USAGE_JSON),
        (0, "", "length", USAGE_JSON),
    ]
    assert all({name: frame[name] for name in NAMES} == NAMES for frame in found)
    assert all(len(valid("FireworksCompletion", frame)["choices"]) == 1 for frame in found)


def test_a_streamed_chat_gives_each_choice_its_role_and_calls():
    events = [
        Started(25),
        TextDelta(0, "hm"),
        ToolCallStarted(1, 0, "c1", "add"),
        ToolCallDelta(1, 0, "{}"),
        Finished(0, FinishReason.STOP),
        Finished(1, FinishReason.TOOL_CALLS),
        USAGE,
    ]
    found = [valid("FireworksChatCompletionChunk", frame) for frame in frames(CHAT, events, call(2))]
    deltas = [(frame["choices"][0]["index"], frame["choices"][0]["delta"]) for frame in found]
    assert deltas == [
        (0, {"role": "assistant", "content": ""}),
        (1, {"role": "assistant", "content": ""}),
        (0, {"content": "hm"}),
        (1, {"tool_calls": [{"index": 0, "id": "c1", "type": "function",
                             "function": {"name": "add", "arguments": ""}}]}),
        (1, {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
        (0, {}),
        (1, {}),
    ]  # fmt: skip
    assert [frame["usage"] for frame in found] == [None] * 5 + [USAGE_JSON] * 2


@pytest.mark.parametrize(("operation", "name"), [(TEXT, "Completion"), (CHAT, "ChatCompletionChunk")])
def test_a_stream_that_breaks_ends_no_choice_well(operation, name):
    chunks = operation.create_encoder(HEAD, call(2))
    for event in (Started(25), TextDelta(0, "a"), TextDelta(1, "b"), Finished(1, FinishReason.STOP)):
        chunks.encode(event)
    *ends, last = lines(chunks.encode_error(EngineDied("it died")))
    assert [(end["choices"][0]["index"], end["choices"][0]["finish_reason"]) for end in ends] == [
        (1, "stop"),
        (0, "error"),
    ]
    for end in ends:
        valid(f"Fireworks{name}", end)
    assert last == {"error": {"message": "it died", "param": None, "code": "SERVICE_UNAVAILABLE"}}


TEXTS = st.lists(st.tuples(st.integers(0, 1), st.text(min_size=1, max_size=5)), max_size=8)


@given(TEXTS)
def test_what_is_streamed_is_what_is_buffered(said):
    events = [Started(25), *(TextDelta(choice, text) for choice, text in said)]
    events += [Finished(0, FinishReason.STOP), Finished(1, FinishReason.LENGTH), USAGE]
    found = frames(TEXT, events, call(2))
    for choice in (0, 1):
        mine = [frame["choices"][0] for frame in found if frame["choices"][0]["index"] == choice]
        assert "".join(part["text"] for part in mine) == "".join(text for at, text in said if at == choice)


# --- log-probabilities ---

ARRAYS = {
    "tokens": ["p", "a"],
    "token_logprobs": [0.0, -0.5],
    "top_logprobs": [{"p": 0.0}, {"a": -0.5, "bytes:\\xe2\\x98": -1.5}],
    "text_offset": [0, 1],
    "token_ids": [3, 4],
}
ENTRIES = [
    {"token": "p", "logprob": 0.0, "token_id": 3, "bytes": [112], "text_offset": 0, "top_logprobs": []},
    {
        "token": "a",
        "logprob": -0.5,
        "token_id": 4,
        "bytes": [97],
        "text_offset": 1,
        "top_logprobs": [
            {"token": "a", "logprob": -0.5, "token_id": 4, "bytes": [97]},
            {"token": "bytes:\\xe2\\x98", "logprob": -1.5, "token_id": 5, "bytes": [226, 152]},
        ],
    },
]


@pytest.mark.parametrize(
    ("operation", "whole", "part"),
    [(TEXT, "Completion", "Completion"), (CHAT, "ChatCompletion", "ChatCompletionChunk")],
)
@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ({"logprobs": 2}, ARRAYS),
        ({"logprobs": 0}, ARRAYS | {"top_logprobs": None}),
        ({"logprobs": 2, "entries": True}, {"content": ENTRIES}),
    ],
)
def test_log_probabilities_have_ids_in_both_shapes(operation, whole, part, shape, expected):
    asked = call(**shape)
    generation = CollectedGeneration((CollectedChoice(0, "pa", FinishReason.STOP, (FIRST, SECOND)),), USAGE)
    answer = valid(f"Fireworks{whole}", json.loads(operation.encode_answer(HEAD, asked, generation)))
    assert answer["choices"][0]["logprobs"] == expected
    events = [Started(25), TextDelta(0, "pa", 1, (FIRST, SECOND)), Finished(0, FinishReason.STOP), USAGE]
    streamed = [
        valid(f"Fireworks{part}", frame)["choices"][0]["logprobs"]
        for frame in frames(operation, events, asked)
    ]
    assert [logprobs for logprobs in streamed if logprobs] == [expected]


# --- token ids ---


def test_token_ids_stand_where_they_were_asked_for():
    asked = call(token_ids=True)
    choice = CollectedChoice(0, "a", FinishReason.STOP, ids=(4, 9))
    generation = CollectedGeneration((choice,), USAGE, prompts=((1, 2),))
    text = valid("FireworksCompletion", json.loads(TEXT.encode_answer(HEAD, asked, generation)))
    assert (text["choices"][0]["prompt_token_ids"], text["choices"][0]["token_ids"]) == ([1, 2], [4, 9])
    chat = valid("FireworksChatCompletion", json.loads(CHAT.encode_answer(HEAD, asked, generation)))
    assert (chat["prompt_token_ids"], chat["choices"][0]["token_ids"]) == ([1, 2], [4, 9])
    events = [
        Started(2, prompts=((1, 2),)),
        TextDelta(0, "a", 1, ids=(4,)),
        Finished(0, FinishReason.STOP, 1, ids=(9,)),
        USAGE,
    ]
    streamed = [frame["choices"][0] for frame in frames(TEXT, events, asked)]
    assert streamed[0]["prompt_token_ids"] == [1, 2]
    assert [each for part in streamed for each in part.get("token_ids", [])] == [4, 9]
    chunks = frames(CHAT, events, asked)
    assert chunks[0]["prompt_token_ids"] == [1, 2]
    assert [each for chunk in chunks for each in chunk["choices"][0].get("token_ids", [])] == [4, 9]


# --- errors ---


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidValue("n must be an integer of at most 128; got 129", param="n"), 400, "INVALID_ARGUMENT"),
        (UnsupportedMediaType("the body must be JSON"), 400, "INVALID_ARGUMENT"),
        (HeadersTooLarge("the headers are too large"), 400, "INVALID_ARGUMENT"),
        (AuthenticationFailed("no valid API key"), 401, "UNAUTHORIZED"),
        (ModelNotFound("the model 'x' does not exist", param="model"), 404, "NOT_FOUND"),
        (MethodNotAllowed("GET is not taken here"), 405, "METHOD_NOT_ALLOWED"),
        (DeadlineExceeded("too late"), 408, "REQUEST_TIMEOUT"),
        (BodyTooLarge("the body is too large"), 413, "PAYLOAD_TOO_LARGE"),
        (Overloaded("too much is waiting"), 429, "RATE_LIMIT_EXCEEDED"),
        (EngineUnavailable("m is restarting"), 503, "SERVICE_UNAVAILABLE"),
    ],
)
def test_errors_have_fireworks_statuses_and_words(error, status, code):
    body = valid("FireworksErrorEnvelope", json.loads(DIALECT.encode_error(error)))["error"]
    assert (DIALECT.get_status(error), body["code"], body["param"]) == (status, code, error.param)
    assert error.message in body["message"]


def test_two_errors_begin_as_fireworks_own():
    missing = json.loads(DIALECT.encode_error(ModelNotFound("there is none")))["error"]["message"]
    assert missing.startswith("Model not found, inaccessible, and/or not deployed: ")
    refused = json.loads(DIALECT.encode_error(AuthenticationFailed("no valid API key")))["error"]["message"]
    assert refused.startswith("The API key you provided is invalid: ")


# --- models ---

PROFILE = Profile("llama", 1, 2, "F16", 4096, 300, True, True, 8, "x")
VECTORS = Profile(
    "bert", 1, 2, "F16", 512, 300, False, True, 8, "x", embedding=EmbeddingFacts(384, Pooling.MEAN)
)


def test_models_are_listed_with_what_they_can_do():
    adapter = Adapter("d" * 64, "pirate.gguf", 8, 16.0, 100)
    entries = [
        ModelEntry("cantor", 7, "ready", PROFILE),
        ModelEntry("org/lora", 8, "ready", PROFILE, "cantor", adapter),
        ModelEntry("vectors", 9, "ready", VECTORS),
        ModelEntry("away", 9, "starting"),
    ]
    listed = valid("FireworksModelList", json.loads(MODELS.encode_list(entries)))
    assert listed["object"] == "list"
    base, lora, vectors, away = listed["data"]
    assert base == {
        "id": "cantor", "object": "model", "created": 7, "owned_by": "antiphon", "kind": "HF_BASE_MODEL",
        "supports_chat": True, "supports_image_input": False, "supports_tools": True, "context_length": 4096,
    }  # fmt: skip
    assert (lora["kind"], lora["context_length"]) == ("HF_PEFT_ADDON", 4096)
    assert (vectors["kind"], vectors["supports_chat"]) == ("EMBEDDING_MODEL", False)
    assert "context_length" not in away and away["kind"] == "HF_BASE_MODEL"
    shown = json.loads(MODELS.encode_model(ModelEntry("m", 1, "ready", PROFILE, alias="accounts/x/m")))
    assert shown["id"] == "accounts/x/m"
