"""`antiphon limits` as a user runs it: what it sends and prints, and one line about what is wrong."""

import json
import re

import pytest

from tests.cli.conftest import Run
from tests.cli.scripted import *  # noqa: F403 - a fixture is found by its name; `__all__` lists it
from tests.cli.scripted import Scripted, page

CARD: dict[str, object] = {
    "object": "limit",
    "id": "limit_0000000000000000001",
    "subject": "project",
    "target": "default",
    "measure": "requests",
    "amount": 600,
    "window": "minute",
    "models": None,
    "created_at": 0,
    "note": "",
}
SET = ("limits", "set", "project", "default", "requests", "600", "--per", "minute")


def test_a_limit_is_set_and_its_id_printed(antiphon: Run, server: Scripted) -> None:
    server.answers = [page(), (201, CARD)]
    ended = antiphon(*SET, "--url", server.url)
    assert (ended.returncode, ended.stdout) == (0, "limit_0000000000000000001\n")
    assert ended.stderr == "antiphon: set: 600 requests per minute for the project default\n"
    (_, listed, _, _), made = server.asked
    assert listed == "/admin/v1/limits?limit=1000&subject=project&target=default"
    sent = {name: CARD[name] for name in ("subject", "target", "measure", "amount", "window")}
    assert made[:3] == ("POST", "/admin/v1/limits", sent)


def test_where_there_is_such_a_limit_its_amount_changes(antiphon: Run, server: Scripted) -> None:
    other = {**CARD, "id": "limit_0000000000000000000", "models": "a*"}
    server.answers = [page(other, CARD), (200, {**CARD, "amount": 700})]
    ended = antiphon(*SET[:5], "700", *SET[6:], "--url", server.url)
    assert (
        ended.stdout == "limit_0000000000000000001\n" and "changed: 700 requests per minute" in ended.stderr
    )
    assert server.asked[1][:3] == ("PATCH", "/admin/v1/limits/limit_0000000000000000001", {"amount": 700})


def test_costs_are_written_in_the_currency(antiphon: Run, server: Scripted) -> None:
    card = {**CARD, "measure": "cost", "window": "month", "amount": 12_500_000_000}
    server.answers = [page(), (201, card)]
    ended = antiphon(
        "limits",
        "set",
        "user",
        "user_0000000000000000001",
        "cost",
        "12.50",
        "--per",
        "month",
        "--url",
        server.url,
    )
    assert "set: 12.50 cost per month" in ended.stderr
    sent = server.asked[1][2]
    assert isinstance(sent, dict) and sent["amount"] == 12_500_000_000
    server.answers = [(200, {**card, "remaining": 500_000_000, "reset_seconds": 60.5})]
    lines = antiphon("limits", "show", "limit_0000000000000000001", "--url", server.url).stdout.splitlines()
    assert ["remaining", "0.50"] in [line.split() for line in lines]


def test_limits_are_listed_in_words(antiphon: Run, server: Scripted) -> None:
    running = {
        **CARD,
        "id": "limit_0000000000000000002",
        "measure": "concurrent",
        "window": None,
        "amount": 4,
        "models": "a*",
    }
    server.answers = [page(CARD, running), page({"object": "project", "id": "default", "name": "Main"})]
    ended = antiphon("limits", "list", "--of", "project", "--target", "default", "--url", server.url)
    head, first, second = (re.split("  +", line.rstrip()) for line in ended.stdout.splitlines())
    assert head == ["SUBJECT", "TARGET", "LIMIT", "MODELS", "NOTE"]
    assert first[:4] == ["project", "Main", "600 requests per minute", "all"]
    assert second[:4] == ["project", "Main", "4 requests at once", "a*"]
    assert server.asked[0][1] == "/admin/v1/limits?limit=1000&subject=project&target=default"
    server.answers = [page(CARD)]
    shown = json.loads(antiphon("limits", "list", "--json", "--url", server.url).stdout)
    assert shown == {"limits": [CARD]}


