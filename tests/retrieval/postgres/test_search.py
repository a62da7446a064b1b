"""Search in PostgreSQL: the nearest vectors whatever was removed, and words by their weight."""

import numpy as np
import pytest

from antiphon.retrieval.base import MAX_HITS, ChunkInput, SearchQuery, TableSettings
from antiphon.retrieval.postgres.chunk_search import count_words, encode_words
from antiphon.retrieval.postgres.index import PostgresIndex
from antiphon.retrieval.postgres.tables import TableRows, find_table
from antiphon.retrieval.ranking import QueryWord, list_words, split_text
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

TABLE = VECTORS.name


@pytest.fixture
async def index(postgres_index: PostgresIndex) -> PostgresIndex:
    await postgres_index.create_table(PROJECT, VECTORS)
    await postgres_index.create_table(PROJECT, WORDS_ONLY)
    return postgres_index


def make_group(count: int, seed: int, towards: np.ndarray) -> list[ChunkInput]:
    """Chunks whose vectors are near one direction."""
    random = np.random.default_rng(seed)
    vectors = towards + 0.01 * random.standard_normal((count, DIMENSIONS))
    return [
        ChunkInput(f"{seed} {number}", vector=vector.astype("<f4").tobytes())
        for number, vector in enumerate(vectors)
    ]


async def test_removed_vectors_hide_no_others(index: PostgresIndex) -> None:
    """HNSW walks over removed rows first: they are all nearer to the query than what is there."""
    towards, away = np.eye(DIMENSIONS)[0], np.eye(DIMENSIONS)[1]
    for version in range(2):
        await add_document(index, TABLE, "a", make_group(150, version, towards))
    await add_document(index, TABLE, "b", make_group(40, 9, away))
    (document, *_) = (await index.list_documents(PROJECT, TABLE, 1)).items
    await index.delete_document(PROJECT, TABLE, document.id)
    query = SearchQuery(vector=towards.astype("<f4").tobytes(), k=20)
    hits = await index.search(PROJECT, TABLE, query)
    assert len(hits) == 20 and all(text.startswith("9 ") for text in texts_of(hits))


async def test_the_nearest_are_found_and_ordered_up_to_the_most_hits(index: PostgresIndex) -> None:
    half = MAX_HITS // 2
    for part in range(2):
        chunks = make_chunks([f"apple {number}" for number in range(half)], DIMENSIONS, 1000 * part)
        await add_document(index, TABLE, f"{part}", chunks)
    rows = np.stack([np.frombuffer(make_vector(1000 * p + n), "<f4") for p in range(2) for n in range(half)])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    shares = []
    for seed in range(20):
        query = np.frombuffer(make_vector(5000 + seed), "<f4")
        best = np.sort(rows @ query / np.linalg.norm(query))[::-1][:10]
        hits = await index.search(PROJECT, TABLE, SearchQuery(vector=query.tobytes(), k=10))
        found = [hit.similarity or 0 for hit in hits]
        assert found == sorted(found, reverse=True) and len(found) == 10
        shares.append(sum(value >= best[-1] - 1e-3 for value in found) / 10)
    assert np.mean(shares) >= 0.95
    assert len(await index.search(PROJECT, TABLE, SearchQuery(vector=make_vector(1), k=1000))) == 1000
    hits = await index.search(PROJECT, TABLE, SearchQuery("apple", make_vector(0), MAX_HITS, MAX_HITS))
    assert len(hits) == MAX_HITS, "the most that can be asked for"


async def test_unfinished_documents_hide_no_others(index: PostgresIndex) -> None:
    towards = np.eye(DIMENSIONS)[0]
    begun = await index.begin_document(PROJECT, TABLE, make_document("large"))
    await index.put_chunks(PROJECT, TABLE, begun.id, 0, make_group(250, 1, towards))
    await add_document(index, TABLE, "b", make_group(60, 9, np.eye(DIMENSIONS)[1]))
    query = SearchQuery(vector=towards.astype("<f4").tobytes(), k=30)
    assert {text[:2] for text in texts_of(await index.search(PROJECT, TABLE, query))} == {"9 "}


async def test_a_filter_keeps_to_its_documents(index: PostgresIndex) -> None:
    towards = np.eye(DIMENSIONS)[0]
    await add_document(index, TABLE, "near", make_group(150, 1, towards))
    far = await add_document(index, TABLE, "far", make_group(20, 2, np.eye(DIMENSIONS)[1]))
    vector = towards.astype("<f4").tobytes()
    query = SearchQuery("2 5", vector, k=20, documents=(far.id, "unknown", "\0"))
    hits = await index.search(PROJECT, TABLE, query)
    assert len(hits) == 20 and {hit.chunk.document for hit in hits} == {far.id}
    assert [hit.chunk.text for hit in hits if hit.words_rank == 1] == ["2 5"]


