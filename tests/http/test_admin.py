"""The admin API over the wire: what is asked for is done, everything else refused by name; and which actor
may call which route."""

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import jsonschema
import pytest

from antiphon.auth.base import RequestedScope
from antiphon.auth.secrets import generate_key
from antiphon.domain.tenancy import Grant, KeyKind, ProjectRole
from tests.support.http_server import (
    CHAT,
    HELLO,
    KEY,
    PUBLIC_TARGETS,
    request_bytes,
    serving,
    targets_of,
    thin_out,
)
from tests.support.keyed_server import OPERATOR, ROOT, keyed


@pytest.fixture
async def server(tmp_path):
    async with keyed(tmp_path) as running:
        yield running


async def test_from_a_project_to_a_key_that_generates_and_is_revoked(server):
    admin = server.admin
    project = (await server.asked(admin, f"{ROOT}/projects", {"name": "Research"})).json()
    user = (await server.asked(admin, f"{ROOT}/users", {"name": "Ann", "email": "ann@example.com"})).json()
    path = f"{ROOT}/projects/{project['id']}/members/{user['id']}"
    assert (await server.asked(admin, path, {"role": "owner"}, method="PUT")).json()["role"] == "owner"
    body = {"kind": "access_token", "user": user["id"]}
    ann = (await server.asked(admin, f"{ROOT}/keys", body)).json()["secret"]
    body = {"kind": "service", "project": project["id"], "models": ["m"], "note": "bot"}
    made = await server.asked(ann, f"{ROOT}/keys", body)
    assert (made.status, made.headers["cache-control"]) == (201, "no-store")
    key = made.json()
    assert (await server.asked(key["secret"], CHAT, HELLO)).status == 200
    assert server.engine.streams[-1].context.actor.project == project["id"]
    shown = (await server.asked(ann, f"{ROOT}/keys/{key['id']}")).json()
    assert "secret" not in shown
    assert shown["created_by"] != key["id"]
    rotated = (await server.asked(ann, f"{ROOT}/keys/{key['id']}/rotate", {"overlap": 3600})).json()
    assert (await server.asked(rotated["secret"], CHAT, HELLO)).status == 200
    assert (await server.asked(key["secret"], CHAT, HELLO)).status == 200
    assert (await server.asked(ann, f"{ROOT}/keys/{key['id']}/revoke", {})).json()["revoked_at"] is not None
    assert (await server.asked(key["secret"], CHAT, HELLO)).status == 401
    gone = await server.asked(ann, path, method="DELETE")
    assert gone.status == 204
    assert gone.headers.keys().isdisjoint(("content-length", "content-type", "transfer-encoding"))
    assert (await server.asked(ann, f"{ROOT}/keys")).status == 403  # a member of no project


async def test_lists_come_by_pages(server):
    for number in range(5):
        await server.asked(server.admin, f"{ROOT}/projects", {"name": f"P{number}"})
    names, after = [], ""
    while after is not None:
        page = (await server.asked(server.admin, f"{ROOT}/projects?limit=2{after}")).json()
        names += [each["name"] for each in page["data"]]
        after = page["next"] and f"&after={page['next']}"
    assert names == ["default", "P0", "P1", "P2", "P3", "P4"]
    entries, before = [], ""
    while before is not None:
        page = (await server.asked(server.admin, f"{ROOT}/audit?limit=2{before}")).json()
        entries += [each["id"] for each in page["data"]]
        before = page["next"] and f"&before={page['next']}"
    assert entries == sorted(entries, reverse=True)
    assert len(entries) == 6


