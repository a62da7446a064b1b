"""The service of knowledge tables: what it makes, finds and refuses, for the caller's project alone."""

import asyncio
from collections.abc import Awaitable
from functools import partial
from pathlib import Path

import pytest

from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.tenancy import Grant
from antiphon.errors import (
    AntiphonError,
    Conflict,
    ContextLengthExceeded,
    EngineError,
    InvalidValue,
    ModelNotFound,
    NotFound,
    PermissionDenied,
    UnsupportedParameter,
)
from antiphon.retrieval.base import ChunkInput, SizeUnit, TableInfo
from antiphon.retrieval.knowledge import FileUpload, SearchMode, TableRequest, TableSearch
from antiphon_testing import EmbeddingScript
from tests.support.knowledge import ALICE, BOB, Knowledge, build_context, open_service
from tests.support.waiting import await_until


async def make_table(at: Knowledge, name: str = "t", **wanted: object) -> TableInfo:
    return await at.service.create_table(TableRequest(name, **wanted), build_context())  # type: ignore[arg-type]


async def test_a_table_takes_the_first_embedding_model(tmp_path: Path) -> None:
    async with open_service(tmp_path, names=("e", "f")) as at:
        made = (await make_table(at)).settings
        assert (made.embedding_model, made.dimensions > 0) == ("e", True)
        assert (made.chunk_unit, made.chunk_size) == (SizeUnit.TOKENS, 506)
        assert made.chunk_overlap == 50
        other = (await make_table(at, "u", embedding_model="f", chunk_size=90, chunk_overlap=0)).settings
        assert (other.embedding_model, other.chunk_size, other.chunk_overlap) == ("f", 90, 0)


async def test_without_a_model_a_table_finds_words(tmp_path: Path) -> None:
    async with open_service(tmp_path, names=()) as at:
        made = (await make_table(at)).settings
        assert (made.embedding_model, made.dimensions) == (None, 0)
        assert (made.chunk_unit, made.chunk_size) == (SizeUnit.CHARACTERS, 2000)
        await at.service.add_chunks("t", [ChunkInput("red apples")], build_context())
        (hit,) = await at.service.search("t", TableSearch("apples"), build_context())
        assert (hit.chunk.text, hit.vector_rank) == ("red apples", None)
        with pytest.raises(InvalidValue, match="no embedding model"):
            await at.service.search("t", TableSearch("apples", mode=SearchMode.VECTORS), build_context())


@pytest.mark.parametrize(
    ("wanted", "error", "param"),
    [
        ({"embedding_model": "x"}, ModelNotFound, "embedding_model"),
        ({"embedding_model": "m"}, UnsupportedParameter, "embedding_model"),
        ({"name": "a/b"}, InvalidValue, "name"),
        ({"name": ".."}, InvalidValue, "name"),
        ({"name": ""}, InvalidValue, "name"),
        ({"chunk_size": 507}, InvalidValue, "chunk_size"),
        ({"chunk_size": 15}, InvalidValue, "chunk_size"),
        ({"chunk_size": 20, "chunk_overlap": 20}, InvalidValue, "chunk_overlap"),
        ({"embedding_model": None, "chunk_unit": SizeUnit.TOKENS}, InvalidValue, "chunk_unit"),
    ],
)
async def test_a_table_that_cannot_be_is_refused(
    tmp_path: Path, wanted: dict[str, object], error: type[AntiphonError], param: str
) -> None:
    async with open_service(tmp_path) as at:
        with pytest.raises(error) as refused:
            await make_table(at, **({"name": "t"} | wanted))  # type: ignore[arg-type]
        assert refused.value.param == param
        assert await at.index.list_tables(ALICE.project) == ()


async def test_a_key_makes_no_table_with_a_foreign_model(tmp_path: Path) -> None:
    confined = Actor(ActorKind.SERVICE_KEY, "key_alice", "alpha", grant=Grant(("m",), None))
    async with open_service(tmp_path) as at:
        with pytest.raises(PermissionDenied):
            await at.service.create_table(TableRequest("t", "e"), build_context(confined))
        made = await at.service.create_table(TableRequest("t"), build_context(confined))
        assert made.settings.embedding_model is None


async def test_chunks_are_embedded_found_changed_and_removed(tmp_path: Path) -> None:
    async with open_service(tmp_path) as at:
        await make_table(at)
        texts = ["the red apple", "the blue sea", "the red apple"]
        made = await at.service.add_chunks("t", [ChunkInput(text) for text in texts], build_context())
        assert len(at.engine.asked[-1].texts) == 2  # equal texts are embedded once
        hits = await at.service.search("t", TableSearch("blue sea"), build_context())
        assert (hits[0].chunk.id, hits[0].words_rank) == (made[1].id, 1)
        assert hits[0].vector_rank is not None
        (changed,) = await at.service.update_chunks(
            "t", {made[1].id: ChunkInput("a green hill")}, build_context()
        )
        assert (changed.id, changed.text) == (made[1].id, "a green hill")
        by_vector = TableSearch("a green hill", 1, SearchMode.VECTORS)
        assert (await at.service.search("t", by_vector, build_context()))[0].similarity == pytest.approx(
            1, abs=1e-3
        )
        assert await at.service.search("t", TableSearch("sea", mode=SearchMode.WORDS), build_context()) == ()
        assert await at.index.delete_chunks(ALICE.project, "t", [each.id for each in made]) == 3
        assert (await at.index.list_chunks(ALICE.project, "t")).total == 0


