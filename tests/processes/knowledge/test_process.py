"""The knowledge process: started at the first use, killed at any moment, and started again."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from antiphon.engines.host.runtime import build_knowledge_path
from antiphon.errors import Conflict, KnowledgeLimitReached, KnowledgeUnavailable, NotFound
from antiphon.processes.knowledge import host as knowledge_host
from antiphon.processes.knowledge.client import KnowledgeClient
from antiphon.processes.knowledge.host import KnowledgeHost, filter_environment
from antiphon.retrieval.base import (
    MAX_HIT_BYTES,
    DocumentState,
    KnowledgeIndex,
    SearchQuery,
    TableSettings,
)
from antiphon.settings.schema import Settings, replace_knowledge
from antiphon.settings.server import KnowledgeSettings
from tests.retrieval.knowledge import (
    DIMENSIONS,
    PROJECT,
    VECTORS,
    add_document,
    list_files,
    make_chunks,
    make_document,
    make_vector,
)
from tests.support.host_link import short_directory
from tests.support.knowledge_process import STOP_S, Running, retry, run_knowledge, run_without_rest
from tests.support.processes import alive, environment

TABLE = VECTORS.name
BATCHES = 6


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The supervisor's event loop."""
    return "asyncio"


async def test_the_first_call_starts_the_process(tmp_path: Path) -> None:
    async with run_knowledge(tmp_path) as running:
        assert running.pids == [], "nobody needs it yet"
        await running.client.create_table(PROJECT, VECTORS)
        assert len(running.pids) == 1
        document = await add_document(running.client, TABLE, "a", make_chunks(["an apple"], DIMENSIONS))
        hits = await asyncio.gather(
            *(running.client.search(PROJECT, TABLE, SearchQuery("apple", make_vector(0))) for _ in range(20))
        )
        assert {hit.chunk.document for (hit,) in hits} == {document.id}
        with pytest.raises(NotFound, match="no knowledge table"):
            await running.client.get_table("other", TABLE)
        running.kill()
        await retry(lambda: running.client.get_document(PROJECT, TABLE, document.id))
        pids = running.pids
    assert not any(alive(pid) for pid in pids)


async def test_calls_wait_together_for_a_process(tmp_path: Path) -> None:
    client = KnowledgeClient(str(tmp_path / "none"), lambda: None, patience=2.0).index
    began = asyncio.get_running_loop().time()
    failures = await asyncio.gather(
        *(client.get_table(PROJECT, TABLE) for _ in range(5)), return_exceptions=True
    )
    assert {type(failure) for failure in failures} == {KnowledgeUnavailable}
    assert asyncio.get_running_loop().time() - began < 9.0, "one after the other they wait ten seconds"


async def test_it_holds_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTIPHON_API_KEY", "HF_TOKEN", "ANTIPHON_HOME"):
        monkeypatch.setenv(name, "secret")
    settings = msgspec.structs.replace(
        Settings(), server=msgspec.structs.replace(Settings().server, api_key="secret-of-settings")
    )
    async with run_knowledge(tmp_path, settings) as running:
        await running.client.list_tables(PROJECT)
        variables = environment(running.pids[0])
    assert not {name for name, value in variables.items() if "secret" in value}
    assert filter_environment({"PATH": "x", "AWS_SECRET_ACCESS_KEY": "y"}) == {
        "PATH": "x",
        "OPENBLAS_NUM_THREADS": "1",
    }


