"""PostgreSQL as operators have it: without pgvector, without rights, of a later version, shared by nodes."""

import asyncio
from contextlib import closing, suppress

import pytest
import sqlalchemy as sa

from antiphon.errors import InvalidValue, KnowledgeLimitReached, KnowledgeUnavailable, NotFound
from antiphon.retrieval.base import IndexLimits, SearchQuery, TableSettings
from antiphon.retrieval.postgres.index import PostgresIndex
from antiphon.retrieval.postgres.schema import SCHEMA
from antiphon.store.database import Database
from tests.retrieval.knowledge import (
    DIMENSIONS,
    PROJECT,
    VECTORS,
    WORDS_ONLY,
    add_document,
    make_chunks,
    make_vector,
)
from tests.support.databases import PASSWORD, Cluster
from tests.support.knowledge_database import open_postgres

FILES = 'or set knowledge.storage = "files"'


def run(address: str, *statements: str) -> None:
    with closing(Database(address)) as database, database.autocommit() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


def list_relations(index: PostgresIndex) -> list[str]:
    statement = sa.text("SELECT tablename FROM pg_tables WHERE schemaname = :schema ORDER BY 1")
    rows = index._database.read(lambda connection: connection.execute(statement, {"schema": SCHEMA}).all())
    return [name for (name,) in rows]


def test_a_server_without_pgvector_is_refused_by_name(postgresql: str) -> None:
    with pytest.raises(KnowledgeUnavailable) as refused:
        open_postgres(postgresql)
    message = refused.value.message
    assert "has no pgvector" in message and "CREATE EXTENSION vector" in message and message.endswith(FILES)
    assert PASSWORD not in message


def test_a_user_without_rights_is_told_what_to_run(pgvector_cluster: Cluster) -> None:
    address = pgvector_cluster.database()
    name = sa.make_url(address).database
    run(address, f"CREATE ROLE plain LOGIN PASSWORD '{PASSWORD}'")
    plain = address.replace("//antiphon:", "//plain:")
    with pytest.raises(KnowledgeUnavailable, match=r"a superuser run CREATE EXTENSION vector .*files"):
        open_postgres(plain)
    run(address, "CREATE EXTENSION vector")
    with pytest.raises(KnowledgeUnavailable, match=r"run GRANT CREATE ON DATABASE .*files"):
        open_postgres(plain)
    run(address, f"GRANT CREATE ON DATABASE {name} TO plain")
    asyncio.run(open_postgres(plain).aclose())


def test_an_extension_in_another_schema_is_found(pgvector_cluster: Cluster) -> None:
    address = pgvector_cluster.database()
    run(address, 'CREATE SCHEMA "Ex""t"', 'CREATE EXTENSION vector SCHEMA "Ex""t"')

    async def use() -> None:
        index = open_postgres(address)
        await index.create_table(PROJECT, VECTORS)
        await index.add_chunks(PROJECT, VECTORS.name, make_chunks(["an apple"], DIMENSIONS))
        (hit,) = await index.search(PROJECT, VECTORS.name, SearchQuery("apple", make_vector(0)))
        assert (hit.words_rank, hit.vector_rank) == (1, 1)
        await index.aclose()

    asyncio.run(use())


def test_a_later_version_stays_closed(knowledge_database: str) -> None:
    asyncio.run(open_postgres(knowledge_database).aclose())
    run(knowledge_database, f"UPDATE {SCHEMA}.mark SET value = '99'")
    with pytest.raises(KnowledgeUnavailable, match="later version"):
        open_postgres(knowledge_database)


async def test_servers_share_the_tables(knowledge_database: str) -> None:
    """What one writes, the other finds at once; a table that one removes is gone for the other."""
    one, two = await asyncio.gather(
        *(asyncio.to_thread(open_postgres, knowledge_database) for _ in range(2))  # both make the schema
    )
    await one.create_table(PROJECT, VECTORS)
    for number in range(3):
        writer, reader = (one, two) if number % 2 else (two, one)
        chunks = make_chunks([f"apple {number}"], DIMENSIONS, number)
        await add_document(writer, VECTORS.name, f"{number}", chunks)
        (hit,) = await reader.search(
            PROJECT, VECTORS.name, SearchQuery(f"{number}", make_vector(number), k=1)
        )
        assert (hit.chunk.text, hit.vector_rank) == (f"apple {number}", 1)
    await two.delete_table(PROJECT, VECTORS.name)
    with pytest.raises(NotFound):
        await one.search(PROJECT, VECTORS.name, SearchQuery("apple"))
    await asyncio.gather(one.aclose(), two.aclose())


async def test_removed_tables_leave_no_relation(postgres_index: PostgresIndex) -> None:
    index = postgres_index
    await index.create_table("other", VECTORS)
    before = list_relations(index)
    for name in ("a", "b"):
        await index.create_table(PROJECT, TableSettings(name, "m", DIMENSIONS))
        await add_document(index, name, "a", make_chunks(["an apple"], DIMENSIONS))
    assert await index.delete_project_tables(PROJECT) == 2
    assert list_relations(index) == before


async def test_limits_hold_for_servers_together(knowledge_database: str) -> None:
    limits = IndexLimits(chunks=10)
    one, two = (open_postgres(knowledge_database, limits) for _ in range(2))
    for name in ("a", "b"):
        await one.create_table(PROJECT, TableSettings(name))

    async def add(index: PostgresIndex, table: str) -> int:
        added = 0
        for _ in range(8):
            with suppress(KnowledgeLimitReached):
                added += len(await index.add_chunks(PROJECT, table, make_chunks(["apple"])))
        return added

    assert sum(await asyncio.gather(add(one, "a"), add(two, "b"), add(two, "a"))) == 10
    assert (await one.count_usage(PROJECT)).chunks == 10
    await asyncio.gather(one.aclose(), two.aclose())


async def test_a_server_that_goes_away_is_told_plainly(knowledge_database: str) -> None:
    index = open_postgres(knowledge_database)
    await index.create_table(PROJECT, WORDS_ONLY)
    index._database.close()
    index._database._database = Database(knowledge_database.replace("host=", "host=/nowhere"), False)
    with pytest.raises(KnowledgeUnavailable, match="does not answer; nothing was changed") as away:
        await index.add_chunks(PROJECT, WORDS_ONLY.name, make_chunks(["apple"]))
    assert away.value.retryable and "nowhere" not in away.value.message
    await index.aclose()


async def test_too_many_dimensions_are_refused(postgres_index: PostgresIndex) -> None:
    with pytest.raises(InvalidValue, match="at most 16000"):
        await postgres_index.create_table(PROJECT, TableSettings("a", "m", 16_001))
    assert await postgres_index.list_tables(PROJECT) == ()


async def test_texts_that_postgresql_lacks_are_kept(postgres_index: PostgresIndex) -> None:
    index = postgres_index
    await index.create_table(PROJECT, WORDS_ONLY)
    for text in ("\x00\x01", "\x01.\x00:", "a\x01\x01:"):
        (added,) = await index.add_chunks(PROJECT, WORDS_ONLY.name, make_chunks([text]))
        assert (await index.get_chunk(PROJECT, WORDS_ONLY.name, added.id)).text == text
