"""npm's openai under Node.js, unchanged: what Python's does in the tests beside this, it does too."""

import base64
import json
import struct
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.contract.calls import ended, find_records, say
from tests.contract.clients import NODE, Call, Client
from tests.contract.conftest import Scripted, Target
from tests.support.model_files import FITTING
from tests.support.server import Server

NPM = Client(NODE, "node/drive.mjs")
RUN_TOOLS = Client(NODE, "node/run_tools.mjs")
CHAT = "chat.completions.create"
TEXT = "completions.create"
HELLO: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}]
SAME: Any = {"max_tokens": 24, "temperature": 0.8, "seed": 11}
STREAM: Any = {"stream": True, "stream_options": {"include_usage": True}}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Get the weather of a city.", "parameters": CITY},
}
WEATHER_ASKED: Any = [{"role": "user", "content": "What is the weather in Berlin?"}]

pytestmark = pytest.mark.timeout(480)
"""The first of them starts a server too; each starts Node.js."""


def call(name: str, body: Any, **more: Any) -> Call:
    return {"call": name, "with": [body], **more}


def both(target: Target, **asked: Any) -> tuple[Any, list[Any]]:
    """The buffered answer of a chat, and the chunks of the same."""
    asked = {"model": target.model, "messages": HELLO} | SAME | asked
    whole, parts = NPM.make(target.base_url, call(CHAT, asked), call(CHAT, asked | STREAM))
    return whole["answer"], parts["chunks"]


def pieces(chunks: list[Any], index: int = 0) -> list[Any]:
    return [part for chunk in chunks for part in chunk["choices"] if part["index"] == index]


def test_a_chat_streamed_is_the_buffered_one(target: Target) -> None:
    whole, chunks = both(target, n=2)
    assert whole["object"] == "chat.completion" and len(whole["choices"]) == 2
    for choice in whole["choices"]:
        told = pieces(chunks, choice["index"])
        assert "".join(part["delta"].get("content") or "" for part in told) == choice["message"]["content"]
        assert told[-1]["finish_reason"] == choice["finish_reason"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] > 0


def test_a_text_streamed_is_the_buffered_one(target: Target) -> None:
    asked = {"model": target.model, "prompt": ["Once upon", "The end"], "n": 2} | SAME
    whole, parts = NPM.make(target.base_url, call(TEXT, asked), call(TEXT, asked | STREAM))
    assert [choice["index"] for choice in whole["answer"]["choices"]] == [0, 1, 2, 3]
    for choice in whole["answer"]["choices"]:
        told = pieces(parts["chunks"], choice["index"])
        assert "".join(part["text"] for part in told) == choice["text"]
    assert parts["chunks"][-1]["usage"]["total_tokens"] == whole["answer"]["usage"]["total_tokens"]


def test_the_stream_helper_puts_the_answer_together(target: Target) -> None:
    asked = {"model": target.model, "messages": HELLO} | SAME
    whole, helped = NPM.make(
        target.base_url, call(CHAT, asked), call("chat.completions.stream", asked | STREAM)
    )
    kept = ("content", "role", "refusal")
    (message,) = (choice["message"] for choice in whole["answer"]["choices"])
    (again,) = (choice["message"] for choice in helped["answer"]["choices"])
    assert {name: again.get(name) for name in kept} == {name: message.get(name) for name in kept}
    assert helped["answer"]["usage"]["completion_tokens"] == whole["answer"]["usage"]["completion_tokens"]


