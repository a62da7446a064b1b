"""Bad input gets the dialect's own error, which names the field, streamed or not, and nothing is generated
first."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.support.server import Server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
FIREWORKS, FIREWORKS_CHAT = "/fireworks/inference/v1/completions", "/fireworks/inference/v1/chat/completions"
EMPOWER = "/empower/api/v1/chat/completions"
PATHS = (CHAT, TEXT, FIREWORKS, FIREWORKS_CHAT, EMPOWER)
FIVE = ["a", "b", "c", "d", "e"]
IMAGE = "data:image/png;base64,AAAA"
PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE}}]}]
SCHEMA = {"type": "object"}

EVERYWHERE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("temperature", {"temperature": 2.001}),
    ("temperature", {"temperature": -0.001}),
    ("top_p", {"top_p": 1.001}),
    ("top_p", {"top_p": -0.001}),
    ("presence_penalty", {"presence_penalty": 2.001}),
    ("frequency_penalty", {"frequency_penalty": -2.001}),
    ("n", {"n": 0}),
    ("n", {"n": 129}),
    ("max_tokens", {"max_tokens": -1}),
    ("stop", {"stop": FIVE}),
    ("stream", {"stream": "yes"}),
    ("temprature", {"temprature": 1}),
    ("model", {"model": 7}),
)
OWN: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (CHAT, "max_tokens", {"max_tokens": 0}),
    (CHAT, "max_completion_tokens", {"max_tokens": 3, "max_completion_tokens": 4}),
    (CHAT, "guided_regex", {"guided_json": SCHEMA, "guided_regex": "a"}),
    (CHAT, "guided_choice", {"response_format": {"type": "json_object"}, "guided_choice": ["a"]}),
    (CHAT, "structured_outputs", {"structured_outputs": {"json": SCHEMA, "regex": "a"}}),
    (CHAT, "top_logprobs", {"top_logprobs": 2}),
    (CHAT, "top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    (CHAT, "stream_options", {"stream": False, "stream_options": {"include_usage": True}}),
    (CHAT, "min_tokens", {"min_tokens": 9, "max_tokens": 4}),
    (CHAT, "messages", {"messages": []}),
    (CHAT, "image_url", {"messages": PICTURE}),
    (CHAT, "tool_choice", {"tool_choice": "required"}),
    (TEXT, "best_of", {"best_of": 1, "n": 2}),
    (TEXT, "best_of", {"best_of": 3, "stream": True}),
    (TEXT, "max_tokens", {"max_tokens": 0}),
    (TEXT, "logprobs", {"logprobs": 21}),
    (TEXT, "guided_grammar", {"guided_regex": "a", "guided_grammar": 'root ::= "a"'}),
    (TEXT, "prompt[0]", {"prompt": [[]]}),
    (TEXT, "truncation_side", {"truncation_side": "right"}),
    (TEXT, "logprob_token_ids", {"logprob_token_ids": [7]}),
    (CHAT, "logprob_token_ids", {"logprob_token_ids": [7]}),
    (TEXT, "prompt", {"prompt": ["a"] * 200, "n": 2}),
    (FIREWORKS, "max_completion_tokens", {"max_tokens": 3, "max_completion_tokens": 4}),
    (FIREWORKS, "logprobs", {"logprobs": 6}),
    (FIREWORKS, "logprobs", {"logprobs": -1}),
    (FIREWORKS, "top_logprobs", {"top_logprobs": 2}),
    (FIREWORKS, "top_k", {"top_k": 0}),
    (FIREWORKS, "top_k", {"top_k": 129}),
    (FIREWORKS, "repetition_penalty", {"repetition_penalty": 2.001}),
    (FIREWORKS, "max_tokens", {"max_tokens": 0}),
    (FIREWORKS, "images", {"prompt": "What is <image>?", "images": [IMAGE, IMAGE]}),
    (FIREWORKS, "context_length_exceeded_behavior", {"context_length_exceeded_behavior": "shorten"}),
    (FIREWORKS, "response_format", {"response_format": {"type": "json_object", "strict": True}}),
    (FIREWORKS_CHAT, "top_logprobs", {"top_logprobs": 2}),
    (FIREWORKS_CHAT, "max_completion_tokens", {"max_tokens": 3, "max_completion_tokens": 4}),
    (FIREWORKS_CHAT, "image_url", {"messages": PICTURE}),
    (EMPOWER, "logit_bias", {"logit_bias": {"300": 1}}),
    (EMPOWER, "function_call", {"function_call": {"name": "f"}}),
    (EMPOWER, "max_tokens", {"max_tokens": 0}),
    (EMPOWER, "messages", {"messages": []}),
    (EMPOWER, "image_url", {"messages": PICTURE}),
)
BAD = (*((path, name, fields) for path in PATHS for name, fields in EVERYWHERE), *OWN)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx2.Client]:
    with server.client() as made:
        yield made


def body(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    said = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    return {"model": "cantor", "max_tokens": 4} | said | fields


def sentence(path: str, name: str, reply: httpx2.Response) -> str:
    """The sentence of an error in the shape of the path's dialect, which names the field."""
    assert reply.status_code == 400, reply.text
    assert reply.headers["content-type"] == "application/json"
    found = reply.json()
    if path == EMPOWER:
        assert found.pop("object") == "error" and found.keys() == {"message", "type", "param", "code"}
    else:
        assert found.keys() == {"error"}
        found = found["error"]
    if path.startswith("/fireworks"):
        assert found.keys() >= {"message", "code"} and found["code"] == "INVALID_ARGUMENT"
    else:
        assert found["type"] == "invalid_request_error" and found["code"]
    assert name in (found["param"] or "") and name in found["message"], found
    said: str = found["message"]
    return said


