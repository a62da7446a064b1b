"""Documents: added in batches, found all at once, replaced, failed and removed."""

import asyncio

import pytest

from antiphon.domain.values import replace
from antiphon.errors import Conflict, InvalidValue, NotFound
from antiphon.retrieval.base import (
    LONGEST_TEXT,
    MAX_BATCH,
    ChunkInput,
    DocumentState,
    KnowledgeIndex,
    SearchQuery,
    TableSettings,
)
from tests.retrieval.knowledge import (
    DIMENSIONS,
    PROJECT,
    VECTORS,
    WORDS_ONLY,
    add_document,
    find,
    make_chunks,
    make_document,
    make_vector,
    texts_of,
)

TABLE = WORDS_ONLY.name


@pytest.fixture(autouse=True)
async def make_tables(index: KnowledgeIndex) -> None:
    await index.create_table(PROJECT, WORDS_ONLY)
    await index.create_table(PROJECT, VECTORS)


async def test_a_document_is_found_once_it_is_finished(index: KnowledgeIndex) -> None:
    vector = make_vector(0)
    begun = await index.begin_document(PROJECT, VECTORS.name, make_document("a.txt"))
    assert (begun.state, begun.progress, begun.chunks) == (DocumentState.INDEXING, 0, 0)
    put = await index.put_chunks(
        PROJECT, VECTORS.name, begun.id, 0, make_chunks(["an apple"], DIMENSIONS), 40
    )
    assert (put.state, put.progress, put.chunks, put.batches) == (DocumentState.INDEXING, 40, 1, (0,))
    query = SearchQuery("apple", vector)
    assert await index.search(PROJECT, VECTORS.name, query) == ()
    assert (await index.list_chunks(PROJECT, VECTORS.name)).items == ()
    with pytest.raises(NotFound):
        await index.get_chunk(PROJECT, VECTORS.name, "1")
    finished = await index.finish_document(PROJECT, VECTORS.name, begun.id, ["page 3 has no text"])
    assert (finished.state, finished.progress, finished.batches) == (DocumentState.READY, 100, ())
    assert finished.warnings == ("page 3 has no text",)
    (hit,) = await index.search(PROJECT, VECTORS.name, query)
    assert (hit.words_rank, hit.vector_rank, hit.chunk.file_name) == (1, 1, "a.txt")
    assert hit.score == pytest.approx(2 / 61) and hit.similarity == pytest.approx(1, abs=1e-3)


async def test_every_step_can_be_repeated(index: KnowledgeIndex) -> None:
    document = make_document("a.txt")
    begun = await index.begin_document(PROJECT, TABLE, document)
    assert await index.begin_document(PROJECT, TABLE, document) == begun
    for batch in (0, 1, 0, 1):
        put = await index.put_chunks(PROJECT, TABLE, begun.id, batch, make_chunks([f"apple {batch}"]))
    assert (put.chunks, put.batches) == (2, (0, 1))
    finished = await index.finish_document(PROJECT, TABLE, begun.id)
    assert await index.finish_document(PROJECT, TABLE, begun.id) == finished
    assert await index.put_chunks(PROJECT, TABLE, begun.id, 2, make_chunks(["apple 3"])) == finished
    assert await index.begin_document(PROJECT, TABLE, document) == finished
    assert await index.fail_document(PROJECT, TABLE, begun.id, "too late") == finished
    assert sorted(await find(index, TABLE, "apple")) == ["apple 0", "apple 1"]


async def test_the_same_digest_is_the_same_document(index: KnowledgeIndex) -> None:
    first = await add_document(index, TABLE, "a.txt", make_chunks(["apple"]))
    again = await index.begin_document(PROJECT, TABLE, replace(make_document("b.txt"), digest=first.digest))
    assert again == first
    assert (await index.list_documents(PROJECT, TABLE)).total == 1


