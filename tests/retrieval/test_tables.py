"""Knowledge tables: made, listed, renamed, copied and removed, each in its project."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.domain.values import replace
from antiphon.errors import Conflict, InvalidValue, KnowledgeLimitReached, NotFound
from antiphon.retrieval.base import (
    ChunkInput,
    IndexLimits,
    KnowledgeIndex,
    SearchQuery,
    SizeUnit,
    TableSettings,
)
from antiphon.retrieval.sqlite.catalog import MOST_OPEN
from tests.retrieval.conftest import SOCKET
from tests.retrieval.knowledge import (
    PROJECT,
    VECTORS,
    WORDS_ONLY,
    OpenIndex,
    add_document,
    find,
    list_files,
    make_chunks,
    make_document,
)

ALL = TableSettings("Алиса 不思議", "a/b:c", 12, 500, 50, SizeUnit.TOKENS, {"cols": '[{"id": "x"}]'})


async def test_a_table_keeps_what_it_is_made_with(index: KnowledgeIndex) -> None:
    made = await index.create_table(PROJECT, ALL)
    assert made.settings == ALL
    assert made == await index.get_table(PROJECT, ALL.name)
    assert (made.documents, made.chunks, made.bytes) == (0, 0, 0)


async def test_tables_are_listed_by_name(index: KnowledgeIndex) -> None:
    for name in ("b", "C", "a"):
        await index.create_table(PROJECT, TableSettings(name))
    assert [table.settings.name for table in await index.list_tables(PROJECT)] == ["C", "a", "b"]


async def test_a_name_is_taken_once_in_a_project(index: KnowledgeIndex) -> None:
    await index.create_table(PROJECT, WORDS_ONLY)
    with pytest.raises(Conflict, match="choose another name"):
        await index.create_table(PROJECT, TableSettings(WORDS_ONLY.name))
    await index.create_table("other", WORDS_ONLY)


NAMES = (
    "../x",
    "..",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "C:x",
    "CON",
    "x.db",
    "%2e%2e",
    "'; drop table--",
    "é" * 200,
    "🦊",
)


@pytest.mark.parametrize("index", [SOCKET], indirect=True)
async def test_no_name_leaves_its_folder(index: KnowledgeIndex, tmp_path: Path) -> None:
    for number, name in enumerate(NAMES):
        for project in (f"{PROJECT} {number}", name):
            await index.create_table(project, TableSettings(name))
            assert (await index.get_table(project, name)).settings.name == name
            assert len(await index.list_tables(project)) == 1
    files = list_files(tmp_path, "*.db")
    assert len(files) == 2 * len(NAMES)
    assert {path.parent.parent for path in files} <= {tmp_path / "knowledge"}


async def test_a_name_that_looks_like_a_statement_is_a_name(index: KnowledgeIndex) -> None:
    for name in ("'; drop table--", 'a"b', "%s", ":name", "é" * 200, "🦊"):
        await index.create_table(name, TableSettings(name))
        assert [table.settings.name for table in await index.list_tables(name)] == [name]


async def test_a_name_that_none_can_have_is_refused(index: KnowledgeIndex) -> None:
    await index.create_table(PROJECT, WORDS_ONLY)
    for name in ("", " ", "x ", "x" * 201, "a\nb", "a\0b"):
        with pytest.raises(InvalidValue, match="a table's name"):
            await index.create_table(PROJECT, TableSettings(name))
        with pytest.raises(InvalidValue, match="a table's name"):
            await index.rename_table(PROJECT, WORDS_ONLY.name, name)


async def test_half_of_a_character_is_refused(index: KnowledgeIndex) -> None:
    await index.create_table(PROJECT, WORDS_ONLY)
    for call in (
        index.create_table(PROJECT, TableSettings("\ud800")),
        index.add_chunks(PROJECT, WORDS_ONLY.name, make_chunks(["\ud800"])),
    ):
        with pytest.raises(InvalidValue, match=r"half of a character|control characters"):
            await call
    assert await find(index, WORDS_ONLY.name, "x") == []


WRONG_SETTINGS = (
    (TableSettings("x", None, 3), "dimensions"),
    (TableSettings("x", "model", 0), "dimensions"),
    (TableSettings("x", "model", 20_000), "dimensions"),
    (TableSettings("x", chunk_size=0), "chunk_size"),
    (TableSettings("x", chunk_size=10, chunk_overlap=10), "chunk_overlap"),
    (TableSettings("x", attributes={"a": "b" * 70_000}), "attributes"),
)


async def test_wrong_settings_are_named(index: KnowledgeIndex) -> None:
    for settings, field in WRONG_SETTINGS:
        with pytest.raises(InvalidValue, match=field) as refused:
            await index.create_table(PROJECT, settings)
        assert refused.value.param == field


async def test_a_renamed_table_keeps_its_contents(index: KnowledgeIndex) -> None:
    await index.create_table(PROJECT, WORDS_ONLY)
    await add_document(index, WORDS_ONLY.name, "a", make_chunks(["an apple"]))
    await index.create_table(PROJECT, TableSettings("taken"))
    with pytest.raises(Conflict):
        await index.rename_table(PROJECT, WORDS_ONLY.name, "taken")
    renamed = await index.rename_table(PROJECT, WORDS_ONLY.name, "new")
    assert renamed.settings == replace(WORDS_ONLY, name="new")
    assert await find(index, "new", "apple") == ["an apple"]
    with pytest.raises(NotFound):
        await index.get_table(PROJECT, WORDS_ONLY.name)
    assert (await index.rename_table(PROJECT, "new", "new")).settings.name == "new"


async def test_a_copy_goes_its_own_way(index: KnowledgeIndex, tmp_path: Path) -> None:
    await index.create_table(PROJECT, VECTORS)
    chunks = make_chunks(["one pear", "two pears"], VECTORS.dimensions)
    document = await add_document(index, VECTORS.name, "a", chunks)
    unready = await index.begin_document(PROJECT, VECTORS.name, make_document("b"))
    await index.put_chunks(PROJECT, VECTORS.name, unready.id, 0, chunks)
    copied = await index.duplicate_table(PROJECT, VECTORS.name, "copy")
    assert (copied.documents, copied.chunks) == (1, 2)
    assert copied.settings == replace(VECTORS, name="copy")
    await index.delete_document(PROJECT, VECTORS.name, document.id)
    query = SearchQuery("pear", chunks[1].vector)
    assert {file.stat().st_mode & 0o777 for file in list_files(tmp_path, "*.db")} <= {0o600}
    hits = await index.search(PROJECT, "copy", query)
    assert hits[0].chunk.text == "one pear" and hits[0].chunk.document == document.id
    assert hits[1].vector_rank == 1
    assert await index.search(PROJECT, VECTORS.name, query) == ()
    empty = await index.duplicate_table(PROJECT, "copy", "empty", with_documents=False)
    assert (empty.documents, empty.chunks, empty.settings.dimensions) == (0, 0, VECTORS.dimensions)


async def test_a_removed_table_leaves_no_file(index: KnowledgeIndex, tmp_path: Path) -> None:
    await index.create_table(PROJECT, WORDS_ONLY)
    await add_document(index, WORDS_ONLY.name, "a", make_chunks(["an apple"]))
    await index.delete_table(PROJECT, WORDS_ONLY.name)
    assert list_files(tmp_path, "*.db*") == []
    with pytest.raises(NotFound, match="no knowledge table"):
        await index.delete_table(PROJECT, WORDS_ONLY.name)
    await index.create_table(PROJECT, WORDS_ONLY)
    assert await find(index, WORDS_ONLY.name, "apple") == []


async def test_a_removed_project_leaves_nothing(index: KnowledgeIndex, tmp_path: Path) -> None:
    for project in (PROJECT, "other"):
        for name in ("a", "b"):
            await index.create_table(project, TableSettings(name))
    assert await index.delete_project_tables(PROJECT) == 2
    assert await index.list_tables(PROJECT) == ()
    assert len(await index.list_tables("other")) == 2
    assert len(list((tmp_path / "knowledge").glob("*/"))) <= 1
    assert await index.delete_project_tables(PROJECT) == 0


async def test_projects_see_nothing_of_each_other(index: KnowledgeIndex) -> None:
    await index.create_table("mine", WORDS_ONLY)
    document = await add_document(index, WORDS_ONLY.name, "a", make_chunks(["secret apple"]), "mine")
    for project in ("theirs", "Mine", "mine ", "mine/../mine", ""):
        for call in (
            index.get_table(project, WORDS_ONLY.name),
            index.search(project, WORDS_ONLY.name, SearchQuery("apple")),
            index.get_document(project, WORDS_ONLY.name, document.id),
            index.get_chunk(project, WORDS_ONLY.name, "1"),
            index.delete_table(project, WORDS_ONLY.name),
        ):
            with pytest.raises(NotFound, match="no knowledge table 'words'"):
                await call
        assert await index.list_tables(project) == ()
    await index.create_table("theirs", WORDS_ONLY)
    assert await find(index, WORDS_ONLY.name, "apple", "theirs") == []
    assert await index.search("theirs", WORDS_ONLY.name, SearchQuery("apple", documents=(document.id,))) == ()


async def test_everything_is_there_after_a_restart(open_index: OpenIndex) -> None:
    async with open_index() as index:
        await index.create_table(PROJECT, ALL)
        await index.create_table(PROJECT, WORDS_ONLY)
        await add_document(index, WORDS_ONLY.name, "a", make_chunks(["an apple"]))
        tables = await index.list_tables(PROJECT)
    async with open_index() as index:
        assert await index.list_tables(PROJECT) == tables
        assert await find(index, WORDS_ONLY.name, "apple") == ["an apple"]


@pytest.fixture
async def small_index(open_index: OpenIndex) -> AsyncIterator[KnowledgeIndex]:
    async with open_index(IndexLimits(tables=2, documents=2, chunks=3, bytes=1000)) as index:
        yield index


async def test_limits_of_a_project_hold(small_index: KnowledgeIndex) -> None:
    index = small_index
    await index.create_table(PROJECT, TableSettings("a"))
    await index.create_table(PROJECT, TableSettings("b"))
    with pytest.raises(Conflict):
        await index.create_table(PROJECT, TableSettings("b"))
    with pytest.raises(KnowledgeLimitReached, match="2 tables") as refused:
        await index.create_table(PROJECT, TableSettings("c"))
    assert refused.value.param == "tables"
    document = await add_document(index, "a", "x", make_chunks(["one", "two"]))
    begun = await index.begin_document(PROJECT, "b", make_document("y"))
    with pytest.raises(KnowledgeLimitReached, match="2 documents"):
        await index.begin_document(PROJECT, "a", make_document("z"))
    assert (await index.begin_document(PROJECT, "b", make_document("y"))).id == begun.id
    with pytest.raises(KnowledgeLimitReached, match="3 chunks"):
        await index.put_chunks(PROJECT, "b", begun.id, 0, make_chunks(["one", "two"]))
    with pytest.raises(KnowledgeLimitReached, match="1000 bytes"):
        await index.put_chunks(PROJECT, "b", begun.id, 0, make_chunks(["x" * 1001]))
    assert (await index.put_chunks(PROJECT, "b", begun.id, 0, make_chunks(["three"]))).chunks == 1
    with pytest.raises(KnowledgeLimitReached, match="2 tables"):
        await index.duplicate_table(PROJECT, "a", "c")
    await index.delete_document(PROJECT, "a", document.id)
    usage = await index.count_usage(PROJECT)
    assert (usage.tables, usage.documents, usage.chunks) == (2, 1, 1)
    await index.create_table("other", TableSettings("a"))


async def test_a_changed_chunk_takes_only_what_it_adds(open_index: OpenIndex) -> None:
    async with open_index(IndexLimits(chunks=2, bytes=1000)) as index:
        await index.create_table(PROJECT, TableSettings("a"))
        first, second = await index.add_chunks(PROJECT, "a", make_chunks(["x" * 100, "x" * 100]))
        room = 1000 - (await index.count_usage(PROJECT)).bytes
        await index.update_chunk(PROJECT, "a", first.id, ChunkInput("y" * (100 + room)))
        assert (await index.count_usage(PROJECT)).bytes == 1000, "the quota is used to its last byte"
        with pytest.raises(KnowledgeLimitReached, match="1000 bytes"):
            await index.update_chunk(PROJECT, "a", second.id, ChunkInput("z" * 101))
        assert (await index.get_chunk(PROJECT, "a", second.id)).text == "x" * 100
        await index.update_chunk(PROJECT, "a", second.id, ChunkInput("z" * 100))
    async with open_index(IndexLimits(chunks=1, bytes=500)) as index:
        await index.update_chunk(PROJECT, "a", first.id, ChunkInput("y" * 99))
        assert (await index.get_chunk(PROJECT, "a", first.id)).text == "y" * 99


@pytest.mark.parametrize("index", [SOCKET], indirect=True)  # PostgreSQL has no files that stay open
async def test_more_tables_than_stay_open_are_usable(index: KnowledgeIndex) -> None:
    names = [f"table {number}" for number in range(MOST_OPEN + 2)]
    for name in names:
        await index.create_table(PROJECT, TableSettings(name))
        await index.add_chunks(PROJECT, name, make_chunks([f"apple of {name}"]))
    assert [await find(index, name, "apple") for name in names] == [[f"apple of {name}"] for name in names]
    assert (await index.count_usage(PROJECT)).chunks == len(names)
