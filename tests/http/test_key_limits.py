"""Keys that are made with their limits: all of it in one request, or nothing."""

import pytest

from antiphon.domain.tenancy import KeyKind, ProjectRole
from antiphon.services.policy import MAX_LIMITS, KeyRequest
from tests.support.keyed_server import OPERATOR, ROOT, keyed

KEYS, LIMITS = f"{ROOT}/keys", f"{ROOT}/limits"
SERVICE = {"kind": "service", "project": "default"}
TOKENS = {"measure": "tokens", "amount": 1_000, "window": "day"}
AT_ONCE = {"measure": "concurrent", "amount": 2}


@pytest.fixture
async def server(tmp_path):
    async with keyed(tmp_path) as running:
        yield running


async def revision(server):
    return server.tenants._changes.directory.revision


async def test_a_key_comes_with_its_limits_and_is_shown_with_them(server):
    before = await revision(server)
    wanted = {**SERVICE, "limits": [{**TOKENS, "models": "m*", "note": "free tier"}, AT_ONCE]}
    made = await server.asked(server.admin, KEYS, wanted)
    assert made.status == 201 and await revision(server) == before + 1
    card = made.json()
    secret = card.pop("secret")
    assert secret not in str(card)
    first, second = card["limits"]
    assert (first["subject"], first["target"]) == ("key", card["id"])
    assert (first["measure"], first["amount"], first["window"]) == ("tokens", 1_000, "day")
    assert (first["models"], first["note"]) == ("m*", "free tier")
    assert (second["measure"], second["amount"], second["window"]) == ("concurrent", 2, None)
    assert (await server.asked(server.admin, f"{KEYS}/{card['id']}")).json() == card
    listed = (await server.asked(server.admin, KEYS)).json()["data"]
    assert listed[-1] == card and listed[0]["limits"] == []
    found = (await server.asked(server.admin, f"{LIMITS}?target={card['id']}")).json()["data"]
    assert found == card["limits"]
    (entry,) = (await server.asked(server.admin, f"{ROOT}/audit?target={card['id']}")).json()["data"]
    assert [each["amount"] for each in entry["detail"]["limits"]] == [1_000, 2]


@pytest.mark.parametrize(
    ("limits", "code", "param"),
    [
        ([TOKENS, {"measure": "requests", "amount": 5}], "missing_required_parameter", "limits[1].window"),
        ([{**AT_ONCE, "window": "minute"}], "invalid_value", "limits[0].window"),
        ([TOKENS, {**TOKENS, "amount": 5}], "invalid_value", "limits[1]"),
        ([{**TOKENS, "amount": -1}], "invalid_value", "limits[0].amount"),
        ([{**TOKENS, "measure": "words"}], "invalid_value", "limits[0].measure"),
        ([{**TOKENS, "window": "hour"}], "invalid_value", "limits[0].window"),
        ([{**TOKENS, "models": "a\nb"}], "invalid_value", "limits[0].models"),
        ([{**TOKENS, "target": "key_1"}], "unknown_parameter", "limits[0].target"),
        ([{"amount": 5, "window": "day"}], "missing_required_parameter", "limits[0].measure"),
        ([{**TOKENS, "models": f"m{n}"} for n in range(MAX_LIMITS + 1)], "invalid_value", "limits"),
        (TOKENS, "invalid_value", "limits"),
        (None, "invalid_value", "limits"),
    ],
)
async def test_where_one_limit_is_refused_nothing_is_made(server, limits, code, param):
    before = await revision(server)
    answer = await server.asked(server.admin, KEYS, {**SERVICE, "limits": limits})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param)
    assert await revision(server) == before
    assert (await server.asked(server.admin, LIMITS)).json()["data"] == []


async def test_only_who_may_limit_keys_can_create_keys_with_limits(server):
    owner, owners = await server.person(ProjectRole.OWNER)
    member, members = await server.person(ProjectRole.MEMBER)
    limits = {"limits": [TOKENS]}
    own = {"kind": "access_token", "user": owner}
    assert (await server.asked(owners, KEYS, {**SERVICE, **limits})).status == 201
    assert (await server.asked(owners, KEYS, {**own, "project": "default", **limits})).status == 201
    before = await revision(server)
    for token, wanted in ((owners, own), (members, {"kind": "access_token", "user": member})):
        answer = await server.asked(token, KEYS, {**wanted, **limits})
        assert (answer.status, answer.error["param"]) == (403, "limits")
        assert await revision(server) == before


async def test_null_removes_an_expiry_and_an_absent_field_keeps_it(server):
    until = int(server.edge.clock.wall()) + 600
    id_ = (await server.asked(server.admin, KEYS, {**SERVICE, "expires_at": until})).json()["id"]
    noted = await server.asked(server.admin, f"{KEYS}/{id_}", {"note": "n"}, method="PATCH")
    assert noted.json()["expires_at"] == until
    lasting = await server.asked(server.admin, f"{KEYS}/{id_}", {"expires_at": None}, method="PATCH")
    assert (lasting.json()["expires_at"], lasting.json()["note"]) == (None, "n")


async def test_a_key_that_ends_makes_none_of_its_own_last(server):
    until = int(server.edge.clock.wall()) + 600
    user, _ = await server.person(ProjectRole.MEMBER)
    wanted = KeyRequest(KeyKind.ACCESS_TOKEN, user=user, expires=until)
    made = await server.tenants.add_key(OPERATOR, wanted)
    path = f"{KEYS}/{made.key.id}"
    answer = await server.asked(made.secret, path, {"expires_at": None}, method="PATCH")
    assert answer.status == 403
    assert (await server.asked(server.admin, path)).json()["expires_at"] == until
