"""The Fireworks dialect over HTTP: its errors wherever they happen below its prefix, its names of models, and
its list of models."""

import asyncio

import pytest

from antiphon.engines.registry import Model, ModelRoute
from antiphon.errors import EngineDied, EngineUnavailable, Overloaded
from antiphon.http.services import load_entry
from antiphon_testing import ScriptedAnswer, ScriptedEngine
from tests.support.http_server import HELLO, KEY, PROMPT, request_bytes, serving

BASE = "/fireworks/inference/v1"
TEXT = f"{BASE}/completions"
CHAT = f"{BASE}/chat/completions"


def told(reply):
    error = reply.error
    assert error.keys() == {"message", "param", "code"}
    return reply.status, error["code"], error["param"]


@pytest.mark.parametrize(
    ("path", "body", "how", "expected"),
    [
        (TEXT, PROMPT | {"n": 129}, {}, (400, "INVALID_ARGUMENT", "n")),
        (TEXT, {"prompt": "p"}, {}, (400, "INVALID_ARGUMENT", "model")),
        (CHAT, HELLO | {"messages": []}, {}, (400, "INVALID_ARGUMENT", "messages")),
        (CHAT, b"{", {}, (400, "INVALID_ARGUMENT", None)),
        (TEXT, PROMPT, {"headers": {"content-type": "text/plain"}}, (400, "INVALID_ARGUMENT", None)),
        (TEXT, PROMPT, {"headers": {"origin": "http://evil.example"}}, (403, "PERMISSION_DENIED", None)),
        (TEXT, PROMPT | {"model": "other"}, {}, (404, "NOT_FOUND", "model")),
        (f"{BASE}/models/other", None, {}, (404, "NOT_FOUND", "model")),
        (f"{BASE}/completion", PROMPT, {}, (404, "NOT_FOUND", None)),
        ("/fireworks", None, {}, (404, "NOT_FOUND", None)),
        (TEXT, None, {}, (405, "METHOD_NOT_ALLOWED", None)),
        (f"{BASE}/models", PROMPT, {}, (405, "METHOD_NOT_ALLOWED", None)),
        (TEXT, b" " * 2000, {}, (413, "PAYLOAD_TOO_LARGE", None)),
    ],
    ids=range(13),
)
async def test_every_refusal_has_its_status_and_word(path, body, how, expected):
    engine = ScriptedEngine()
    async with serving(engine, max_body_bytes=1024) as server:
        assert told(await server.ask(path, body, **how)) == expected
    assert engine.streams == []


@pytest.mark.parametrize(
    "path", [TEXT, CHAT, f"{BASE}/models", f"{BASE}/models/m", f"{BASE}/x", "/fireworks"]
)
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}])
async def test_every_path_asks_for_the_key_in_fireworks_words(path, headers):
    async with serving(key=KEY) as server:
        for method in ("GET", "POST", "DELETE"):
            reply = await server.ask(
                path, HELLO if method == "POST" else None, method=method, headers=headers
            )
            assert told(reply) == (401, "UNAUTHORIZED", None)
            assert reply.error["message"].startswith("The API key you provided is invalid")
        allowed = {"authorization": f"Bearer {KEY}"}
        assert (await server.ask(f"{BASE}/models", headers=allowed)).status == 200
        assert (await server.ask(TEXT, PROMPT, headers=allowed)).status == 200


async def test_headers_that_never_end_are_refused_in_fireworks_words():
    async with serving() as server:
        reply = await server.raw(request_bytes(TEXT, PROMPT, headers={"x": "y" * 70_000}))
    assert told(reply) == (400, "INVALID_ARGUMENT", None)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (EngineUnavailable("m is restarting", retry_after=2), (503, "SERVICE_UNAVAILABLE", None)),
        (Overloaded("too much waits", retry_after=2), (429, "RATE_LIMIT_EXCEEDED", None)),
    ],
)
async def test_an_engine_that_cannot_is_told_with_when_to_try_again(error, expected):
    async with serving(ScriptedAnswer(error=error)) as server:
        for body in (PROMPT, PROMPT | {"stream": True}):
            reply = await server.ask(TEXT, body)
            assert (told(reply), reply.headers["retry-after"]) == (expected, "2")