@pytest.mark.parametrize("dimensions", [1536, 3072, 4500])
async def test_vectors_of_large_models_are_found(index: PostgresIndex, dimensions: int) -> None:
    await index.create_table(PROJECT, TableSettings("large", "m", dimensions))
    await index.add_chunks(PROJECT, "large", make_chunks(["a", "b", "c"], dimensions))
    (hit,) = await index.search(PROJECT, "large", SearchQuery(vector=make_vector(1, dimensions), k=1))
    assert hit.chunk.text == "b" and hit.similarity == pytest.approx(1, abs=1e-2)
    kept = np.frombuffer((await index.get_chunk(PROJECT, "large", hit.chunk.id)).vector, "<f4")
    given = np.frombuffer(make_vector(1, dimensions), "<f4")
    assert kept == pytest.approx(given / np.linalg.norm(given), abs=1e-3)


async def test_rare_and_repeated_words_count_most(index: PostgresIndex) -> None:
    texts = ["the cat", "the dog", "the cat and the dog", "the unicorn", "the cat the cat cat"]
    await add_document(index, WORDS_ONLY.name, "a", make_chunks(texts))
    assert (await find(index, WORDS_ONLY.name, "the unicorn"))[0] == "the unicorn"
    assert set(await find(index, WORDS_ONLY.name, "THE")) == set(texts)
    filler = [f"something {number}" for number in range(60)]
    await add_document(index, WORDS_ONLY.name, "b", make_chunks(["one lion eats", "lion lion lion", *filler]))
    assert await find(index, WORDS_ONLY.name, "lion") == ["lion lion lion", "one lion eats"]


async def test_words_are_counted_as_chunks_come_and_go(index: PostgresIndex) -> None:
    table = WORDS_ONLY.name

    def count(*words: str) -> list[int]:
        def read(rows: TableRows) -> list[int]:
            sought = [QueryWord(word.rstrip("*"), is_prefix=word.endswith("*")) for word in words]
            counts = count_words(rows, sought)
            return [counts[word] for word in sought]

        return index._database.read(
            lambda connection: read(find_table(connection, index._pgvector, PROJECT, table))
        )

    kept = await add_document(index, table, "a", make_chunks(["apple pear", "apple"]))
    begun = await index.begin_document(PROJECT, table, make_document("b"))
    await index.put_chunks(PROJECT, table, begun.id, 0, make_chunks(["apple"]))
    assert count("apple", "pear", "app*", "plum") == [2, 1, 2, 0]
    (loose,) = await index.add_chunks(PROJECT, table, make_chunks(["apple apple plum"]))
    assert count("apple", "plum") == [3, 1]
    await index.update_chunk(PROJECT, table, loose.id, ChunkInput("fig"))
    assert count("apple", "plum", "fig") == [2, 0, 1]
    await index.duplicate_table(PROJECT, table, "copy")
    await index.delete_document(PROJECT, table, kept.id)
    await index.delete_chunks(PROJECT, table, [loose.id])
    assert count("apple", "pear", "fig") == [0, 0, 0]
    assert await find(index, "copy", "pear") == ["apple pear"]


async def test_long_and_odd_words_are_found(index: PostgresIndex) -> None:
    odd = [
        "'quoted' \\ text",
        "x" * 60_000,
        "東京都は日本の首都です",
        "a" * 499 + "é" * 1200,
        "𠀀𠀁" * 30_000,
        "½ ²",
    ]
    for text in odd:
        await index.add_chunks(PROJECT, WORDS_ONLY.name, make_chunks([text]))
    for query, text in (
        ("quoted", odd[0]),
        ("x" * 60_000, odd[1]),
        ("首都", odd[2]),
        ("京", odd[2]),
        ("a" * 499 + "e" * 1200, odd[3]),
        ("𠀁𠀀", odd[4]),
    ):
        assert await find(index, WORDS_ONLY.name, query) == [text]
    assert await find(index, WORDS_ONLY.name, "quoted' | 'x") == [odd[0]]


def test_a_text_has_the_words_that_a_query_finds() -> None:
    for text in ("Crème BRÛLÉE 2x", "東京都abc漢 字", "ﬁne_print-out", "한국어 서울"):
        words = set(split_text(text))
        assert words and {word.text for word in list_words(text) if not word.is_prefix} <= words
    assert encode_words("A b", "b c b") == ("'a':1 'b':1,2,3 'c':1", 5)
