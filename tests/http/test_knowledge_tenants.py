"""Nine callers against every route of knowledge tables: who may do what, and that another project's table is
as good as none."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from antiphon_testing import EmbeddingScript
from tests.support.databases import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.keyed_server import ROOT
from tests.support.knowledge_database import *  # noqa: F403
from tests.support.knowledge_database import open_postgres
from tests.support.knowledge_server import (
    MARK,
    NOWHERE,
    READS,
    SEARCHES,
    TABLES,
    WRITES,
    Tenants,
    form,
    opened,
)

DATABASE = "in PostgreSQL"
IN_EACH_PLACE = pytest.mark.parametrize("world", ["in files", DATABASE], indirect=True)
WRITING = ("POST", "PUT", "PATCH", "DELETE")
CHANGES: dict[tuple[str, str], Any] = {
    ("PATCH", "/{table}"): {"name": "mine"},
    ("POST", "/{table}/duplicate"): {"name": "mine"},
    ("POST", "/{table}/chunks"): {"chunks": [{"text": "a"}]},
    ("PUT", "/{table}/chunks/{chunk}"): {"text": "a"},
    ("POST", "/{table}/search"): {"query": MARK},
    ("PUT", "/{table}/documents/{document}"): {"name": "a", "digest": "d", "chunks": [{"text": "a"}]},
}


@pytest.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Tenants]:
    if getattr(request, "param", "") != DATABASE:
        async with opened(tmp_path) as made:
            yield made
        return
    index = open_postgres(request.getfixturevalue("knowledge_database"))
    async with opened(tmp_path, index) as made:
        yield made
    await index.aclose()


WITHOUT_TABLE = {("GET", ""), ("POST", ""), ("GET", "/usage")}
"""The routes below /v1/knowledge that name no table that is there: others tests ask them."""


async def describe(world: Tenants) -> dict[str, Any]:
    """The OpenAPI document."""
    found: dict[str, Any] = (await world.server.asked(world.server.admin, "/openapi.json")).json()
    return found


async def list_routes(world: Tenants) -> list[tuple[str, str]]:
    """Method and path below the tables of each route that names a table."""
    found = {
        (method.upper(), path.removeprefix(TABLES).removeprefix("/v1/knowledge"))
        for path, item in (await describe(world))["paths"].items()
        if path.startswith("/v1/knowledge")
        for method in item
    }
    assert found > WITHOUT_TABLE
    return sorted(found - WITHOUT_TABLE)


async def list_chats(world: Tenants) -> list[str]:
    """The paths of all operations whose body can have `rag_params`."""
    document = await describe(world)

    def takes_tables(operation: dict[str, Any]) -> bool:
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        return "rag_params" in str(document["components"]["schemas"].get(name, {}).get("properties", {}))

    return [
        path
        for path, item in document["paths"].items()
        if any(takes_tables(operation) for operation in item.values())
    ]


@IN_EACH_PLACE
async def test_another_projects_table_is_as_good_as_none(world: Tenants) -> None:
    routes, before, asked = await list_routes(world), await world.show(), 0
    assert len(routes) == 15
    for method, path in routes:
        for who, key in world.callers.items():
            replies = []
            for table in ("t", NOWHERE):
                target = path.replace("{document}", world.document).replace("{chunk}", world.chunk)
                answer = await world.ask(
                    key, method, target.replace("{table}", table), CHANGES.get((method, path))
                )
                assert MARK.encode() not in answer.body, (method, path, who)
                said = answer.body.replace(f"'{table}'".encode(), b"'T'")
                replies.append((answer.status, said))
                asked += 1
            assert replies[0] == replies[1], (method, path, who)
            assert replies[0][0] in (403, 404), (method, path, who, replies[0])
    assert asked == 15 * 9 * 2
    assert await world.show() == before
    assert world.knowledge.list_uploads() == []


CHATS = {
    "/v1/chat/completions",
    "/fireworks/inference/v1/chat/completions",
    "/jamai/api/v1/chat/completions",
    "/sgp/v4/beta/chat/completions",
}


async def test_no_chat_answers_from_another_projects_table(world: Tenants) -> None:
    paths = await list_chats(world)
    messages = [{"role": "user", "content": MARK}]
    for path in paths:
        for who, key in world.callers.items():
            replies = set()
            for table in ("t", NOWHERE):
                rag = {"table_id": table, "search_query": "text"}
                body = {"model": "m", "messages": messages, "rag_params": rag}
                answer = await world.server.asked(key, path, body)
                assert answer.status in (403, 404), (path, who, answer.body)
                assert f"{MARK} text".encode() not in answer.body, (path, who)
                replies.add((answer.status, answer.body.count(b"rag_params")))
            assert len(replies) == 1, (path, who, replies)
    own = await world.server.asked(
        world.other,
        "/v1/chat/completions",
        {"model": "m", "messages": messages, "rag_params": {"table_id": "t", "search_query": "text"}},
    )
    assert b"the table's embedding model e" in own.body, "its owner's chat finds the table"
    assert set(paths) == CHATS, "an operation that is new is asked as well"


async def test_lists_show_the_own_project_alone(world: Tenants) -> None:
    for who, key in world.callers.items():
        answer = await world.ask(key, "GET", "")
        assert answer.status == (403 if who == "searching service" else 200)
        assert MARK.encode() not in answer.body and b'"t"' not in answer.body
        usage = await world.server.asked(key, "/v1/knowledge/usage")
        assert usage.status == answer.status
        assert usage.status == 403 or set(usage.json()["used"].values()) == {0}, who


async def test_each_caller_does_what_its_key_allows(world: Tenants) -> None:
    assert (await world.ask(world.server.admin, "POST", "", {"name": "own"})).status == 201
    added = await world.ask(world.server.admin, "POST", "/own/chunks", {"chunks": [{"text": "a"}]})
    chunk = added.json()["data"][0]["id"]
    tried = [
        ("GET", "/own", None, READS),
        ("GET", "/own/documents", None, READS),
        ("GET", f"/own/chunks/{chunk}", None, READS),
        ("POST", "/own/search", {"query": "a"}, SEARCHES),
        ("POST", "/own/chunks", {"chunks": [{"text": "b"}]}, WRITES),
        ("PUT", f"/own/chunks/{chunk}", {"text": "b"}, WRITES),
        ("POST", "", {"name": ""}, WRITES),
        ("DELETE", "/own/documents/none", None, WRITES),
    ]
    for method, path, body, allowed in tried:
        for who, key in world.callers.items():
            answer = await world.ask(key, method, path, body)
            is_expected = (answer.status == 403) == (who not in allowed)
            assert is_expected, (who, method, path, answer.body)


async def test_without_a_key_nothing_is_shown(world: Tenants) -> None:
    for method, path in await list_routes(world):
        for key in ("", "wrong"):
            answer = await world.ask(key, method, path.replace("{table}", "t"), {})
            assert answer.status == 401, (method, path)


ERASURE = f"{ROOT}/knowledge?project="


@IN_EACH_PLACE
async def test_a_projects_owner_and_the_operator_remove_all(world: Tenants) -> None:
    before, own = await world.show(), world.server.admin
    for who, key in world.callers.items():
        if key != own:
            answer = await world.server.asked(key, ERASURE + world.project, method="DELETE")
            assert answer.status in (403, 404) and MARK.encode() not in answer.body, who
    assert (await world.server.asked(own, f"{ROOT}/knowledge", method="DELETE")).status == 400
    assert (await world.server.asked(own, f"{ERASURE}proj_none", method="DELETE")).status == 404
    assert await world.show() == before
    world.knowledge.engine.behaviour = EmbeddingScript(asyncio.Event())  # a file that is being read
    how = form(("file", f"{MARK} text", "b.txt"))
    assert (await world.server.asked(world.other, f"{TABLES}/t/documents", **how)).status == 202
    archived = {"archived": True}
    path = f"{ROOT}/projects/{world.project}"
    assert (await world.server.asked(own, path, archived, method="PATCH")).status == 200
    assert (await world.server.asked(world.other, TABLES)).status in (401, 403)
    removed = await world.server.asked(own, ERASURE + world.project, method="DELETE")
    assert (removed.status, removed.json()["removed"]) == (200, 1)
    assert world.knowledge.list_uploads() == []
    left = [path for path in world.knowledge.directory.rglob("index/*/*") if path.is_file()]
    assert left == []
    audit = (await world.server.asked(own, f"{ROOT}/audit?target={world.project}")).json()["data"]
    assert (audit[0]["action"], audit[0]["detail"]) == ("project.erase_knowledge", {"tables": 1})


async def test_an_owner_removes_its_projects_tables(world: Tenants) -> None:
    removed = await world.server.asked(world.other, ERASURE + world.project, method="DELETE")
    assert (removed.status, removed.json()["removed"]) == (200, 1)
    assert (await world.ask(world.other, "GET", "")).json()["data"] == []
