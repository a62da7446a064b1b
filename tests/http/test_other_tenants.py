"""Every caller of one project against every id of another: what is there, and what is nowhere, get one and
the same answer; nothing of the other project is in it, and nothing of it has changed."""

import json
from dataclasses import dataclass, field

import pytest

from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor
from antiphon.domain.ledger import Entry
from antiphon.domain.tenancy import KeyKind, ProjectRole, RecordedRequest
from tests.support.http_server import CHAT, HELLO
from tests.support.kept_responses import make_actor, make_response
from tests.support.keyed_server import ROOT, Keyed, keyed

MARK = "bravo"
"""Stands in every text of the other project."""
PLACES = {
    "project": "proj_",
    "user": "user_",
    "key": "key_",
    "limit": "limit_",
    "price": "price_",
    "request": "gen_",
    "response": "resp_",
    "item": "msg_",
}
NOBODY = "0nobody00nobody00no"
"""What ids of nothing end with."""
FORGED = (
    "openai-organization", "openai-project", "x-organization", "x-organization-id", "x-org-id",
    "x-project", "x-tenant-id", "x-account-id", "x-forwarded-user", "x-remote-user", "remote-user",
    "x-user", "x-user-email", "x-user-role", "x-auth-request-user", "x-amzn-oidc-identity",
    "x-goog-authenticated-user-email", "x-litellm-team", "x-portkey-virtual-key", "x-antiphon-project",
    "forwarded",
)  # fmt: skip
"""Headers by which other servers have believed their callers."""


@dataclass
class Tenants:
    """Callers of one project, and what is there of another."""

    server: Keyed
    callers: dict[str, str] = field(default_factory=dict)
    """Keys of the one, by who holds them."""
    ids: dict[str, list[str]] = field(default_factory=dict)
    """Of the other, by what they name."""
    other: Actor = LOCAL_ANONYMOUS
    """A caller of the other."""


@pytest.fixture
async def world(tmp_path):
    async with keyed(tmp_path) as server:
        made = Tenants(server)
        for role in ProjectRole:
            _, made.callers[role] = await server.person(role)
        made.callers["service"] = await server.token(KeyKind.SERVICE, project="default")
        user, _ = await server.person(ProjectRole.OWNER)
        made.callers["bound owner"] = await server.token(KeyKind.ACCESS_TOKEN, user=user, project="default")
        await fill(server, made)
        yield made


