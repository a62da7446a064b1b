"""What the log says of requests that are refused: one record of each, and no word of a caller."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.domain.limits import Measure, Window
from antiphon.errors import EngineBusy, EngineDied, EngineUnavailable
from antiphon.telemetry.logs import FIELDS, LineHandler, format_json, format_text
from antiphon_testing import (
    Script,
    ScriptedAnswer,
    ScriptedEmbeddingEngine,
    ScriptedTokenEngine,
    scripted_info,
)
from tests.support.accounting import limit, limited
from tests.support.http_server import CHAT, HELLO, KEY, PROMPT, TEXT, request_bytes, serving, serving_tokens
from tests.support.keyed_server import ROOT, keyed

FIREWORKS = "/fireworks/inference/v1"
EMPOWER = "/empower/api/v1"
WORD = "canaryWord7f3"
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": PARAMETERS}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}
TALK = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "t"}], "name": "n"},
    {"role": "assistant", "content": "a", "tool_calls": [CALL], "reasoning_content": "r"},
    {"role": "tool", "content": "x", "tool_call_id": "c1"},
]
RICH: dict[str, Any] = {
    "model": "m", "messages": TALK, "tools": [TOOL], "tool_choice": "auto", "stop": ["z"], "user": "u",
    "logit_bias": {"1": 1}, "bad_words": ["w"], "chat_template_kwargs": {"enable_thinking": True},
    "response_format": {"type": "text"}, "stream_options": {"include_usage": True}, "stream": True,
    "structured_outputs": {"regex": "r"}, "cache_salt": "s", "reasoning_effort": "none",
}  # fmt: skip
BODIES: dict[str, dict[str, Any]] = {
    CHAT: RICH,
    TEXT: {"model": "m", "prompt": ["p"], "stop": "z", "guided_choice": ["a"], "logit_bias": {"1": 1}},
    "/v1/embeddings": {"model": "e", "input": ["i"], "user": "u"},
    "/tokenize": {"model": "m", "prompt": "p"},
    "/v1/apply-template": {"model": "m", "messages": TALK},
    "/detokenize": {"model": "m", "tokens": [1]},
    "/v1/load_lora_adapter": {"lora_name": "l", "lora_path": "p"},
    "/v1/unload_lora_adapter": {"lora_name": "l"},
    f"{FIREWORKS}/chat/completions": {
        "model": "m", "messages": TALK, "tools": [TOOL], "tool_choice": {"type": "function", "name": "f"},
        "response_format": {"type": "grammar", "grammar": "g"}, "thinking": {"type": "disabled"},
    },
    f"{FIREWORKS}/completions": {"model": "m", "prompt": "p", "images": ["i"], "stop": ["z"]},
    f"{EMPOWER}/chat/completions": {"model": "m", "messages": ["a"], "function_call": "auto", "stop": "z"},
    f"{EMPOWER}/lora": {"model_name": "a/b", "model_source": "HF_HUB", "hf_revision": "r", "hf_token": "t"},
}  # fmt: skip
HEADERS = (
    "authorization", "x-api-key", "api-key", "x-project-id", "x-selected-account-id", "x-user-id", "origin",
    "host", "content-type", "content-encoding", "transfer-encoding", "user-agent", "referer", "cookie",
    "accept", "sec-fetch-site", "sec-fetch-mode", "expect", "upgrade", "x-forwarded-for", WORD,
)  # fmt: skip


def spoilt(value: Any) -> Iterator[Any]:
    """The same value with the word in one place of it: as a text, in a list, as a key, in place of a key."""
    yield WORD
    yield [WORD]
    yield {WORD: WORD}
    if isinstance(value, dict):
        yield {**value, WORD: WORD}
        for name, inner in value.items():
            yield from ({**value, name: each} for each in spoilt(inner))
            yield {WORD if each == name else each: kept for each, kept in value.items()}
            yield {**value, f"{name}.{WORD}": 1}
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from ([*value[:at], each, *value[at + 1 :]] for each in spoilt(inner))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """All that was logged, in both forms."""
    return [
        form.format(record)
        for form in (LineHandler(format_text), LineHandler(format_json))
        for record in caplog.records
    ]


def records(caplog: pytest.LogCaptureFixture, request_id: str) -> list[dict[str, Any]]:
    """What the log says of a request, each record with its event."""
    found = [{"event": each.message} | getattr(each, FIELDS, {}) for each in caplog.records]
    return [each for each in found if each.get("request_id") == request_id]


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="antiphon")
    return caplog


def rendered():
    engine = ScriptedTokenEngine(Script("hi"), info=scripted_info(context_length=200))
    return serving_tokens(m=engine, e=ScriptedEmbeddingEngine())


@pytest.mark.parametrize("path", BODIES)
async def test_no_word_of_a_body_reaches_a_log(log, path):
    refused = 0
    async with rendered() as server, server.line() as line:
        for body in spoilt(BODIES[path]):
            await line.send(request_bytes(path, body))
            refused += (await line.reply()).status >= 400
    assert refused > 5 and not [line for line in lines(log) if WORD in line]


async def test_no_word_of_headers_queries_and_names_reaches_a_log(log):
    paths = (
        f"/v1/models/{WORD}",
        f"{FIREWORKS}/models/{WORD}",
        f"{EMPOWER}/lora/{WORD}",
        f"/health?{WORD}=1",
    )
    word = WORD.encode()
    async with serving(key=KEY) as server:
        bearer = {"authorization": f"Bearer {KEY}"}
        for name in HEADERS:
            for value in (WORD, f"Bearer {WORD}", f"http://{WORD}.example"):
                await server.ask(CHAT, HELLO, headers=bearer | {name: value})
        for path in paths:
            assert (await server.ask(path, headers=bearer)).status < 500
        for body in (word, b'{"' + word * 9 + b'": 1,', b'{"%b": 1, "%b": 2}' % (word, word)):
            assert (await server.ask(CHAT, body, headers=bearer)).status == 400
        assert (await server.raw(word + b" / HTTP/1.1\r\n\r\n")).status == 400
    assert log.records and not [line for line in lines(log) if WORD in line]


async def test_no_word_sent_to_the_admin_api_reaches_a_log(log, tmp_path):
    bodies = {
        "/projects": {"name": "p"}, "/users": {"name": "u", "email": "a@b.example"},
        "/keys": {"kind": "service", "project": "default", "limits": [{"measure": "tokens", "amount": 1}]},
        "/limits": {"subject": "key", "target": "k", "measure": "requests", "amount": 1, "window": "day"},
        "/prices": {"model": "m", "input": "1", "output": "1", "currency": "EUR"},
    }  # fmt: skip
    async with keyed(tmp_path) as server:
        for path, body in bodies.items():
            for each in spoilt(body):
                await server.asked(server.admin, ROOT + path, each)
            for query in (f"?{WORD}=1", f"?limit={WORD}", f"?after={WORD}"):
                assert (await server.asked(server.admin, ROOT + path + query)).status >= 400
    assert log.records and not [line for line in lines(log) if WORD in line]


NO_SCHEMA = {"type": "json_schema", "json_schema": {"name": "n"}}
THINKING = {"type": "enabled", "budget_tokens": 1}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, HELLO | {"temprature": 1}, "(unknown)"),
        (CHAT, HELLO | {"logit_bias": {WORD: 1}}, "logit_bias"),
        (CHAT, HELLO | {"messages": [{"role": "user", "content": "a", WORD: 1}]}, "messages[0]"),
        (CHAT, HELLO | {"stop": [1]}, "stop[0]"),
        (CHAT, HELLO | {"functions": [{}]}, "functions"),
        (CHAT, HELLO | {"response_format": NO_SCHEMA}, "response_format.json_schema.schema"),
        (f"{FIREWORKS}/chat/completions", HELLO | {"thinking": THINKING}, "thinking.budget_tokens"),
        (f"{EMPOWER}/chat/completions", HELLO | {"include_thinking": 1}, "include_thinking"),
        (f"{EMPOWER}/lora", {"model_name": 1, "model_source": "HF_HUB"}, "model_name"),
    ],
)
async def test_known_fields_are_logged_by_name_and_others_are_not(log, served, path, body, param):
    reply = await served.ask(path, body)
    (line,) = records(log, reply.headers["x-request-id"])
    said = reply.json()
    assert (reply.status, line["param"]) == (400, param)
    assert said.get("error", said)["param"].startswith(param.replace("(unknown)", "temprature"))


# --- one record of each request -----------------------------------------------------------------------------


REFUSED: dict[str, tuple[str, Any, dict[str, Any], int, str | None]] = {
    "a field": (CHAT, HELLO | {"n": 0}, {}, 400, None),
    "no JSON": (CHAT, b"{", {}, 400, None),
    "a model": (CHAT, HELLO | {"model": "zzz"}, {}, 404, None),
    "the context": (CHAT, HELLO | {"max_tokens": 1000}, {}, 400, "m"),
    "the context of a stream": (CHAT, HELLO | {"max_tokens": 1000, "stream": True}, {}, 400, "m"),
    "the context of a vector": ("/v1/embeddings", {"model": "e", "input": "y" * 2000}, {}, 400, "e"),
    "a model without vectors": ("/v1/embeddings", {"model": "m", "input": "y"}, {}, 400, "m"),
    "token ids": ("/detokenize", {"model": "m", "tokens": [99_999]}, {}, 400, "m"),
    "a path": ("/v1/nowhere", HELLO, {}, 404, None),
    "a method": (CHAT, None, {}, 405, None),
    "a host": (CHAT, HELLO, {"host": "evil.example"}, 403, None),
    "no host": (CHAT, HELLO, {"host": None}, 400, None),
    "a type": (CHAT, HELLO, {"content-type": "text/plain"}, 415, None),
    "headers": (CHAT, HELLO, {"x": "y" * 70_000}, 431, None),
}


@pytest.mark.parametrize(("path", "body", "headers", "status", "model"), REFUSED.values(), ids=REFUSED)
async def test_a_refused_request_is_logged_once(log, path, body, headers, status, model):
    async with rendered() as server:
        reply = await server.ask(path, body, headers=headers)
    (line,) = records(log, reply.headers["x-request-id"])
    assert (line["event"], line["status"], reply.status) == ("refused", status, status)
    assert (line["code"], line.get("model")) == (reply.error["code"], model)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [None, 2], ids=["at once", "midway"])
@pytest.mark.parametrize("error", [EngineBusy("full"), EngineDied("it died"), EngineUnavailable("away")])
async def test_a_failed_generation_is_logged_once(log, error, after, stream):
    async with serving(ScriptedAnswer(error=error, error_after=after)) as server:
        reply = await server.ask(CHAT, HELLO | {"stream": stream})
    (line,) = records(log, reply.headers["x-request-id"])
    assert line["event"] == ("stream_failed" if stream and after else "refused")
    assert (line["code"], line["model"], line["actor"]) == (error.code, "m", "anonymous")
    assert (line["completion_tokens"] > 0) is (after is not None)


async def test_a_limit_that_has_no_room_is_logged_once(log):
    async with limited(limit(Measure.REQUESTS, 1, Window.MINUTE)) as (server, _):
        replies = [await server.ask(TEXT, PROMPT) for _ in range(3)]
    found = [records(log, reply.headers["x-request-id"]) for reply in replies]
    assert [[line["event"] for line in each] for each in found] == [["generation"], ["refused"], ["refused"]]
    assert [each[0]["status"] for each in found] == ["ok", 429, 429]


async def test_work_that_the_edge_ends_is_logged_once(log):
    async with serving(ScriptedAnswer(gate=asyncio.Event()), request_timeout=0.05) as server:
        reply = await server.ask(CHAT, HELLO)
    (line,) = records(log, reply.headers["x-request-id"])
    assert (line["event"], line["status"], line["model"]) == ("refused", 504, "m")


async def test_bad_bytes_are_logged_once(log, served):
    reply = await served.raw(b"NO HTTP\r\n\r\n")
    (line,) = records(log, reply.headers["x-request-id"])
    assert (line["event"], line["status"], line["code"]) == ("refused", 400, "invalid_request")


# --- paths that are none ------------------------------------------------------------------------------------


MEANT = {
    ("POST", "/chat/completions"): CHAT,
    ("POST", "/v1/v1/chat/completions"): CHAT,
    ("POST", "/api/v1/chat/completions"): CHAT,
    ("POST", "/openai/v1/chat/completions"): CHAT,
    ("POST", "/inference/v1/chat/completions"): CHAT,
    ("POST", "/openai/deployments/gpt/chat/completions"): CHAT,
    ("POST", "/v1/chat/completions/"): CHAT,
    ("POST", "//v1/chat/completions"): CHAT,
    ("POST", "/V1/Chat/Completions"): CHAT,
    ("POST", "/v1/chat/completion"): CHAT,
    ("POST", "/chat/completion"): CHAT,
    ("POST", "/v1/chat/completoins"): CHAT,
    ("POST", "/v1/completion"): TEXT,
    ("POST", "/embeddings"): "/v1/embeddings",
    ("POST", "/fireworks/v1/chat/completions"): f"{FIREWORKS}/chat/completions",
    ("POST", "/fireworks/v1/v1/completions"): f"{FIREWORKS}/completions",
    ("POST", "/fireworks/completions"): f"{FIREWORKS}/completions",
    ("POST", "/fireworks/inference/v1/completion"): f"{FIREWORKS}/completions",
    ("POST", "/empower/v1/chat/completions"): f"{EMPOWER}/chat/completions",
    ("POST", "/lora"): f"{EMPOWER}/lora",
    ("GET", "/models"): "/v1/models",
    ("GET", "/models/org/a"): "/v1/models/org/a",
    ("GET", "/v1/model"): "/v1/models",
    ("GET", "/health/"): "/health",
}
FAR = ("/x", "/v1", "/favicon.ico", "/v1/audio/speech", "/v1/files", "/admin/v1/keys", "/" + "v" * 300)


def message(reply: Any) -> str:
    said = reply.json()
    return str(said.get("error", said)["message"])


async def test_a_path_that_is_nearly_right_is_told_the_right_one(served):
    for (method, path), meant in MEANT.items():
        reply = await served.ask(path, HELLO if method == "POST" else None)
        assert reply.status == 404 and f"did you mean {meant}?" in message(reply), (path, message(reply))


async def test_a_path_that_is_far_from_all_is_told_of_the_document(served):
    for path in FAR:
        reply = await served.ask(path, HELLO)
        assert reply.status == 404 and message(reply) == "no such path; GET /openapi.json lists all", path


@pytest.mark.parametrize(
    ("path", "logged"),
    [
        ("/chat/completions", "/chat/completions"),
        ("/a%0aevent=forged", "/a%0aevent=forged"),
        ("/x?token=canary", "/x"),
        ("/" + "y" * 5000, "/" + "y" * 199 + "..."),
    ],
)
async def test_a_path_that_is_none_is_logged_with_the_client(log, served, path, logged):
    reply = await served.ask(path, headers={"x-request-id": "trace-1"})
    (line,) = records(log, "trace-1")
    assert reply.status == 404
    assert (line["code"], line["path"], line["client"]) == ("route_not_found", logged, "127.0.0.1")
    assert all(text.isprintable() and "canary" not in text for text in lines(log))
