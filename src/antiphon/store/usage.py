"""Sums over the ledger, and its entries in order. Reads alone; every value is bound."""

import json
from collections.abc import Iterator, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.engine import RowMapping as Row

from antiphon.domain.ledger import ABORTED, CANCELLED, OK, Entry
from antiphon.domain.reports import (
    Bucket,
    Condition,
    Dimension,
    Field,
    Group,
    Mean,
    Place,
    Report,
    Selection,
    Tag,
    Totals,
)
from antiphon.domain.usage import UsageSource
from antiphon.store import schema
from antiphon.store.database import Database
from antiphon.store.entries import ABSENT

HOUR = 3_600_000
"""Milliseconds."""
DAY = 24 * HOUR
MONDAY = 3 * DAY
"""Milliseconds from a Monday to the beginning of 1970."""
HALF = 1 << 32
"""Costs are summed in two halves: SQLite's integers end at 2**63, and a sum that passes it is an error."""

MEASURED = ("queue_ms", "ttft_ms", "total_ms")
SUMMED = ("prompt_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")

WITHIN_S = 30.0
"""Seconds that a statement may take: two threads read for everybody."""

ledger = schema.ledger.c


class SqlUsage:
    """`store.base.Usage` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def report(self, chosen: Selection, by: Sequence[Dimension], most: int) -> Report:
        with self._database.reading(WITHIN_S) as connection:
            if not by:
                return Report(_total(connection, chosen))
            groups = tuple(_groups(connection, chosen, by, most + 1))
            if len(groups) > most:
                return Report(_total(connection, chosen), groups[:most], more=True)
            return Report(sum((group.totals for group in groups), Totals()), groups)

    def entries(self, chosen: Selection, most: int, after: Place | None = None) -> Sequence[Entry]:
        with self._database.reading(WITHIN_S) as connection:
            found = sa.select(schema.ledger).where(*_where(chosen, connection.dialect.name))
            if after is not None:
                found = found.where(ledger.at >= after.at, sa.or_(ledger.at > after.at, ledger.id > after.id))
            rows = connection.execute(found.order_by(ledger.at, ledger.id).limit(most)).mappings()
            return [_entry(row) for row in rows]


def _total(connection: Connection, chosen: Selection) -> Totals:
    found = sa.select(*_sums()).where(*_where(chosen, connection.dialect.name))
    return _totals(connection.execute(found).mappings().one())


def _groups(connection: Connection, chosen: Selection, by: Sequence[Dimension], most: int) -> Iterator[Group]:
    """The groups in their order, at most so many."""
    backend = connection.dialect.name
    keys = [_expression(each, backend).label(f"by_{number}") for number, each in enumerate(by)]
    # By their names: a database that is told an expression twice, each time with values of its own, does not
    # know that they are one.
    names: list[sa.ColumnElement[str]] = [sa.literal_column(key.name) for key in keys]
    buckets = [name for name, each in zip(names, by, strict=True) if isinstance(each, Bucket)]
    found = (
        sa.select(*keys, *_sums())
        .where(*_where(chosen, backend))
        .group_by(*names)
        .order_by(
            *buckets, sa.literal_column("requests").desc(), *(name.asc().nulls_first() for name in names)
        )
        .limit(most)
    )
    for row in connection.execute(found).mappings():
        yield Group(
            tuple(_value(row[key.name], each) for key, each in zip(keys, by, strict=True)), _totals(row)
        )


def _value(found: object, of: Dimension) -> str | int | None:
    """Buckets are reckoned in milliseconds."""
    if isinstance(of, Bucket):
        return int(str(found)) // 1000
    return None if found is None else str(found)


def _where(chosen: Selection, backend: str) -> Iterator[sa.ColumnElement[bool]]:
    yield ledger.at >= chosen.since
    yield ledger.at < chosen.until
    for each in chosen.conditions:
        yield _holds(each, backend)


def _holds(condition: Condition, backend: str) -> sa.ColumnElement[bool]:
    said = _text(condition.of, backend)
    if condition.value:
        return said == condition.value.translate(ABSENT)  # as it was kept
    return sa.or_(said.is_(None), said == "")


def _expression(of: Dimension, backend: str) -> sa.ColumnElement[str] | sa.ColumnElement[int]:
    return _bucket(of, backend) if isinstance(of, Bucket) else _text(of, backend)


def _text(of: Field | Tag, backend: str) -> sa.ColumnElement[str]:
    return _tag(of.name, backend) if isinstance(of, Tag) else ledger[of]


def _tag(name: str, backend: str) -> sa.ColumnElement[str]:
    """What an entry's tag says; any text may be a name, and none is a path or a pattern."""
    name = name.translate(ABSENT)
    if backend == "sqlite":
        each = sa.func.json_each(ledger.tags).table_valued("key", "value")
        return sa.select(each.c.value).where(each.c.key == name).correlate(schema.ledger).scalar_subquery()
    return sa.cast(ledger.tags, sa.JSON).op("->>", return_type=sa.Text())(sa.literal(name, sa.Text()))