@pytest.mark.parametrize(
    ("path", "name", "fields"), BAD, ids=[f"{at} {path[1:]} {name}" for at, (path, name, _) in enumerate(BAD)]
)
def test_it_is_refused_by_name(client: httpx2.Client, path: str, name: str, fields: dict[str, Any]) -> None:
    plain = sentence(path, name, client.post(path, json=body(path, fields)))
    assert sentence(path, name, client.post(path, json=body(path, {"stream": True} | fields))) == plain


def test_nothing_is_generated_first_and_each_has_its_sentence(client: httpx2.Client, server: Server) -> None:
    """The engine neither read a prompt nor made a token."""
    server.wait_until_idle()
    before = server.load()
    replies = [(path, name, client.post(path, json=body(path, fields))) for path, name, fields in OWN]
    after = server.load()
    assert (after.prefill_tokens, after.decoded_tokens) == (before.prefill_tokens, before.decoded_tokens)
    for at in PATHS:
        said = [sentence(path, name, reply) for path, name, reply in replies if path == at]
        assert len(said) == len(set(said))
    assert client.post(TEXT, json=body(TEXT, {})).status_code == 200
    assert server.load().decoded_tokens > after.decoded_tokens, "the counters count"


def test_ranges_hold_their_bounds(client: httpx2.Client) -> None:
    for path in PATHS:
        for name, bounds in {
            "temperature": (0, 2),
            "top_p": (0, 1),
            "presence_penalty": (-2, 2),
            "frequency_penalty": (-2, 2),
            "n": (1, 128),
        }.items():
            for bound in bounds:
                reply = client.post(path, json=body(path, {"max_tokens": 1, name: bound}))
                assert reply.status_code == 200, (path, name, bound, reply.text)


@pytest.mark.parametrize("path", PATHS)
def test_an_unknown_model_is_a_404_in_the_same_shape(client: httpx2.Client, path: str) -> None:
    reply = client.post(path, json=body(path, {"model": "nobody"}))
    found = reply.json()
    assert reply.status_code == 404
    assert "nobody" in (found["message"] if path == EMPOWER else found["error"]["message"])
