"""JamAI Base's endpoints on a running server: answers, streams, errors, projects and access tokens."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from antiphon.dialects.jamai.errors import build_limit_headers, encode_jamai_error, get_error_name
from antiphon.dialects.jamai.features import FEATURES
from antiphon.domain.limits import Limit, LimitStatus, Measure, Subject, Window
from antiphon.domain.tenancy import KeyKind, ProjectRole
from antiphon.errors import (
    BudgetExceeded,
    Conflict,
    ContextLengthExceeded,
    EngineBusy,
    EngineDied,
    InternalError,
    PermissionDenied,
    ProviderKeyRefused,
    ProviderRefused,
    ProviderTimeout,
    RateLimited,
    UnsupportedMediaType,
)
from antiphon_testing import ScriptedAnswer
from tests.support.http_server import KEY, request_bytes, serving
from tests.support.keyed_server import OPERATOR, keyed

BASE = "/jamai/api"
CHAT, PATS, PROJECTS = f"{BASE}/v1/chat/completions", f"{BASE}/v2/pats", f"{BASE}/v2/projects"
HELLO: Any = {"messages": [{"role": "user", "content": "Hi"}]}
ENVELOPE = {"object", "error", "message", "detail", "request_id", "exception", "request_headers"}


@pytest.fixture
async def server(tmp_path):
    async with keyed(tmp_path) as running:
        yield running


# --- answers ---


@pytest.mark.parametrize("model", ["", None, "m", "antiphon/m"])
async def test_a_chat_is_answered_by_a_model_of_any_spelling(model: str | None):
    async with serving(ScriptedAnswer(("Hi", " there."))) as server:
        reply = (await server.ask(CHAT, HELLO | {"model": model})).json()
    assert reply["model"] == (model or "antiphon/m") and reply["object"] == "chat.completion"
    assert reply["choices"][0]["message"]["content"] == "Hi there."
    assert reply["usage"]["total_tokens"] == 4


async def test_a_stream_brings_the_usage_and_ends_with_a_mark():
    async with serving(ScriptedAnswer(("Hi", " there."))) as server:
        reply = await server.ask(CHAT, HELLO | {"stream": True})
    *chunks, last, mark = reply.events()
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks) == "Hi there."
    assert all(each["usage"] is None for each in chunks) and mark == "[DONE]"
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 2


async def test_a_silence_is_filled_with_blank_lines():
    gate = asyncio.Event()
    async with (
        serving(ScriptedAnswer(gate=gate), keep_alive_interval=0.05) as server,
        server.line() as line,
    ):
        await line.send(request_bytes(CHAT, HELLO | {"stream": True}))
        assert b"200 OK" in await line.until(b"\r\n\r\n")
        assert await line.until(b"1\r\n\n\r\n") == b"1\r\n\n\r\n"
        gate.set()
        rest = await line.until(b"[DONE]")
    assert not [part for part in rest.split(b"\n") if part.startswith((b":", b"event:", b"id:"))]


async def test_a_break_is_an_error_object_without_a_mark():
    error = EngineDied("the engine's process ended")
    async with serving(ScriptedAnswer(("Hi", " there"), error=error, error_after=1)) as server:
        reply = await server.ask(CHAT, HELLO | {"stream": True}, headers={"x-request-id": "mine"})
    *_, last = reply.events()
    assert (last["object"], last["error"], last["request_id"]) == ("error", "busy", "mine")
    assert b"[DONE]" not in reply.body and b"event:" not in reply.body


async def test_no_model_can_do_what_is_asked():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    async with serving() as server:
        seen = await server.ask(CHAT, {"messages": [{"role": "user", "content": [image]}]})
        vectors = await server.ask(f"{BASE}/v1/embeddings", {"input": "a"})
        ranks = await server.ask(f"{BASE}/v1/rerank", {"query": "a", "documents": ["b"]})
    for reply, needs in ((seen, "chat, image"), (vectors, "embed"), (ranks, "rerank")):
        assert (reply.status, reply.json()["error"]) == (404, "resource_not_found")
        assert f"the capabilities {needs};" in reply.json()["message"]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", ["antiphon/m"]),
        ("?model=m", ["antiphon/m"]),
        ("?model=antiphon/m", ["antiphon/m"]),
        ("?model=none", []),
        ("?capabilities=chat&capabilities=tool", ["antiphon/m"]),
        ("?capabilities=chat&capabilities=image", []),
        ("?order_by=name&order_ascending=false", ["antiphon/m"]),
    ],
)
async def test_models_are_chosen_by_the_query(query: str, ids: list[str]):
    async with serving() as server:
        listed = (await server.ask(f"{BASE}/v1/models{query}")).json()
    assert listed["object"] == "models.info" and [each["id"] for each in listed["data"]] == ids


async def test_ids_have_the_preferred_one_first_and_an_older_path():
    async with serving() as server:
        for path in ("models/ids", "model_names"):
            assert (await server.ask(f"{BASE}/v1/{path}?prefer=m&capabilities=chat")).json() == ["antiphon/m"]


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("v1/models?capabilities=taste", ["query", "capabilities"]),
        ("v1/models?colour=red", ["query", "colour"]),
        ("v1/models?model=a&model=b", ["query", "model"]),
        ("v2/projects/list?limit=0", ["query", "limit"]),
        ("v2/projects/list?offset=x", ["query", "offset"]),
        ("v2/projects/list?order_by=price", ["query", "order_by"]),
        ("v2/projects/list?order_ascending=maybe", ["query", "order_ascending"]),
        ("v2/projects/list?list_chat_agents=true", ["query", "list_chat_agents"]),
        ("v2/projects", ["query", "project_id"]),
    ],
)
async def test_a_query_that_cannot_be_is_refused_by_name(query: str, place: list[str]):
    async with serving() as server:
        reply = await server.ask(f"{BASE}/{query}")
    assert reply.status == 422 and reply.json()["detail"][0]["loc"] == place


# --- errors ---


async def test_a_wrong_field_is_a_validation_error_with_the_body():
    async with serving(key=KEY) as server:
        headers = {"authorization": f"Bearer {KEY}", "x-request-id": "mine", "cookie": "secret"}
        reply = await server.ask(CHAT, HELLO | {"temperature": 7}, headers=headers)
    error = reply.json()
    assert reply.status == 422 and error.keys() == ENVELOPE | {"body"}
    assert (error["object"], error["error"]) == ("error", "validation_error")
    assert error["body"] == HELLO | {"temperature": 7} and error["request_id"] == "mine"
    assert error["message"].startswith(
        "Your request contains errors:\n1. body.temperature : temperature must"
    )
    assert error["detail"] == [
        {"type": "value_error", "loc": ["body", "temperature"], "msg": error["detail"][0]["msg"]}
    ]
    assert error["request_headers"]["authorization"] == "***" and KEY not in reply.body.decode()
    assert "secret" not in reply.body.decode()


async def test_a_body_that_is_no_json_or_large_is_not_repeated():
    async with serving() as server:
        broken = await server.ask(CHAT, b"{")
        large = await server.ask(CHAT, HELLO | {"temperature": 7, "id": "a" * 70_000})
    for reply in (broken, large):
        assert reply.status == 422 and reply.json()["body"] is None
    assert broken.json()["detail"][0]["type"] == "json_invalid"


async def test_other_errors_have_no_body():
    async with serving(key=KEY) as server:
        known = {"authorization": f"Bearer {KEY}"}
        stranger = await server.ask(CHAT, HELLO)
        unknown = await server.ask(CHAT, HELLO | {"model": "none"}, headers=known)
        path = await server.ask(f"{BASE}/v1/chat", HELLO, headers=known)
        method = await server.ask(CHAT, method="GET", headers=known)
    found = [(reply.status, reply.json()["error"]) for reply in (stranger, unknown, path, method)]
    assert found == [
        (401, "unauthorized"),
        (404, "resource_not_found"),
        (404, "http_error"),
        (405, "method_not_allowed"),
    ]
    for reply in (stranger, unknown, path, method):
        assert reply.json().keys() == ENVELOPE and reply.json()["detail"] == reply.json()["message"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ProviderKeyRefused("k"), 401, "external_authentication_failed"),
        (PermissionDenied("p", param="x-project-id"), 401, "unauthorized"),
        (PermissionDenied("p"), 403, "forbidden"),
        (BudgetExceeded("b"), 403, "insufficient_credits"),
        (Conflict("c"), 409, "resource_exists"),
        (UnsupportedMediaType("u"), 415, "unsupported_media_type"),
        (ContextLengthExceeded("c"), 422, "context_overflow"),
        (ProviderRefused("p"), 422, "bad_input"),
        (RateLimited("r"), 429, "rate_limit_exceeded"),
        (InternalError("i"), 500, "unexpected_error"),
        (EngineBusy("e"), 503, "busy"),
        (ProviderTimeout("t"), 504, "unexpected_error"),
    ],
)
def test_each_error_has_jamais_status_and_code(error: Any, status: int, code: str):
    assert get_error_name(error)[:2] == (status, code)
    assert json.loads(encode_jamai_error(error, None))["error"] == code


def test_a_refusal_by_a_limit_has_whole_numbers():
    limit = Limit("limit_1", Subject.KEY, "key_1", Measure.REQUESTS, 3, 0, Window.MINUTE)
    error = RateLimited("r")
    error.statuses = (LimitStatus(limit, 1, 7.5),)
    headers = dict(build_limit_headers(error, 1000.0))
    assert headers.pop(b"x-ratelimit-meta") == b'{"measure":"requests","window":"minute"}'
    assert headers == {
        b"x-ratelimit-limit": b"3",
        b"x-ratelimit-remaining": b"1",
        b"x-ratelimit-reset": b"1008",
        b"x-ratelimit-used": b"2",
    }
    assert build_limit_headers(RateLimited("r"), 0) == () == build_limit_headers(Conflict("c"), 0)


@pytest.mark.parametrize("path", [*FEATURES, "v2/gen_tables/chat/rows/add", "v2/projects/members/list"])
async def test_what_is_missing_names_itself(path: str):
    async with serving() as server, server.line():
        for method in ("GET", "POST", "DELETE"):
            reply = await server.ask(f"{BASE}/{path}", {} if method == "POST" else None, method=method)
            assert (reply.status, reply.json()["error"]) == (501, "not_implemented")
            assert "not part of this server's JamAI Base: " in reply.json()["message"]
            assert reply.headers["x-should-retry"] == "false"


async def test_without_keys_there_is_one_project_and_no_token():
    async with serving() as server:
        listed = (await server.ask(f"{PROJECTS}/list?organization_id=antiphon")).json()
        other = await server.ask(f"{PROJECTS}/list?organization_id=mine")
        tokens = await server.ask(f"{PATS}/list")
    assert [each["id"] for each in listed["items"]] == ["default"]
    assert other.status == 404 and "the organization antiphon" in other.json()["message"]
    assert (tokens.status, tokens.json()["error"]) == (501, "not_implemented")
    assert "ANTIPHON_KEYS=true" in tokens.json()["message"]


# --- projects and headers ---


async def test_default_means_the_keys_own_project_here_alone(server):
    mine = await server.tenants.add_project(OPERATOR, "mine", "")
    bot = await server.token(KeyKind.SERVICE, project=mine.id)
    default = {"x-project-id": "default"}
    assert (await server.asked(bot, CHAT, HELLO, headers=default)).status == 200
    assert server.engine.streams[-1].context.actor.project == mine.id
    assert (await server.asked(bot, "/v1/models", headers=default)).status == 403
    other = await server.asked(bot, CHAT, HELLO, headers={"x-project-id": "other"})
    assert (other.status, other.json()["error"]) == (401, "unauthorized")
    operator = await server.asked(server.admin, CHAT, HELLO, headers=default)
    assert operator.status == 200 and server.engine.streams[-1].context.actor.project == "default"


async def test_a_token_of_several_projects_acts_in_the_oldest_if_it_names_none(server):
    older, newer = [await server.tenants.add_project(OPERATOR, name, "") for name in ("older", "newer")]
    user, token = await server.person(ProjectRole.MEMBER, newer.id)
    await server.tenants.put_member(OPERATOR, older.id, user, ProjectRole.MEMBER)
    bound = await server.token(KeyKind.ACCESS_TOKEN, user=user, project=newer.id)
    for headers in ({}, {"x-project-id": ""}, {"x-project-id": "default"}):
        for key, project in ((token, older.id), (bound, newer.id)):
            answer = await server.asked(key, CHAT, HELLO, headers=headers)
            assert answer.status == 200
            assert server.engine.streams[-1].context.actor.project == project
            is_chosen = key == token or headers.get("x-project-id") == "default"
            assert answer.headers.get("x-antiphon-project") == (project if is_chosen else None)
    chosen = await server.asked(token, CHAT, HELLO, headers={"x-project-id": newer.id})
    assert server.engine.streams[-1].context.actor.project == newer.id
    assert "x-antiphon-project" not in chosen.headers
    assert (await server.asked(bound, CHAT, HELLO, headers={"x-project-id": older.id})).status == 401
    elsewhere = await server.asked(token, "/v1/models")
    assert (elsewhere.status, elsewhere.error["param"]) == (400, "x-project-id")


async def test_a_service_key_acts_for_a_member_alone(server):
    user, _ = await server.person(ProjectRole.MEMBER)
    bot = await server.token(KeyKind.SERVICE, project="default")
    known = await server.asked(bot, CHAT, HELLO, headers={"x-user-id": user})
    assert known.status == 200 and server.engine.streams[-1].context.actor.user == user
    stranger = await server.asked(bot, CHAT, HELLO, headers={"x-user-id": "user_none"})
    assert (stranger.status, stranger.json()["error"]) == (401, "unauthorized")
    assert (await server.asked(bot, CHAT, HELLO, headers={"x-user-id": ""})).status == 200


async def test_a_caller_sees_their_own_projects(server):
    mine = await server.tenants.add_project(OPERATOR, "Mine", "of Ann")
    hidden = await server.tenants.add_project(OPERATOR, "hidden", "")
    _, ann = await server.person(ProjectRole.OWNER, mine.id)
    listed = (await server.asked(ann, f"{PROJECTS}/list?search_query=MIN&limit=1")).json()
    (project,) = listed["items"]
    assert (project["name"], project["description"], listed["total"]) == ("Mine", "of Ann", 1)
    shown = (await server.asked(ann, f"{PROJECTS}?project_id={mine.id}")).json()
    assert shown == project and shown["organization"]["id"] == "antiphon"
    for id_ in (hidden.id, "none"):
        assert (await server.asked(ann, f"{PROJECTS}?project_id={id_}")).status == 404
    every = (await server.asked(server.admin, f"{PROJECTS}/list?order_by=name&order_ascending=false")).json()
    assert [each["name"] for each in every["items"]] == sorted(
        [each["name"] for each in every["items"]], reverse=True
    )


# --- access tokens ---


async def test_a_token_is_shown_once_and_taken_by_both_names(server):
    user, ann = await server.person(ProjectRole.MEMBER)
    made = (await server.asked(ann, PATS, {"name": "laptop", "expiry": None, "meta": {}})).json()
    token = made["id"]
    assert (made["user_id"], made["name"], made["expiry"], made["project_id"]) == (user, "laptop", None, None)
    assert (await server.asked(token, CHAT, HELLO)).status == 200
    listed = (await server.asked(ann, f"{PATS}/list")).json()
    assert token not in json.dumps(listed) and listed["total"] == 2
    (kept,) = [each for each in listed["items"] if each["name"] == "laptop"]
    for id_, name in ((token, "phone"), (kept["id"], "desk")):
        changed = await server.asked(ann, f"{PATS}?pat_id={id_}", {"name": name}, method="PATCH")
        assert (changed.json()["name"], changed.json()["id"]) == (name, kept["id"])
    until = "2099-01-01T00:00:00Z"
    ended = await server.asked(ann, f"{PATS}?pat_id={token}", {"expiry": until}, method="PATCH")
    assert ended.json()["expiry"] == until and ended.json()["name"] == "desk"
    assert (await server.asked(ann, f"{PATS}?pat_id={token}", method="DELETE")).json()["ok"] is True
    assert (await server.asked(token, CHAT, HELLO)).status == 401
    assert (await server.asked(ann, f"{PATS}?pat_id={token}", method="DELETE")).status == 404


async def test_tokens_of_others_are_as_good_as_none(server):
    _, ann = await server.person(ProjectRole.OWNER)
    eve_id, eve = await server.person(ProjectRole.MEMBER)
    for path, method in ((f"?pat_id={ann}", "DELETE"), (f"?pat_id={ann}", "PATCH")):
        body = {"name": "x"} if method == "PATCH" else None
        assert (await server.asked(eve, PATS + path, body, method=method)).status == 404
    listed = (await server.asked(eve, f"{PATS}/list")).json()["items"]
    assert {each["user_id"] for each in listed} == {eve_id}
    bot = await server.token(KeyKind.SERVICE, project="default")
    for headers in ({}, {"x-user-id": eve_id}):
        assert (await server.asked(bot, f"{PATS}/list", headers=headers)).status == 403
    assert (await server.asked(ann, CHAT, HELLO)).status == 200


async def test_no_token_gets_more_than_its_makers(server):
    mine = await server.tenants.add_project(OPERATOR, "mine", "")
    user, _ = await server.person(ProjectRole.MEMBER)
    until = int(datetime(2099, 1, 1, tzinfo=UTC).timestamp())
    bound = await server.token(KeyKind.ACCESS_TOKEN, user=user, project="default", expires=until)
    for expiry in (None, "2100-01-01T00:00:00Z"):
        late = await server.asked(bound, PATS, {"name": "a", "expiry": expiry})
        assert late.status == 403 and "expiry must be at most 2099-01-01" in late.json()["message"]
    soon = (await server.asked(bound, PATS, {"name": "a", "expiry": "2098-01-01T00:00:00Z"})).json()
    assert soon["project_id"] == "default"
    other = {"name": "a", "expiry": "2098-01-01T00:00:00Z", "project_id": mine.id}
    refused = await server.asked(bound, PATS, other)
    assert refused.status == 403 and "project_id must be default" in refused.json()["message"]
    assert (await server.asked(bound, PATS, other | {"project_id": ""})).json()["project_id"] == "default"
    unnamed = await server.asked(server.admin, PATS, {"name": "a"})
    assert unnamed.status == 401 and "X-USER-ID is missing" in unnamed.json()["message"]
    named = await server.asked(server.admin, PATS, {"name": "a"}, headers={"x-user-id": user})
    assert named.json()["user_id"] == user


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, ["body", "name"]),
        ({"name": ""}, ["body", "name"]),
        ({"name": "a" * 256}, ["body", "name"]),
        ({"name": " "}, ["body", "name"]),
        ({"name": "a\nb"}, ["body", "name"]),
        ({"name": "a", "expiry": 4102444800}, ["body", "expiry"]),
        ({"name": "a", "expiry": "soon"}, ["body", "expiry"]),
        ({"name": "a", "expiry": "2099-01-01T00:00:00"}, ["body", "expiry"]),
        ({"name": "a", "expiry": "2001-01-01T00:00:00Z"}, ["body", "expiry"]),
        ({"name": "a", "meta": {"a": 1}}, ["body", "meta"]),
        ({"name": "a", "rights": "all"}, ["body", "rights"]),
    ],
)
async def test_a_token_that_cannot_be_is_refused_by_name(server, body: Any, place: list[str]):
    _, ann = await server.person(ProjectRole.MEMBER)
    reply = await server.asked(ann, PATS, body)
    assert reply.status == 422 and reply.json()["detail"][0]["loc"] == place


async def test_a_field_of_the_name_query_is_in_the_body():
    async with serving() as server:
        reply = await server.ask(f"{BASE}/v1/rerank", {"query": "", "documents": ["a"]})
    assert reply.json()["detail"][0]["loc"] == ["body", "query"]


async def test_a_wrong_path_is_told_a_right_one():
    async with serving() as server:
        for path in ("/jamai/v1/chat/completions", "/jamai/api/chat/completions"):
            assert f"did you mean {CHAT}?" in (await server.ask(path, HELLO)).json()["message"]
        missing = await server.ask("/v2/conversations", HELLO)
    assert "did you mean" not in missing.json()["error"]["message"]


async def test_unknown_fields_are_named_where_the_operator_says_so():
    async with serving(unknown_fields="report") as server:
        reply = await server.ask(CHAT, HELLO | {"seed": 7, "colour": "red"})
        refused = await server.ask(CHAT, HELLO | {"rag_params": {"table_id": "a"}})
    assert reply.headers["x-antiphon-ignored"] == "seed, colour" and refused.status == 422
