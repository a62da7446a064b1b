"""`antiphon requests` as a user runs it."""

import json

import pytest

from tests.cli.conftest import Run
from tests.cli.scripted import *  # noqa: F403 - a fixture is found by its name; `__all__` lists it
from tests.cli.scripted import Scripted, page

PROJECT = {"object": "project", "id": "proj_0000000000000000001", "name": "Research"}
PATH = f"/admin/v1/projects/{PROJECT['id']}/recording"
CARD = {
    "object": "request",
    "id": "r1",
    "project": PROJECT["id"],
    "created_at": 1_800_000_000,
    "expires_at": 1_800_086_400,
    "request": '{"model": "m"}',
    "answer": "[]",
}


def test_a_project_is_turned_on_and_off_by_its_name(antiphon: Run, server: Scripted) -> None:
    server.answers = [page(PROJECT), (200, PROJECT), page(PROJECT), (200, PROJECT)]
    words = ("requests", "on", "Research", "--days", "30", "--redact", "key, email", "--url", server.url)
    assert "kept for 30 days, without key, email" in antiphon(*words).stderr
    assert "no longer recorded" in antiphon("requests", "off", "Research", "--url", server.url).stderr
    assert server.asked[1][:3] == ("PUT", PATH, {"days": 30, "redact": ["key", "email"]})
    assert server.asked[3][:2] == ("DELETE", PATH)


def test_kept_requests_are_listed_read_and_erased(antiphon: Run, server: Scripted) -> None:
    removed = (200, {"object": "removed", "removed": 3})
    server.answers = [page(CARD), (200, CARD), removed]
    project = str(PROJECT["id"])
    listed = antiphon("requests", "list", project, "--url", server.url).stdout
    assert "2027-01-15 08:00" in listed and str(CARD["request"]) in listed
    read = antiphon("requests", "read", "r1", "--url", server.url).stdout
    assert str(CARD["request"]) in read and "2027-01-16 08:00" in read
    assert "removed 3 requests" in antiphon("requests", "erase", project, "--url", server.url).stderr
    assert [path for _, path, _, _ in server.asked] == [
        f"/admin/v1/requests?limit=20&project={project}",
        "/admin/v1/requests/r1",
        f"/admin/v1/requests?project={project}",
    ]
    assert server.asked[2][0] == "DELETE"


def test_the_latest_request_is_read_by_its_project(antiphon: Run, server: Scripted) -> None:
    server.answers = [page(PROJECT), page(CARD), page(PROJECT), page()]
    read = antiphon("requests", "read", "--latest", "Research", "--json", "--url", server.url)
    assert json.loads(read.stdout) == CARD
    assert server.asked[1][1] == f"/admin/v1/requests?limit=1&project={PROJECT['id']}"
    none = antiphon("requests", "read", "--latest", "Research", "--url", server.url)
    assert none.returncode == 1 and "Research has no recorded request" in none.stderr


@pytest.mark.parametrize("words", [(), ("r1", "--latest", "Research")])
def test_one_request_is_read_at_a_time(antiphon: Run, server: Scripted, words: tuple[str, ...]) -> None:
    ended = antiphon("requests", "read", *words, "--url", server.url)
    assert ended.returncode == 1 and "by its id, or by --latest PROJECT" in ended.stderr
    assert server.asked == []


@pytest.mark.parametrize("words", [("--days", "0"), ("--days", "1", "--redact", "names")])
def test_what_cannot_be_kept_so_is_refused(antiphon: Run, server: Scripted, words: tuple[str, ...]) -> None:
    ended = antiphon("requests", "on", "default", *words, "--url", server.url)
    assert ended.returncode != 0 and server.asked == []
