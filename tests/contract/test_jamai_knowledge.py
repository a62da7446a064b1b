"""jamaibase, unchanged, with the knowledge tables of a server: tables, files of each format, rows, the search
and answers, by a user's token and by a service key."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.contract.clients import Result
from tests.contract.jamai.caller import Base, join_chunks, read_error
from tests.e2e.furnished import Place
from tests.e2e.wire import Wire
from tests.support.documents import make_docx, make_pdf, make_pptx, make_xlsx

pytestmark = pytest.mark.timeout(480)
"""The first of them starts a server, and the client's interpreter."""

KIND = {"table_type": "knowledge"}
FILES = {
    "a.txt": "The red boat sleeps in the harbour.",
    "b.md": "# Island\n\nAn island has a white tower.",
    "c.html": "<h1>Sea</h1><p>The sea is green.</p>",
    "d.csv": "fish,size\nherring,small\n",
    "e.tsv": "bird\tsize\ngull\tlarge\n",
    "f.json": '{"wind": "north"}',
    "g.jsonl": '{"sail": "torn"}\n',
}


@pytest.fixture
def base(place: Place) -> Base:
    """A user's token."""
    return Base(place.server.url, place.tokens[0])


def take(results: list[Result]) -> list[Any]:
    assert all("answer" in result for result in results), results
    return [result["answer"] for result in results]


def make(name: str, model: str = "", *columns: Any) -> tuple[str, dict[str, Any]]:
    cols = list(columns)
    request = {"$type": "KnowledgeTableSchemaCreate", "id": name, "cols": cols, "embedding_model": model}
    return "table.create_knowledge_table", {"request": request}


def rows(name: str, *data: dict[str, Any], stream: bool = False) -> tuple[str, dict[str, Any]]:
    request = {"$type": "MultiRowAddRequest", "table_id": name, "data": list(data), "stream": stream}
    return "table.add_table_rows", KIND | {"request": request}


def find(name: str, query: str, **more: Any) -> tuple[str, dict[str, Any]]:
    request = {"$type": "SearchRequest", "table_id": name, "query": query, "limit": 1} | more
    return "table.hybrid_search", KIND | {"request": request}


def drop(name: str) -> tuple[str, dict[str, Any]]:
    return "table.delete_table", KIND | {"table_id": name, "missing_ok": False}


@pytest.mark.parametrize("later", [False, True])
def test_tables_are_made_shown_renamed_copied_and_removed(base: Base, later: bool) -> None:
    table, shown, listed, renamed, copied, numbered, *gone = take(
        base.call(
            make("harbour"),
            ("table.get_table", KIND | {"table_id": "harbour"}),
            ("table.list_tables", KIND | {"count_rows": True}),
            ("table.rename_table", KIND | {"table_id_src": "harbour", "table_id_dst": "port"}),
            ("table.duplicate_table", KIND | {"table_id_src": "port", "table_id_dst": "copy"}),
            ("table.duplicate_table", KIND | {"table_id_src": "port"}),
            drop("port"), drop("copy"), drop("port (2)"),
            later=later,
        )
    )  # fmt: skip
    assert (table["id"], shown["id"], renamed["id"]) == ("harbour", "harbour", "port")
    (vectors,) = [column for column in table["cols"] if column["gen_config"]]
    assert vectors["gen_config"]["embedding_model"] == "antiphon/encoder" and vectors["vlen"] > 0
    counts = {each["id"]: each["num_rows"] for each in listed["items"]}
    assert listed["total"] == len(counts) and counts["harbour"] == 0
    assert (copied["id"], numbered["id"]) == ("copy", "port (2)")
    assert [each["ok"] for each in gone] == [True, True, True]


