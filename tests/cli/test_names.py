"""What people call projects, users, keys, limits and prices, and the ids that the commands find for them."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
import typer

from antiphon.cli.admin_client import Admin
from antiphon.cli.commands.limits import _find_limit
from antiphon.cli.names import (
    KEY,
    PRICE,
    PROJECT,
    USER,
    ObjectKind,
    find_audited_id,
    find_id,
    find_target,
    find_used_id,
)
from antiphon.cli.output import CallFailed
from antiphon.domain.limits import Subject, Window
from antiphon.errors import SettingsError


def make_id(noun: str, number: int) -> str:
    return f"{noun}_{number:0{12 if noun == 'key' else 19}}"


def limit(number: int, target: str, measure: str, window: str | None, note: str = "") -> dict[str, object]:
    named = {"id": make_id("limit", number), "subject": "project", "target": target, "note": note}
    return named | {"measure": measure, "window": window, "amount": 5, "models": None}


RESEARCH = make_id("proj", 1)
ROWS: dict[str, list[dict[str, object]]] = {
    "projects": [{"id": "default", "name": "Main"}, {"id": RESEARCH, "name": "Research"}],
    "users": [
        {"id": make_id("user", 1), "name": "Ann", "email": "ann@example.com"},
        {"id": make_id("user", 2), "name": "Ann", "email": None},
        {"id": make_id("user", 3), "name": "user_1", "email": "r@example.com"},
    ],
    "keys": [
        {"id": make_id("key", 1), "prefix": "ak_000000000001", "note": "the bot", "revoked_at": 5},
        {"id": make_id("key", 2), "prefix": "ak_000000000002", "note": "the bot", "expires_at": 2**40},
        {"id": make_id("key", 3), "prefix": "ak_000000000003", "note": "Research", "expires_at": 6},
    ],
    "prices": [
        {"id": make_id("price", 1), "models": "gpt-*", "until": 5, "note": ""},
        {"id": make_id("price", 2), "models": "gpt-*", "until": None, "note": ""},
    ],
    "limits": [
        limit(1, RESEARCH, "requests", "minute"),
        limit(2, RESEARCH, "requests", "day", "trial"),
        limit(3, RESEARCH, "cost", "month"),
        limit(4, "default", "cost", "month"),
    ],
}


class Client:
    """Answers lists in pages of two rows, and keeps what it was asked."""

    url = "http://127.0.0.1:8000"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def call(self, _method: str, path: str, _body: object = None) -> object:
        self.asked.append(path)
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        rows = ROWS[parts.path.rpartition("/")[2]]
        rows = [row for row in rows if all(row.get(name) == query.get(name, row.get(name)) for name in row)]
        at = next((at + 1 for at, row in enumerate(rows) if row["id"] == query.get("after")), 0)
        page = rows[at : at + 2]
        return {"data": page, "next": page[-1]["id"] if len(rows) > at + 2 else None}


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def server(client: Client) -> Admin:
    return Admin(client)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        (PROJECT, "Research", RESEARCH),
        (PROJECT, "Main", "default"),
        (USER, "Ann@Example.com", make_id("user", 1)),
        (USER, "user_1", make_id("user", 3)),
        (KEY, "ak_000000000001", make_id("key", 1)),
        (KEY, "the bot", make_id("key", 2)),  # the other one has ended
        (PRICE, "gpt-*", make_id("price", 2)),
    ],
)
def test_a_name_is_found_and_told(
    server: Admin, capsys: pytest.CaptureFixture[str], kind: ObjectKind, text: str, found: str
) -> None:
    assert find_id(server, kind, text) == found
    assert f"antiphon: selected the {kind.noun} {found} (" in capsys.readouterr().err


@pytest.mark.parametrize("id_", ["default", RESEARCH])
def test_an_id_is_used_without_a_question(server: Admin, client: Client, id_: str) -> None:
    assert find_id(server, PROJECT, id_) == id_
    assert client.asked == []


def test_a_name_of_two_is_refused_with_their_ids(server: Admin) -> None:
    first, second = make_id("user", 1), make_id("user", 2)
    told = f"matches 2 objects; name one by its id: user {first} (Ann, ann@example.com); user {second} (Ann)"
    with pytest.raises(CallFailed, match=re.escape(told)):
        find_id(server, USER, "Ann")


@pytest.mark.parametrize(
    ("text", "told"),
    [("Reserch", "did you mean 'Research'?"), ("zzz", "antiphon projects list shows them")],
)
def test_an_unknown_name_is_refused_with_a_way_on(server: Admin, text: str, told: str) -> None:
    with pytest.raises(CallFailed, match=re.escape(told)):
        find_id(server, PROJECT, text)


def test_a_key_itself_is_refused_and_not_repeated(server: Admin, client: Client) -> None:
    secret = "s" * 43
    for find in (find_id, find_used_id):
        with pytest.raises(SettingsError, match=r"use its prefix, ak_000000000001$") as refused:
            find(server, KEY, f"ak_000000000001_{secret}")
        assert secret not in refused.value.message
    assert client.asked == []


def test_a_target_can_be_of_any_kind(server: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    assert find_target(server, Subject.MODEL, "Research") == "Research"
    assert find_target(server, None, "ann@example.com") == make_id("user", 1)
    with pytest.raises(CallFailed, match=r"matches 2 objects.*project proj_.*key key_"):
        find_audited_id(server, "Research")
    capsys.readouterr()
    assert find_target(server, None, "cantor") == "cantor"
    assert "used 'cantor' as a model's name" in capsys.readouterr().err
    assert find_audited_id(server, make_id("price", 7)) == make_id("price", 7)


def test_usage_takes_values_that_are_no_names(server: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    assert find_used_id(server, KEY, "service-key") == "service-key"
    assert "used 'service-key' as an id" in capsys.readouterr().err
    assert find_used_id(server, USER, "ann@example.com") == make_id("user", 1)


@pytest.mark.parametrize(
    ("words", "window", "found"),
    [
        (["trial"], None, 2),
        ([make_id("limit", 9)], None, 9),
        (["project", "Research", "cost"], None, 3),
        (["project", "Research", "requests"], Window.DAY, 2),
        (["project", "default", "cost"], None, 4),
    ],
)
def test_a_limit_is_found_by_what_it_counts(
    server: Admin, words: list[str], window: Window | None, found: int
) -> None:
    assert _find_limit(server, words, window, None) == make_id("limit", found)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["project", "Research", "requests"], "2 limits match; choose one by --per or --models: limit_"),
        (["project", "Research", "concurrent"], "there is no such limit of the project Research"),
        (["project", "Research"], "or subject, target and measure"),
        (["team", "Research", "cost"], "or subject, target and measure"),
    ],
)
def test_words_that_name_no_limit_are_refused(server: Admin, words: list[str], told: str) -> None:
    with pytest.raises((CallFailed, SettingsError), match=told):
        _find_limit(server, words, None, None)


def test_options_that_would_not_act_are_refused(server: Admin) -> None:
    with pytest.raises((SettingsError, typer.Exit), match="leave them out"):
        _find_limit(server, ["trial"], Window.DAY, None)
