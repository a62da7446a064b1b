"""Limits over the admin API: what is asked for is done, everything else refused by name."""

import asyncio
from dataclasses import replace

import pytest

from antiphon.domain.limits import Amounts
from antiphon.domain.models import Aliases
from antiphon.domain.tenancy import ProjectRole
from antiphon.engines.registry import ModelPattern
from tests.support.keyed_server import ROOT, keyed

LIMITS = f"{ROOT}/limits"
LIMIT = {"subject": "project", "target": "default", "measure": "tokens", "window": "minute", "amount": 1_000}


@pytest.fixture
async def server(tmp_path):
    async with keyed(tmp_path) as running:
        yield running


async def test_a_limit_is_set_shown_changed_and_removed(server):
    made = await server.asked(server.admin, LIMITS, {**LIMIT, "note": "all of it"})
    card = made.json()
    assert made.status == 201
    assert card == {
        **LIMIT, "object": "limit", "id": card["id"], "models": None, "created_at": card["created_at"],
        "note": "all of it",
    }  # fmt: skip
    limiting, clock = server.limiting, server.edge.clock
    (limit,) = limiting._changes.directory.limits
    began = clock.monotonic()
    await limiting._limiter.reserve("a", [limit], Amounts(output_tokens=400))
    shown = (await server.asked(server.admin, f"{LIMITS}/{card['id']}")).json()
    took = clock.monotonic() - began
    assert shown["remaining"] == 600 and 60 - took - 0.001 < shown["reset_seconds"] <= 60.06
    changed = await server.asked(server.admin, f"{LIMITS}/{card['id']}", {"amount": 500}, method="PATCH")
    assert changed.json() == {**card, "amount": 500}
    assert (await server.asked(server.admin, f"{LIMITS}/{card['id']}")).json()["remaining"] == 100
    assert (await server.asked(server.admin, f"{LIMITS}/{card['id']}", method="DELETE")).status == 204
    assert (await server.asked(server.admin, f"{LIMITS}/{card['id']}")).status == 404
    assert (await server.asked(server.admin, LIMITS)).json()["data"] == []


async def test_lists_come_by_pages_and_by_what_they_are_of(server):
    measures = ["tokens", "requests", "cost"]
    for measure in measures:
        said = {**LIMIT, "subject": "model", "target": "m", "measure": measure}
        await server.asked(server.admin, LIMITS, said)
    await server.asked(server.admin, LIMITS, LIMIT)
    found, after = [], ""
    while after is not None:
        page = (await server.asked(server.admin, f"{LIMITS}?subject=model&limit=2{after}")).json()
        found += [each["measure"] for each in page["data"]]
        after = page["next"] and f"&after={page['next']}"
    assert found == measures
    page = (await server.asked(server.admin, f"{LIMITS}?target=default")).json()
    assert [each["subject"] for each in page["data"]] == ["project"]


async def test_the_page_after_a_limit_that_was_removed_is_found(server):
    made = []
    for measure in ("tokens", "requests", "cost"):
        said = {**LIMIT, "measure": measure}
        made.append((await server.asked(server.admin, LIMITS, said)).json()["id"])
        await asyncio.sleep(0.002)  # pages go on at the millisecond of an id that is gone
    first = (await server.asked(server.admin, f"{LIMITS}?limit=2")).json()
    assert first["next"] == made[1]
    for removed, left in ((made[1], made[2:]), (made[2], []), (made[0], [])):
        await server.asked(server.admin, f"{LIMITS}/{removed}", method="DELETE")
        page = await server.asked(server.admin, f"{LIMITS}?after={removed}")
        assert (page.status, [each["id"] for each in page.json()["data"]]) == (200, left)
    for other in (made[0][:-1], made[0].replace("limit", "user"), made[0].upper(), "limit_"):
        assert (await server.asked(server.admin, f"{LIMITS}?after={other}")).error["param"] == "after"


BAD_LIMITS: tuple[tuple[dict[str, object], str, str | None], ...] = (
    ({"amount": -1}, "invalid_value", "amount"),
    ({"amount": 2**53 + 1}, "invalid_value", "amount"),
    ({"amount": 10**60}, "invalid_value", "amount"),
    ({"measure": "cost", "amount": 9 * 10**18 + 1}, "invalid_value", "amount"),
    ({"amount": 1.5}, "invalid_value", "amount"),
    ({"amount": None}, "invalid_value", "amount"),
    ({"measure": "words"}, "invalid_value", "measure"),
    ({"window": "hour"}, "invalid_value", "window"),
    ({"subject": "team"}, "invalid_value", "subject"),
    ({"measure": "concurrent"}, "invalid_value", "window"),
    ({"window": None}, "missing_required_parameter", "window"),
    ({"target": ""}, "invalid_value", "target"),
    ({"target": "a\x00"}, "invalid_value", "target"),
    ({"models": "a\nb"}, "invalid_value", "models"),
    ({"id": "limit_1"}, "unknown_parameter", "id"),
    ({"target": "other"}, "not_found", None),
)


