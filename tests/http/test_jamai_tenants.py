"""Ten callers against every route of knowledge tables in JamAI Base's form: another project's table is as
good as none, and each caller does what its key allows."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.domain.tenancy import Grant, KeyKind
from tests.support.knowledge_server import (
    JAMAI_TABLES,
    MARK,
    NOWHERE,
    READS,
    SEARCHES,
    WRITES,
    Tenants,
    form,
    opened,
)

WRITER = "JamAI's writing service"
GRANT = Grant(None, ("/jamai/*", f"{JAMAI_TABLES}*"))
WITHOUT_TABLE = {("GET", "/list"), ("POST", ""), ("OPTIONS", "/embed_file")}
"""The routes that name no table that is there."""


def build(method: str, path: str, table: str, row: str) -> tuple[str, Any]:
    """The query and the body of a request about a table."""
    given = {
        "/rename": (f"?table_id_src={table}&table_id_dst=mine", None),
        "/duplicate": (f"?table_id_src={table}&table_id_dst=mine", None),
        "/rows/add": ("", {"table_id": table, "data": [{"Text": "a"}]}),
        "/rows/delete": ("", {"table_id": table, "row_ids": [row]}),
        "/hybrid_search": ("", {"table_id": table, "query": "text"}),
    }
    if (method, path) == ("PATCH", "/rows"):
        return "", {"table_id": table, "data": {row: {"Text": "a"}}}
    return given.get(
        path, (f"?table_id={table}&row_id={row}" if path == "/rows" else f"?table_id={table}", None)
    )


async def ask(world: Tenants, key: str, method: str, path: str, table: str) -> Any:
    """Asks for a table, and for the other project's row in it."""
    if (method, path) == ("POST", "/embed_file"):
        parts = form(("file", "a", "a.txt"), ("table_id", table, None))
        return await world.server.asked(key, JAMAI_TABLES + path, method=method, **parts)
    query, body = build(method, path, table, world.chunk)
    return await world.server.asked(key, JAMAI_TABLES + path + query, body, method=method)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Tenants]:
    async with opened(tmp_path) as made:
        server = made.server
        made.callers[WRITER] = await server.token(KeyKind.SERVICE, project="default", grant=GRANT)
        yield made


async def list_routes(world: Tenants) -> list[tuple[str, str]]:
    """Method and path of each route that names a table."""
    document = (await world.server.asked(world.server.admin, "/openapi.json")).json()
    found = {
        (method.upper(), path.removeprefix(JAMAI_TABLES))
        for path, item in document["paths"].items()
        if path.startswith(JAMAI_TABLES)
        for method in item
    }
    return sorted(found - WITHOUT_TABLE)


async def test_another_projects_table_is_as_good_as_none(world: Tenants) -> None:
    routes, before, asked = await list_routes(world), await world.show(), 0
    assert len(routes) == 11
    for method, path in routes:
        for who, key in world.callers.items():
            replies = []
            for table in ("t", NOWHERE):
                answer = await ask(world, key, method, path, table)
                assert MARK.encode() not in answer.body, (method, path, who)
                error = json.loads(answer.body)
                message = error["message"].replace(f"'{table}'", "'T'")
                replies.append((answer.status, error["error"], message))
                asked += 1
            assert replies[0] == replies[1], (method, path, who)
            assert replies[0][0] in (403, 404), (method, path, who, replies[0])
    assert asked == 11 * 10 * 2
    assert await world.show() == before
    assert world.knowledge.list_uploads() == []


async def test_lists_show_the_own_project_alone(world: Tenants) -> None:
    for who, key in world.callers.items():
        answer = await world.server.asked(key, f"{JAMAI_TABLES}/list?count_rows=true")
        assert answer.status == (403 if "service" in who and who not in ("service", WRITER) else 200), who
        assert MARK.encode() not in answer.body and b'"t"' not in answer.body


async def test_each_caller_does_what_its_key_allows(world: Tenants) -> None:
    made = await world.server.asked(world.server.admin, JAMAI_TABLES, {"id": "own"})
    assert made.status == 200, made.body
    bound_to_v1 = {"writing service", "searching service"}
    allowed = {
        ("GET", ""): READS,
        ("GET", "/rows/list"): READS,
        ("OPTIONS", "/embed_file"): READS,
        ("POST", "/hybrid_search"): SEARCHES,
        ("POST", "/rows/add"): WRITES,
        ("PATCH", "/rows"): WRITES,
        ("POST", "/rows/delete"): WRITES,
        ("POST", "/embed_file"): WRITES,
        ("POST", "/rename"): WRITES,
        ("DELETE", ""): WRITES,
    }
    for (method, path), holders in allowed.items():
        table = "own" if path not in ("/rename", "") or method == "GET" else NOWHERE
        for who, key in world.callers.items():
            answer = await ask(world, key, method, path, table)
            is_allowed = who in (holders - bound_to_v1 | {WRITER})
            assert (answer.status != 403) == is_allowed, (who, method, path, answer.body)


async def test_without_a_key_nothing_is_shown(world: Tenants) -> None:
    for method, path in [*await list_routes(world), *WITHOUT_TABLE]:
        for key in ("", "wrong"):
            assert (await ask(world, key, method, path, "t")).status == 401, (method, path)
