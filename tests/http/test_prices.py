"""The price list over the wire: exact, explainable for ever, and the operator's alone."""

import pytest

from antiphon.domain.prices import Price, format_decimal, parse_decimal
from antiphon.domain.tenancy import KeyKind, ProjectRole
from antiphon.domain.values import replace
from antiphon.pipeline.rules import RuleSet
from antiphon.store.base import ChangeAuthor
from tests.support.http_server import KEY
from tests.support.keyed_server import PLAIN, ROOT, keyed

PRICES = f"{ROOT}/prices"
PRICE = {"models": "m*", "currency": "USD", "input": "0.15", "output": "0.6"}
LATER = 4_000_000_000


@pytest.fixture
async def server(tmp_path):
    async with keyed(tmp_path) as running:
        yield running


async def add(server, **said):
    reply = await server.asked(server.admin, PRICES, PRICE | said)
    assert reply.status == 201, reply.body
    return reply.json()


def holding(server, model, at):
    """The price by which a request is reckoned."""
    prices = RuleSet((), server.pricing._changes.directory.prices).list_prices(model)
    return next((price.id for price in prices if price.applies_at(at)), None)


@pytest.mark.parametrize(
    ("said", "shown", "nano"),
    [
        ("0.15", "0.15", 150_000_000),
        ("0.000000001", "0.000000001", 1),
        ("9999999.999999999", "9999999.999999999", 9_999_999_999_999_999),
        ("007.50", "7.5", 7_500_000_000),
        ("3", "3", 3_000_000_000),
        ("0", "0", 0),
    ],
)
async def test_amounts_are_exact_both_ways(server, said, shown, nano):
    price = await add(server, input=said, cached=said, output=said, request=said)
    assert [price[name] for name in ("input", "cached", "output", "request")] == [shown] * 4
    kept = server.pricing._changes.directory.prices[0]
    assert {kept.input, kept.cached, kept.output, kept.request} == {nano}
    assert parse_decimal(format_decimal(nano)) == nano


NO_AMOUNTS = (
    0.15,
    3,
    "-1",
    "1e3",
    "",
    ".5",
    "5.",
    "0.1234567891",
    "12345678",
    "NaN",
    " 1",
    "1\n",
    "１",
    True,
    None,
)


async def test_what_is_no_exact_amount_is_refused_by_name(server):
    for amount in NO_AMOUNTS:
        reply = await server.asked(server.admin, PRICES, PRICE | {"output": amount})
        assert (reply.status, reply.error["param"]) == (400, "output"), amount


NONSENSE: tuple[tuple[dict[str, object], str], ...] = (
    ({"currency": "usd"}, "currency"),
    ({"currency": "EURO"}, "currency"),
    ({"models": ""}, "models"),
    ({"since": 1}, "since"),
    ({"since": LATER, "until": LATER}, "until"),
    ({"until": 1}, "until"),
    ({"cost": "1"}, "cost"),
    ({"id": "price_1"}, "id"),
)


async def test_what_makes_no_sense_is_refused_by_name(server):
    for said, param in NONSENSE:
        reply = await server.asked(server.admin, PRICES, PRICE | said)
        assert (reply.status, reply.error["param"]) == (400, param), said
        assert (await server.asked(server.admin, PRICES)).json()["data"] == []


async def currency_refused(server, currency):
    """Why."""
    reply = await server.asked(server.admin, PRICES, PRICE | {"currency": currency})
    assert (reply.status, reply.error["param"]) == (400, "currency"), reply.body
    return reply.error["message"]


def held(server, seconds_ago, currency="USD"):
    """A price that held for a minute until some time ago."""
    until = int(server.edge.clock.wall()) - seconds_ago
    price = Price("price_0", "m*", currency, until - 60, 1, 1, until=until, created=until - 60)
    server.pricing._rules.add_price(price, ChangeAuthor("operator", until - 60))


@pytest.mark.parametrize("currency", ["XXX", "XTS", "XAU", "EUX", "ZZZ"])
async def test_what_nobody_pays_in_is_no_currency(server, currency):
    assert "ISO 4217, such as USD" in await currency_refused(server, currency)
    held(server, 3600, currency)  # from before it was looked at
    await add(server, currency=currency)


async def test_a_server_has_one_currency(server):
    first = await add(server)
    assert "prices are in USD" in await currency_refused(server, "EUR")
    until = int(server.edge.clock.wall()) + 3600
    await server.asked(server.admin, f"{PRICES}/{first['id']}", {"until": until}, method="PATCH")
    assert "prices are in USD" in await currency_refused(server, "EUR")
    await server.asked(server.admin, f"{PRICES}/{first['id']}", method="DELETE")
    await add(server, models="other")


async def test_a_currency_stays_once_something_was_priced(server):
    held(server, 3600)
    server.entries.add([replace(PLAIN, id="e1", price="price_0", currency="USD")])
    assert "costs in USD" in await currency_refused(server, "EUR")
    await add(server)


