"""What a body or a query of the admin API may not carry: generated from the document, for every route. A
field that is not a route's own is refused by name, and nothing has changed. No key makes a stronger one."""

import pytest

from antiphon.domain.tenancy import Grant, KeyKind, ProjectRole
from tests.support.keyed_server import OPERATOR, ROOT, keyed

FOREIGN = (
    "id", "object", "created_at", "created_by", "archived_at", "disabled_at", "revoked_at", "revoked",
    "digest", "secret", "prefix", "key", "pepper", "organisation", "organization_id", "tenant_id",
    "team_id", "project", "project_id", "user", "user_id", "owner", "role", "rights", "admin", "is_admin",
    "scope", "scopes", "kind", "grant", "models", "endpoints", "allowed_routes", "permissions", "budget",
    "max_budget", "spend", "amount", "limits", "rpm_limit", "tpm_limit", "subject", "target", "measure",
    "window", "currency", "input", "since", "logging", "recording", "expires_at", "expires", "metadata",
    "detail", "__class__", "__proto__", "constructor", "note2",
)  # fmt: skip
"""What other routes take, what rows hold, and what others have fallen to."""


@pytest.fixture
async def server(tmp_path):
    async with keyed(tmp_path) as running:
        yield running


async def bodies(server):
    """Method, path, whole body and known fields of every route of the admin API that takes one."""
    document = (await server.asked(server.admin, "/openapi.json")).json()
    user, _ = await server.person(ProjectRole.MEMBER)
    key = (await server.asked(server.admin, f"{ROOT}/keys", {"kind": "service", "project": "default"})).json()
    limit = {"subject": "key", "target": key["id"], "measure": "requests", "amount": 5, "window": "minute"}
    price = {"models": "m", "currency": "USD", "input": "1", "output": "2"}
    ids = {
        "project": "default",
        "user": user,
        "key": key["id"],
        "limit": (await server.asked(server.admin, f"{ROOT}/limits", limit)).json()["id"],
        "price": (await server.asked(server.admin, f"{ROOT}/prices", price)).json()["id"],
    }
    whole = {
        "NewProject": {"name": "P"},
        "ProjectChange": {"note": "n"},
        "NewUser": {"name": "U"},
        "UserChange": {"note": "n"},
        "Member": {"role": "viewer"},
        "NewKey": {"kind": "service", "project": "default"},
        "KeyChange": {"note": "n"},
        "Rotation": {"overlap": 60},
        "EmptyBody": {},
        "NewLimit": limit | {"measure": "cost", "window": "day"},
        "LimitChange": {"note": "n"},
        "NewPrice": price | {"models": "n"},
        "PriceChange": {"note": "n"},
        "NewRecording": {"days": 3},
    }
    for path, item in document["paths"].items():
        for method, said in item.items() if path.startswith(ROOT) else ():
            if "requestBody" in said:
                reference = said["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                name = reference.rpartition("/")[2]
                schema = document["components"]["schemas"][name]
                body = whole[name.removeprefix("Admin")]
                yield method.upper(), path.format(**ids), body, set(schema["properties"]), schema


async def state(server):
    """All that there is, as the operator sees it, with the database's revision."""
    paths = (
        "/projects",
        "/users",
        "/keys",
        "/limits",
        "/prices",
        "/audit?limit=1000",
        "/projects/default/members",
    )
    return [(await server.asked(server.admin, ROOT + path)).body for path in paths]


async def test_no_route_takes_a_field_that_is_not_its_own(server):
    routes = [each async for each in bodies(server)]
    assert len(routes) >= 14
    before = await state(server)
    for method, path, body, known, schema in routes:
        assert schema["additionalProperties"] is False, path
        for field in FOREIGN:
            if field not in known:
                answer = await server.asked(server.admin, path, body | {field: "x"}, method=method)
                assert (answer.status, answer.error["code"]) == (400, "unknown_parameter"), (path, field)
    assert await state(server) == before


async def test_no_route_takes_a_query_field_that_is_not_its_own(server):
    document = (await server.asked(server.admin, "/openapi.json")).json()
    before = await state(server)
    ids = dict.fromkeys(("user", "key", "limit", "price", "request", "grant"), "x") | {"project": "default"}
    routes: list[tuple[str, str, dict[str, object] | None]] = [
        (path.format(**ids), method.upper(), {} if "requestBody" in said else None)
        for path, item in document["paths"].items()
        for method, said in item.items()
        if path.startswith(ROOT)
    ]
    assert len(routes) > 30
    for path, method, body in routes:
        answer = await server.asked(server.admin, f"{path}?zzz=1", body, method=method)
        assert (answer.status, answer.error["code"]) == (400, "unknown_parameter"), (method, path)
        assert answer.error["param"] == "zzz"
    assert await state(server) == before


async def test_those_bodies_are_taken_without_it(server):
    """So that what is refused above is the field."""
    for method, path, body, *_ in [each async for each in bodies(server)]:
        assert (await server.asked(server.admin, path, body, method=method)).status in (200, 201), (
            method,
            path,
        )


async def test_nobody_but_the_operator_gets_further_with_a_known_field(server):
    """Every route and every field of its own, as a viewer, a member and a service key send it."""
    routes = [each async for each in bodies(server)]
    callers = [(await server.person(role))[1] for role in (ProjectRole.VIEWER, ProjectRole.MEMBER)]
    callers.append(await server.token(KeyKind.SERVICE, project="default"))
    before = await state(server)
    for method, path, body, *_ in routes:
        for token in callers:
            answer = await server.asked(token, path, body, method=method)
            assert answer.status in (403, 404), (method, path, answer.body)
    assert await state(server) == before


async def stronger(server):
    """Keys that may less than others, each with what it must not get: bodies of new keys."""
    other = await server.tenants.add_project(OPERATOR, "Other", "")
    owner, wide = await server.person(ProjectRole.OWNER)
    stranger, _ = await server.person(ProjectRole.OWNER, other.id)
    until = int(server.edge.clock.wall()) + 600
    mine = {"kind": "access_token", "user": owner}
    service = {"kind": "service", "project": "default"}
    narrow = {"models": ["m"], "endpoints": ["/v1/*", "/admin/*"]}
    yield (
        wide,
        [
            {"kind": "admin"},
            {"kind": "service", "project": other.id},
            {"kind": "access_token", "user": stranger},
            mine | {"project": other.id},
        ],
    )
    confined = Grant(tuple(narrow["models"]), tuple(narrow["endpoints"]))
    for kept in ({"grant": confined}, {"grant": Grant(confined.models)}):
        token = await server.token(KeyKind.ACCESS_TOKEN, user=owner, **kept)
        yield token, [each | more for each in (mine, service) for more in (
            {},
            {"models": None},
            {"models": ["*"]},
            {"models": ["m", "n"]},
            {"models": ["m*"]},
            narrow | {"models": ["*m"]},
        )]  # fmt: skip
    token = await server.token(KeyKind.ACCESS_TOKEN, user=owner, grant=confined)
    yield (
        token,
        [
            each | narrow | {"endpoints": e}
            for each in (mine, service)
            for e in (None, ["*"], ["/*"], ["/metrics"])
        ],
    )
    token = await server.token(KeyKind.ACCESS_TOKEN, user=owner, project="default")
    yield token, [mine, mine | {"project": other.id}, {"kind": "service", "project": other.id}]
    token = await server.token(KeyKind.ACCESS_TOKEN, user=owner, expires=until)
    yield token, [mine, service, mine | {"expires_at": until + 1}, service | {"expires_at": 2**53}]


async def test_no_key_makes_a_stronger_one(server):
    tried = [each async for each in stronger(server)]
    before = await state(server)
    for token, wanted in tried:
        for body in wanted:
            answer = await server.asked(token, f"{ROOT}/keys", body)
            assert answer.status in (403, 404), (body, answer.body)
            assert b"secret" not in answer.body
    assert await state(server) == before


async def test_no_key_makes_itself_or_another_stronger(server):
    """By a change, a rotation, or a limit that is its own."""
    owner, wide = await server.person(ProjectRole.OWNER)
    until = int(server.edge.clock.wall()) + 600
    grant = Grant(("m",), ("/v1/*", "/admin/*"))
    token = await server.token(KeyKind.ACCESS_TOKEN, user=owner, grant=grant, expires=until)
    keys = (await server.asked(server.admin, f"{ROOT}/keys?limit=1000")).json()["data"]
    itself = next(key["id"] for key in keys if token.startswith(key["prefix"]))
    wider = next(key["id"] for key in keys if wide.startswith(key["prefix"]))
    operators = next(key["id"] for key in keys if key["kind"] == "admin")
    made = await server.asked(wide, f"{ROOT}/keys", {"kind": "service", "project": "default"})
    limit = {"subject": "user", "target": owner, "measure": "requests", "window": "minute", "amount": 5}
    limit = (await server.asked(server.admin, f"{ROOT}/limits", limit)).json()["id"]
    before = await state(server)
    for path, body in (
        (itself, {"models": None}),
        (itself, {"models": ["m", "n"]}),
        (itself, {"endpoints": None}),
        (itself, {"expires_at": until + 1}),
        (wider, {"note": "mine"}),
        (made.json()["id"], {"models": ["n"]}),
        (operators, {"note": "mine"}),
    ):
        answer = await server.asked(token, f"{ROOT}/keys/{path}", body, method="PATCH")
        assert answer.status in (403, 404), (body, answer.body)
    for path in (wider, made.json()["id"], operators):
        answer = await server.asked(token, f"{ROOT}/keys/{path}/rotate", {})
        assert answer.status in (403, 404) and b"secret" not in answer.body
    for how in ({"method": "PATCH", "body": {"amount": 2**53}}, {"method": "DELETE"}):
        answer = await server.asked(wide, f"{ROOT}/limits/{limit}", how.pop("body", None), **how)
        assert answer.status == 403
    assert await state(server) == before
    rotated = await server.asked(token, f"{ROOT}/keys/{itself}/rotate", {})
    card = rotated.json()
    assert (card["models"], card["endpoints"], card["expires_at"]) == (["m"], ["/v1/*", "/admin/*"], until)