async def test_bad_limits_are_refused_by_name(server):
    for change, code, param in BAD_LIMITS:
        answer = await server.asked(server.admin, LIMITS, {**LIMIT, **change})
        assert answer.status in (400, 404)
        assert (answer.error["code"], answer.error["param"]) == (code, param), change


MOST = 9_000_000_000 * 10**9
TOO_MUCH = "a limit of cost can be at most 9000000000 units of the currency (9000000000000000000 billionths)"


async def test_budgets_are_exact_up_to_billions_and_refused_beyond(server):
    budget = {**LIMIT, "measure": "cost", "window": "month"}
    for amount in (2**53 + 1, MOST - 1):
        card = (await server.asked(server.admin, LIMITS, {**budget, "amount": amount})).json()
        shown = (await server.asked(server.admin, f"{LIMITS}/{card['id']}")).json()
        assert (card["amount"], shown["amount"], shown["remaining"]) == (amount,) * 3
        await server.asked(server.admin, f"{LIMITS}/{card['id']}", method="DELETE")
    path = f"{LIMITS}/{(await server.asked(server.admin, LIMITS, {**budget, 'amount': MOST})).json()['id']}"
    for amount in (MOST + 1, 2**64, 10**60):
        limits = [{"measure": "cost", "window": "day", "amount": amount}]
        key = {"kind": "service", "project": "default", "limits": limits}
        replies = [
            await server.asked(server.admin, LIMITS, {**budget, "amount": amount}),
            await server.asked(server.admin, path, {"amount": amount}, method="PATCH"),
            await server.asked(server.admin, f"{ROOT}/keys", key),
        ]
        assert [reply.status for reply in replies] == [400] * 3
        assert [reply.error["param"] for reply in replies] == ["amount", "amount", "limits[0].amount"]
        assert {reply.error["message"] for reply in replies} == {TOO_MUCH}
    assert (await server.asked(server.admin, path)).json()["amount"] == MOST


async def test_what_a_limit_counts_is_not_changed(server):
    card = (await server.asked(server.admin, LIMITS, LIMIT)).json()
    path = f"{LIMITS}/{card['id']}"
    for field in ("subject", "target", "measure", "window", "models", "id", "created_at"):
        answer = await server.asked(server.admin, path, {field: card[field]}, method="PATCH")
        error = answer.error
        assert (answer.status, error["code"], error["param"]) == (400, "unknown_parameter", field)


async def test_unknown_queries_are_refused_by_name(server):
    answer = await server.asked(server.admin, f"{LIMITS}?measure=tokens")
    assert (answer.status, answer.error["code"]) == (400, "unknown_parameter")
    answer = await server.asked(server.admin, f"{LIMITS}?subject=team")
    assert (answer.status, answer.error["param"]) == (400, "subject")


async def test_another_projects_limit_is_not_there(server):
    project = (await server.asked(server.admin, f"{ROOT}/projects", {"name": "Other"})).json()["id"]
    _, owner = await server.person(ProjectRole.OWNER, project)
    card = (await server.asked(server.admin, LIMITS, LIMIT)).json()
    for how in ({}, {"method": "DELETE"}, {"method": "PATCH", "body": {"amount": 1}}):
        assert (await server.asked(owner, f"{LIMITS}/{card['id']}", **how)).status == 404
    assert (await server.asked(owner, LIMITS)).json()["data"] == []
    assert (await server.asked(owner, LIMITS, LIMIT)).status == 404
    mine = {**LIMIT, "target": project}
    answer = await server.asked(owner, LIMITS, mine)
    assert (answer.status, answer.error["code"]) == (403, "permission_denied")


async def test_a_key_that_is_rotated_stays_limited(server):
    body = {"kind": "service", "project": "default"}
    key = (await server.asked(server.admin, f"{ROOT}/keys", body)).json()["id"]
    await server.asked(server.admin, LIMITS, {**LIMIT, "subject": "key", "target": key})
    new = (await server.asked(server.admin, f"{ROOT}/keys/{key}/rotate", {})).json()["id"]
    found = (await server.asked(server.admin, f"{LIMITS}?target={new}")).json()["data"]
    assert [(each["measure"], each["amount"]) for each in found] == [("tokens", 1_000)]


async def test_a_limit_under_a_name_that_counts_nothing_is_refused(server):
    said = {"subject": "model", "measure": "tokens", "window": "day", "amount": 10}
    for target, words in (
        ("*", "a limit of a pattern would count nothing"),
        ("accounts/fireworks/models/m", "another name of m"),
        ("nothing", "does not exist"),
    ):
        answer = await server.asked(server.admin, f"{ROOT}/limits", said | {"target": target})
        assert (answer.status, answer.error["param"]) == (400, "target")
        assert words in answer.error["message"]
    models = server.edge.models
    pattern = ModelPattern(
        replace(models.get("m"), name="v/*"), lambda name, _: replace(models.get("m"), name=name)
    )
    models.replace((models.get("m"),), Aliases(), (pattern,))
    for target in ("m", "v/one"):
        assert (await server.asked(server.admin, f"{ROOT}/limits", said | {"target": target})).status == 201