async def test_after_all_prices_end_the_first_new_price_decides_anew(server):
    held(server, 3600)
    server.entries.add([replace(PLAIN, id="e1")])
    euro = await add(server, currency="EUR")
    assert "prices are in EUR" in await currency_refused(server, "USD")
    assert holding(server, "m", LATER) == euro["id"]
    usage = (await server.asked(server.admin, f"{ROOT}/usage")).json()
    assert usage["currency"] == "EUR"


async def test_what_a_price_held_for_until_just_now_is_waited_for(server, monkeypatch):
    monkeypatch.setattr("antiphon.services.prices.SETTLE_S", 1000)
    held(server, 3)
    assert "try again in" in await currency_refused(server, "EUR")


async def test_a_price_withdrawn_before_its_start_never_applies(server):
    typo = await add(server, currency="AUD", since=LATER)
    path = f"{PRICES}/{typo['id']}"
    await server.asked(server.admin, path, method="DELETE")
    await add(server, currency="USD")
    for until in (None, LATER + 1):
        reply = await server.asked(server.admin, path, {"until": until}, method="PATCH")
        assert (reply.status, reply.error["param"]) == (400, "until")


async def test_a_price_applies_until_its_end_and_the_next_from_then_on(server):
    now = int(server.edge.clock.wall())
    first = await add(server, note="list price")
    assert first["since"] >= now and first["until"] is None
    assert holding(server, "m", first["since"]) == first["id"]
    ended = (await server.asked(server.admin, f"{PRICES}/{first['id']}", method="DELETE")).json()
    assert first["since"] <= ended["until"] <= server.edge.clock.wall()
    assert holding(server, "m", ended["until"]) is None
    again = await server.asked(server.admin, f"{PRICES}/{first['id']}", method="DELETE")
    assert again.json() == ended
    second = await add(server, input="0.2")
    listed = (await server.asked(server.admin, PRICES)).json()["data"]
    assert [each["id"] for each in listed] == [first["id"], second["id"]]
    assert holding(server, "m", LATER) == second["id"]
    shown = await server.asked(server.admin, f"{PRICES}/{second['id']}")
    assert shown.json() == second


async def test_nothing_of_a_price_but_its_end_and_note_can_be_changed(server):
    price = await add(server, until=LATER)
    path = f"{PRICES}/{price['id']}"
    for field in ("input", "output", "cached", "request", "models", "currency", "since", "id", "created_at"):
        reply = await server.asked(server.admin, path, {field: price.get(field) or "1"}, method="PATCH")
        assert (reply.status, reply.error["param"]) == (400, field)
    noted = (await server.asked(server.admin, path, {"note": "n"}, method="PATCH")).json()
    assert noted == price | {"note": "n"}
    longer = (await server.asked(server.admin, path, {"until": None}, method="PATCH")).json()
    assert longer == noted | {"until": None}
    for until in (1, price["since"] - 1):
        reply = await server.asked(server.admin, path, {"until": until}, method="PATCH")
        assert (reply.status, reply.error["param"]) == (400, "until")


async def test_a_price_that_ended_stays_so(server):
    price = await add(server)
    path = f"{PRICES}/{price['id']}"
    ended = (await server.asked(server.admin, path, method="DELETE")).json()
    for until in (None, LATER):
        reply = await server.asked(server.admin, path, {"until": until}, method="PATCH")
        assert (reply.status, reply.error["param"]) == (400, "until")
    same = await server.asked(server.admin, path, {"until": ended["until"], "note": "old"}, method="PATCH")
    assert same.json() == ended | {"note": "old"}


async def test_a_price_that_has_not_begun_can_be_taken_back(server):
    price = await add(server, since=LATER)
    assert holding(server, "m", LATER) == price["id"]
    ended = (await server.asked(server.admin, f"{PRICES}/{price['id']}", method="DELETE")).json()
    assert ended["until"] == LATER
    assert holding(server, "m", LATER) is None


async def test_every_change_is_in_the_audit(server):
    price = await add(server)
    await server.asked(server.admin, f"{PRICES}/{price['id']}", {"note": "n"}, method="PATCH")
    await server.asked(server.admin, f"{PRICES}/{price['id']}", method="DELETE")
    entries = (await server.asked(server.admin, f"{ROOT}/audit?target={price['id']}")).json()["data"]
    assert [each["action"] for each in entries] == ["price.change", "price.change", "price.create"]
    assert entries[2]["detail"]["input"] == 150_000_000
    assert set(entries[0]["detail"]) == {"until"}


async def test_prices_are_the_operators_alone(server):
    price = await add(server)
    keys = [KEY, await server.token(KeyKind.SERVICE, project="default")]
    keys += [(await server.person(role))[1] for role in ProjectRole]
    for key in keys:
        for path, body, method in (
            (PRICES, None, "GET"),
            (PRICES, PRICE, "POST"),
            (f"{PRICES}/{price['id']}", None, "GET"),
            (f"{PRICES}/{price['id']}", {"note": "x"}, "PATCH"),
            (f"{PRICES}/{price['id']}", None, "DELETE"),
            (f"{PRICES}/none", None, "DELETE"),
        ):
            assert (await server.asked(key, path, body, method=method)).status == 403, (path, method)
    assert (await server.asked(server.admin, f"{PRICES}/none")).status == 404
    assert (await server.asked(server.admin, PRICES)).json()["data"] == [price]