def test_files_of_each_text_format_are_found(base: Base, tmp_path: Path) -> None:
    calls = []
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
        calls.append(("table.embed_file", {"file_path": str(tmp_path / name), "table_id": "files"}))
    words = ["boat", "tower", "green", "herring", "gull", "wind", "torn"]
    searches = [find("files", word) for word in words]
    results = take(base.call(make("files"), *calls, *searches))
    found = results[1 + len(FILES) :]
    assert [hits[0]["File ID"]["value"] for hits in found] == list(FILES)
    assert all("rrf_score" in hits[0] for hits in found)
    (tmp_path / "h.exe").write_bytes(b"MZ")
    (tmp_path / "i.json").write_text("{")
    wrong = [
        ("table.embed_file", {"file_path": str(tmp_path / name), "table_id": table})
        for name, table in (("h.exe", "files"), ("i.json", "files"), ("a.txt", "nowhere"))
    ]
    *refused, _ = base.call(*wrong, drop("files"))
    kinds = [read_error(result)[0] for result in refused]
    assert kinds == [
        "JamaiException",
        "BadInputError",
        "ResourceNotFoundError",
    ]  # the client has no class for 415


def test_files_of_offices_answer_chats(base: Base, tmp_path: Path) -> None:
    pages = make_pdf([["The yellow ferry leaves at nine."], ["Its cook bakes bread."]])
    made = {"a.pdf": pages, "b.docx": make_docx(), "c.pptx": make_pptx(), "d.xlsx": make_xlsx()}
    calls = []
    for name, content in made.items():
        (tmp_path / name).write_bytes(content)
        sizes = {"chunk_size": 400, "chunk_overlap": 0}
        calls.append(("table.embed_file", {"file_path": str(tmp_path / name), "table_id": "office"} | sizes))
    listing = ("table.list_table_rows", KIND | {"table_id": "office", "vec_decimals": -1})
    *_, listed = take(base.call(make("office"), *calls, listing))
    assert {row["File ID"]["value"] for row in listed["items"]} == made.keys()
    assert all("Text Embed" not in row for row in listed["items"])
    question: Any = {"messages": [{"role": "user", "content": "When does the ferry leave?"}], "max_tokens": 8}
    asked = question | {"rag_params": {"table_id": "office", "search_query": "yellow ferry", "k": 1}}
    for later in (False, True):
        whole, streamed = base.chat(asked, asked | {"stream": True}, later=later)
        (chunk,) = whole["answer"]["references"]["chunks"]
        assert (chunk["text"], chunk["page"], chunk["file_name"]) == (
            "The yellow ferry leaves at nine.",
            1,
            "a.pdf",
        )
        first, *chunks = streamed["chunks"]
        assert (first["object"], first["chunks"]) == ("chat.references", [chunk])
        assert join_chunks(chunks) == whole["answer"]["choices"][0]["message"]["content"]
    take(base.call(drop("office")))


def test_columns_of_the_caller_and_vectors_are_kept(base: Base) -> None:
    author = {"id": "Author", "dtype": "str"}
    year, price = {"id": "Year", "dtype": "int"}, {"id": "Price", "dtype": "float"}
    made, added, listed, found, refused, _ = base.call(
        make("books", "antiphon/encoder", author, year, price),
        rows("books", {"Text": "apples", "Author": "Ada", "Year": 1843, "Price": 1.255}),
        ("table.list_table_rows", KIND | {"table_id": "books", "float_decimals": 2, "vec_decimals": 3}),
        find("books", "apples"),
        rows("books", {"Text": "pears", "Year": "soon"}),
        drop("books"),
    )
    columns = {each["id"]: each for each in made["answer"]["cols"]}
    assert {name: columns[name]["dtype"] for name in ("Author", "Year", "Price")} == {
        "Author": "str",
        "Year": "int",
        "Price": "float",
    }
    (row,) = listed["answer"]["items"]
    assert row["ID"] == added["answer"]["rows"][0]["row_id"]
    assert [row[name]["value"] for name in ("Author", "Year")] == ["Ada", 1843]
    assert len(row["Text Embed"]["value"]) == columns["Text Embed"]["vlen"] > 0
    assert found["answer"][0]["Author"] == {"value": "Ada"} and "Text Embed" not in found["answer"][0]
    kind, sentence = read_error(refused)
    assert kind == "BadInputError" and "data.0.Year" in sentence


