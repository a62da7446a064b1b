"""The ledger's rows in a database. No text or number keeps a row out: what a database cannot hold is
replaced."""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from operator import attrgetter

import sqlalchemy as sa

from antiphon.domain.ledger import Entry, Used
from antiphon.domain.limits import Amounts
from antiphon.domain.values import fields
from antiphon.store import schema
from antiphon.store.database import Database

PAGE = 1_000
"""Sums that are in memory at once."""
AT_ONCE = 50
"""Rows of one statement. The driver lets go of the interpreter at every statement, and waits for it again:
beside requests that costs more than a row."""
LONGEST = 400
"""Characters of a text that an index holds: PostgreSQL refuses rows whose entry in an index is over 2,700
bytes."""
INDEXED = ("project", "key", "user", "model")
ABSENT = str.maketrans({"\0": "\ufffd"} | dict.fromkeys(range(55296, 57344), "�"))
"""What UTF-8 or PostgreSQL does not have: NUL and lone surrogates."""
LARGEST = 2**63 - 1
NAMES = tuple(each.name for each in fields(Entry))
COLUMNS = tuple(name for name in NAMES if name != "tags")

_VALUES = attrgetter(*("source.value" if name == "source" else name for name in COLUMNS))
_TEXTS = attrgetter(*(each.name for each in fields(Entry) if each.type in (str, str | None)))
_COUNTS = attrgetter(*(each.name for each in fields(Entry) if each.type in (int, int | None)))

Row = tuple[object, ...]
"""Of `COLUMNS`, and the tags."""


class SqlEntries:
    """`store.base.Entries` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        # In one order for everybody: nodes that add the same entries would wait for each other else.
        rows = [row(entry) for entry in sorted(entries, key=attrgetter("id"))]
        with self._database.writing() as connection:
            mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
            for begin in range(0, len(rows), AT_ONCE):
                some = rows[begin : begin + AT_ONCE]
                connection.exec_driver_sql(_insert(mark, len(some)), tuple(chain.from_iterable(some)))

    def used(self, since: int, grain: int, before: int | None = None) -> Iterator[Used]:
        row = schema.ledger.c
        group = (row.at // grain, row.key, row.user, row.project, row.model)
        sums = [sa.func.sum(each) for each in (row.prompt_tokens, row.output_tokens, row.cost)]
        ended = () if before is None else (row.at + sa.func.coalesce(row.total_ms, 0) < before,)
        summed = (
            sa.select(sa.func.max(row.at), *group[1:], sa.func.count(), *sums)
            .where(row.at >= since, *ended)
            .group_by(*group)
            .order_by(group[0])
            .execution_options(yield_per=PAGE)
        )
        with self._database.reading() as connection, connection.execute(summed) as rows:
            for at, key, user, project, model, *amounts in rows:
                yield Used(at, key, user, project, model, Amounts(*map(int, amounts)))


def row(entry: Entry) -> Row:
    """An entry as it is kept. Nearly all are short and plain, and go as they are."""
    text = "".join([each for each in _TEXTS(entry) if each])
    plain = text.isascii() and "\0" not in text and len(text) <= LONGEST and not entry.tags
    if plain and max([each or 0 for each in _COUNTS(entry)]) <= LARGEST:
        return (*_VALUES(entry), "{}")
    values = {name: _held(getattr(entry, name)) for name in COLUMNS}
    for name in INDEXED:
        said = values[name]
        values[name] = said[:LONGEST] if isinstance(said, str) else said
    tags = {_held(name): _held(value) for name, value in entry.tags.items()}
    return (*values.values(), json.dumps(tags, ensure_ascii=False))


def _held(value: object) -> object:
    if isinstance(value, str):
        return value.translate(ABSENT)
    return min(value, LARGEST) if isinstance(value, int) else value


@cache
def _insert(mark: str, rows: int) -> str:
    """Adds so many rows but those whose ids are there; `mark` stands for a value. In the driver's own words:
    what SQLAlchemy does for each row takes longer than the row."""
    names = ", ".join(f'"{name}"' for name in (*COLUMNS, "tags"))
    one = f"({', '.join([mark] * len(NAMES))})"
    values = ", ".join([one] * rows)
    return f"INSERT INTO ledger ({names}) VALUES {values} ON CONFLICT (id) DO NOTHING"  # noqa: S608 - constants
