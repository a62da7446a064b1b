"""The files of knowledge tables: whose they are, and what a damaged one means."""

from pathlib import Path

import pytest

from antiphon.domain.context import SystemClock
from antiphon.errors import Conflict, KnowledgeTableDamaged, KnowledgeUnavailable
from antiphon.retrieval.base import IndexLimits, SearchQuery, TableSettings
from antiphon.retrieval.sqlite.index import SqliteIndex
from tests.retrieval.knowledge import PROJECT, add_document, find, list_files, make_chunks


async def test_a_file_has_no_name_of_a_caller(tmp_path: Path) -> None:
    index = SqliteIndex(tmp_path / "knowledge", SystemClock(), IndexLimits())
    for name in ("../x", "/etc/passwd", "x.db"):
        await index.create_table(name, TableSettings(name))
    files = list_files(tmp_path, "*.db")
    assert {path.parent.parent for path in files} == {tmp_path / "knowledge"} and len(files) == 3
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert await index.delete_project_tables("../x") == 1
    assert len(list((tmp_path / "knowledge").glob("*/"))) == 2
    await index.aclose()


async def test_a_directory_has_one_user(tmp_path: Path) -> None:
    index = SqliteIndex(tmp_path / "knowledge", SystemClock(), IndexLimits())
    with pytest.raises(KnowledgeUnavailable, match="another server uses"):
        SqliteIndex(tmp_path / "knowledge", SystemClock(), IndexLimits())
    await index.aclose()


@pytest.mark.parametrize("content", [b"no database" * 1000, b"", b"SQLite format 3\0" + b"x" * 9000])
async def test_a_damaged_file_spares_the_other_tables(tmp_path: Path, content: bytes) -> None:
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    await index.create_table(PROJECT, TableSettings("a", chunk_size=1234))
    (damaged,) = list_files(tmp_path, "*.db")
    whole = damaged.read_bytes()
    await index.create_table(PROJECT, TableSettings("b"))
    await index.aclose()
    damaged.write_bytes(content)
    (damaged.parent / "0123.part").write_bytes(b"a copy that a crash ended")
    (damaged.parent / "4567.json").write_bytes(b"of a table that is gone")
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    listed = await index.list_tables(PROJECT)
    assert [table.settings.name for table in listed] == ["a", "b"]
    assert (listed[0].settings.chunk_size, listed[0].damage is None, listed[1].damage) == (1234, False, None)
    assert damaged.exists() and list_files(tmp_path, "0123*") + list_files(tmp_path, "4567*") == []
    for call in (
        index.search(PROJECT, "a", SearchQuery("apple")),
        index.add_chunks(PROJECT, "a", make_chunks(["apple"])),
        index.rename_table(PROJECT, "a", "c"),
    ):
        with pytest.raises(KnowledgeTableDamaged, match=rf"'a' is damaged: .*{damaged.name}") as caught:
            await call
        assert not caught.value.retryable and caught.value.message == listed[0].damage
    with pytest.raises(Conflict):
        await index.create_table(PROJECT, TableSettings("a"))
    await index.add_chunks(PROJECT, "b", make_chunks(["apple"]))
    assert await find(index, "b", "apple") == ["apple"]
    await index.aclose()
    damaged.write_bytes(whole)  # restored from a copy
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    assert (await index.get_table(PROJECT, "a")).damage is None
    await index.aclose()


async def test_a_damaged_table_can_be_deleted(tmp_path: Path) -> None:
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    await index.create_table(PROJECT, TableSettings("a"))
    (damaged,) = list_files(tmp_path, "*.db")
    await index.aclose()
    damaged.write_bytes(b"no database" * 1000)
    list_files(tmp_path, "*.json")[0].unlink()  # its name is not known either
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    assert [table.settings.name for table in await index.list_tables(PROJECT)] == [damaged.stem]
    await index.delete_table(PROJECT, damaged.stem)
    assert await index.list_tables(PROJECT) == () and not damaged.exists()
    await index.create_table(PROJECT, TableSettings("a"))
    await index.aclose()


async def test_a_table_damaged_meanwhile_is_listed_so(tmp_path: Path) -> None:
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    await index.create_table(PROJECT, TableSettings("a"))
    (path,) = list_files(tmp_path, "*.db")
    await add_document(index, "a", "one", make_chunks([f"apple {number} " * 200 for number in range(200)]))
    await index.aclose()
    whole = path.read_bytes()
    page = 4096
    path.write_bytes(whole[: 20 * page] + b"x" * (len(whole) - 20 * page))  # its first pages are whole
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    assert (await index.get_table(PROJECT, "a")).damage is None
    with pytest.raises(KnowledgeTableDamaged, match="'a' is damaged"):
        await index.list_chunks(PROJECT, "a", limit=200)
    assert "'a' is damaged" in ((await index.get_table(PROJECT, "a")).damage or "")
    path.write_bytes(whole)
    assert len((await index.list_chunks(PROJECT, "a", limit=200)).items) == 200
    assert (await index.get_table(PROJECT, "a")).damage is None
    await index.aclose()


async def test_a_table_of_another_project_stays_closed(tmp_path: Path) -> None:
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    await index.create_table("mine", TableSettings("a"))
    await index.create_table("theirs", TableSettings("b"))
    await index.aclose()
    mine, theirs = list_files(tmp_path, "*.db")
    theirs.rename(mine.parent / theirs.name)
    index = SqliteIndex(tmp_path, SystemClock(), IndexLimits())
    assert [table.settings.name for table in await index.list_tables("mine")] == ["a"]
    await index.aclose()