async def fill(server, made):
    """Another project with something of everything."""

    async def new(path, body, key=None):
        answer = await server.asked(key or server.admin, ROOT + path, body)
        assert answer.status == 201, answer.body
        return answer.json()["id"]

    project = await new("/projects", {"name": f"P {MARK}", "note": MARK})
    user = await new("/users", {"name": MARK, "email": f"{MARK}@example.org", "note": MARK})
    member = f"{ROOT}/projects/{project}/members/{user}"
    assert (await server.asked(server.admin, member, {"role": "owner"}, method="PUT")).status == 200
    keys = [
        await new("/keys", {"kind": "service", "project": project, "note": MARK, "models": [MARK]}),
        await new("/keys", {"kind": "access_token", "user": user, "note": MARK}),
        await new("/keys", {"kind": "access_token", "user": user, "project": project, "note": MARK}),
        await new("/keys", {"kind": "admin", "note": MARK}),
    ]
    targets = (("key", keys[0]), ("user", user), ("project", project), ("model", "m"))
    limit = {"measure": "tokens", "amount": 77, "window": "day", "note": MARK}
    limits = [await new("/limits", limit | {"subject": noun, "target": id_}) for noun, id_ in targets]
    price = {"models": MARK, "currency": "USD", "input": "1", "output": "2", "note": MARK}
    prices = [await new("/prices", price)]
    now = int(server.edge.clock.wall()) * 1000
    entry = Entry(
        f"gen_{MARK}", MARK, now - 5000, project, keys[0], user, "openai", CHAT, MARK, MARK, status="ok"
    )
    server.entries.add([entry])
    server.recordings._records.add([RecordedRequest(entry.id, project, now, 2**40, MARK, MARK)])
    put = {"days": 7, "redact": ["email"]}
    assert (
        await server.asked(server.admin, f"{ROOT}/projects/{project}/recording", put, method="PUT")
    ).status == 200
    response = make_response(MARK, text=MARK, created=now // 1000)
    assert await server.edge.responses.save(response, make_actor(project))
    made.ids = {"project": [project], "user": [user], "key": keys, "limit": limits, "price": prices,
                "request": [entry.id], "response": [response.id],
                "item": [f"msg_{MARK}", f"msg_{MARK}_in"]}  # fmt: skip
    made.other = make_actor(project)


READS = "project.read_requests"
"""The action of an audit entry that reading the state itself makes."""


async def state(server):
    """All that there is, as the operator sees it."""
    lists = (
        "projects",
        "users",
        "keys",
        "limits",
        "prices",
        "audit?limit=1000",
        "usage?by=project",
        "usage/entries",
    )
    shown = [(await server.asked(server.admin, f"{ROOT}/{each}")).json() for each in lists]
    audit = next(
        each["data"] for each in shown if each["data"] and each["data"][0]["object"] == "audit_entry"
    )
    audit[:] = [each for each in audit if each["action"] != READS]
    page = next(each["id"] for each in shown[0]["data"] if MARK in each["name"])
    more = f"{ROOT}/projects/{page}/members", f"{ROOT}/requests?project={page}"
    shown += [(await server.asked(server.admin, path)).json() for path in more]
    return [{name: value for name, value in each.items() if name not in ("since", "until")} for each in shown]


async def same(server, key, path, there, body=None, **how):
    """Asks for an id, and for one that is nowhere: the answers are the same, and say nothing."""
    nowhere = PLACES[next(noun for noun, start in PLACES.items() if there.startswith(start))] + NOBODY
    replies = []
    for id_ in (there, nowhere):
        asked = {
            name: value.replace("ID", id_) if isinstance(value, str) else value
            for name, value in (body or {}).items()
        }
        headers = {name: value.replace("ID", id_) for name, value in how.get("headers", {}).items()}
        answer = await server.asked(
            key, path.replace("ID", id_), asked if body is not None else None,
            method=how.get("method"), headers=headers,
        )  # fmt: skip
        assert MARK.encode() not in answer.body.replace(there.encode(), b""), (path, answer.body)
        replies.append((answer.status, answer.body.replace(id_.encode(), b"ID")))
    assert replies[0] == replies[1], (path, body, how)
    return replies[0]


BODIES = {
    ("PATCH", "project"): {"name": "mine"},
    ("PATCH", "user"): {"disabled": True},
    ("PATCH", "key"): {"note": "mine"},
    ("PATCH", "limit"): {"amount": 1},
    ("PATCH", "price"): {"note": "mine"},
    ("PUT", "members"): {"role": "owner"},
    ("PUT", "recording"): {"days": 1},
    ("POST", "rotate"): {},
    ("POST", "revoke"): {},
}


async def routes(server):
    """Method, path and the name of each place for an id, of every route of the admin API that has one."""
    document = (await server.asked(server.admin, "/openapi.json")).json()
    for path, item in document["paths"].items():
        if path.startswith(ROOT) and "{" in path:
            for method in item:
                yield method.upper(), path


async def test_another_projects_ids_are_as_good_as_none_on_every_route(world):
    server, asked = world.server, 0
    before = await state(server)
    found = [each async for each in routes(server)]
    for method, path in found:
        kinds = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        word = "members" if "/members/" in path else path.rpartition("/")[2].strip("{}")
        body = BODIES.get((method, word))
        assert (body is None) == (method in ("GET", "DELETE")), (method, path)
        for who, key in world.callers.items():
            for there in world.ids[kinds[0]]:
                said = path.replace(f"{{{kinds[0]}}}", "ID").replace("{user}", world.ids["user"][0])
                status, _ = await same(server, key, said, there, body, method=method)
                assert status in (403, 404), (method, path, who)
                assert status == 404 or who != "owner" or kinds[0] in ("price", "project", "user"), (
                    path,
                    status,
                )
                asked += 1
    assert len(found) >= 18
    assert asked >= 100
    assert await state(server) == before


async def test_another_projects_responses_are_as_good_as_none(world):
    """Also the operator's key acts in its own project alone."""
    server, edge = world.server, world.server.edge
    (response,) = world.ids["response"]
    document = (await server.asked(server.admin, "/openapi.json")).json()
    places = [
        (method.upper(), path)
        for path, item in document["paths"].items()
        if path.startswith("/v1/responses/{")
        for method in item
    ]
    assert len(places) >= 3
    continued = {"model": "m", "input": "Hi", "previous_response_id": "ID"}
    for who, key in (world.callers | {"operator": server.admin}).items():
        for method, path in places:
            where = path.replace(path[path.index("{") : path.index("}") + 1], "ID")
            body: dict[str, str] | None = {} if method == "POST" else None
            status, _ = await same(server, key, where, response, body, method=method)
            assert status in (400, 403, 404), (method, path, who)
        assert (await same(server, key, "/v1/responses", response, continued))[0] in (400, 403), who
        for item in world.ids["item"]:
            asked = {
                "model": "m",
                "input": [{"type": "item_reference", "id": item}, {"role": "user", "content": "Hi"}],
            }
            nothing = json.loads(json.dumps(asked).replace(item, PLACES["item"] + NOBODY))
            there, nowhere = [await server.asked(key, "/v1/responses", each) for each in (asked, nothing)]
            assert there.status == nowhere.status in (403, 404), (there.body, who)
            text = there.body.replace(item.encode(), b"ID")
            assert text == nowhere.body.replace(f"{PLACES['item']}{NOBODY}".encode(), b"ID")
    assert (await edge.responses.load(response, world.other)).id == response
    assert len(await edge.responses.load_chain(response, world.other)) == 2


TIME = "since=1&until=9999999999"
USAGE = (f"usage?{TIME}", f"usage/entries?{TIME}")
LISTS = (
    *("projects", "users", "keys", "limits", "prices", "audit", "projects/default/members", *USAGE),
    *(
        f"usage?by={by}"
        for by in ("project", "user", "key", "model", "end_user", "request_id", "status,hour")
    ),
    *("usage?by=project,key&format=csv", "usage/entries?format=csv", "usage/entries?format=jsonl"),
)
"""All that a caller can list or have summed."""
FILTERS = (
    *((f"limits?target=ID&subject={noun}", noun) for noun in ("project", "user", "key")),
    *((f"{noun}s?after=ID", noun) for noun in ("project", "user", "key", "limit", "price", "request")),
    *((f"{each}&{noun}=ID{form}", noun) for each in USAGE for noun in ("project", "user", "key")
      for form in ("", "&format=csv")),
    ("projects/default/members?after=ID", "user"),
    ("usage/entries?after=1.ID", "request"),
    ("requests?project=ID", "project"),
    ("requests?project=default&after=ID", "request"),
    ("audit?target=ID", "project"),
)  # fmt: skip
"""Queries that name an id, with what it is of."""


async def test_no_list_no_sum_and_no_filter_shows_it(world):
    server = world.server
    before = await state(server)
    ids = {noun: found[0] for noun, found in world.ids.items()}
    for key in world.callers.values():
        for each in LISTS:
            shown = (await server.asked(key, f"{ROOT}/{each}")).body.decode()
            assert MARK not in shown, each
            assert not [id_ for found in world.ids.values() for id_ in found if id_ in shown], each
        for path, noun in FILTERS:
            await same(server, key, f"{ROOT}/{path}", ids[noun])
        await same(server, key, f"{ROOT}/requests?project=ID", ids["project"], method="DELETE")
    assert await state(server) == before


async def test_no_body_names_it(world):
    server = world.server
    before = await state(server)
    ids = {noun: found[0] for noun, found in world.ids.items()}
    limit = {"measure": "requests", "amount": 1, "window": "minute", "target": "ID"}
    tried = [
        ("keys", {"kind": "service", "project": "ID"}, "project"),
        ("keys", {"kind": "access_token", "user": "ID"}, "user"),
        *(("limits", limit | {"subject": noun}, noun) for noun in ("project", "user", "key")),
    ]
    for who, key in world.callers.items():
        for path, body, noun in tried:
            status, _ = await same(server, key, f"{ROOT}/{path}", ids[noun], body)
            assert status in (403, 404), (who, body)
    assert await state(server) == before


async def test_no_header_leads_there(world):
    server = world.server
    project, user = world.ids["project"][0], world.ids["user"][0]
    for who, key in world.callers.items():
        for headers, id_ in (
            ({"x-project-id": "ID"}, project),
            ({"x-selected-account-id": "ID"}, project),
            ({"x-user-id": "ID"}, user),
        ):
            for path, body in ((CHAT, HELLO), ("/v1/models", None), (f"{ROOT}/usage/entries", None)):
                status, _ = await same(server, key, path, id_, body, headers=headers)
                assert status == 403, (who, path)
        forged = dict.fromkeys(FORGED, project)
        plain = await server.asked(key, f"{ROOT}/usage/entries")
        assert (await server.asked(key, f"{ROOT}/usage/entries", headers=forged)).body == plain.body
        if who != ProjectRole.VIEWER:
            assert (await server.asked(key, CHAT, HELLO, headers=forged)).status == 200
            actor = server.engine.streams[-1].context.actor
            assert (actor.project, actor.user != user) == ("default", True)


async def test_its_own_callers_see_it(world):
    """So that the tests above find nothing where there is something."""
    server = world.server
    project, user = world.ids["project"][0], world.ids["user"][0]
    owner = await server.token(KeyKind.ACCESS_TOKEN, user=user)
    singles = [f"{noun}s/{world.ids[noun][0]}" for noun in ("project", "user", "key", "limit", "request")]
    lists = ["projects", "keys", "limits", "usage?by=model", "usage/entries", f"requests?project={project}"]
    for path in singles + lists:
        answer = await server.asked(owner, f"{ROOT}/{path}")
        assert (answer.status, MARK in answer.body.decode()) == (200, True), path
    shown = await server.asked(server.admin, f"{ROOT}/prices/{world.ids['price'][0]}")
    assert MARK in shown.body.decode()