async def test_a_failed_change_leaves_all_chunks_as_they_are(tmp_path: Path) -> None:
    async with open_service(tmp_path) as at:
        await make_table(at)
        texts = [f"the red apple {number}" for number in range(70)]  # two calls of the model
        made = await at.service.add_chunks("t", [ChunkInput(text) for text in texts], build_context())
        failing = EmbeddingScript(error=EngineError("it broke"), error_after=10)
        at.engine.behaviour = failing
        changes = {chunk.id: ChunkInput(f"a blue sea {chunk.id}") for chunk in made}
        with pytest.raises(EngineError, match="it broke"):
            await at.service.update_chunks("t", changes, build_context())
        page = await at.index.list_chunks(ALICE.project, "t", limit=100)
        assert [chunk.text for chunk in page.items] == texts
        at.engine.behaviour = EmbeddingScript()
        found = await at.service.search("t", TableSearch("apple", 100), build_context())
        assert sorted(hit.chunk.text for hit in found if hit.words_rank) == sorted(texts)


async def test_a_changing_chunk_is_always_found(tmp_path: Path) -> None:
    async with open_service(tmp_path) as at:
        await make_table(at)
        (chunk,) = await at.service.add_chunks("t", [ChunkInput("an apple in version 0")], build_context())
        over = asyncio.Event()
        seen: set[str] = set()

        async def change() -> None:
            for version in range(1, 40):
                content = ChunkInput(f"an apple in version {version}")
                await at.service.update_chunks("t", {chunk.id: content}, build_context())
                if version % 8 == 0:  # the searches keep up
                    await await_until(partial(seen.__contains__, content.text))
            over.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(change())
            while not over.is_set():
                for mode in SearchMode:
                    (hit,) = await at.service.search("t", TableSearch("apple", 5, mode), build_context())
                    seen.add(hit.chunk.text)
        assert len(seen) > 3


async def test_what_cannot_be_embedded_names_the_field(tmp_path: Path) -> None:
    async with open_service(tmp_path) as at:
        await make_table(at)
        with pytest.raises(ContextLengthExceeded) as refused:
            await at.service.add_chunks("t", [ChunkInput("word " * 600)], build_context())
        assert refused.value.param == "text"
        chunks = [ChunkInput("a"), ChunkInput("a"), ChunkInput("word " * 600)]
        with pytest.raises(ContextLengthExceeded) as refused:
            await at.service.add_chunks("t", chunks, build_context())
        assert refused.value.param == "chunks[2].text" and refused.value.param in refused.value.message
        with pytest.raises(ContextLengthExceeded) as refused:
            await at.service.search("t", TableSearch("word " * 600), build_context())
        assert refused.value.param == "query"
        for empty in (TableSearch(" "), TableSearch("")):
            with pytest.raises(InvalidValue, match="query is empty"):
                await at.service.search("t", empty, build_context())
        with pytest.raises(InvalidValue) as blank:
            await at.service.add_chunks("t", [ChunkInput("a"), ChunkInput(" ")], build_context())
        assert blank.value.param == "chunks[1].text"


async def test_tables_are_renamed_copied_and_removed(tmp_path: Path) -> None:
    async with open_service(tmp_path) as at:
        await make_table(at)
        await at.service.add_document("t", FileUpload("a.txt", b"apples"), build_context(), wait=True)
        assert (await at.service.rename_table(ALICE, "t", "u")).settings.name == "u"
        copy = await at.service.duplicate_table(ALICE, "u", "v")
        assert (copy.documents, copy.chunks) == (1, 1)
        with pytest.raises(Conflict):
            await make_table(at, "v")
        await at.service.delete_table(ALICE, "u")
        assert [each.settings.name for each in await at.index.list_tables(ALICE.project)] == ["v"]
        usage, limits = await at.service.count_usage(ALICE)
        assert (usage.tables, usage.documents, usage.chunks) == (1, 1, 1)
        assert limits.tables > 1


async def fail_with(call: Awaitable[object]) -> tuple[type[AntiphonError], str]:
    with pytest.raises(AntiphonError) as refused:
        await call
    return type(refused.value), refused.value.message


async def test_another_projects_table_is_as_good_as_none(tmp_path: Path) -> None:
    async with open_service(tmp_path) as at:
        await make_table(at)
        document = await at.service.add_document(
            "t", FileUpload("a.txt", b"apples"), build_context(), wait=True
        )
        (chunk,) = (await at.index.list_chunks(ALICE.project, "t")).items
        service, bob = at.service, build_context(BOB)
        before = await at.index.get_table(ALICE.project, "t")
        for table in ("t", "nowhere"):
            calls = [
                at.index.get_table(BOB.project, table),
                service.rename_table(BOB, table, "mine"),
                service.duplicate_table(BOB, table, "mine"),
                service.delete_table(BOB, table),
                service.add_document(table, FileUpload("b.txt", b"pears"), bob),
                service.list_documents(BOB, table),
                service.get_document(BOB, table, document.id),
                service.delete_document(BOB, table, document.id),
                service.add_chunks(table, [ChunkInput("a")], bob),
                at.index.list_chunks(BOB.project, table),
                at.index.get_chunk(BOB.project, table, chunk.id),
                service.update_chunks(table, {chunk.id: ChunkInput("a")}, bob),
                at.index.delete_chunks(BOB.project, table, [chunk.id]),
                service.search(table, TableSearch("apples"), bob),
            ]
            for call in calls:
                error, message = await fail_with(call)
                assert (error, message.replace(f"'{table}'", "'T'")) == (
                    NotFound,
                    "there is no knowledge table 'T'",
                ), message
        assert await at.index.list_tables(BOB.project) == ()
        assert await at.index.get_table(ALICE.project, "t") == before
        assert at.list_uploads() == []