NONSENSE: tuple[tuple[str, Any, int, str | None], ...] = (
    ("/projects", {"name": "P", "organisation": "x"}, 400, "organisation"),
    ("/projects", {"name": ""}, 400, "name"),
    ("/projects", {"name": 3}, 400, "name"),
    ("/projects", {}, 400, "name"),
    ("/projects", {"name": "a\nb"}, 400, "name"),
    ("/projects", {"name": "a\n"}, 400, "name"),
    ("/projects", {"name": "a\0b"}, 400, "name"),
    ("/projects", {"name": "P", "note": "a\0b"}, 400, "note"),
    ("/users", {"name": "A", "note": "\0"}, 400, "note"),
    ("/users", {"name": "A", "email": "a\0@b"}, 400, "email"),
    ("/users", {"name": "A", "email": "a@b\n"}, 400, "email"),
    ("/projects", b'{"name": "P", "name": "Q"}', 400, "name"),
    ("/projects", b"[]", 400, None),
    ("/projects", {"name": "default"}, 409, None),
    ("/users", {"name": "A", "email": "nobody"}, 400, "email"),
    ("/users", {"name": "A", "admin": True}, 400, "admin"),
    ("/keys", {"kind": "root"}, 400, "kind"),
    ("/keys", {"kind": "service", "project": "nope"}, 404, None),
    ("/keys", {"kind": "service", "project": "default", "digest": "00"}, 400, "digest"),
    ("/keys", {"kind": "service", "project": "default", "models": "m"}, 400, "models"),
    ("/keys", {"kind": "service", "project": "default", "note": "a\0"}, 400, "note"),
    ("/keys", {"kind": "service", "project": "default", "expires_at": 1}, 400, "expires_at"),
    ("/keys", {"kind": "service", "project": "default", "expires_at": -1}, 400, "expires_at"),
    ("/keys/none/rotate", {"overlap": 10**12}, 400, "overlap"),
    ("/keys/none/revoke", {}, 404, None),
    ("/keys/none/revoke", {"why": "x"}, 400, "why"),
)


async def test_what_makes_no_sense_is_refused_by_name(server):
    for path, body, status, param in NONSENSE:
        answer = await server.asked(server.admin, ROOT + path, body)
        assert (answer.status, answer.error["param"]) == (status, param), (path, body)


async def test_a_refusal_says_what_would_have_been_taken(server):
    for field, value, said in (
        ("kind", "root", "must be access_token, service or admin; got 'root'"),
        ("note", "x" * 3000, "at most 2000"),
    ):
        body = {"kind": "service", "project": "default", field: value}
        assert said in (await server.asked(server.admin, f"{ROOT}/keys", body)).error["message"]
    answer = await server.asked(server.admin, f"{ROOT}/users", {"name": "A", "email": "nobody"})
    assert "email must be an email address" in answer.error["message"]


async def test_a_name_is_something_that_can_be_seen(server):
    for path in ("/projects", "/users"):
        there = (await server.asked(server.admin, ROOT + path, {"name": " visible \u200b"})).json()
        for name in (" ", "\u00a0\u3000", "\u200b", "\u202e\ufeff", "\u3164\u2800", "\U000e0041", "\u00ad "):
            for asked, method in ((path, "POST"), (f"{path}/{there['id']}", "PATCH")):
                answer = await server.asked(server.admin, ROOT + asked, {"name": name}, method=method)
                assert (answer.status, answer.error["param"]) == (400, "name"), ascii(name)
                assert "not of blanks alone" in answer.error["message"]


async def test_a_note_is_stored_unchanged_without_nul_characters(server):
    note = "one\ntwo\t\x1b\u200b\U0001f916"
    made = (await server.asked(server.admin, f"{ROOT}/projects", {"name": "P", "note": note})).json()
    assert made["note"] == note
    answer = await server.asked(
        server.admin, f"{ROOT}/projects/{made['id']}", {"note": "a\0b"}, method="PATCH"
    )
    assert (answer.status, answer.error["param"]) == (400, "note")
    assert "a text without NUL" in answer.error["message"]


