"""Summaries over the real server with keys: what they cost in the ledger, and what a kill leaves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.ledgered import kill_gateway
from tests.e2e.talks import QUESTION, build_talk
from tests.support.server import Server, read_event
from tests.support.waiting import wait_until

STRATEGY = {"name": "summary", "tokens": 600}
TURNS = 10
"""A thousand tokens. Their summary leaves room for one turn more."""


@pytest.fixture
def server(keyed: tuple[Server, Path]) -> Server:
    return keyed[0]


@pytest.fixture
def admin(keyed: tuple[Server, Path]) -> Iterator[httpx2.Client]:
    server, home = keyed
    with server.client(
        headers={"authorization": f"Bearer {(home / 'admin.key').read_text().strip()}"}
    ) as client:
        yield client


def make_key(admin: httpx2.Client, name: str) -> tuple[str, dict[str, str]]:
    """A new project, and the headers of a key of it."""
    project: str = admin.post("/admin/v1/projects", json={"name": name}).json()["id"]
    made = admin.post("/admin/v1/keys", json={"kind": "service", "project": project})
    return project, {"authorization": f"Bearer {made.json()['secret']}"}


def build_body(turns: int) -> dict[str, Any]:
    messages = [*build_talk(turns), {"role": "user", "content": QUESTION.format(number=turns)}]
    return {"model": "cantor", "messages": messages, "max_tokens": 8, "memory_strategy": STRATEGY}


def list_rows(
    admin: httpx2.Client, requests: int, *projects: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of so many requests of the projects, once they are there, and those of their children."""
    parents: list[dict[str, Any]] = []
    children: list[dict[str, Any]] = []

    def has_all() -> bool:
        every = admin.get("/admin/v1/usage/entries", params={"limit": 1000}).json()["data"]
        rows = [row for row in every if row["project"] in projects]
        parents[:] = [row for row in rows if row["parent"] is None]
        children[:] = [row for row in rows if row["parent"] is not None]
        return len(parents) == requests

    wait_until(has_all, what=f"rows of {requests} requests")
    return parents, children


def test_a_growing_talk_pays_for_its_summary_once(server: Server, admin: httpx2.Client):
    (first, mine), (other, theirs) = (make_key(admin, name) for name in ("first", "other"))
    reports = []
    for turns, headers in ((TURNS, mine), (TURNS, mine), (TURNS + 1, mine), (TURNS, theirs)):
        answer = admin.post("/v1/chat/completions", json=build_body(turns), headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["prompt_tokens"] <= STRATEGY["tokens"]
        told = dict(each.split("=") for each in answer.headers["x-antiphon-memory"].split(", "))
        assert int(told["kept"]) + int(told["summarised"]) == 2 * turns + 2
        reports.append(told)
    assert reports[0] == reports[1] == reports[3]
    parents, children = list_rows(admin, 4, first, other)
    rows = parents + children
    assert {row["status"] for row in rows} == {"ok"}
    assert {row["parent"] for row in children} == {parents[0]["id"], parents[3]["id"]}
    usage = {project: admin.get("/admin/v1/usage", params={"project": project}) for project in (first, other)}
    total = [answer.json()["total"] for answer in usage.values()]
    assert [each["requests"] for each in total] == [3, 1]
    assert sum(each["output_tokens"] for each in total) == sum(row["output_tokens"] for row in rows)
    admin.delete("/admin/v1/requests", params={"project": first}).raise_for_status()
    assert admin.post("/v1/chat/completions", json=build_body(TURNS), headers=mine).status_code == 200
    parents, written_anew = list_rows(admin, 5, first, other)
    assert {row["parent"] for row in written_anew} - {row["parent"] for row in children} == {parents[4]["id"]}


def test_a_kill_between_child_and_parent_leaves_both_rows(server: Server, admin: httpx2.Client):
    project, headers = make_key(admin, "killed")
    body = build_body(TURNS) | {"max_tokens": 1400, "stream": True, "ignore_eos": True, "n": 16}
    with (
        server.client() as client,
        client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        lines = answer.iter_lines()
        read_event(lines)
        kill_gateway(server)
        with pytest.raises(httpx2.TransportError):
            list(lines)
    (parent,), children = list_rows(admin, 1, project)
    assert parent["status"] == "aborted"
    assert {(child["status"], child["parent"]) for child in children} == {("ok", parent["id"])}
