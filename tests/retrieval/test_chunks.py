"""Single chunks: added without a document, listed, changed and removed."""

import numpy as np
import pytest

from antiphon.errors import InvalidValue, NotFound
from antiphon.retrieval.base import ChunkInput, KnowledgeIndex, SearchQuery
from tests.retrieval.knowledge import (
    DIMENSIONS,
    PROJECT,
    VECTORS,
    add_document,
    find,
    make_chunks,
    make_vector,
    texts_of,
)

TABLE = VECTORS.name
FULL = ChunkInput("text\0", "title", 3, "f.pdf", {"a": "1", "ü": "二"}, make_vector(7))


@pytest.fixture(autouse=True)
async def make_table(index: KnowledgeIndex) -> None:
    await index.create_table(PROJECT, VECTORS)


async def test_a_chunk_keeps_all_its_fields(index: KnowledgeIndex) -> None:
    (added,) = await index.add_chunks(PROJECT, TABLE, [FULL])
    kept = await index.get_chunk(PROJECT, TABLE, added.id)
    assert (kept.text, kept.title, kept.page, kept.file_name) == ("text\0", "title", 3, "f.pdf")
    assert (kept.metadata, kept.document) == ({"a": "1", "ü": "二"}, "")
    given, back = (np.frombuffer(vector, "<f4") for vector in (FULL.vector, kept.vector))
    assert back == pytest.approx(given / np.linalg.norm(given), abs=1e-3)
    assert (added.vector, added.id) == (b"", kept.id)


async def test_a_chunk_without_a_document_is_found_at_once(index: KnowledgeIndex) -> None:
    await index.search(PROJECT, TABLE, SearchQuery(vector=make_vector(0)))  # the vectors are in memory now
    await index.add_chunks(PROJECT, TABLE, make_chunks(["one apple"], DIMENSIONS))
    (hit,) = await index.search(PROJECT, TABLE, SearchQuery("apple", make_vector(0)))
    assert (hit.words_rank, hit.vector_rank, hit.chunk.document) == (1, 1, "")
    assert (await index.list_documents(PROJECT, TABLE)).total == 0
    with pytest.raises(NotFound):
        await index.delete_document(PROJECT, TABLE, "")


async def test_titles_are_found_by_their_words(index: KnowledgeIndex) -> None:
    await index.add_chunks(PROJECT, TABLE, [ChunkInput("text", "On apples", vector=make_vector(0))])
    assert await find(index, TABLE, "apples") == ["text"]
    assert await find(index, TABLE, "d0") == []  # the word by which a document's chunks are known


async def test_a_changed_chunk_keeps_its_id_and_place(index: KnowledgeIndex) -> None:
    await add_document(index, TABLE, "a", make_chunks(["one", "two", "three"], DIMENSIONS))
    before = await index.list_chunks(PROJECT, TABLE)
    await index.search(PROJECT, TABLE, SearchQuery(vector=make_vector(0)))
    second = before.items[1]
    changed = await index.update_chunk(PROJECT, TABLE, second.id, ChunkInput("zwei", vector=make_vector(50)))
    assert (changed.id, changed.document, changed.text) == (second.id, second.document, "zwei")
    after = await index.list_chunks(PROJECT, TABLE, second.document)
    assert texts_of_page(after.items) == ["one", "zwei", "three"]
    assert [chunk.id for chunk in after.items] == [chunk.id for chunk in before.items]
    assert (await find(index, TABLE, "two"), await find(index, TABLE, "zwei")) == ([], ["zwei"])
    (hit,) = await index.search(PROJECT, TABLE, SearchQuery(vector=make_vector(50), k=1))
    assert hit.chunk.text == "zwei"
    for _ in range(3):  # each change drops an old row of the vectors in memory
        await index.update_chunk(PROJECT, TABLE, second.id, ChunkInput("zwei", vector=make_vector(50)))
    hits = await index.search(PROJECT, TABLE, SearchQuery(vector=make_vector(50), k=9))
    assert sorted(texts_of(hits)) == ["one", "three", "zwei"]
    assert (await index.get_table(PROJECT, TABLE)).chunks == 3


def texts_of_page(items: tuple[object, ...]) -> list[str]:
    return [getattr(item, "text", "") for item in items]


async def test_removed_chunks_are_gone(index: KnowledgeIndex) -> None:
    document = await add_document(index, TABLE, "a", make_chunks(["one x", "two x", "three x"], DIMENSIONS))
    first, second, third = (await index.list_chunks(PROJECT, TABLE)).items
    assert await index.delete_chunks(PROJECT, TABLE, [first.id, third.id, "99", "x", "-1", "0"]) == 2
    assert await find(index, TABLE, "x") == ["two x"]
    assert (await index.get_document(PROJECT, TABLE, document.id)).chunks == 1
    for id_ in (first.id, "", "1.0", "١", "9" * 30, "01"):
        with pytest.raises(NotFound, match="no chunk"):
            await index.get_chunk(PROJECT, TABLE, id_)
    (new,) = await index.add_chunks(PROJECT, TABLE, make_chunks(["four"], DIMENSIONS))
    assert new.id not in (first.id, second.id, third.id)


async def test_chunks_are_listed_in_order_and_in_parts(index: KnowledgeIndex) -> None:
    document = await add_document(index, TABLE, "a", make_chunks([str(i) for i in range(5)], DIMENSIONS))
    await index.add_chunks(PROJECT, TABLE, make_chunks(["loose"], DIMENSIONS, 9))
    page = await index.list_chunks(PROJECT, TABLE, None, 4, 2, with_vectors=True)
    assert (texts_of_page(page.items), page.total) == (["4", "loose"], 6)
    assert {len(chunk.vector) for chunk in page.items} == {4 * DIMENSIONS}
    assert (await index.list_chunks(PROJECT, TABLE, document.id)).total == 5
    with pytest.raises(NotFound, match="no document"):
        await index.list_chunks(PROJECT, TABLE, "unknown")


async def test_a_wrong_change_changes_nothing(index: KnowledgeIndex) -> None:
    (added,) = await index.add_chunks(PROJECT, TABLE, [FULL])
    with pytest.raises(InvalidValue, match="vector"):
        await index.update_chunk(PROJECT, TABLE, added.id, ChunkInput("new"))
    assert (await index.get_chunk(PROJECT, TABLE, added.id)).text == FULL.text
    with pytest.raises(NotFound):
        await index.update_chunk(PROJECT, TABLE, "99", FULL)