async def test_a_user_gets_another_address_and_none(server):
    one, two = [
        (
            await server.asked(server.admin, f"{ROOT}/users", {"name": "A", "email": f"{name}@example.com"})
        ).json()
        for name in ("ann", "ben")
    ]

    async def patched(body, user=one, token=server.admin):
        return await server.asked(token, f"{ROOT}/users/{user['id']}", body, method="PATCH")

    assert (await patched({"email": "Anna@Example.com"})).json() == one | {"email": "anna@example.com"}
    assert (await patched({"email": "ben@example.COM"})).status == 409
    assert (await patched({"note": "n"})).json()["email"] == "anna@example.com"
    assert (await patched({"email": None})).json()["email"] is None
    assert (await patched({"email": "ANNA@example.com"}, two)).json()["email"] == "anna@example.com"
    for wrong in ("nobody", "", "a@b@c", 3):
        answer = await patched({"email": wrong})
        assert (answer.status, answer.error["param"]) == (400, "email")
    audit = (await server.asked(server.admin, f"{ROOT}/audit?target={one['id']}")).json()["data"]
    assert [(each["action"], each["detail"]) for each in audit][:-1] == [
        ("user.change", {"email": None}),
        ("user.change", {"note": "n"}),
        ("user.change", {"email": "anna@example.com"}),
    ]
    _, owner = await server.person(ProjectRole.OWNER)
    assert (await patched({"email": "eve@example.com"}, token=owner)).status == 403


async def test_the_audit_names_the_client_behind_trusted_proxies(tmp_path):
    async with keyed(tmp_path, trusted_proxies=("127.0.0.1", "10.0.0.0/8")) as server:
        for name, forwarded in (("One", None), ("Two", "1.2.3.4, 192.0.2.7, 10.1.1.1"), ("Three", "x")):
            headers = {} if forwarded is None else {"x-forwarded-for": forwarded}
            reply = await server.asked(server.admin, f"{ROOT}/projects", {"name": name}, headers=headers)
            assert reply.status == 201
        page = (await server.asked(server.admin, f"{ROOT}/audit?limit=4")).json()["data"]
    clients = [(each["detail"].get("name"), each["client"]) for each in page]
    assert clients == [("Three", "127.0.0.1"), ("Two", "192.0.2.7"), ("One", "127.0.0.1"), (None, None)]


async def test_the_audit_is_read_by_time_actor_and_project(server):
    async def send(path: str, body: dict[str, Any], method: str = "POST", token: str = server.admin) -> str:
        reply = await server.asked(token, f"{ROOT}/{path}", body, method=method)
        assert reply.status < 300, reply
        return reply.json().get("id", "") if reply.body else ""

    async def read(**query: object) -> list[str]:
        words = "&".join(f"{name}={value}" for name, value in query.items())
        page = (await server.asked(server.admin, f"{ROOT}/audit?{words}")).json()
        return [each["action"] for each in page["data"]]

    project, other = [await send("projects", {"name": name}) for name in ("mine", "other")]
    user, owner = await server.person(ProjectRole.OWNER, project)
    mine, others = [await send("keys", {"kind": "service", "project": each}) for each in (project, other)]
    limit = {"measure": "requests", "amount": 5, "window": "day"}
    for subject, target in (("key", mine), ("key", others), ("project", project), ("project", other)):
        made = await send("limits", {"subject": subject, "target": target, **limit})
        if subject == "key":
            await send(f"limits/{made}", {}, "DELETE")
    await send(f"projects/{project}", {"note": "changed"}, "PATCH")
    assert await read(project=project) == [
        "project.change",
        "limit.create",
        "limit.remove",
        "limit.create",
        "key.create",
        "membership.put",
        "project.create",
    ]
    made = await send("keys", {"kind": "access_token", "user": user}, token=owner)
    latest = (await server.asked(server.admin, f"{ROOT}/audit?limit=1")).json()["data"][0]
    assert (latest["action"], latest["target"]) == ("key.create", made)
    assert await read(actor=latest["actor"]) == ["key.create"]
    everything = await read()
    assert await read(since=latest["at"] + 1) == await read(until=0) == await read(project="proj_none") == []
    assert await read(since=0, until=latest["at"] + 1) == everything
    for wrong in ("since=x", "until=-1"):
        reply = await server.asked(server.admin, f"{ROOT}/audit?{wrong}")
        assert (reply.status, reply.error["param"]) == (400, wrong[:5])


