"""Another Antiphon as a provider: a request means the same there and through this server."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.support.model_files import CANTOR, write_encoder
from tests.support.server import Server, serving

pytestmark = pytest.mark.soak

CONFIG = """
[providers.near]
preset = "antiphon"
base_url = "{url}/v1"

[[models]]
name = "near/*"
provider = "near"
"""

CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
REPORTS = ("x-antiphon-ignored", "x-antiphon-relaxed")
OWN = frozenset({"id", "created", "model", "system_fingerprint", "prompt_tokens_details"})
"""What differs by its nature. How much of a prompt is cached depends on what came before."""

ASK = [{"role": "user", "content": "Tell me about the sea."}]
OPEN = {
    "messages": [*ASK, {"role": "assistant", "content": "The sea"}],
    "add_generation_prompt": False,
    "continue_final_message": True,
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "format": "odd"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
RESULTS = [
    *ASK,
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Hm."},
    {"role": "tool", "tool_call_id": "c1", "content": "snow"},
]

CHATS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"temperature": 1.5, "seed": 7, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "typical_p": 0.9},
    "mirostat": {"temperature": 1, "seed": 3, "mirostat_target": 3, "mirostat_lr": 0.2},
    "penalties": {"repetition_penalty": 1.7, "presence_penalty": 1.0, "frequency_penalty": -1.0},
    "tokens": {"logit_bias": {"100": 50}, "min_tokens": 12, "ignore_eos": True, "bad_words": ["the"]},
    "allowed tokens": {"allowed_token_ids": [100, 101, 102]},
    "stops": {"stop": ["e", "sea"], "include_stop_str_in_output": True},
    "stop tokens": {"stop_token_ids": list(range(50, 100)), "skip_special_tokens": False},
    "choices": {"n": 3, "temperature": 1, "seed": 4},
    "scores": {"logprobs": True, "top_logprobs": 3},
    "a cut prompt": {"truncate_prompt_tokens": 8, "truncation_side": "right"},
    "cache and queue": {"cache_salt": "x", "priority": 3, "prompt_cache_key": "k"},
    "an object": {"response_format": {"type": "json_object"}},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}},
    "a regex": {"guided_regex": "[ab]{5}"},
    "a choice": {"guided_choice": ["red", "blue"]},
    "a grammar": {"guided_grammar": 'start: "a" "b"'},
    "an open message": OPEN,
    "an echo": OPEN | {"echo": True},
    "a template": {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"},
    "a name": {"messages": [{"role": "user", "name": "ada", "content": "Hi"}]},
    "tools": {"tools": [WEATHER], "max_tokens": 60},
    "a required call": {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 60},
    "results": {"tools": [WEATHER], "messages": RESULTS},
    "no reasoning": {"reasoning_effort": "none", "include_reasoning": False},
}
TEXTS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "usual length": {"max_tokens": None},
    "prompts": {"prompt": ["The sea", "A tree"], "n": 2, "temperature": 1, "seed": 2},
    "tokens": {"prompt": [[100, 101], [103]]},
    "scores": {"logprobs": 3},
    "scored prompts": {"prompt": "naïve 日本語 👩🏽‍🚀", "echo": True, "logprobs": 1, "max_tokens": 0},
    "control tokens": {"prompt": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"},
    "no begin token": {"add_special_tokens": False},
    "a schema": {"response_format": {"type": "json_object"}},
    "a regex": {"guided_regex": "[ab]{4}"},
}
BUFFERED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"best_of": 3, "temperature": 1, "seed": 5}),
    (TEXT, {"best_of": 3, "temperature": 1, "seed": 5}),
    (EMBED, {"input": ["Hello", "Goodbye"]}),
    (EMBED, {"input": [1, 2, 3], "encoding_format": "base64"}),
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"max_tokens": 100_000}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": "word " * 3000}]}, "messages"),
    (CHAT, {"chat_template_kwargs": {"nothing": 1}}, "chat_template_kwargs.nothing"),
    (CHAT, {"documents": [{"text": "a"}]}, "documents"),
    (CHAT, {"reasoning_effort": "low"}, "reasoning_effort"),
    (TEXT, {"logprobs": -1}, "logprobs"),
    (EMBED, {"input": "word " * 500}, "input"),
    (EMBED, {"input": "a", "dimensions": 8}, "dimensions"),
]
LACKED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"return_token_ids": True}, "return_token_ids"),
    (CHAT, {"prompt_logprobs": 1}, "prompt_logprobs"),
    (CHAT, {"logprobs": True, "logprob_token_ids": [5]}, "logprob_token_ids"),
    (CHAT, {"logprobs": True, "return_tokens_as_token_ids": True}, "return_tokens_as_token_ids"),
    (CHAT, {"guided_json": PERSON, "guided_whitespace_pattern": "[ ]{2}"}, "guided_whitespace_pattern"),
    (CHAT, {"verbosity": "low"}, "verbosity"),
    (CHAT, {"service_tier": "flex"}, "service_tier"),
]


class Pair:
    """The other server, and this one before it."""

    def __init__(self, near: Server, gateway: Server) -> None:
        self._clients = (near.client(), gateway.client())

    def ask(self, path: str, body: dict[str, Any]) -> tuple[httpx2.Response, httpx2.Response]:
        """The answers of both to a request."""
        model = "encoder" if path == EMBED else "cantor"
        direct, gateway = self._clients
        return (
            direct.post(path, json=body | {"model": model}),
            gateway.post(path, json=body | {"model": f"near/{model}"}),
        )

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home = tmp_path_factory.mktemp("near")
    models = (f"--model={CANTOR}", f"--model={write_encoder(home / 'encoder.gguf')}")
    env = {"ANTIPHON_HOME": str(home / "near"), "ANTIPHON_REQUEST_TEMPLATES": "true"}
    with serving(*models, env=env) as near:
        file = home / "antiphon.toml"
        file.write_text(CONFIG.format(url=near.url))
        env = {"ANTIPHON_HOME": str(home / "gateway")}
        with serving("--config", str(file), threads=None, env=env) as gateway:
            found = Pair(near, gateway)
            yield found
            found.close()


def describe(value: Any) -> Any:
    """What an answer means. Numbers may differ in the last digit, since a gateway's batch is another one."""
    if isinstance(value, dict):
        return {name: describe(each) for name, each in value.items() if name not in OWN}
    if isinstance(value, list):
        return [describe(each) for each in value]
    return pytest.approx(value, abs=1e-3) if isinstance(value, float) else value


