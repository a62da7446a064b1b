"""Kept responses in a database.

Each process has one thread that writes, and two that read. The thread writes all responses that wait in one
transaction, so many answers that end together wait for one write to the disk. Whoever changes responses of a
project first locks the project's total, so that the total is exact and nobody waits for each other in a
circle.

A short chain that this process wrote or read lately is read from SQLite on the event loop. Its pages are in
memory, so this takes less time than to wake a thread, which can take milliseconds on a busy machine. It is
read each time: what any process of any server removes is gone at once, and no cache has to learn of it.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from antiphon.domain.stored_responses import (
    MAX_LINKS,
    KeptResponse,
    StoredChain,
    StoredResponse,
    split_items,
)
from antiphon.domain.values import Struct
from antiphon.errors import AntiphonError
from antiphon.store import schema
from antiphon.store.database import Database
from antiphon.store.request_log import build_insert_or_ignore, read_erasures
from antiphon.telemetry.logs import record

RESPONSES, ITEMS, TOTALS = schema.responses, schema.response_items, schema.response_totals

READERS = 2
"""Threads that read. A read takes a tenth of a millisecond."""

EVICTED = 100
"""Responses that are removed at once to make room."""

SECOND_MS = 1_000

MOST_RECENT = 4_096
"""The most responses of which a process remembers that it used them lately."""

LINK_COST = 4_096
"""The bytes of text that take as long to read as one link without text."""

READ_AT_ONCE = 1 << 19
"""The most bytes, with `LINK_COST` for each link, that are read on the event loop. They take half a
millisecond."""


def _build_chain_query() -> sa.Select[int, int, str | None, str, int, bytes, bytes]:
    """Builds the query of a chain, the latest response first. It ends after the oldest response, or with the
    first one that exceeds a limit. Only ids choose responses: PostgreSQL would use a plain condition on the
    project or on the time to look at all responses of the project, once for each link."""
    row = RESPONSES.c
    size = sa.func.length(row.input) + sa.func.length(row.output)
    first = sa.select(row.id, row.previous, sa.literal(1).label("links"), size.label("bytes"))
    is_own = sa.func.coalesce(row.project, "") == sa.bindparam("project")
    chain = first.where(row.id == sa.bindparam("id"), is_own).cte("chain", recursive=True)
    link = chain.c
    is_within = sa.and_(link.links <= MAX_LINKS, link.bytes <= sa.bindparam("max_bytes"))
    earlier = sa.select(row.id, row.previous, link.links + 1, link.bytes + size)
    chain = chain.union_all(earlier.where(row.id == link.previous, is_within))
    query = sa.select(
        chain.c.links, chain.c.bytes, row.previous, row.project, row.expires, row.input, row.output
    )
    return query.join(RESPONSES, row.id == chain.c.id).order_by(chain.c.links)


CHAIN_QUERY = _build_chain_query()


class WaitingResponse(Struct, eq=False):
    """A response that waits for the thread that writes."""

    kept: KeptResponse
    is_kept: bool | None = None
    """The result; None while it waits."""
    error: AntiphonError | None = None


class SqlResponses:
    """`store.base.ResponseBackend` over a database."""

    def __init__(self, database: Database, max_project_bytes: int) -> None:
        self._database = database
        self._max_project_bytes = max_project_bytes
        self._writer = ThreadPoolExecutor(1, "antiphon-responses")
        self._readers = ThreadPoolExecutor(READERS, "antiphon-responses-read")
        self._chain_query = database.prepare_query(CHAIN_QUERY)
        self._lock = Lock()
        """Guards the waiting responses."""
        self._waiting: list[WaitingResponse] = []
        self._recent: OrderedDict[tuple[str, str], int] = OrderedDict()
        """By project and id: what it costs to read the chains that were used lately, the latest last."""

    def close(self) -> None:
        """Writes what waits, and ends the threads; blocks."""
        self._writer.shutdown()
        self._readers.shutdown()

    async def add(self, kept: KeptResponse, now: int) -> bool:
        if kept.response.size > self._max_project_bytes:
            return False
        waiting = WaitingResponse(kept)
        with self._lock:
            self._waiting.append(waiting)
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._write_waiting)
        except asyncio.CancelledError:  # the answer says that the response is not stored
            with self._lock:
                is_waiting = waiting in self._waiting
                if is_waiting:
                    self._waiting.remove(waiting)
            if not is_waiting:  # the thread writes it now, or has written it
                self._writer.submit(self._take_back, kept)
            raise
        if waiting.error is not None:
            raise waiting.error
        if waiting.is_kept:
            response, cost = kept.response, 0
            if response.previous is not None:
                cost = self._recent.get((kept.project, response.previous), READ_AT_ONCE)
            self._note_use(kept.project, response.id, cost, (response.input, response.output))
        return bool(waiting.is_kept)

    def _note_use(self, project: str, id_: str, earlier_cost: int, arrays: Sequence[bytes]) -> None:
        """Notes that the pages of a chain are in memory. `earlier_cost`: of its links without `arrays`."""
        cost = earlier_cost + sum(map(len, arrays)) + LINK_COST * len(arrays) // 2
        self._recent.pop((project, id_), None)
        self._recent[project, id_] = cost
        if len(self._recent) > MOST_RECENT:
            self._recent.popitem(last=False)

    def _write_waiting(self) -> None:
        """Writes all responses that wait, in one transaction. A later call finds none of them."""
        with self._lock:
            batch, self._waiting = self._waiting, []
        if not batch:
            return
        try:
            with self._database.writing() as connection:
                erasures = read_erasures(connection, {waiting.kept.project for waiting in batch})
                results = {
                    waiting.kept.response.id: self._insert(connection, waiting.kept, erasures)
                    for waiting in sorted(batch, key=lambda each: each.kept.project)
                }
        except AntiphonError as error:
            for waiting in batch:
                waiting.error = error
        else:
            for waiting in batch:
                waiting.is_kept = results[waiting.kept.response.id]

    def _take_back(self, kept: KeptResponse) -> None:
        """Removes a response whose answer did not wait for it."""
        try:
            self._delete(kept.project, kept.response.id)
        except AntiphonError as error:
            record("response_not_taken_back", logging.WARNING, reason=error.message)

    def _insert(self, connection: Connection, kept: KeptResponse, erasures: Mapping[str, int]) -> bool:
        """Inserts one response, and removes old ones if the project has too many bytes. Returns False if the
        project's responses were erased since the request began."""
        response = kept.response
        if response.created * SECOND_MS <= erasures.get(kept.project, -1):
            return False
        _lock_total(connection, kept.project)
        inserted = connection.execute(
            build_insert_or_ignore(RESPONSES, connection.dialect.name).returning(RESPONSES.c.id),
            {
                "id": response.id,
                "project": kept.project,
                "created": response.created,
                "expires": kept.expires,
                "previous": response.previous,
                "size": response.size,
                "input": response.input,
                "output": response.output,
                "body": response.body,
            },
        )
        if inserted.first() is None:  # an earlier try was written, and its answer was lost
            return True
        items = [
            {"project": kept.project, "item": item, "response": response.id, "position": position}
            for position, item in enumerate(kept.item_ids)
            if item
        ]
        if items:
            connection.execute(build_insert_or_ignore(ITEMS, connection.dialect.name), items)
        total = TOTALS.update().where(TOTALS.c.project == kept.project)
        connection.execute(total.values(bytes=TOTALS.c.bytes + response.size))
        self._make_room(connection, kept)
        return True

    def _make_room(self, connection: Connection, kept: KeptResponse) -> None:
        """Removes the oldest responses of a project until its responses have few enough bytes."""
        row, project = RESPONSES.c, kept.project
        total = connection.execute(sa.select(TOTALS.c.bytes).where(TOTALS.c.project == project)).scalar_one()
        oldest = sa.select(row.id, row.size).where(row.project == project, row.id != kept.response.id)
        oldest = oldest.order_by(row.created, row.id).limit(EVICTED)
        while total > self._max_project_bytes:
            removed: list[str] = []
            for id_, size in connection.execute(oldest):
                if total <= self._max_project_bytes:
                    break
                removed.append(id_)
                total -= size
            if not removed:
                break
            connection.execute(RESPONSES.delete().where(row.id.in_(removed)))
            connection.execute(TOTALS.update().where(TOTALS.c.project == project).values(bytes=total))

    async def find(self, project: str, id_: str, now: int) -> StoredResponse | None:
        row = RESPONSES.c
        query = sa.select(row.id, row.created, row.previous, row.input, row.output, row.body)
        query = query.where(row.id == id_, row.project == project, row.expires > now)

        def read() -> StoredResponse | None:
            with self._database.reading() as connection:
                found = connection.execute(query).first()
            return None if found is None else StoredResponse(*found)

        return await asyncio.get_running_loop().run_in_executor(self._readers, read)

    async def find_chain(self, project: str, id_: str, now: int, max_bytes: int) -> StoredChain:
        values = {"project": project, "id": id_, "max_bytes": max_bytes}

        def read() -> StoredChain:
            rows = self._database.fetch(self._chain_query, values)
            next_id: str | None = id_
            arrays: list[bytes] = []
            for links, size, previous, owner, expires, asked, answered in rows:
                if owner != project or expires <= now:
                    break
                if size > max_bytes or links > MAX_LINKS:
                    return StoredChain(is_too_long=True)
                arrays += (answered, asked)
                next_id = previous
            return StoredChain(tuple(reversed(arrays))) if next_id is None else StoredChain(missing=next_id)

        cost = self._recent.get((project, id_), READ_AT_ONCE + 1)
        if self._database.file is not None and cost <= READ_AT_ONCE:
            chain = read()
        else:
            chain = await asyncio.get_running_loop().run_in_executor(self._readers, read)
        if chain.arrays:
            self._note_use(project, id_, 0, chain.arrays)
        return chain

    async def find_items(
        self, project: str, ids: Sequence[str], now: int, max_bytes: int
    ) -> Mapping[str, bytes]:
        wanted = tuple(ids)

        def read() -> Mapping[str, bytes]:
            with self._database.reading() as connection:
                return _read_items(connection, project, wanted, now, max_bytes)

        return await asyncio.get_running_loop().run_in_executor(self._readers, read)

    async def remove(self, project: str, id_: str) -> bool:
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._delete, project, id_)

    def _delete(self, project: str, id_: str) -> bool:
        """Removes a response. Returns False if there is none. Runs in the thread that writes."""
        row = RESPONSES.c
        with self._database.writing() as connection:
            _lock_total(connection, project)
            query = sa.select(row.size).where(row.id == id_, row.project == project)
            size = connection.execute(query).scalar()
            if size is None:
                return False
            connection.execute(RESPONSES.delete().where(row.id == id_, row.project == project))
            total = TOTALS.update().where(TOTALS.c.project == project)
            connection.execute(total.values(bytes=TOTALS.c.bytes - size))
        self._database.has_removed_texts = True
        return True