async def test_a_new_document_of_a_name_replaces_the_old_one(index: KnowledgeIndex) -> None:
    old = await add_document(index, VECTORS.name, "a", make_chunks(["old apple"], DIMENSIONS))
    begun = await index.begin_document(PROJECT, VECTORS.name, make_document("a", "new"))
    assert begun.id != old.id
    query = SearchQuery("apple", make_vector(0))
    await index.put_chunks(PROJECT, VECTORS.name, begun.id, 0, make_chunks(["new apple"], DIMENSIONS))
    assert texts_of(await index.search(PROJECT, VECTORS.name, query)) == ["old apple"]
    await index.finish_document(PROJECT, VECTORS.name, begun.id)
    assert texts_of(await index.search(PROJECT, VECTORS.name, query)) == ["new apple"]
    with pytest.raises(NotFound):
        await index.get_document(PROJECT, VECTORS.name, old.id)
    usage = await index.count_usage(PROJECT)
    assert (usage.documents, usage.chunks) == (1, 1)


async def test_an_older_document_never_replaces_a_newer_one(index: KnowledgeIndex) -> None:
    older = await index.begin_document(PROJECT, TABLE, make_document("a", "1"))
    await index.put_chunks(PROJECT, TABLE, older.id, 0, make_chunks(["older"]))
    await add_document(index, TABLE, "a", make_chunks(["newer"]))
    with pytest.raises(NotFound, match="no document"):
        await index.finish_document(PROJECT, TABLE, older.id)
    assert await find(index, TABLE, "older newer") == ["newer"]


async def test_a_document_keeps_the_id_that_is_given(index: KnowledgeIndex) -> None:
    await index.create_table(PROJECT, TableSettings("imported"))
    wanted = replace(make_document("a"), id="doc_1-A")
    for _ in range(2):
        assert (await index.begin_document(PROJECT, "imported", wanted)).id == "doc_1-A"
    with pytest.raises(Conflict, match="doc_1-A"):
        await index.begin_document(PROJECT, "imported", replace(make_document("b"), id="doc_1-A"))
    for wrong in ("a b", "../a", "x" * 65):
        with pytest.raises(InvalidValue) as caught:
            await index.begin_document(PROJECT, "imported", replace(make_document("b"), id=wrong))
        assert caught.value.param == "id"
    assert (await index.list_documents(PROJECT, "imported")).total == 1


async def test_a_failed_document_keeps_its_reason_only(index: KnowledgeIndex) -> None:
    old = await add_document(index, TABLE, "a", make_chunks(["old apple"]))
    begun = await index.begin_document(PROJECT, TABLE, make_document("a", "2"))
    await index.put_chunks(PROJECT, TABLE, begun.id, 0, make_chunks(["new apple"]), 50)
    failed = await index.fail_document(PROJECT, TABLE, begun.id, "page 2 is encrypted")
    assert (failed.state, failed.error, failed.chunks) == (DocumentState.FAILED, "page 2 is encrypted", 0)
    for call in (
        index.put_chunks(PROJECT, TABLE, begun.id, 1, []),
        index.finish_document(PROJECT, TABLE, begun.id),
    ):
        with pytest.raises(Conflict, match="has failed"):
            await call
    assert await find(index, TABLE, "apple") == ["old apple"]
    again = await index.begin_document(PROJECT, TABLE, make_document("a", "2"))
    assert (again.id, again.state, again.error) == (begun.id, DocumentState.INDEXING, None)
    await index.put_chunks(PROJECT, TABLE, again.id, 0, make_chunks(["new apple"]))
    await index.finish_document(PROJECT, TABLE, again.id)
    assert await find(index, TABLE, "apple") == ["new apple"]
    with pytest.raises(NotFound):
        await index.get_document(PROJECT, TABLE, old.id)