def join_chunks(text: str) -> dict[str, Any]:
    """What a stream means: the texts, calls, scores and ends of its choices, and its usage."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    joined: dict[str, Any] = {}
    for chunk in map(json.loads, lines):
        for choice in chunk["choices"]:
            delta, scores = choice.get("delta", choice), choice.get("logprobs") or {}
            found = joined.setdefault(choice["index"], {"text": "", "calls": "", "scores": [], "end": None})
            found["text"] += delta.get("content") or delta.get("text") or ""
            for call in delta.get("tool_calls") or ():
                found["calls"] += call["function"].get("name", "") + call["function"]["arguments"]
            found["scores"] += list(zip(*scores.values(), strict=True)) if "tokens" in scores else []
            found["scores"] += scores.get("content", [])
            found["end"] = choice["finish_reason"] or found["end"]
        joined["usage"] = chunk["usage"]
    return joined


def require_alike(direct: httpx2.Response, through: httpx2.Response) -> None:
    """Checks that two answers mean the same, and that both report the same fields."""
    assert (direct.status_code, through.status_code) == (200, 200), through.text
    reports = [{name: each.headers.get(name) for name in REPORTS} for each in (direct, through)]
    assert reports[0] == reports[1]
    if direct.headers["content-type"].startswith("text/event-stream"):
        assert describe(join_chunks(through.text)) == describe(join_chunks(direct.text))
    else:
        assert describe(through.json()) == describe(direct.json())


@pytest.mark.parametrize("is_streamed", [False, True], ids=["buffered", "streamed"])
@pytest.mark.parametrize("name", CHATS)
def test_a_chat_means_the_same(pair: Pair, name: str, is_streamed: bool):
    body = {"messages": ASK, "max_tokens": 12, "temperature": 0} | CHATS[name] | stream(is_streamed)
    require_alike(*pair.ask(CHAT, body))


@pytest.mark.parametrize("is_streamed", [False, True], ids=["buffered", "streamed"])
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_means_the_same(pair: Pair, name: str, is_streamed: bool):
    body = {"prompt": "The sea is", "max_tokens": 12, "temperature": 0} | TEXTS[name] | stream(is_streamed)
    require_alike(*pair.ask(TEXT, body))


def stream(is_streamed: bool) -> dict[str, Any]:
    """The fields that ask for a stream."""
    return {"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {}


def complete(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """A body with what its endpoint needs."""
    needed = {CHAT: {"messages": ASK, "max_tokens": 9}, TEXT: {"prompt": "The sea", "max_tokens": 9}}
    return needed.get(path, {}) | body


@pytest.mark.parametrize(("path", "body"), BUFFERED)
def test_a_whole_answer_is_the_same(pair: Pair, path: str, body: dict[str, Any]):
    require_alike(*pair.ask(path, complete(path, body)))


@pytest.mark.parametrize(("path", "body", "param"), REFUSED)
def test_a_refusal_names_the_same_field(pair: Pair, path: str, body: dict[str, Any], param: str):
    direct, through = (each.json()["error"] for each in pair.ask(path, complete(path, body)))
    assert direct["param"] == through["param"] == param
    assert direct["message"] in through["message"] and "provider near" in through["message"]
    if direct["code"] == "context_length_exceeded":
        assert through["code"] == direct["code"]


@pytest.mark.parametrize(("path", "body", "param"), LACKED)
def test_what_is_not_passed_on_is_refused_here(pair: Pair, path: str, body: dict[str, Any], param: str):
    _, through = pair.ask(path, complete(path, body))
    assert (through.status_code, through.json()["error"]["param"]) == (400, param)
    assert "not supported by the model cantor of the provider near" in through.json()["error"]["message"]
