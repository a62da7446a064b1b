"""Knowledge tables in JamAI Base's form over the wire. Every wrong request is refused by name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from antiphon.dialects.jamai.dialect import Jamai
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.domain.request import Pooling
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import EngineDied
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.rendering.renderer import Renderer
from antiphon.retrieval.base import IndexLimits
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import EmbeddingScript, ScriptedEmbeddingEngine, ScriptedEngine
from tests.support.http_server import ProcessServed, Reply, Served, serving_edge
from tests.support.knowledge import PLAIN, Knowledge, open_service
from tests.support.knowledge_server import JAMAI_TABLES, form

FEW = IndexLimits(tables=1)
BROKEN = EmbeddingScript(error=EngineDied("the reranker ended"))
EXTRAS: Any = [
    {"id": "Author"},
    {"id": "Year", "dtype": "int"},
    {"id": "Price", "dtype": "float"},
    {"id": "Sold", "dtype": "bool"},
]


@dataclass(frozen=True)
class Serving:
    """A server, and the service behind it."""

    served: Served
    knowledge: Knowledge

    async def ask(self, path: str = "", body: Any = None, **how: Any) -> Reply:
        return await self.served.ask(JAMAI_TABLES + path, body, **how)

    async def create(self, name: str = "t", **more: Any) -> Any:
        made = await self.ask("", {"id": name, "cols": []} | more)
        assert made.status == 200, made.body
        return made.json()

    async def add(self, *rows: dict[str, Any], table: str = "t") -> list[str]:
        """The ids of new rows."""
        made = await self.ask("/rows/add", {"table_id": table, "data": list(rows), "stream": False})
        assert made.status == 200, made.body
        return [row["row_id"] for row in made.json()["rows"]]

    async def embed(self, *parts: tuple[str, bytes | str, str | None]) -> Reply:
        return await self.ask("/embed_file", **form(*parts))

    async def list(self, query: str = "", table: str = "t") -> list[Any]:
        page = await self.ask(f"/rows/list?table_id={table}&{query}")
        assert page.status == 200, page.body
        items: list[Any] = page.json()["items"]
        return items


@asynccontextmanager
async def serving(folder: Path, reranker: EmbeddingScript = PLAIN, **how: Any) -> AsyncIterator[Serving]:
    """A server with an embedding model `e`, a reranker `r` and a generating model `m`."""
    async with open_service(folder, **how) as knowledge:
        ranks = Renderer(ScriptedEmbeddingEngine(reranker, pooling=Pooling.RANK))
        models = ModelRegistry((*knowledge.models, Model("r", (ModelRoute(ranks),), 1)))
        pipeline = Pipeline(models, Metrics(), restart_patience=0.0)
        jamai = Jamai(max_file_bytes=knowledge.service.max_file_bytes)
        edge = AppState(
            pipeline,
            models,
            OpenAI(),
            ServerSettings(),
            knowledge=knowledge.service,
            prefixed_dialects=(jamai,),
        )
        async with serving_edge(edge) as (port, connections):
            yield Serving(ProcessServed(port, ScriptedEngine(), edge, connections), knowledge)


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path) as running:
        yield running


# --- tables ---


async def test_a_table_has_the_products_columns(at: Serving) -> None:
    made = await at.create(embedding_model="antiphon/e", cols=EXTRAS)
    columns = {each["id"]: each for each in made["cols"]}
    assert list(columns)[:7] == ["ID", "Updated at", "Title", "Text", "Text Embed", "File ID", "Page"]
    assert {name: columns[name]["dtype"] for name in list(columns)[7:]} == {
        "Author": "str",
        "Year": "int",
        "Price": "float",
        "Sold": "bool",
    }
    vector = columns["Text Embed"]
    assert vector["gen_config"] == {
        "object": "gen_config.embed",
        "embedding_model": "antiphon/e",
        "source_column": "Text",
    }
    assert vector["vlen"] > 0 and (made["num_rows"], made["parent_id"], made["title"]) == (0, None, "")
    shown = (await at.ask("?table_id=t")).json()
    assert shown == made and shown["updated_at"].endswith("Z")


async def test_without_a_model_a_table_finds_by_words(tmp_path: Path) -> None:
    async with serving(tmp_path, names=()) as at:
        made = await at.create(embedding_model="")
        (vector,) = [each for each in made["cols"] if each["id"] == "Text Embed"]
        assert (vector["vlen"], vector["gen_config"]) == (0, None)
        await at.add({"Text": "red boats"})
        found = (await at.ask("/hybrid_search", {"table_id": "t", "query": "boats"})).json()
        assert [row["Text"]["value"] for row in found] == ["red boats"]
        assert "Text Embed" not in (await at.list())[0]


async def test_tables_are_listed_renamed_copied_and_removed(at: Serving) -> None:
    await at.create("a b", cols=EXTRAS[:1])
    await at.add({"Text": "x", "Author": "Ada"}, table="a b")
    renamed = (await at.ask("/rename?table_id_src=a%20b&table_id_dst=b", method="POST")).json()
    copied = (await at.ask("/duplicate?table_id_src=b&table_id_dst=c", method="POST")).json()
    named = (await at.ask("/duplicate?table_id_src=b&include_data=false", method="POST")).json()
    assert [each["id"] for each in (renamed, copied, named)] == ["b", "c", "b (2)"]
    assert [each["num_rows"] for each in (renamed, copied, named)] == [1, 1, 0]
    assert (await at.list(table="c"))[0]["Author"] == {"value": "Ada"}
    page = (await at.ask("/list?order_by=id&order_ascending=false&limit=2&offset=1")).json()
    assert [each["id"] for each in page["items"]] == ["b (2)", "b"] and page["total"] == 3
    assert {each["num_rows"] for each in page["items"]} == {-1}
    (counted,) = (await at.ask("/list?search_query=C&count_rows=true")).json()["items"]
    assert (counted["id"], counted["num_rows"]) == ("c", 1)
    assert (await at.ask("/list?parent_id=b")).json()["items"] == []  # no table has a parent
    assert (await at.ask("?table_id=c", method="DELETE")).json() == {"ok": True, "progress_key": ""}
    assert (await at.ask("?table_id=c")).status == 404


async def test_what_has_no_effect_is_named(at: Serving) -> None:
    made = await at.ask("", {"id": "t", "cols": EXTRAS})
    plain = await at.ask("", {"id": "u", "cols": [{"id": "a", "index": False}]})
    assert made.headers["x-antiphon-ignored"] == "cols[].index"
    assert "x-antiphon-ignored" not in plain.headers


# --- rows ---


async def test_rows_keep_their_cells(at: Serving) -> None:
    await at.create(cols=EXTRAS)
    cells = {"Title": "Boats", "Text": "red", "Page": 3, "File ID": "a.md", "Author": "Ada", "Year": 1843}
    (row,) = await at.add(cells | {"Price": 1.2345, "Sold": True})
    shown = (await at.ask(f"/rows?table_id=t&row_id={row}&float_decimals=2&vec_decimals=-1")).json()
    assert shown["ID"] == row and shown["Updated at"].endswith("Z")
    assert {name: shown[name]["value"] for name in cells} == cells
    assert (shown["Price"], shown["Sold"]) == ({"value": 1.23}, {"value": True})
    assert "Text Embed" not in shown
    changed = {"Title": None, "Text": "blue", "Year": None, "Sold": False}
    body = {"table_id": "t", "data": {row: changed}}
    assert (await at.ask("/rows", body, method="PATCH")).json()["ok"] is True
    (after,) = await at.list("vec_decimals=2")
    assert [after[name]["value"] for name in ("Title", "Text", "Year", "Sold")] == ["", "blue", None, False]
    assert [after[name]["value"] for name in ("Page", "File ID", "Author")] == [3, "a.md", "Ada"]
    vector = after["Text Embed"]["value"]
    assert len(vector) > 1 and all(round(number, 2) == number for number in vector)
    found = (await at.ask("/hybrid_search", {"table_id": "t", "query": "blue"})).json()
    assert [each["ID"] for each in found] == [row]


async def test_rows_are_listed_from_both_ends(at: Serving) -> None:
    await at.create()
    ids = await at.add(*({"Text": f"row {number}"} for number in range(5)))
    assert [row["ID"] for row in await at.list("offset=1&limit=2")] == ids[1:3]
    newest = "order_by=ID&order_ascending=false"
    assert [row["ID"] for row in await at.list(f"{newest}&offset=1&limit=2")] == [ids[3], ids[2]]
    assert [row["ID"] for row in await at.list(f"{newest}&offset=4&limit=9")] == [ids[0]]
    assert await at.list(f"{newest}&offset=9") == []
    (row, *_) = await at.list("columns=Text&columns=ID")
    assert row.keys() == {"ID", "Updated at", "Text"}
    gone = {"table_id": "t", "row_ids": [ids[0], ids[4], "none"], "where": ""}
    assert (await at.ask("/rows/delete", gone)).json()["ok"] is True
    assert [row["ID"] for row in await at.list()] == ids[1:4]


async def test_a_stream_of_new_rows_has_its_end_alone(at: Serving) -> None:
    await at.create()
    reply = await at.ask("/rows/add", {"table_id": "t", "data": [{"Text": "a"}], "concurrent": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.events() == ["[DONE]"] and len(await at.list()) == 1


async def test_no_row_changes_where_one_is_wrong(at: Serving) -> None:
    await at.create()
    one, two = await at.add({"Text": "a"}, {"Text": "b"})
    for wrong in ({two: {"Text": ""}}, {"none": {"Text": "c"}}, {two: {"Text": "word " * 600}}):
        reply = await at.ask("/rows", {"table_id": "t", "data": {one: {"Text": "x"}} | wrong}, method="PATCH")
        assert reply.status in (404, 422)
        assert reply.status == 404 or f"data.{two}.Text" in reply.json()["message"], reply.body
        assert [row["Text"]["value"] for row in await at.list()] == ["a", "b"]


# --- files ---


async def test_a_file_is_found_when_its_call_ends(at: Serving) -> None:
    await at.create()
    parts = (("table_id", "t", None), ("chunk_size", "100", None), ("chunk_overlap", "0", None))
    text = "\n\n".join(f"Paragraph {number} tells of number {number}." for number in range(20))
    added = await at.embed(("file", text, "rules.md"), *parts)
    assert (added.status, added.json()["ok"]) == (200, True), added.body
    rows = await at.list()
    assert len(rows) > 5 and {row["File ID"]["value"] for row in rows} == {"rules.md"}
    assert max(len(row["Text"]["value"]) for row in rows) <= 100
    whole = await at.embed(("file", "x" * 50, "b.txt"), ("table_id", "t", None))
    assert whole.status == 200


async def test_types_of_files_are_told(at: Serving) -> None:
    reply = await at.ask("/embed_file", method="OPTIONS")
    assert reply.status == 200 and reply.headers["allow"] == "POST, OPTIONS"
    assert {"text/plain", "text/markdown", "application/jsonl"} <= {*reply.headers["accept"].split(", ")}
    assert reply.headers["accept"].split(", ") == reply.json()


@pytest.mark.parametrize(
    ("parts", "status", "place"),
    [
        ((("file", "a", "a.txt"),), 422, "table_id"),
        ((("table_id", "t", None),), 422, "file"),
        ((("file", "a", "a.txt"), ("table_id", "t", None), ("overwrite", "1", None)), 422, "overwrite"),
        ((("file", "a", "a.txt"), ("table_id", "t", None), ("chunk_size", "x", None)), 422, "chunk_size"),
        ((("file", "a", "a.txt"), ("table_id", "t", None), ("chunk_size", "9", None)), 422, "chunk_size"),
        (
            (("file", "a", "a.txt"), ("table_id", "t", None), ("chunk_size", "150", None)),
            422,
            "chunk_overlap",
        ),
        ((("file", "", "a.txt"), ("table_id", "t", None)), 422, "file"),
        ((("file", "a", ""), ("table_id", "t", None)), 422, "file"),
        ((("file", "no json", "a.json"), ("table_id", "t", None)), 422, "file"),
        ((("file", "MZ", "a.exe"), ("table_id", "t", None)), 415, None),
        ((("file", "<a/>", "a.xml"), ("table_id", "t", None)), 415, None),
        ((("file", "a", "a.txt"), ("table_id", "none", None)), 404, None),
    ],
)
async def test_a_wrong_file_is_refused_by_name(
    at: Serving, parts: tuple[tuple[str, str, str | None], ...], status: int, place: str | None
) -> None:
    await at.create()
    reply = await at.embed(*parts)
    assert reply.status == status, reply.body
    error = reply.json()
    if place is None:
        assert error["error"] == {404: "resource_not_found", 415: "unsupported_media_type"}[status]
    else:
        assert error["detail"][0]["loc"] == ["body", place], error
    assert at.knowledge.list_uploads() == [] and await at.list() == []


# --- search ---


async def test_a_reranker_orders_what_is_found(at: Serving) -> None:
    await at.create(cols=EXTRAS[:1])
    await at.add(*({"Text": f"boats {'and ' * number}boats", "Author": str(number)} for number in range(4)))
    asked = {"table_id": "t", "query": "boats", "limit": 4, "vec_decimals": 0, "metric": "cosine"}
    plain = await at.ask("/hybrid_search", asked)
    ranked = await at.ask("/hybrid_search", asked | {"reranking_model": "antiphon/r"})
    assert plain.headers["x-antiphon-ignored"] == "vec_decimals"
    assert [row["rrf_score"] for row in plain.json()] == sorted(
        (row["rrf_score"] for row in plain.json()), reverse=True
    )
    scores = [row["relevance_score"] for row in ranked.json()]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) > 1
    assert {row["ID"] for row in plain.json()} == {row["ID"] for row in ranked.json()}
    assert {row["Author"]["value"] for row in plain.json()} == {"0", "1", "2", "3"}
    assert "relevance_score" not in plain.json()[0] and "warning" not in ranked.headers


async def test_a_reranker_that_fails_keeps_the_order(tmp_path: Path) -> None:
    async with serving(tmp_path, BROKEN) as at:
        await at.create()
        await at.add({"Text": "red boats"}, {"Text": "blue boats"})
        asked = {"table_id": "t", "query": "boats", "vec_decimals": -1}
        plain = await at.ask("/hybrid_search", asked)
        ranked = await at.ask("/hybrid_search", asked | {"reranking_model": "r"})
    assert ranked.json() == plain.json() and "x-antiphon-ignored" not in plain.headers
    assert "the reranker r failed (engine_died)" in ranked.headers["warning"]


# --- what is wrong ---


@pytest.mark.parametrize(
    ("path", "body", "status", "place"),
    [
        ("", {}, 422, "body.id"),
        ("", {"id": "a/b"}, 422, "body.id"),
        ("", {"id": "a", "embedding_model": "none"}, 422, "body.embedding_model"),
        ("", {"id": "a", "embedding_model": "m"}, 422, "body.embedding_model"),
        ("", {"id": "a", "owner": "me"}, 422, "body.owner"),
        ("", {"id": "a", "cols": [{"id": "text"}]}, 422, "body.cols.0.id"),
        ("", {"id": "a", "cols": [{"id": "a"}, {"id": "A"}]}, 422, "body.cols.1.id"),
        ("", {"id": "a", "cols": [{"id": "a_"}]}, 422, "body.cols.0.id"),
        ("", {"id": "a", "cols": [{"id": "a", "dtype": "image"}]}, 422, "body.cols.0.dtype"),
        ("", {"id": "a", "cols": [{"id": "a", "vlen": 3}]}, 422, "body.cols.0.vlen"),
        ("", {"id": "a", "cols": [{"id": "a", "gen_config": {}}]}, 422, "body.cols.0.gen_config"),
        ("", {"id": "t"}, 409, "resource_exists"),
        ("/rows/add", {"table_id": "none", "data": [{"Text": "a"}]}, 404, "resource_not_found"),
        ("/rows/add", {"table_id": "t", "data": []}, 422, "body.data"),
        ("/rows/add", {"table_id": "t", "data": [{}] * 101}, 422, "body.data"),
        ("/rows/add", {"table_id": "t", "data": [{"Title": "a"}]}, 422, "body.data.0.Text"),
        ("/rows/add", {"table_id": "t", "data": [{"Text": "a"}, {"Text": " "}]}, 422, "body.data.1.Text"),
        ("/rows/add", {"table_id": "t", "data": [{"Text": "a", "Page": "x"}]}, 422, "body.data.0.Page"),
        ("/rows/add", {"table_id": "t", "data": [{"Text": "a", "Page": -1}]}, 422, "body.data.0.Page"),
        ("/rows/add", {"table_id": "t", "data": [{"Text": "a", "ID": "1"}]}, 422, "body.data.0.ID"),
        ("/rows/add", {"table_id": "t", "data": [{"Text": "a", "Colour": 1}]}, 422, "body.data.0.Colour"),
        ("/rows/delete", {"table_id": "t", "where": "1=1"}, 422, "body.where"),
        ("/rows/delete", {"table_id": "t"}, 422, "body.row_ids"),
        ("/hybrid_search", {"table_id": "t"}, 422, "body.query"),
        ("/hybrid_search", {"table_id": "t", "query": " "}, 422, "body.query"),
        ("/hybrid_search", {"table_id": "t", "query": "a", "limit": 0}, 422, "body.limit"),
        ("/hybrid_search", {"table_id": "t", "query": "a", "metric": "l2"}, 422, "body.metric"),
        (
            "/hybrid_search",
            {"table_id": "t", "query": "a", "reranking_model": "x"},
            404,
            "resource_not_found",
        ),
        (
            "/hybrid_search",
            {"table_id": "t", "query": "a", "reranking_model": "e"},
            422,
            "body.reranking_model",
        ),
        ("/hybrid_search", {"table_id": "none", "query": "a"}, 404, "resource_not_found"),
        ("/rename?table_id_src=t", None, 422, "query.table_id_dst"),
        ("/rename?table_id_src=t&table_id_dst=a/b", None, 422, "query.table_id_dst"),
        ("/rename?table_id_src=none&table_id_dst=b", None, 404, "resource_not_found"),
        ("/duplicate?table_id_src=t&table_id_dst=t", None, 409, "resource_exists"),
        ("/duplicate?table_id_src=t&create_as_child=true", None, 422, "query.create_as_child"),
        ("/rows/regen", {"table_id": "t"}, 501, "not_implemented"),
        ("/columns/add", {"id": "t"}, 501, "not_implemented"),
    ],
)
async def test_a_wrong_change_is_refused_by_name(
    at: Serving, path: str, body: Any, status: int, place: str
) -> None:
    await at.create()
    check_refusal(await at.ask(path, body, method="POST"), status, place)
    assert [each["id"] for each in (await at.ask("/list")).json()["items"]] == ["t"]
    assert await at.list() == []


@pytest.mark.parametrize(
    ("path", "status", "place"),
    [
        ("", 422, "query.table_id"),
        ("?table_id=none", 404, "resource_not_found"),
        ("?table_id=t&colour=red", 422, "query.colour"),
        ("/list?created_by=me", 422, "query.created_by"),
        ("/list?order_by=price", 422, "query.order_by"),
        ("/list?limit=0", 422, "query.limit"),
        ("/rows?table_id=t", 422, "query.row_id"),
        ("/rows?table_id=t&row_id=none", 404, "resource_not_found"),
        ("/rows/list?table_id=none", 404, "resource_not_found"),
        ("/rows/list?table_id=t&columns=Colour", 422, "query.columns"),
        ("/rows/list?table_id=t&where=1", 422, "query.where"),
        ("/rows/list?table_id=t&search_query=a", 422, "query.search_query"),
        ("/rows/list?table_id=t&search_columns=Text", 422, "query.search_columns"),
        ("/rows/list?table_id=t&order_by=Title", 422, "query.order_by"),
        ("/rows/list?table_id=t&float_decimals=-1", 422, "query.float_decimals"),
        ("/rows/list?table_id=t&vec_decimals=x", 422, "query.vec_decimals"),
        ("/rows/list?table_id=t&vec_decimals=-x", 422, "query.vec_decimals"),
    ],
)
async def test_a_wrong_query_is_refused_by_name(at: Serving, path: str, status: int, place: str) -> None:
    await at.create()
    check_refusal(await at.ask(path), status, place)


def check_refusal(reply: Reply, status: int, place: str) -> None:
    error = reply.json()
    assert reply.status == status, error
    found = ".".join(map(str, error["detail"][0]["loc"])) if status == 422 else error["error"]
    assert found == place, error


async def test_a_text_that_no_row_can_have_is_named(tmp_path: Path) -> None:
    long = {"table_id": "t", "data": [{"Text": "b"}, {"Text": "a" * 70_000}]}
    async with serving(tmp_path) as at:
        await at.create()
        error = (await at.ask("/rows/add", long)).json()
    assert error["error"] == "context_overflow" and "data[1].Text" in error["message"]
    async with serving(tmp_path / "words", names=()) as at:
        await at.create()
        check_refusal(await at.ask("/rows/add", long), 422, "body.data.1.Text")


@pytest.mark.parametrize("kind", ["action", "chat"])
async def test_other_kinds_of_tables_are_not_served(at: Serving, kind: str) -> None:
    reply = await at.served.ask(f"/jamai/api/v2/gen_tables/{kind}", {"id": "a", "cols": []})
    check_refusal(reply, 501, "not_implemented")
    assert "besides knowledge tables" in reply.json()["message"]


async def test_a_full_project_is_an_upgrade_of_the_tier(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=FEW) as at:
        await at.create()
        check_refusal(await at.ask("", {"id": "u"}), 403, "upgrade_tier")


async def test_the_document_describes_every_route(at: Serving) -> None:
    document = (await at.served.ask("/openapi.json")).json()
    paths = {path: item for path, item in document["paths"].items() if path.startswith(JAMAI_TABLES)}
    assert sum(map(len, paths.values())) == 14
    assert list(paths[f"{JAMAI_TABLES}/embed_file"]["post"]["requestBody"]["content"]) == [
        "multipart/form-data"
    ]
    assert "JamaiTable" in document["components"]["schemas"]