def _read_items(
    connection: Connection, project: str, ids: Sequence[str], now: int, max_bytes: int
) -> Mapping[str, bytes]:
    """Reads items by id. See `ResponseBackend.find_items`."""
    item, row = ITEMS.c, RESPONSES.c
    places: dict[str, tuple[str, int]] = {}
    for begin in range(0, len(ids), MAX_LINKS):
        query = (
            sa.select(item.item, item.response, item.position)
            .join(RESPONSES, row.id == item.response)
            .where(item.project == project, item.item.in_(ids[begin : begin + MAX_LINKS]), row.expires > now)
            .order_by(row.created, row.id)
        )
        places |= {found.item: (found.response, found.position) for found in connection.execute(query)}
    items: dict[str, bytes] = {}
    total = 0
    texts: tuple[str, list[bytes]] = ("", [])
    for id_, (response, position) in sorted(places.items(), key=lambda place: place[1]):
        if response != texts[0]:  # one response at a time is in memory
            arrays = connection.execute(sa.select(row.input, row.output).where(row.id == response)).one()
            texts = (response, split_items(*arrays))
        items[id_] = texts[1][position]
        total += len(items[id_])
        if total > max_bytes:
            items[id_] = b""
            break
    return items


def _lock_total(connection: Connection, project: str) -> None:
    """Locks the total of a project until the transaction ends. Creates it if it is missing."""
    new_total = {"project": project, "bytes": 0}
    connection.execute(build_insert_or_ignore(TOTALS, connection.dialect.name), new_total)
    lock = sa.select(TOTALS.c.bytes).where(TOTALS.c.project == project)
    connection.execute(lock.with_for_update())