async def test_limits_come_from_the_settings(tmp_path: Path) -> None:
    knowledge = KnowledgeSettings(max_documents=1, max_tables=2, max_chunks=3, max_bytes=1000)
    settings = Settings(knowledge=knowledge)
    async with run_knowledge(tmp_path, settings) as running:
        client = running.client
        await client.create_table(PROJECT, VECTORS)
        begun = await client.begin_document(PROJECT, TABLE, make_document("a"))
        with pytest.raises(KnowledgeLimitReached, match="can keep 1 documents"):
            await client.begin_document(PROJECT, TABLE, make_document("b"))
        with pytest.raises(KnowledgeLimitReached, match="can keep 3 chunks"):
            await client.put_chunks(PROJECT, TABLE, begun.id, 0, make_chunks(list("abcd"), DIMENSIONS))
        with pytest.raises(KnowledgeLimitReached, match="can keep 1000 bytes") as full:
            await client.put_chunks(PROJECT, TABLE, begun.id, 0, make_chunks(["x" * 1001], DIMENSIONS))
        assert full.value.param == "bytes"
        await client.create_table(PROJECT, TableSettings("second"))
        with pytest.raises(KnowledgeLimitReached, match="can keep 2 "):
            await client.create_table(PROJECT, TableSettings("third"))


async def test_a_directory_that_fails_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    async with run_knowledge(blocked) as running:
        for _ in range(2):
            with pytest.raises(KnowledgeUnavailable, match="cannot be used"):
                await running.client.list_tables(PROJECT)
        blocked.unlink()
        assert await running.client.list_tables(PROJECT) == ()


async def test_a_resting_process_is_told_of_at_once(tmp_path: Path) -> None:
    settings = replace_knowledge(Settings(), str(tmp_path))
    with short_directory() as runtime:
        socket = build_knowledge_path(runtime)
        async with asyncio.TaskGroup() as group:
            host = KnowledgeHost(settings, runtime, group)
            client = KnowledgeClient(socket, host.request, patience=200.0)
            running = Running(client.index)
            for _ in range(3):
                assert await retry(lambda: client.index.list_tables(PROJECT)) == ()
                running.kill()
            began = asyncio.get_running_loop().time()
            away = KnowledgeUnavailable("")
            while "pause" not in away.message:
                try:
                    await client.index.list_tables(PROJECT)
                except KnowledgeUnavailable as error:
                    away = error
            assert away_is_prompt(away, began)
            assert running.pids == []
            await host.stop(STOP_S)
            await client.aclose()


def away_is_prompt(away: KnowledgeUnavailable, began: float) -> bool:
    """Whether a refusal says when to come back, and came long before a waiting call's end."""
    took = asyncio.get_running_loop().time() - began
    return away.retryable and 0 < (away.retry_after or 0) <= 60 and took < 100


async def test_a_process_that_cannot_start_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knowledge_host, "MODULE", "antiphon.no_such_module")
    with short_directory() as runtime:
        async with asyncio.TaskGroup() as group:
            host = KnowledgeHost(replace_knowledge(Settings(), str(tmp_path)), runtime, group)
            client = KnowledgeClient(build_knowledge_path(runtime), host.request, patience=200.0)
            with pytest.raises(
                KnowledgeUnavailable, match="did not start; it starts again after a pause"
            ) as caught:
                await client.index.list_tables(PROJECT)
            assert 0 < (caught.value.retry_after or 0) <= 5
            await host.stop(STOP_S)
            await client.aclose()


async def test_more_text_than_a_message_is_fewer_hits(tmp_path: Path) -> None:
    async with run_knowledge(tmp_path) as running:
        await running.client.create_table(PROJECT, TableSettings("long"))
        text = "apple " + "x" * 65_000
        for _ in range(3):
            await running.client.add_chunks(PROJECT, "long", make_chunks([text] * 100))
        hits = await running.client.search(PROJECT, "long", SearchQuery("apple", k=300))
        assert len(hits) == MAX_HIT_BYTES // len(text.encode())
        assert len(await running.client.search(PROJECT, "long", SearchQuery("apple", k=5))) == 5


async def ingest(running: Running, name: str, batches: int) -> None:
    """Adds a document as a job does that repeats what failed, and notes nothing of its own."""
    client = running.client
    begun = await retry(lambda: client.begin_document(PROJECT, TABLE, make_document(name)))
    for batch in range(batches):
        chunks = make_chunks([f"apple {name} {batch} {place}" for place in range(4)], DIMENSIONS, batch)
        await retry(lambda: client.put_chunks(PROJECT, TABLE, begun.id, batch, chunks))  # noqa: B023
    await retry(lambda: client.finish_document(PROJECT, TABLE, begun.id))


