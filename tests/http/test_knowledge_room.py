"""Files that wait to be read count in a project's limits from the beginning of their upload."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from antiphon.retrieval.base import IndexLimits
from antiphon.services.knowledge.uploads import BEGUN, ORDER, STALE_S
from tests.support.http_server import PROCESS_PATIENCE, Reply, at_most
from tests.support.knowledge_server import HeldReader, Serving, serving

FILE = 40_000
TWO_FILES = IndexLimits(bytes=100_000)


async def add(at: Serving, name: str, size: int = FILE) -> Reply:
    return await at.upload("t", ("file", "apples " * (size // 7) + "a" * (size % 7), name))


async def show_usage(at: Serving) -> Any:
    return (await at.served.ask("/v1/knowledge/usage")).json()["used"]


async def until_used(at: Serving, **amounts: int) -> None:
    async with at_most(PROCESS_PATIENCE):
        while {name: (await show_usage(at))[name] for name in amounts} != amounts:
            await asyncio.sleep(0.02)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> HeldReader:
    made = HeldReader()
    made.patch(monkeypatch)
    return made


async def test_files_that_wait_count_also_after_a_restart(tmp_path: Path, reader: HeldReader) -> None:
    async with serving(tmp_path, TWO_FILES) as at:
        await at.ask("", {"name": "t", "embedding_model": None})
        replies = await asyncio.gather(*(add(at, f"held{number}.txt") for number in range(8)))
        assert sorted(reply.status for reply in replies) == [202, 202, *[409] * 6]
        refused = next(reply for reply in replies if reply.status == 409)
        assert (refused.error["code"], refused.error["param"]) == ("knowledge_limit_reached", "file")
        assert "files that wait to be read 80,000. Wait until they are ready" in refused.error["message"]
        assert await show_usage(at) == {
            "tables": 1, "documents": 2, "chunks": 0, "bytes": 2 * FILE, "waiting_files": 2,
        }  # fmt: skip
        stored = [path for path in (tmp_path / "uploads").iterdir() if path.suffix == ".data"]
        assert sum(path.stat().st_size for path in stored) == 2 * FILE
        accepted = next(number for number, reply in enumerate(replies) if reply.status == 202)
        assert (await add(at, f"held{accepted}.txt")).status == 202  # the same file needs no more room
    async with serving(tmp_path, TWO_FILES) as at:
        assert (await add(at, "held9.txt")).status == 409
        documents = (await at.ask("/t/documents")).json()["data"]
        assert (await at.ask(f"/t/documents/{documents[0]['id']}", method="DELETE")).status == 200
        assert (await add(at, "held9.txt")).status == 202  # what is removed gives its bytes back
        reader.go.set()
        await until_used(at, waiting_files=0, documents=2)
        assert (await show_usage(at))["bytes"] >= 2 * FILE  # now in the index
        assert (await add(at, "b.txt")).status == 409


async def test_a_file_that_fails_gives_its_bytes_back(tmp_path: Path) -> None:
    async with serving(tmp_path, TWO_FILES) as at:
        await at.ask("", {"name": "t", "embedding_model": None})
        for number in range(3):
            broken = await at.upload("t", ("file", "[" * FILE, f"{number}.json"))
            assert broken.status == 202, broken.body
            await until_used(at, waiting_files=0, bytes=0)


async def test_a_project_has_so_many_waiting_files(tmp_path: Path, reader: HeldReader) -> None:
    async with serving(tmp_path, IndexLimits(waiting_files=3)) as at:
        await at.ask("", {"name": "t", "embedding_model": None})
        for number in range(3):
            assert (await add(at, f"held{number}.txt", 10)).status == 202
        refused = await add(at, "b.txt", 10)
        assert (refused.status, refused.error["code"]) == (409, "knowledge_limit_reached")
        assert "3 files of this project wait to be read, which is the most" in refused.error["message"]
        assert (await at.served.ask("/v1/knowledge/usage")).json()["limits"]["waiting_files"] == 3
        reader.go.set()
        await until_used(at, waiting_files=0)
        assert (await add(at, "b.txt", 10)).status == 202


async def test_what_a_killed_process_reserved_is_not_reserved_for_ever(
    tmp_path: Path, reader: HeldReader
) -> None:
    async with serving(tmp_path, TWO_FILES) as at:
        await at.ask("", {"name": "t", "embedding_model": None})
        assert (await add(at, "held.txt", 90_000)).status == 202
    (order,) = (tmp_path / "uploads").glob(f"*{ORDER}")
    begun = order.rename(order.with_suffix(BEGUN))  # as if the process had died while it stored the file
    async with serving(tmp_path, TWO_FILES) as at:
        assert (await add(at, "b.txt")).status == 409
        long_ago = begun.stat().st_mtime - STALE_S - 1
        os.utime(begun, (long_ago, long_ago))
        await until_used(at, waiting_files=0, bytes=0)
        assert (await add(at, "b.txt")).status == 202