def test_a_model_of_a_projects_name_gets_no_name(antiphon: Run, server: Scripted) -> None:
    server.answers = [page({**CARD, "subject": "model", "target": "default"})]
    ended = antiphon("limits", "list", "--url", server.url)
    assert ended.stdout.splitlines()[1].split()[:2] == ["model", "default"]


def test_one_is_removed(antiphon: Run, server: Scripted) -> None:
    server.answers = [(204, {})]
    ended = antiphon("limits", "remove", "limit_0000000000000000001", "--url", server.url)
    assert (ended.returncode, ended.stderr) == (0, "antiphon: removed limit_0000000000000000001\n")
    assert server.asked[0][:2] == ("DELETE", "/admin/v1/limits/limit_0000000000000000001")


@pytest.mark.parametrize(
    ("amount", "nano"),
    [("10000000", 10**16), ("9007199.3", 9_007_199_300_000_000), ("9000000000", 9 * 10**18)],
)
def test_large_budgets_are_set_to_the_last_billionth(
    antiphon: Run, server: Scripted, amount: str, nano: int
) -> None:
    card = {**CARD, "measure": "cost", "window": "month", "amount": nano}
    server.answers = [page(), (201, card)]
    ended = antiphon(
        "limits",
        "set",
        "user",
        "user_0000000000000000001",
        "cost",
        amount,
        "--per",
        "month",
        "--url",
        server.url,
    )
    assert f"set: {float(amount):,.2f} cost per month" in ended.stderr
    sent = server.asked[1][2]
    assert isinstance(sent, dict) and sent["amount"] == nano


def test_amounts_and_times_are_shown_as_people_write_them(antiphon: Run, server: Scripted) -> None:
    card = {**CARD, "measure": "cost", "window": "month", "amount": 1_012_500_000_000}
    status = {**card, "remaining": 250_000, "reset_seconds": 532_800.2}
    tokens = {**CARD, "measure": "output_tokens", "window": "day", "amount": 1_000_000}
    server.answers = [(200, status), page(card, tokens), (403, {})]
    shown = antiphon("limits", "show", "limit_0000000000000000001", "--url", server.url).stdout
    fields = dict(line.split(maxsplit=1) for line in shown.splitlines() if len(line.split()) > 1)
    expected = {"amount": "1,012.50", "remaining": "0.00025", "available_in": "6d 4h"}
    assert {name: fields[name] for name in expected} == expected
    listed = antiphon("limits", "list", "--url", server.url).stdout
    assert "1,012.50 cost per month" in listed and "1,000,000 output tokens per day" in listed


@pytest.mark.parametrize(
    ("measure", "amount", "most"),
    [
        ("cost", "9000000000.000000001", "9000000000 units of the currency"),
        ("cost", "1" + "0" * 200, "9000000000 units of the currency"),
        ("tokens", str(2**53 + 1), str(2**53)),
    ],
)
def test_too_much_is_told_with_the_most(
    antiphon: Run, server: Scripted, measure: str, amount: str, most: str
) -> None:
    server.answers = [page()]
    words = ("limits", "set", "project", "default", measure, amount, "--per", "day", "--url", server.url)
    ended = antiphon(*words)
    assert ended.returncode == 1 and f"a limit of {measure} can be at most {most}" in ended.stderr
    assert server.asked == []


@pytest.mark.parametrize(
    ("measure", "amount", "taken"),
    [("requests", "1.5", "an integer"), ("tokens", "-1", "an integer"), ("cost", "1e3", "a decimal")],
)
def test_an_amount_that_is_none_is_refused(antiphon: Run, server: Scripted, measure, amount, taken) -> None:
    server.answers = [page()]
    words = (
        "limits",
        "set",
        "--per",
        "day",
        "--url",
        server.url,
        "--",
        "project",
        "default",
        measure,
        amount,
    )
    ended = antiphon(*words)
    assert ended.returncode == 1 and f"is no amount of {measure}: write {taken}" in ended.stderr
    assert server.asked == []