async def test_the_audit_tells_fields_before_and_after(server):
    async def send(path: str, body: dict[str, Any], method: str = "POST") -> Any:
        reply = await server.asked(server.admin, f"{ROOT}/{path}", body, method=method)
        assert reply.status < 300, reply
        return reply.json()

    project = (await send("projects", {"name": "Old"}))["id"]
    await send(f"projects/{project}", {"name": "New"}, "PATCH")
    await send(f"projects/{project}/recording", {"days": 3, "redact": ["email"]}, "PUT")
    user, _ = await server.person(ProjectRole.MEMBER)
    await send(f"projects/{project}/members/{user}", {"role": "member"}, "PUT")
    await send(f"projects/{project}/members/{user}", {"role": "owner"}, "PUT")
    key = (await send("keys", {"kind": "service", "project": project, "expires_at": 1_900_000_000}))["id"]
    await send(f"keys/{key}", {"models": ["a*", "b"], "expires_at": None}, "PATCH")
    body = {"subject": "project", "target": project, "measure": "cost", "amount": 10**10, "window": "month"}
    limit = (await send("limits", body))["id"]
    await send(f"limits/{limit}", {"amount": 12_500_000_000}, "PATCH")
    price = {"models": "m", "currency": "USD", "input": "0.15", "output": "0.6"}
    price_id = (await send("prices", price))["id"]
    await send(f"prices/{price_id}", {"until": 1_900_000_000}, "PATCH")
    told: dict[str, list[dict[str, Any]]] = {}
    for each in (await server.asked(server.admin, f"{ROOT}/audit")).json()["data"]:
        told.setdefault(each["action"], []).append(each)

    def changes(action: str, at: int = 0) -> list[tuple[str, str | None, str | None]]:
        return [(each["field"], each["before"], each["after"]) for each in told[action][at]["changes"]]

    assert changes("project.change", 1) == [("name", "Old", "New")]
    assert changes("project.change") == [("recording", "off", "3 days, without email")]
    assert changes("membership.put") == [("user", user, user), ("role", "member", "owner")]
    assert changes("key.change") == [
        ("expires", "2030-03-17 17:46:40 UTC", "none"),
        ("models", "all", "a*, b"),
    ]
    assert changes("limit.change") == [("amount", "10.00", "12.50")]
    assert told["limit.change"][0]["about"] == f"project {project} cost month"
    assert told["limit.change"][0]["detail"] == {"amount": 12_500_000_000}
    assert ("amount", None, "10.00") in changes("limit.create")
    assert told["limit.create"][0]["about"] == f"project {project} cost month"
    assert told["price.create"][0]["about"] == "m USD"
    assert ("input", None, "0.15 USD") in changes("price.create")
    assert changes("price.change") == [("until", "none", "2030-03-17 17:46:40 UTC")]
    assert told["price.change"][0]["time"].endswith(" UTC")


async def test_an_email_address_is_one_however_it_is_written(server):
    for email, status in (("Ann@Example.com", 201), ("ann@example.COM", 409)):
        body = {"name": "A", "email": email}
        assert (await server.asked(server.admin, f"{ROOT}/users", body)).status == status


async def test_the_page_after_a_member_who_was_removed_is_found(server):
    people = []
    for _ in range(3):
        people.append((await server.person(ProjectRole.MEMBER))[0])
        await asyncio.sleep(0.002)  # pages go on at the millisecond of an id that is gone
    path = f"{ROOT}/projects/default/members"
    await server.asked(server.admin, f"{path}/{people[0]}", {"role": "owner"}, method="PUT")
    first = (await server.asked(server.admin, f"{path}?limit=2")).json()
    assert ([each["user"] for each in first["data"]], first["next"]) == (people[:2], people[1])
    await server.asked(server.admin, f"{path}/{people[1]}", method="DELETE")
    page = (await server.asked(server.admin, f"{path}?after={people[1]}")).json()
    assert [each["user"] for each in page["data"]] == people[2:]


async def test_what_has_ended_gets_no_keys(server):
    user, _ = await server.person(ProjectRole.MEMBER)
    project = (await server.asked(server.admin, f"{ROOT}/projects", {"name": "Old"})).json()["id"]
    await server.asked(server.admin, f"{ROOT}/projects/{project}", {"archived": True}, method="PATCH")
    await server.asked(server.admin, f"{ROOT}/users/{user}", {"disabled": True}, method="PATCH")
    for body in ({"kind": "service", "project": project}, {"kind": "access_token", "user": user}):
        answer = await server.asked(server.admin, f"{ROOT}/keys", body)
        assert (answer.status, answer.error["param"]) == (400, next(reversed(body)))