@pytest.mark.parametrize("later", [False, True])
def test_rows_are_added_listed_changed_and_removed(base: Base, later: bool) -> None:
    added, streamed, listed, last = base.call(
        make("rows"),
        rows("rows", {"Title": "One", "Text": "apples", "Page": 3}, {"Text": "pears"}),
        rows("rows", {"Text": "plums"}, stream=True),
        ("table.list_table_rows", KIND | {"table_id": "rows"}),
        ("table.list_table_rows", KIND | {"table_id": "rows", "order_ascending": False, "limit": 1}),
        later=later,
    )[1:]
    assert "error" not in streamed
    ids = [row["row_id"] for row in added["answer"]["rows"]]
    items = listed["answer"]["items"]
    assert [item["Text"]["value"] for item in items] == ["apples", "pears", "plums"]
    assert (items[0]["ID"], items[0]["Title"]["value"], items[0]["Page"]["value"]) == (ids[0], "One", 3)
    assert [item["Text"]["value"] for item in last["answer"]["items"]] == ["plums"]
    change = {"$type": "MultiRowUpdateRequest", "table_id": "rows", "data": {ids[0]: {"Text": "cherries"}}}
    remove = {"$type": "MultiRowDeleteRequest", "table_id": "rows", "row_ids": [ids[1]]}
    reranked = {"reranking_model": "antiphon/reranker", "limit": 10}
    changed, shown, removed, found, _ = take(
        base.call(
            ("table.update_table_rows", KIND | {"request": change}),
            ("table.get_table_row", KIND | {"table_id": "rows", "row_id": ids[0], "columns": ["Text"]}),
            ("table.delete_table_rows", KIND | {"request": remove}),
            find("rows", "cherries", **reranked),
            drop("rows"),
            later=later,
        )
    )
    assert (changed["ok"], removed["ok"]) == (True, True)
    assert shown["Text"] == {"value": "cherries"} and "Title" not in shown
    assert {hit["Text"]["value"] for hit in found} == {"cherries", "plums"}


def test_what_cannot_be_done_is_the_clients_error(base: Base) -> None:
    made, *refused, _ = base.call(
        make("wrong"),
        make("wrong"),
        make("other", "antiphon/none"),
        find("nowhere", "a"),
        find("wrong", "a", metric="dot"),
        find("wrong", "a", reranking_model="none"),
        rows("wrong", {"Colour": "red"}),
        rows("wrong", {"Title": "no text"}),
        ("table.get_table", KIND | {"table_id": "nowhere"}),
        ("table.list_table_rows", KIND | {"table_id": "wrong", "where": "1 = 1"}),
        drop("wrong"),
    )
    kinds = [read_error(result)[0] for result in refused]
    assert kinds == [
        "ResourceExistsError", "BadInputError", "ResourceNotFoundError", "BadInputError",
        "ResourceNotFoundError", "BadInputError",
        "BadInputError", "ResourceNotFoundError", "BadInputError",
    ]  # fmt: skip
    assert "answer" in made


def test_a_service_key_writes_where_its_paths_say_so(base: Base, place: Place) -> None:
    endpoints = ["/jamai/*", "/jamai/api/v2/gen_tables/knowledge*"]
    with closing(Wire(place.server.url)) as wire:
        _, writer = place.made(wire, endpoints=endpoints)
    service, writing = Base(place.server.url, place.key), Base(place.server.url, writer)
    (refused,) = service.call(make("by service"))
    assert read_error(refused)[0] == "ForbiddenError"
    take(writing.call(make("by service"), rows("by service", {"Text": "apples"})))
    (found,) = take(service.call(find("by service", "apples")))
    assert found[0]["Text"]["value"] == "apples"
    question: Any = {"messages": [{"role": "user", "content": "What is there?"}], "max_tokens": 8}
    asked = {"rag_params": {"table_id": "by service", "search_query": "apples"}}
    (answer,) = service.answers(question | asked)
    assert [chunk["text"] for chunk in answer["references"]["chunks"]] == ["apples"]
    take(writing.call(drop("by service")))
