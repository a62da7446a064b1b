"""What the admin API says of models' names in limits, keys and prices: nothing is refused for them, and what
concerns no model does not pass without a word."""

import pytest

from antiphon.domain.tenancy import KeyKind, ProjectRole
from tests.support.keyed_server import ROOT, keyed

LIMITS, KEYS, PRICES = f"{ROOT}/limits", f"{ROOT}/keys", f"{ROOT}/prices"
LIMIT = {"subject": "project", "target": "default", "measure": "tokens", "window": "day", "amount": 10}
BUDGET = LIMIT | {"measure": "cost"}
KEY = {"kind": "service", "project": "default"}
PRICE = {"currency": "USD", "input": "1", "output": "2"}
OTHER = "accounts/fireworks/models/m"
ALIAS = f"{OTHER} is another name of m, and only its own counts: name m"
NOTHING = "nothing here is served by the name nope now"
NOTHING_LIKE = "nothing here is served by a name like nope* now"
UNPRICED = "m has no price now: its requests are refused where a limit of cost applies"
NAMES = [("m", None), ("*", None), (OTHER, ALIAS), ("nope", NOTHING), ("nope*", NOTHING_LIKE)]


@pytest.fixture
async def server(tmp_path):
    """It serves `m`, also by another name."""
    async with keyed(tmp_path) as running:
        yield running


async def said(server, path, body, method="POST", key=None):
    """The warnings of an answer."""
    reply = await server.asked(key or server.admin, path, body, method=method)
    assert reply.status in (200, 201), reply.body
    return reply.json().get("warnings"), reply.json()


def one(warning):
    return None if warning is None else [warning]


@pytest.mark.parametrize(("name", "warning"), NAMES)
async def test_an_unserved_model_name_is_reported_and_not_refused(server, name, warning):
    found, limit = await said(server, LIMITS, LIMIT | {"models": name})
    assert found == one(warning)
    assert (await said(server, f"{LIMITS}/{limit['id']}", {"amount": 5}, "PATCH"))[0] == one(warning)
    found, key = await said(server, KEYS, KEY | {"models": [name]})
    assert found == one(warning) and key["secret"]
    assert (await said(server, f"{KEYS}/{key['id']}", {"models": ["m", name]}, "PATCH"))[0] == one(warning)
    found, price = await said(server, PRICES, PRICE | {"models": name})
    assert found == one(warning)
    assert (await said(server, f"{PRICES}/{price['id']}", {"note": "n"}, "PATCH"))[0] == one(warning)
    for path in (f"{LIMITS}/{limit['id']}", f"{KEYS}/{key['id']}", f"{PRICES}/{price['id']}"):
        assert "warnings" not in (await server.asked(server.admin, path)).json()


async def test_limits_that_come_with_a_key_are_looked_at_too(server):
    limits = [
        {"measure": "tokens", "window": "day", "amount": 1, "models": name} for name in ("nope", "nope*")
    ]
    found, _ = await said(server, KEYS, KEY | {"models": ["nope"], "limits": limits})
    assert found == [NOTHING, NOTHING_LIKE]


async def test_a_limit_of_cost_says_which_models_it_will_refuse(server):
    assert (await said(server, LIMITS, BUDGET))[0] == [UNPRICED]
    assert (await said(server, LIMITS, BUDGET | {"models": "nope"}))[0] == [NOTHING]
    limits = [{"measure": "cost", "window": "day", "amount": 1}]
    assert (await said(server, KEYS, KEY | {"limits": limits}))[0] == [UNPRICED]
    found, price = await said(server, PRICES, PRICE | {"models": "m"})
    assert found is None
    assert (await said(server, LIMITS, BUDGET | {"window": "week"}))[0] is None
    assert (await said(server, f"{PRICES}/{price['id']}", None, "DELETE"))[0] == [UNPRICED]


async def test_ending_a_price_warns_only_if_a_limit_counts_its_models(server):
    await said(server, LIMITS, LIMIT)
    await said(server, LIMITS, BUDGET | {"models": "n*"})
    _, price = await said(server, PRICES, PRICE | {"models": "m"})
    assert (await said(server, f"{PRICES}/{price['id']}", None, "DELETE"))[0] is None


async def test_nobody_learns_a_model_name_that_their_key_excludes(server):
    user, _ = await server.person(ProjectRole.OWNER)
    body = {"kind": KeyKind.ACCESS_TOKEN, "user": user, "models": [OTHER, "n*"]}
    _, confined = await said(server, KEYS, body)
    found, _ = await said(server, KEYS, KEY | {"models": [OTHER]}, key=confined["secret"])
    assert found == [f"nothing here is served by the name {OTHER} now"]