async def test_a_confined_key_is_told_of_no_other_model(server):
    narrow = await server.token(KeyKind.SERVICE, project="default", grant=Grant(("other",)))
    for name in ("nope", "m", "accounts/fireworks/models/m"):
        said = (await server.asked(narrow, CHAT, HELLO | {"model": name})).error["message"]
        assert "has: m" not in said
        assert f"model {name}" in said or f"`{name}`" in said


async def test_an_unreachable_database_is_a_503_without_its_details(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("antiphon.store.database.BUSY_MS", 20)
    async with keyed(tmp_path, show_details=False) as server:
        with closing(sqlite3.connect(tmp_path / "antiphon.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            answer = await server.asked(server.admin, f"{ROOT}/projects", {"name": "P"})
            assert (await server.asked(server.admin, f"{ROOT}/projects")).status == 200
        assert (answer.status, answer.error["code"]) == (503, "store_unavailable")
        assert str(tmp_path) not in answer.body.decode()
        assert "locked" not in answer.body.decode()
        assert (await server.asked(server.admin, f"{ROOT}/projects", {"name": "P"})).status == 201
    assert "store_failed" in caplog.text


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=x",
        "limit=-1",
        "after=none",
        "limit=%C2%B2",
        "limt=1",
        "limit=1&limit=2",
    ],
)
async def test_a_page_that_makes_no_sense_is_refused(server, query):
    assert (await server.asked(server.admin, f"{ROOT}/projects?{query}")).status == 400


async def test_a_patch_changes_what_it_names_and_nothing_else(server):
    body = {"kind": "service", "project": "default", "models": ["a"], "endpoints": ["/v1/*"], "note": "n"}
    key = (await server.asked(server.admin, f"{ROOT}/keys", body)).json()
    path = f"{ROOT}/keys/{key['id']}"
    changed = (await server.asked(server.admin, path, {"models": None}, method="PATCH")).json()
    assert (changed["models"], changed["endpoints"], changed["note"]) == (None, ["/v1/*"], "n")
    for field in ("kind", "project", "user", "prefix", "revoked_at", "id"):
        answer = await server.asked(server.admin, path, {field: "x"}, method="PATCH")
        assert (answer.status, answer.error["param"]) == (400, field)


async def test_a_path_pattern_that_matches_no_path_is_refused(server):
    body = {"kind": "service", "project": "default"}
    for pattern in ("v1/*", "https://a/v1/*", " /v1/*", "", "/v1/\n"):
        refused = await server.asked(server.admin, f"{ROOT}/keys", body | {"endpoints": [pattern]})
        assert (refused.status, refused.error["param"]) == (400, "endpoints[0]"), pattern
    for pattern in ("/v1/*", "*", "*/completions"):
        assert (
            await server.asked(server.admin, f"{ROOT}/keys", body | {"endpoints": [pattern]})
        ).status == 201


async def test_headers_choose_only_among_what_the_key_may_speak_for(server):
    user, token = await server.person(ProjectRole.MEMBER)
    other = (await server.asked(server.admin, f"{ROOT}/projects", {"name": "Other"})).json()["id"]
    service = await server.token(KeyKind.SERVICE, project="default")
    fine = [
        {"x-project-id": "default"},
        {"x-selected-account-id": "default"},
        {"x-user-id": user},
        {"x-user-id": ""},
    ]
    for headers in fine:
        for key in (token, service):
            assert (await server.asked(key, CHAT, HELLO, headers=headers)).status == 200, headers
    assert server.engine.streams[-3].context.actor.user == user
    for headers in ({"x-project-id": other}, {"x-user-id": "somebody"}, {"x-selected-account-id": other}):
        for key in (token, service):
            answer = await server.asked(key, CHAT, HELLO, headers=headers)
            assert (answer.status, answer.error["code"]) == (403, "permission_denied"), headers
    two = {"x-project-id": "default", "x-selected-account-id": other}
    assert (await server.asked(token, CHAT, HELLO, headers=two)).status == 400
    assert (await server.asked(token, CHAT, HELLO, headers={"x-user-id": "' OR 1=1 --"})).status == 400


@pytest.mark.parametrize("carrier", ["authorization", "x-api-key", "api-key"])
async def test_every_carrier_is_the_same_policy(server, carrier):
    narrow = await server.token(
        KeyKind.SERVICE, project="default", grant=Grant(("other",), ("/v1/chat/*", "/v1/models*"))
    )
    said = f"Bearer {narrow}" if carrier == "authorization" else narrow
    for path, body, status in (
        (CHAT, HELLO, 403),
        ("/tokenize", {"prompt": "a"}, 403),
        ("/v1/models/m", None, 403),
        ("/v1/models", None, 200),
    ):
        assert (await server.ask(path, body, headers={carrier: said})).status == status, path
    assert server.engine.streams == []
    listed = await server.ask("/v1/models", headers={carrier: said})
    assert listed.json()["data"] == []


async def test_a_confined_key_is_confined_under_every_name_of_a_model(server):
    narrow = await server.token(KeyKind.SERVICE, project="default", grant=Grant(("other",)))
    body = HELLO | {"model": "accounts/fireworks/models/m"}
    for path in (CHAT, "/fireworks/inference/v1/chat/completions"):
        assert (await server.asked(narrow, path, body)).status == 403
    assert server.engine.streams == []


async def test_the_settings_key_acts_for_no_other_project_or_user(server):
    for headers, status in (
        ({}, 200),
        ({"x-project-id": "default"}, 200),
        ({"x-project-id": "other"}, 403),
        ({"x-user-id": "somebody"}, 403),
    ):
        assert (await server.asked(KEY, CHAT, HELLO, headers=headers)).status == status


async def test_a_key_is_ended_without_a_body(server):
    body = {"kind": "service", "project": "default"}
    key = (await server.asked(server.admin, f"{ROOT}/keys", body)).json()
    ended = await server.asked(server.admin, f"{ROOT}/keys/{key['id']}", method="DELETE")
    assert ended.json()["revoked_at"] is not None
    assert (await server.asked(key["secret"], CHAT, HELLO)).status == 401


async def test_each_route_is_counted_under_its_own_path(server):
    for path in ("/keys/some", "/keys/some/rotate", "/projects/some", "/projects/some/members"):
        method = "POST" if path.endswith("rotate") else "GET"
        await server.asked(server.admin, ROOT + path, {} if method == "POST" else None, method=method)
    shown = (await server.asked(server.admin, "/metrics")).body.decode()
    for path in ("/keys/{key}", "/keys/{key}/rotate", "/projects/{project}", "/projects/{project}/members"):
        assert f'route="{ROOT}{path}"' in shown, path


async def test_two_different_credentials_are_refused(server):
    token = await server.token(KeyKind.SERVICE, project="default")
    headers = {"x-api-key": server.admin}
    assert (await server.asked(token, "/v1/models", headers=headers)).status == 400


EVERYBODY = ("none", "wrong", "revoked", "viewer", "member", "owner", "service", "environment", "admin")
REFUSED = {"none": 401, "wrong": 401, "revoked": 401}
MAY = {
    "read": {"viewer", "member", "owner", "service", "environment", "admin"},
    "generate": {"member", "owner", "service", "environment", "admin"},
    "write": {"member", "owner", "environment", "admin"},
    "adapt": {"environment", "admin"},
    "observe": {"environment", "admin"},
    "manage": {"viewer", "member", "owner", "admin"},
}
CARRIERS = (
    lambda token: {"x-api-key": token},
    lambda token: {"api-key": token},
    lambda token: {"authorization": f"Bearer {token}"},
)
MISSING = ("/jamai/api/v2/", "/jamai/api/v1/gen_tables")
"""Below these are parts of JamAI Base that this server does not have."""
READS = ("/tokenize", "/detokenize", "/apply-template")


def asked_of(method, path):
    """Which right a route asks for, said a second time and by another way."""
    if "/usage" in path:
        return "read"
    if "/admin/" in path or path.startswith("/jamai/api/v2/pats"):
        return "manage"
    if "/gen_tables/knowledge" in path:
        return "read" if method in ("GET", "OPTIONS") else "generate" if "search" in path else "write"
    if path == "/metrics":
        return "observe"
    if path.startswith("/v1/responses"):
        return "generate"  # what is kept for a later request is a part of it
    if method == "GET" or path.endswith(READS) or path.startswith(MISSING):
        return "read"
    return "adapt" if "lora" in path else "generate"


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.soak)])
async def test_every_route_and_every_kind_of_actor(server, step):
    people = {role: (await server.person(role))[1] for role in ProjectRole}
    revoked = await server.token(KeyKind.SERVICE, project="default")
    ring = server.edge.verifiers[1]
    actor = await ring.verify(revoked, RequestedScope())
    await server.tenants.revoke_key(OPERATOR, actor.id)
    tokens: dict[str, str | None] = {
        "none": None,
        "wrong": generate_key(),
        "revoked": revoked,
        **{str(role): token for role, token in people.items()},
        "service": await server.token(KeyKind.SERVICE, project="default"),
        "environment": KEY,
        "admin": server.admin,
    }
    assert set(tokens) == set(EVERYBODY)
    asked, carried = 0, set()
    for method, declared in thin_out(targets_of(server.edge), step):
        right = "" if declared in PUBLIC_TARGETS else asked_of(method, declared)
        ways = CARRIERS[-1:] if right in carried else CARRIERS  # a key is found before its route is
        carried.add(right)
        for who, token in tokens.items():
            path = declared.replace("{", "").replace("}", "")
            body: object = None if method in ("GET", "DELETE") else {}
            carriers = [{}] if token is None else [carry(token) for carry in ways]
            answers = []
            async with server.line() as line:
                for headers in carriers:
                    await line.send(request_bytes(path, body, method=method, headers=headers))
                    answers.append(await line.reply())
            assert len({each.status for each in answers[:2]}) == 1, (declared, method, who)
            answer = answers[-1]
            asked += 1
            if declared in PUBLIC_TARGETS:
                assert answer.status in (200, 307, 404, 503), (declared, who)
            elif who in REFUSED:
                assert answer.status == 401, (declared, method, who)
            elif who in MAY[asked_of(method, declared)]:
                named = answer.body.decode()
                assert answer.status != 401, (declared, method, who)
                assert "this key may not" not in named, (declared, method, who)
            else:
                assert answer.status == 403, (declared, method, who)
    assert asked > 300