async def test_a_time_that_is_up_is_a_408_that_nobody_shall_send_again():
    async with serving(ScriptedAnswer(wait=3600), request_timeout=0.05) as server:
        reply = await server.ask(TEXT, PROMPT)
    assert told(reply) == (408, "REQUEST_TIMEOUT", None)
    assert reply.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(("path", "body"), [(TEXT, PROMPT), (CHAT, HELLO)])
async def test_a_stream_that_breaks_says_so_and_has_no_end(path, body):
    broken = ScriptedAnswer(("a", "b"), error=EngineDied("it died"), error_after=1)
    async with serving(broken) as server:
        events = (await server.ask(path, body | {"stream": True})).events()
    assert events[-1]["error"]["code"] == "SERVICE_UNAVAILABLE"
    assert events[-2]["choices"][0]["finish_reason"] == "error"
    assert "[DONE]" not in events


@pytest.mark.parametrize(("path", "body"), [(TEXT, PROMPT), (CHAT, HELLO)])
async def test_a_stream_ends_with_usage_in_the_last_choice_and_done(path, body):
    async with serving() as server:
        buffered = (await server.ask(path, body)).json()
        *events, last, done = (await server.ask(path, body | {"stream": True})).events()
    assert done == "[DONE]"
    assert last["choices"][0]["finish_reason"] == buffered["choices"][0]["finish_reason"]
    assert last["usage"] == buffered["usage"]
    assert {event["usage"] for event in events} == {None}


@pytest.mark.parametrize("name", ["m", "accounts/fireworks/models/m"])
async def test_a_model_is_named_as_fireworks_names_it_and_repeated_so(name):
    async with serving() as server:
        reply = await server.ask(TEXT, PROMPT | {"model": name})
        shown = await server.ask(f"{BASE}/models/{name}")
        assert (reply.json()["model"], shown.json()["id"]) == (name, name)
        assert server.engine.streams[0].request.model == "m"


@pytest.mark.parametrize(
    "name",
    [
        "accounts/fireworks/models/m#mine/1",
        "m#mine",
        "m#accounts/a/deployments/d",
        "accounts/a/deployments/d",
    ],
)
async def test_a_deployment_that_there_is_none_of_is_not_found(name):
    async with serving() as server:
        reply = await server.ask(TEXT, PROMPT | {"model": name})
        assert told(reply) == (404, "NOT_FOUND", "model")
        assert reply.error["message"].startswith("Model not found, inaccessible, and/or not deployed")
        assert server.engine.streams == []


async def test_models_are_listed():
    async with serving() as server:
        (model,) = (await server.ask(f"{BASE}/models")).json()["data"]
    assert (model["id"], model["context_length"], model["supports_chat"]) == ("m", 2048, True)


async def test_a_list_does_not_wait_for_a_model_that_is_stuck():
    class Stuck(ScriptedEngine):
        async def profile(self):
            await asyncio.sleep(3600)

    class Away(ScriptedEngine):
        async def profile(self):
            raise EngineUnavailable("it is restarting")

    entry = await load_entry(Model("m", (ModelRoute(Stuck()),), 7), max_seconds=0.01)
    assert (entry.name, entry.profile) == ("m", None)
    async with serving(Away()) as server:
        (model,) = (await server.ask(f"{BASE}/models")).json()["data"]
    assert (model["id"], "context_length" in model, "supports_chat" in model) == ("m", False, False)


async def test_an_ignored_field_is_named_in_a_header():
    async with serving() as server:
        reply = await server.ask(TEXT, PROMPT | {"user": "u"})
    assert reply.headers["x-antiphon-ignored"] == "user"