def _bucket(of: Bucket, backend: str) -> sa.ColumnElement[int]:
    """The Unix millisecond in which the bucket begins."""
    match of:
        case Bucket.HOUR:
            return ledger.at - ledger.at % HOUR
        case Bucket.DAY:
            return ledger.at - ledger.at % DAY
        case Bucket.WEEK:
            return ledger.at - (ledger.at + MONDAY) % (7 * DAY)
        case Bucket.MONTH:
            return _month(backend)


def _month(backend: str) -> sa.ColumnElement[int]:
    seconds = ledger.at // 1000
    if backend == "sqlite":
        begins = sa.func.strftime("%s", seconds, "unixepoch", "start of month")
    else:
        there = sa.func.timezone("UTC", sa.func.to_timestamp(seconds))
        begins = sa.func.date_part("epoch", sa.func.date_trunc("month", there))
    return sa.cast(begins, sa.BigInteger) * 1000


def _sums() -> Iterator[sa.ColumnElement[int]]:
    """The columns that `_totals` reads."""
    yield sa.func.count().label("requests")
    for status in (OK, CANCELLED, ABORTED):
        yield _count(ledger.status == status).label(status)
    yield _count(ledger.price.is_(None)).label("unpriced")
    for name in SUMMED:
        yield _sum(ledger[name]).label(name)
    yield _sum(ledger.cost // HALF).label("cost_high")
    yield _sum(ledger.cost % HALF).label("cost_low")
    for name in MEASURED:
        yield _sum(ledger[name]).label(f"{name}_sum")
        yield sa.func.count(ledger[name]).label(f"{name}_count")


def _sum(of: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    return sa.func.coalesce(sa.func.sum(of), 0)


def _count(those: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return _sum(sa.case((those, 1), else_=0))


def _totals(row: Row) -> Totals:
    """PostgreSQL's sums are decimals."""

    def of(name: str) -> int:
        return int(row[name])

    def mean(name: str) -> Mean:
        return Mean(of(f"{name}_sum"), of(f"{name}_count"))

    return Totals(
        requests=of("requests"),
        ok=of(OK),
        cancelled=of(CANCELLED),
        aborted=of(ABORTED),
        failed=of("requests") - of(OK) - of(CANCELLED) - of(ABORTED),
        unpriced=of("unpriced"),
        prompt_tokens=of("prompt_tokens"),
        cached_tokens=of("cached_tokens"),
        output_tokens=of("output_tokens"),
        reasoning_tokens=of("reasoning_tokens"),
        cost=of("cost_high") * HALF + of("cost_low"),
        queue_ms=mean("queue_ms"),
        ttft_ms=mean("ttft_ms"),
        total_ms=mean("total_ms"),
    )


def _entry(row: Row) -> Entry:
    values = dict(row)
    source, tags = UsageSource(values.pop("source")), json.loads(values.pop("tags"))
    return Entry(source=source, tags=tags, **values)