async def test_the_document_describes_admin_routes_and_their_answers(server):
    document = (await server.asked(server.admin, "/openapi.json")).json()
    described = {
        (method.upper(), path)
        for path, item in document["paths"].items()
        if path.startswith(ROOT)
        for method in item
    }
    served = {target for target in targets_of(server.edge) if target[1].startswith(ROOT)}
    assert described == served
    await server.asked(server.admin, f"{ROOT}/users", {"name": "Ann"})
    limit = {"subject": "model", "target": "m", "measure": "cost", "window": "week", "amount": 2**53}
    assert (await server.asked(server.admin, f"{ROOT}/limits", limit)).status == 201
    for path in ("/projects", "/users", "/keys", "/limits", "/audit", "/projects/default/members"):
        found = document["paths"][f"{ROOT}{path.replace('default', '{project}')}"]["get"]
        schema = found["responses"]["200"]["content"]["application/json"]["schema"]
        answer = (await server.asked(server.admin, ROOT + path)).json()
        jsonschema.validate(answer, {**schema, "components": document["components"]})


async def test_without_keys_there_is_no_admin_api():
    async with serving(key=KEY) as server:
        answer = await server.ask(f"{ROOT}/projects", headers={"authorization": f"Bearer {KEY}"})
        assert (answer.status, answer.error["code"]) == (404, "route_not_found")
        document = (await server.ask("/openapi.json", headers={"authorization": f"Bearer {KEY}"})).json()
        assert not any(path.startswith(ROOT) for path in document["paths"])
