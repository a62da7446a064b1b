"""Scale's endpoints on a running server: answers, streams, errors and credentials."""

import json
from typing import Any

import pytest

from antiphon.dialects.sgp.encode import encode_sgp_error, map_status
from antiphon.errors import EngineDied, InvalidValue, PermissionDenied
from antiphon_testing import ScriptedAnswer
from tests.support.http_server import HELLO, KEY, PROMPT, serving

CHAT, TEXT = "/sgp/v4/beta/chat/completions", "/sgp/v4/beta/completions"
BOTH = [(CHAT, HELLO), (TEXT, PROMPT)]


async def test_answers_have_the_pages_keys():
    async with serving(ScriptedAnswer(("Hi", " there."))) as server:
        chat, text = [(await server.ask(path, body)).json() for path, body in BOTH]
    for answer in (chat, text):
        assert answer.keys() == {"id", "object", "created", "model", "choices", "usage"}
        assert {"prompt_tokens", "completion_tokens", "total_tokens"} <= answer["usage"].keys()
        assert answer["choices"][0]["index"] == 0 and answer["choices"][0]["finish_reason"] == "stop"
    assert (chat["object"], text["object"]) == ("chat.completion", "text_completion")
    assert chat["choices"][0]["message"]["content"] == text["choices"][0]["text"] == "Hi there."


@pytest.mark.parametrize(("path", "body"), BOTH)
async def test_a_stream_says_what_is_buffered_and_just_ends(path: str, body: dict[str, Any]):
    async with serving(ScriptedAnswer(("Hi", " there."))) as server:
        whole = (await server.ask(path, body)).json()
        reply = await server.ask(path, body | {"stream": True, "stream_options": {"include_usage": True}})
    *chunks, last = reply.events()
    parts = [each["choices"][0] for each in chunks]
    said = [each["text"] if path == TEXT else each["delta"].get("content") or "" for each in parts]
    assert "".join(said) == "Hi there." and parts[-1]["finish_reason"] == "stop"
    assert {each["object"] for each in chunks} == {
        "text_completion" if path == TEXT else "chat.completion.chunk"
    }
    assert last["choices"] == [] and last["usage"] == whole["usage"]
    assert b"event:" not in reply.body and b"[DONE]" not in reply.body


@pytest.mark.parametrize(("path", "body"), BOTH)
async def test_a_break_is_an_event_of_its_own(path: str, body: dict[str, Any]):
    error = EngineDied("the engine's process ended")
    async with serving(ScriptedAnswer(("Hi", " there"), error=error, error_after=1)) as server:
        reply = await server.ask(path, body | {"stream": True})
    *_, last = reply.body.decode().strip().split("\n\n")
    assert reply.status == 200 and last.startswith("event: error\ndata: {")
    assert reply.events()[-1] == {"detail": "the engine's process ended", "status_code": 503}


@pytest.mark.parametrize(
    ("fields", "loc", "kind"),
    [
        ({"temperature": "hot"}, ["body", "temperature"], "value_error"),
        ({"mood": 1}, ["body", "mood"], "extra_forbidden"),
        ({"model": None}, ["body", "model"], "missing"),
        ({"store": True}, ["body", "store"], "unsupported_parameter"),
        ({"messages": [{"role": 7}]}, ["body", "messages", 0, "role"], "value_error"),
        ({"logit_bias": {"7": 101}}, ["body", "logit_bias", "7"], "value_error"),
    ],
)
async def test_bad_input_is_a_list_of_problems(fields: Any, loc: Any, kind: str):
    async with serving() as server:
        reply = await server.ask(CHAT, HELLO | fields)
    (problem,) = reply.json()["detail"]
    assert reply.status == 422 and reply.json().keys() == {"detail"}
    assert (problem["loc"], problem["type"]) == (loc, kind) and str(loc[1]) in problem["msg"]


async def test_other_errors_are_a_sentence():
    async with serving(key=KEY) as server:
        known = {"x-api-key": KEY}
        unknown = await server.ask(CHAT, HELLO | {"model": "nobody"}, headers=known)
        broken = await server.ask(CHAT, b"{", headers=known)
        path = await server.ask("/sgp/v1/chat/completions", HELLO, headers=known)
        method = await server.ask(CHAT, method="GET", headers=known)
        stranger = await server.ask(CHAT, HELLO, headers={"x-api-key": "nobody's"})
    assert [each.status for each in (unknown, broken, path, method, stranger)] == [404, 422, 404, 405, 401]
    for reply in (unknown, path, method, stranger):
        assert isinstance(reply.json()["detail"], str) and reply.headers["x-request-id"]
    assert "nobody" in unknown.json()["detail"] and CHAT in path.json()["detail"]
    assert broken.json()["detail"][0] | {"msg": ""} == {"loc": ["body"], "msg": "", "type": "json_invalid"}


async def test_either_header_carries_the_key():
    async with serving(key=KEY) as server:
        for headers in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}):
            assert (await server.ask(CHAT, HELLO, headers=headers)).status == 200
        both = await server.ask(CHAT, HELLO, headers={"x-api-key": KEY, "authorization": "Bearer other"})
    assert both.status == 422 and both.json()["detail"][0]["loc"] == ["header", "x-api-key"]


async def test_without_keys_the_account_is_named_as_ignored():
    for headers, named in (
        ({"x-selected-account-id": "a"}, "x-selected-account-id"),
        ({"x-user-id": ""}, None),
    ):
        async with serving() as server:
            for stream in (False, True):
                reply = await server.ask(CHAT, HELLO | {"stream": stream}, headers=headers)
                assert reply.status == 200 and reply.headers.get("x-antiphon-ignored") == named


def test_a_refused_account_is_named_as_scale_names_it():
    refused = PermissionDenied("this key belongs to another project", param="x-project-id")
    assert map_status(refused) == 403
    detail = "x-selected-account-id: this key belongs to another project"
    assert json.loads(encode_sgp_error(refused)) == {"detail": detail}


def test_an_error_of_the_account_names_no_other_header():
    for name in ("x-project-id", "X-PROJECT-ID"):
        wrong = InvalidValue(f"name one in the header {name}", param="x-project-id")
        (problem,) = json.loads(encode_sgp_error(wrong))["detail"]
        assert problem["loc"] == ["header", "x-selected-account-id"]
        assert problem["msg"] == "name one in the header x-selected-account-id"
