"""The ledger's rows in a database. No text or number keeps a row out: what a database cannot hold is
replaced."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from antiphon.domain.ledger import Entry, Used
from antiphon.domain.limits import Amounts
from antiphon.store import schema
from antiphon.store.database import Database

PAGE = 1_000
"""Sums that are in memory at once."""
LONGEST = 400
"""Characters of a text that an index holds: PostgreSQL refuses rows whose entry in an index is over 2,700
bytes."""
INDEXED = ("project", "key", "user", "model")
ABSENT = str.maketrans({"\0": "\ufffd"} | dict.fromkeys(range(55296, 57344), "�"))
"""What UTF-8 or PostgreSQL does not have: NUL and lone surrogates."""
LARGEST = 2**63 - 1
NAMES = tuple(each.name for each in fields(Entry))


class SqlEntries:
    """`store.base.Entries` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        # In one order for everybody: nodes that add the same entries would wait for each other else.
        rows = [row(entry) for entry in sorted(entries, key=lambda entry: entry.id)]
        with self._database.writing() as connection:
            connection.execute(_kept(connection), rows)

    def used(self, since: int, grain: int) -> Iterator[Used]:
        row = schema.ledger.c
        group = (row.at // grain, row.key, row.user, row.project, row.model)
        sums = [sa.func.sum(each) for each in (row.prompt_tokens, row.output_tokens, row.cost)]
        summed = (
            sa.select(sa.func.max(row.at), *group[1:], sa.func.count(), *sums)
            .where(row.at >= since)
            .group_by(*group)
            .order_by(group[0])
            .execution_options(yield_per=PAGE)
        )
        with self._database.reading() as connection:
            for at, key, user, project, model, *amounts in connection.execute(summed):
                yield Used(at, key, user, project, model, Amounts(*map(int, amounts)))


def row(entry: Entry) -> dict[str, object]:
    """The columns of an entry."""
    values = {name: _held(getattr(entry, name)) for name in NAMES if name != "tags"}
    for name in INDEXED:
        text = values[name]
        values[name] = text[:LONGEST] if isinstance(text, str) else text
    tags = {_held(name): _held(value) for name, value in entry.tags.items()}
    return {**values, "tags": json.dumps(tags, ensure_ascii=False)}


def _held(value: object) -> object:
    if isinstance(value, str):
        return value.translate(ABSENT)
    return min(value, LARGEST) if isinstance(value, int) else value


def _kept(connection: Connection) -> sa.Insert:
    """Adds rows but those whose ids are there."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(schema.ledger).on_conflict_do_nothing(index_elements=["id"])
    return sqlite.insert(schema.ledger).on_conflict_do_nothing(index_elements=["id"])