async def test_a_removed_document_leaves_nothing(index: KnowledgeIndex) -> None:
    kept = await add_document(index, VECTORS.name, "a", make_chunks(["apple a"], DIMENSIONS))
    gone = await add_document(index, VECTORS.name, "b", make_chunks(["apple b"], DIMENSIONS, 1))
    query = SearchQuery("apple", make_vector(1))
    assert len(await index.search(PROJECT, VECTORS.name, query)) == 2
    await index.delete_document(PROJECT, VECTORS.name, gone.id)
    assert texts_of(await index.search(PROJECT, VECTORS.name, query)) == ["apple a"]
    with pytest.raises(NotFound):
        await index.delete_document(PROJECT, VECTORS.name, gone.id)
    table = await index.get_table(PROJECT, VECTORS.name)
    assert (table.documents, table.chunks, table.bytes) == (1, 1, len("apple a") + 2 * DIMENSIONS)
    assert (await index.list_documents(PROJECT, VECTORS.name)).items == (kept,)


async def test_documents_are_listed_the_latest_first(index: KnowledgeIndex) -> None:
    for name in "abc":
        await add_document(index, TABLE, name, [])
    page = await index.list_documents(PROJECT, TABLE, 1, 1)
    assert ([document.name for document in page.items], page.total) == (["b"], 3)
    for offset, limit in ((-1, 1), (0, 0), (0, 1001), (2**40, 1)):
        with pytest.raises(InvalidValue, match="must be"):
            await index.list_documents(PROJECT, TABLE, offset, limit)


WRONG_CHUNKS = (
    (ChunkInput("x"), "vector"),
    (ChunkInput("x", vector=make_vector(0, DIMENSIONS - 1)), "vector"),
    (ChunkInput("x", vector=make_vector(0)[:-1]), "vector"),
    (ChunkInput("x", vector=bytes(4 * DIMENSIONS)), "vector"),
    (ChunkInput("x", vector=b"\x00\x00\xc0\x7f" * DIMENSIONS), "vector"),
    (ChunkInput("x" * (LONGEST_TEXT + 1), vector=make_vector(0)), "text"),
    (ChunkInput("x", page=-1, vector=make_vector(0)), "page"),
    (ChunkInput("x", metadata={"a": "b" * LONGEST_TEXT}, vector=make_vector(0)), "text"),
)


async def test_a_wrong_chunk_is_named_and_none_is_kept(index: KnowledgeIndex) -> None:
    begun = await index.begin_document(PROJECT, VECTORS.name, make_document("a"))
    good = make_chunks(["x"], DIMENSIONS)[0]
    for chunk, field in WRONG_CHUNKS:
        with pytest.raises(InvalidValue, match=rf"chunks\[1\].*{field}") as refused:
            await index.put_chunks(PROJECT, VECTORS.name, begun.id, 0, [good, chunk])
        assert refused.value.param == f"chunks[1].{field}"
        assert (await index.get_document(PROJECT, VECTORS.name, begun.id)).chunks == 0


async def test_a_table_of_words_takes_no_vector(index: KnowledgeIndex) -> None:
    with pytest.raises(InvalidValue, match="words only"):
        await index.add_chunks(PROJECT, TABLE, make_chunks(["x"], DIMENSIONS))
    with pytest.raises(InvalidValue, match="words only"):
        await index.search(PROJECT, TABLE, SearchQuery("x", make_vector(0)))


async def test_batches_are_bounded(index: KnowledgeIndex) -> None:
    begun = await index.begin_document(PROJECT, TABLE, make_document("a"))
    for chunks, match in (
        (make_chunks(["x"] * (MAX_BATCH + 1)), "at most 512 chunks, not 513"),
        (make_chunks(["x" * LONGEST_TEXT] * 200), "send fewer"),
    ):
        with pytest.raises(InvalidValue, match=match):
            await index.put_chunks(PROJECT, TABLE, begun.id, 0, chunks)
    for progress in (-1, 101):
        with pytest.raises(InvalidValue, match="percent"):
            await index.put_chunks(PROJECT, TABLE, begun.id, 0, [], progress)


async def test_a_document_needs_proper_names(index: KnowledgeIndex) -> None:
    document = make_document("a")
    for value in ("", "x" * 501, "a\nb"):
        for wrong in (replace(document, name=value), replace(document, digest=value)):
            with pytest.raises(InvalidValue):
                await index.begin_document(PROJECT, TABLE, wrong)


