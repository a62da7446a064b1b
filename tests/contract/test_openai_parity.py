"""What OpenAI and vLLM take and give at the edges of their references, asked of cantor by the openai client
and over plain HTTP: streamed as buffered."""

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from antiphon import __version__
from tests.contract.calls import ASKED, WEATHER
from tests.contract.conftest import Target
from tests.support.server import Server
from tests.support.waiting import wait_until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WHO: Any = {"model": "cantor", "messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0}
STORY: Any = {"model": "cantor", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 12}
CALL: Any = {"model": "cantor", "messages": ASKED, "tools": [WEATHER], "tool_choice": "required"}
IDS: Any = {"return_token_ids": True}


@pytest.fixture
def wire(cantor: Target) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=cantor.url, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def wide(equipped: Server) -> Iterator[httpx2.Client]:
    """A server that gives log-probabilities of the whole vocabulary."""
    with equipped.client() as made:
        yield made


def choices(client: httpx2.Client, path: str, body: Any) -> list[Any]:
    """Of a buffered answer."""
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    found: list[Any] = reply.json()["choices"]
    return found


def parts(client: httpx2.Client, path: str, body: Any) -> list[Any]:
    """The parts of the choices of a streamed one."""
    reply = client.post(path, json=body | {"stream": True})
    lines = [line[6:] for line in reply.text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", reply.text
    return [part for line in lines[:-1] for part in json.loads(line)["choices"]]


def entries(choice: Any) -> list[Any]:
    """A choice's log-probabilities, one for each token."""
    scores = choice.get("logprobs") or {}
    if "content" in scores:
        found: list[Any] = scores["content"]
        return found
    columns = [column for name, column in sorted(scores.items()) if column is not None]
    assert len(set(map(len, columns))) <= 1, "the arrays of a text have equal length"
    return list(zip(*columns, strict=True))


def require_alike(client: httpx2.Client, path: str, body: Any) -> list[Any]:
    """The choices of the buffered answer, after the streamed one said the same tokens, part by part."""
    whole, told = choices(client, path, body), parts(client, path, body)
    for choice in whole:
        mine = [part for part in told if part["index"] == choice["index"]]
        for part in mine:
            assert len(part["token_ids"]) == len(entries(part)) or body.get("echo"), part
        assert [token for part in mine for token in part["token_ids"]] == choice["token_ids"]
        assert [entry for part in mine for entry in entries(part)] == entries(choice)
    return whole


# --- log-probabilities and token ids ---


def test_entries_and_ids_are_as_many_with_the_end_token(wire: httpx2.Client) -> None:
    asked = WHO | IDS | {"logprobs": True, "top_logprobs": 2, "n": 2, "max_tokens": 60}
    for choice in require_alike(wire, CHAT, asked):
        found = entries(choice)
        assert choice["finish_reason"] == "stop" and len(found) == len(choice["token_ids"]) > 2
        assert (found[-1]["token"], bytes(found[-1]["bytes"])) == ("<|im_end|>", b"<|im_end|>")
        assert len(found[-1]["top_logprobs"]) == 2
        assert "".join(entry["token"] for entry in found[:-1]) == choice["message"]["content"]


def test_what_a_stop_text_cuts_is_in_neither(wire: httpx2.Client) -> None:
    free = choices(wire, TEXT, STORY | IDS | {"logprobs": 1})[0]
    stop = free["text"][3:8]
    for more in ({}, {"include_stop_str_in_output": True}):
        asked = STORY | IDS | more | {"logprobs": 1, "stop": [stop]}
        (choice,) = require_alike(wire, TEXT, asked)
        assert len(entries(choice)) == len(choice["token_ids"]) < len(free["token_ids"])
        assert choice["token_ids"] == free["token_ids"][: len(choice["token_ids"])]
        (unscored,) = choices(wire, TEXT, {name: asked[name] for name in asked if name != "logprobs"})
        assert unscored["token_ids"] == choice["token_ids"]
        assert "".join(choice["logprobs"]["tokens"]).startswith(choice["text"])


def test_a_repeated_prompt_has_its_own_entries(wire: httpx2.Client) -> None:
    (choice,) = require_alike(wire, TEXT, STORY | IDS | {"logprobs": 0, "echo": True})
    assert len(entries(choice)) == len(choice["prompt_token_ids"]) + len(choice["token_ids"])


def test_calls_have_as_many_entries_as_ids(wire: httpx2.Client) -> None:
    (choice,) = require_alike(wire, CHAT, CALL | IDS | {"logprobs": True, "max_tokens": 80, "seed": 1})
    assert len(entries(choice)) == len(choice["token_ids"]) > 0 and choice["message"]["tool_calls"]


def test_fireworks_arrays_are_as_long_as_its_ids(wire: httpx2.Client) -> None:
    asked = {"messages": WHO["messages"], "max_tokens": 60, "temperature": 0, "logprobs": 1} | IDS
    path = "/fireworks/inference/v1/chat/completions"
    (choice,) = choices(wire, path, asked | {"model": "cantor"})
    assert choice["logprobs"]["token_ids"] == choice["token_ids"]
    assert choice["logprobs"]["tokens"][-1] == "<|im_end|>"


# --- OpenAI's looser corners ---

LOOSE: list[Any] = [
    {"n": None}, {"stop": None}, {"stop": []}, {"logit_bias": {}}, {"logit_bias": None}, {"user": ""},
    {"max_tokens": None}, {"stream": None}, {"stream_options": None},
    {"stream": False, "stream_options": None},
    {"seed": None}, {"temperature": None}, {"top_p": None}, {"presence_penalty": None},
    {"frequency_penalty": None}, {"best_of": 0}, {"best_of": None}, {"metadata": {}}, {"metadata": None},
]  # fmt: skip
LOOSE_CHAT: list[Any] = [
    {"tools": []}, {"tools": None}, {"tool_choice": None}, {"tool_choice": "none"}, {"functions": []},
    {"parallel_tool_calls": None}, {"response_format": None}, {"response_format": {"type": "text"}},
    {"logprobs": None, "top_logprobs": None}, {"logprobs": False, "top_logprobs": None},
    {"modalities": None}, {"modalities": ["text"]}, {"audio": None}, {"prediction": None}, {"store": None},
    {"store": False}, {"service_tier": None}, {"service_tier": "auto"}, {"reasoning_effort": None},
    {"max_completion_tokens": None}, {"safety_identifier": ""}, {"web_search_options": None},
    {"verbosity": None}, {"prompt_cache_key": ""},
]  # fmt: skip
LOOSE_TEXT: list[Any] = [
    {"suffix": None},
    {"suffix": ""},
    {"echo": None},
    {"logprobs": None},
    {"prompt": [""]},
]


def test_what_means_absent_is_taken(cantor: Target, wire: httpx2.Client) -> None:
    with openai.OpenAI(base_url=cantor.base_url, api_key="none", max_retries=0) as client:
        for fields in LOOSE + LOOSE_CHAT:
            body = {"max_completion_tokens": 1} | fields
            chat = client.chat.completions.create(
                model="cantor", messages=WHO["messages"], extra_body=body, timeout=60
            )
            assert chat.choices, fields
        for fields in LOOSE + LOOSE_TEXT:
            text = client.completions.create(model="cantor", prompt="Once", extra_body={"n": 1} | fields)
            assert text.choices, fields


def test_no_prompt_is_the_start_token(wire: httpx2.Client) -> None:
    begin = wire.get("/tokenizer_info").json()["bos_token"]
    (start,) = wire.post("/tokenize", json={"prompt": begin, "add_special_tokens": False}).json()["tokens"]
    asked = {"model": "cantor", "temperature": 0, "max_tokens": 6, "logprobs": 0} | IDS
    (wanted,) = require_alike(wire, TEXT, asked | {"prompt": [start]})
    for fields in ({}, {"prompt": None}, {"prompt": ""}, {"prompt": [""]}):
        (choice,) = require_alike(wire, TEXT, asked | fields)
        assert choice == wanted and choice["prompt_token_ids"] == [start]
    (echoed,) = require_alike(wire, TEXT, asked | {"prompt": "", "echo": True})
    assert echoed["text"] == wanted["text"] and echoed["logprobs"]["token_logprobs"][0] is None
    refused = wire.post(TEXT, json=asked | {"prompt": "", "add_special_tokens": False})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")


def test_best_of_zero_is_absent(wire: httpx2.Client) -> None:
    asked = STORY | IDS | {"n": 2, "logprobs": 0}
    assert require_alike(wire, TEXT, asked | {"best_of": 0}) == choices(wire, TEXT, asked)


@pytest.mark.parametrize("path", [CHAT, "/fireworks/inference/v1/chat/completions"])
def test_a_stream_of_a_call_alone_has_no_content(wire: httpx2.Client, path: str) -> None:
    asked = {"messages": ASKED, "tools": [WEATHER], "model": "cantor", "max_tokens": 80, "seed": 1, "n": 2}
    whole = choices(wire, path, asked | {"tool_choice": "required"})
    told = parts(wire, path, asked | {"tool_choice": "required"})
    for index in (0, 1):
        first, *rest = [part["delta"] for part in told if part["index"] == index]
        assert (first["role"], first["content"]) == ("assistant", None)
        assert not any("content" in delta for delta in rest) and whole[index]["message"]["content"] is None
    for choice in ("none", "auto"):
        first, *rest = parts(wire, path, asked | {"tool_choice": choice, "messages": WHO["messages"]})
        assert (first["delta"]["role"], first["delta"]["content"]) == ("assistant", "")


def test_metadata_that_nothing_keeps_is_named(cantor: Target) -> None:
    with openai.OpenAI(base_url=cantor.base_url, api_key="none", max_retries=0) as client:
        for stream in (False, True):
            reply: Any = client.chat.completions.with_raw_response.create(
                model="cantor", messages=WHO["messages"], metadata={"team": "blue"}, stream=stream
            )
            assert reply.headers["x-antiphon-ignored"] == "metadata"
        text: Any = client.completions.with_raw_response.create(
            model="cantor", prompt="Once", max_tokens=1, extra_body={"metadata": {"team": "blue"}}
        )
        assert text.headers["x-antiphon-ignored"] == "metadata"


# --- what vLLM has ---


def test_wanted_tokens_have_the_models_own_values(wide: httpx2.Client) -> None:
    wanted = [300, 7, 1500]
    fields = {"logprobs": 1, "logprob_token_ids": wanted, "return_tokens_as_token_ids": True, "max_tokens": 4}
    asked = STORY | IDS | fields | {"temperature": 0.9, "seed": 5, "logit_bias": {"7": -50}}
    (choice,) = require_alike(wide, TEXT, asked)
    whole = asked | {"logprobs": -1}
    del whole["logprob_token_ids"]
    (every,) = require_alike(wide, TEXT, whole)
    rows = zip(choice["logprobs"]["top_logprobs"], every["logprobs"]["top_logprobs"], strict=True)
    for token, (row, all_tokens) in zip(choice["token_ids"], rows, strict=True):
        assert list(row) == list(dict.fromkeys(f"token_id:{at}" for at in (token, *wanted)))
        assert all(math.isclose(value, all_tokens[name], abs_tol=1e-3) for name, value in row.items())
        total = math.fsum(map(math.exp, all_tokens.values()))
        assert len(all_tokens) > 1500 and math.isclose(total, 1, abs_tol=1e-3)
    talk = WHO | IDS | {"logprobs": True, "logprob_token_ids": wanted, "max_tokens": 3}
    (chat,) = require_alike(wide, CHAT, talk)
    for entry in entries(chat):
        assert entry["top_logprobs"][0]["token"] == entry["token"] and len(entry["top_logprobs"]) == 4


def test_minus_one_scores_the_whole_vocabulary(wide: httpx2.Client) -> None:
    asked = WHO | IDS | {"logprobs": True, "top_logprobs": -1, "prompt_logprobs": -1, "max_tokens": 2}
    reply = wide.post(CHAT, json=asked).json()
    size = len(reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"])
    assert size > 1500 and {len(row) for row in reply["prompt_logprobs"][1:]} == {size}
    assert len(reply["prompt_logprobs"]) == len(reply["prompt_token_ids"])
    too_many = wide.post(CHAT, json=WHO | {"logprobs": True, "top_logprobs": -1})
    assert too_many.status_code == 400 and "max_tokens" in too_many.json()["error"]["message"]


@pytest.mark.parametrize("many", [21, -1])
def test_more_than_the_operator_allows_is_refused_by_name(wire: httpx2.Client, many: int) -> None:
    for path, body, name in (
        (CHAT, WHO | {"logprobs": True, "top_logprobs": many}, "top_logprobs"),
        (TEXT, STORY | {"logprobs": many}, "logprobs"),
        (TEXT, STORY | {"prompt_logprobs": many}, "prompt_logprobs"),
    ):
        for stream in (False, True) if name != "prompt_logprobs" else (False,):
            refused = wire.post(path, json=body | {"stream": stream})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
            assert "at most 20" in refused.json()["error"]["message"]


def test_a_prompt_is_cut_on_the_side_that_is_asked(wire: httpx2.Client) -> None:
    asked = STORY | IDS | {"logprobs": 0, "max_tokens": 2}
    whole = choices(wire, TEXT, asked)[0]["prompt_token_ids"]
    for side, kept in (("left", whole[-3:]), ("right", whole[:3])):
        cut = asked | {"truncate_prompt_tokens": 3, "truncation_side": side}
        (choice,) = require_alike(wire, TEXT, cut)
        assert choice["prompt_token_ids"] == kept
    lone = wire.post(TEXT, json=asked | {"truncation_side": "right"})
    assert (lone.status_code, lone.json()["error"]["param"]) == (400, "truncation_side")


def test_the_server_says_its_version_load_and_tokenizer(wire: httpx2.Client) -> None:
    assert wire.get("/version").json() == {"version": __version__}
    wait_until(lambda: wire.get("/load").json() == {"server_load": 0}, what="what other tests left has ended")
    info = wire.get("/tokenizer_info", params={"model": "cantor"}).json()
    assert info == wire.get("/tokenizer_info").json()
    assert info["tokenizer_class"] and "messages" in info["chat_template"] and "/" not in info["bos_token"]
    names = {token: added["content"] for token, added in info["added_tokens_decoder"].items()}
    for token, name in names.items():
        shown = wire.post("/tokenize", json={"prompt": name, "add_special_tokens": False})
        assert shown.json()["tokens"] == [int(token)]
    assert {info["bos_token"], info["eos_token"], *info["additional_special_tokens"]} >= set(names.values())
    unknown = wire.get("/tokenizer_info", params={"model": "nobody"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "model")