async def kill_often(running: Running, times: int) -> None:
    """Kills the process at random moments while others write."""
    for _ in range(times):
        await asyncio.sleep(random.uniform(0.02, 0.3))
        running.kill()
        await retry(lambda: running.client.list_tables(PROJECT))


async def check_killed_ingest(directory: Path, kills: int) -> None:
    """Two writers and repeated kills: what was acknowledged is there, and nothing twice."""
    async with run_without_rest(directory) as running:
        await running.client.create_table(PROJECT, VECTORS)

        async def write(writer: int) -> None:
            number = 0
            while not killing.done():
                await ingest(running, f"{writer}-{number}", BATCHES)
                number += 1

        async with asyncio.TaskGroup() as group:
            killing = group.create_task(kill_often(running, kills))
            group.create_task(write(0))
            group.create_task(write(1))
        await check_contents(running.client)


async def check_contents(client: KnowledgeIndex) -> None:
    page = await client.list_documents(PROJECT, TABLE, limit=1000)
    assert {document.state for document in page.items} == {DocumentState.READY}
    names = [document.name for document in page.items]
    assert len(names) == len(set(names)) == page.total
    expected = sorted(
        f"apple {name} {batch} {place}" for name in names for batch in range(BATCHES) for place in range(4)
    )
    found: list[str] = []
    while len(found) < len(expected):
        part = await client.list_chunks(PROJECT, TABLE, offset=len(found), limit=1000)
        assert part.total == len(expected)
        found += [chunk.text for chunk in part.items]
    assert sorted(found) == expected
    for document in page.items[:5]:
        query = SearchQuery("apple", make_vector(0), 50, 50, (document.id,))
        hits = await client.search(PROJECT, TABLE, query)
        assert len(hits) == len({hit.chunk.id for hit in hits}) == 4 * BATCHES
        assert all(hit.words_rank and hit.vector_rank for hit in hits)


async def test_kills_during_ingest_lose_and_double_nothing(tmp_path: Path) -> None:
    await check_killed_ingest(tmp_path, 3)


async def change_tables(client: KnowledgeIndex, killing: "asyncio.Task[None]") -> None:
    """Copies, renames and removes tables. A repeated call may find its work done."""
    number = 0
    while not killing.done():
        copy, new, gone = f"copy {number}", f"new {number}", f"new {number - 2}"
        for call in (
            lambda: client.duplicate_table(PROJECT, TABLE, copy),  # noqa: B023
            lambda: client.rename_table(PROJECT, copy, new),  # noqa: B023
            lambda: client.delete_table(PROJECT, gone),  # noqa: B023
        ):
            with suppress(Conflict, NotFound):
                await retry(call)
        number += 1


async def test_kills_leave_whole_tables_only(tmp_path: Path) -> None:
    async with run_without_rest(tmp_path) as running:
        await running.client.create_table(PROJECT, VECTORS)
        texts = [f"apple {place} " * 50 for place in range(300)]
        await add_document(running.client, TABLE, "a", make_chunks(texts, DIMENSIONS))
        async with asyncio.TaskGroup() as group:
            killing = group.create_task(kill_often(running, 3))
            group.create_task(change_tables(running.client, killing))
        running.kill()  # the next process sweeps what the last kill left
        tables = await retry(lambda: running.client.list_tables(PROJECT))
        assert {(table.documents, table.chunks) for table in tables} == {(1, 300)}
        assert TABLE in {table.settings.name for table in tables}
        query = SearchQuery("apple", make_vector(7), 1)
        for table in tables:
            (hit,) = await running.client.search(PROJECT, table.settings.name, query)
            assert hit.vector_rank == 1 and hit.chunk.text == texts[7]
        assert len(list_files(tmp_path, "*.db")) == len(tables) and list_files(tmp_path, "*.part*") == []


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_twenty_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    await check_killed_ingest(tmp_path, 20)