async def test_two_writers_lose_nothing(index: KnowledgeIndex) -> None:
    async def write(writer: int) -> None:
        for number in range(3):
            await add_document(
                index,
                VECTORS.name,
                f"{writer}-{number}",
                make_chunks([f"apple {writer} {number}"], DIMENSIONS),
            )

    await asyncio.gather(write(0), write(1), write(2))
    assert (await index.list_documents(PROJECT, VECTORS.name)).total == 9
    found = await find(index, VECTORS.name, "apple", k=20)
    assert len(found) == len(set(found)) == 9
    hits = await index.search(PROJECT, VECTORS.name, SearchQuery(vector=make_vector(0), k=20))
    assert len(hits) == 9


async def test_two_writers_of_one_document_keep_it_once(index: KnowledgeIndex) -> None:
    async def write() -> None:
        begun = await index.begin_document(PROJECT, TABLE, make_document("a"))
        for batch in range(3):
            await index.put_chunks(PROJECT, TABLE, begun.id, batch, make_chunks([f"apple {batch}"]))
        await index.finish_document(PROJECT, TABLE, begun.id)

    await asyncio.gather(write(), write())
    assert sorted(await find(index, TABLE, "apple")) == [f"apple {batch}" for batch in range(3)]


async def test_a_search_never_misses_a_document_in_exchange(index: KnowledgeIndex) -> None:
    """While a document is replaced again and again, each search finds one of its versions, whole."""
    await add_document(index, VECTORS.name, "a", make_chunks(["apple 0"] * 3, DIMENSIONS))
    done = asyncio.Event()

    async def replace_often() -> None:
        for version in range(1, 6):
            await add_document(index, VECTORS.name, "a", make_chunks([f"apple {version}"] * 3, DIMENSIONS))
        done.set()

    async def look() -> int:
        looks = 0
        while not done.is_set():
            hits = await index.search(PROJECT, VECTORS.name, SearchQuery("apple", make_vector(1), k=10))
            assert len(hits) == 3 and len(set(texts_of(hits))) == 1
            assert {hit.words_rank for hit in hits} == {hit.vector_rank for hit in hits} == {1, 2, 3}
            looks += 1
        return looks

    looks, _ = await asyncio.gather(look(), replace_often())
    assert looks


async def test_poor_hits_by_words_do_not_outweigh_a_vector(index: KnowledgeIndex) -> None:
    """The nearest text shares no word with the query; many others share one of its four."""
    texts = ["a boat goes over", *(f"the river {number} is wet" for number in range(30))]
    texts += [f"something {number} different" for number in range(30)]
    await add_document(index, VECTORS.name, "a", make_chunks(texts, DIMENSIONS))
    query = SearchQuery("river crossing without swimming", make_vector(0), k=5)
    best, *_ = await index.search(PROJECT, VECTORS.name, query)
    assert (best.chunk.text, best.words_rank, best.vector_rank) == (texts[0], None, 1)


async def test_a_good_hit_by_words_counts_beside_a_vector(index: KnowledgeIndex) -> None:
    texts = [f"something {number} different" for number in range(60)]
    await add_document(index, VECTORS.name, "a", make_chunks(["a golden apple", *texts], DIMENSIONS))
    query = SearchQuery("which golden apple", make_vector(1), k=61, depth=61)
    hits = {hit.chunk.text: hit for hit in await index.search(PROJECT, VECTORS.name, query)}
    assert hits["a golden apple"].words_rank == 1
    assert [text for text, hit in hits.items() if hit.words_rank is not None] == ["a golden apple"]


async def test_a_deleted_table_ends_its_writers(index: KnowledgeIndex) -> None:
    await index.create_table(PROJECT, TableSettings("short"))
    begun = await index.begin_document(PROJECT, "short", make_document("a"))

    async def write() -> None:
        for batch in range(10_000):
            await index.put_chunks(PROJECT, "short", begun.id, batch, make_chunks(["x"]))

    writing = asyncio.gather(write(), write())
    await asyncio.sleep(0.05)
    await index.delete_table(PROJECT, "short")
    with pytest.raises(NotFound):
        await writing