def test_tools_are_called_and_streamed_in_fragments(cantor: Target) -> None:
    asked: Any = {"tools": [WEATHER], "messages": WEATHER_ASKED, "temperature": 0, "max_tokens": 100}
    whole, chunks = both(cantor, **asked)
    (choice,) = whole["choices"]
    (called,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" == pieces(chunks)[-1]["finish_reason"]
    assert called["function"] == {"name": "get_weather", "arguments": '{"city": "Berlin"}'}
    first, *rest = [one for part in pieces(chunks) for one in part["delta"].get("tool_calls") or ()]
    assert (first["index"], first["type"], first["function"]["name"]) == (0, "function", "get_weather")
    assert all("name" not in one["function"] and one["index"] == 0 for one in rest) and len(rest) > 1
    arguments = "".join(one["function"].get("arguments", "") for one in [first, *rest])
    assert arguments == called["function"]["arguments"]


def test_the_clients_tool_loop_calls_our_function_and_answers(cantor: Target) -> None:
    body = {"model": cantor.model, "messages": WEATHER_ASKED, "temperature": 0, "max_tokens": 100}
    told = RUN_TOOLS.run({"base_url": cantor.base_url, "body": body})
    assert told["called"] == [{"city": "Berlin"}] and told["final"]
    assert [message["role"] for message in told["messages"]] == ["user", "assistant", "tool", "assistant"]


def test_a_plain_schema_is_kept(cantor: Target) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    whole, chunks = both(cantor, response_format=form, temperature=1.5, max_tokens=80)
    said = whole["choices"][0]["message"]["content"]
    Draft202012Validator(PERSON).validate(json.loads(said))
    assert "".join(part["delta"].get("content") or "" for part in pieces(chunks)) == said


def test_log_probabilities_come_in_both_shapes(cantor: Target) -> None:
    whole, chunks = both(cantor, logprobs=True, top_logprobs=2)
    scored = whole["choices"][0]["logprobs"]["content"]
    assert len(scored) == whole["usage"]["completion_tokens"]
    assert all(len(token["top_logprobs"]) == 2 and token["logprob"] <= 0 for token in scored)
    spelt = b"".join(bytes(token["bytes"]) for token in scored)
    assert spelt.decode().startswith(whole["choices"][0]["message"]["content"])
    streamed = [
        token for part in pieces(chunks) if part.get("logprobs") for token in part["logprobs"]["content"]
    ]
    assert streamed == scored
    asked = {"model": cantor.model, "prompt": "Once upon", "logprobs": 2, "echo": True, "max_tokens": 3}
    (legacy,) = NPM.make(cantor.base_url, call(TEXT, asked))
    arrays = legacy["answer"]["choices"][0]["logprobs"]
    assert arrays["token_logprobs"][0] is None and arrays["text_offset"][0] == 0
    assert len(arrays["tokens"]) == len(arrays["token_logprobs"]) == len(arrays["top_logprobs"])


def test_vectors_come_packed_as_the_client_asks_and_as_numbers(equipped: Server) -> None:
    texts = [row["text"] for row in FITTING]
    asked = {"model": "encoder", "input": texts}
    usual, numbers, packed = NPM.make(
        f"{equipped.url}/v1",
        call("embeddings.create", asked),
        call("embeddings.create", asked | {"encoding_format": "float"}),
        call("embeddings.create", asked | {"encoding_format": "base64"}),
    )
    for row, one, other, bytes_ in zip(
        FITTING, usual["answer"]["data"], numbers["answer"]["data"], packed["answer"]["data"], strict=True
    ):
        recorded = row["vectors"]["MEAN"]
        assert one["embedding"] == pytest.approx(other["embedding"], abs=1e-6)
        raw = base64.b64decode(bytes_["embedding"])
        assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == pytest.approx(one["embedding"], abs=1e-6)
        assert sum(a * b for a, b in zip(one["embedding"], recorded, strict=True)) > 0.999


def test_models_are_listed_and_retrieved(cantor: Target) -> None:
    listed, one, none = NPM.make(
        cantor.base_url,
        {"call": "models.list", "with": []},
        {"call": "models.retrieve", "with": ["cantor"]},
        {"call": "models.retrieve", "with": ["no/such"]},
    )
    assert "cantor" in [model["id"] for model in listed["chunks"]]
    assert one["answer"]["id"] == "cantor"
    assert (none["error"]["class"], none["error"]["code"]) == ("NotFoundError", "model_not_found")


@pytest.mark.parametrize(
    ("fields", "kind", "code", "param"),
    [
        ({"temperature": 3}, "BadRequestError", "invalid_value", "temperature"),
        ({"top_logprobs": 2}, "BadRequestError", "invalid_value", "top_logprobs"),
        ({"colour": "red"}, "BadRequestError", "unknown_parameter", "colour"),
        ({"messages": say("x " * 5000)}, "BadRequestError", "context_length_exceeded", None),
        ({"model": "no-such"}, "NotFoundError", "model_not_found", "model"),
        ({"messages": say("be busy")}, "RateLimitError", "overloaded", None),
        ({"messages": say("be away")}, "InternalServerError", "engine_unavailable", None),
    ],
)
def test_a_refusal_is_an_error_of_its_class_before_any_chunk(
    scripted: Scripted, fields: Any, kind: str, code: str, param: str | None
) -> None:
    asked = {"model": scripted.model, "messages": say("Hello")} | fields
    for result in NPM.make(scripted.base_url, call(CHAT, asked), call(CHAT, asked | STREAM)):
        error = result["error"]
        assert (error["class"], error["code"], error["param"]) == (kind, code, param)
        assert result["chunks"] == [] and error["request_id"].startswith("req-")
        assert (error["retry_after"] is None) == (code not in ("overloaded", "engine_unavailable"))


def test_a_wrong_key_is_an_authentication_error(keyed: Scripted) -> None:
    (result,) = NPM.make(keyed.base_url, {"call": "models.list", "with": []})
    assert (result["error"]["class"], result["error"]["status"]) == ("AuthenticationError", 401)


def test_an_error_inside_a_stream_is_raised_after_its_chunks(scripted: Scripted) -> None:
    asked = {"model": scripted.model, "messages": say("die midway"), "stream": True}
    (result,) = NPM.make(scripted.base_url, call(CHAT, asked))
    said = "".join(part["delta"].get("content") or "" for part in pieces(result["chunks"]))
    assert said == "Hello world"
    assert (result["error"]["class"], result["error"]["code"]) == ("APIError", "engine_died")


def test_a_client_that_aborts_a_stream_ends_its_work(scripted: Scripted) -> None:
    asked = {"model": scripted.model, "messages": say("never end"), "stream": True}
    (result,) = NPM.make(scripted.base_url, call(CHAT, asked, leave_after=5))
    assert len(result["chunks"]) == 5 and "error" not in result
    ended(scripted, "never end")


@pytest.mark.parametrize("stream", [False, True])
def test_aborting_before_the_first_token_ends_the_work(scripted: Scripted, stream: bool) -> None:
    """Asked again where the machine was too busy for the request to arrive in time, or for the client to
    abort before the server fills the silence of a stream."""
    words, error = f"never begin, in npm's client, stream {stream}", None
    asked = {"model": scripted.model, "messages": say(words), "stream": stream}
    while error is None or not find_records(scripted, words):
        (result,) = NPM.make(scripted.base_url, call(CHAT, asked, signal_ms=300))
        error = result.get("error")
        assert result["chunks"] == [] and (stream or error)
        assert error is None or error["class"] == "APIUserAbortError"
    ended(scripted, words)
