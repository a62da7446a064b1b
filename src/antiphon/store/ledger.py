"""The ledger in a database: its rows, and reports over them. Every value is sent as a bound parameter.

Every entry can be stored: characters and numbers that a database cannot hold are replaced.
"""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from operator import attrgetter

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.engine import RowMapping as Row

from antiphon.domain.events import UsageSource
from antiphon.domain.ledger import (
    ABORTED,
    CANCELLED,
    OK,
    Bucket,
    Condition,
    Dimension,
    Entry,
    EntryField,
    EntryPosition,
    EntrySelection,
    LedgerReport,
    Mean,
    ReportGroup,
    Tag,
    UsageTotals,
    UsedAmounts,
)
from antiphon.domain.limits import Amounts
from antiphon.domain.values import fields
from antiphon.store import schema
from antiphon.store.database import Database

PAGE = 1_000
"""Sums that are in memory at once."""
AT_ONCE = 50
"""Rows of one statement. The driver releases the interpreter at every statement and waits for it again, which
costs more than a row while requests run."""
LONGEST = 400
"""Characters of an indexed text: PostgreSQL refuses index entries above 2,700 bytes."""
INDEXED = ("project", "key", "user", "model")
ABSENT = str.maketrans({"\0": "\ufffd"} | dict.fromkeys(range(55296, 57344), "�"))
"""Characters that UTF-8 or PostgreSQL does not have: NUL and lone surrogates."""
LARGEST = 2**63 - 1
NAMES = tuple(each.name for each in fields(Entry))
COLUMNS = tuple(name for name in NAMES if name != "tags")

_VALUES = attrgetter(*("source.value" if name == "source" else name for name in COLUMNS))
_TEXTS = attrgetter(*(each.name for each in fields(Entry) if each.type in (str, str | None)))
_COUNTS = attrgetter(*(each.name for each in fields(Entry) if each.type in (int, int | None)))

EntryRow = tuple[object, ...]
"""The values of `COLUMNS`, and the tags."""


class SqlEntries:
    """`store.base.EntryStore` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, entries: Sequence[Entry]) -> None:
        """Inserts entries. An entry whose id is in the ledger already changes nothing."""
        if not entries:
            return
        # In one order: nodes that add the same entries would otherwise wait for each other.
        rows = [build_row(entry) for entry in sorted(entries, key=attrgetter("id"))]
        with self._database.writing() as connection:
            mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
            for begin in range(0, len(rows), AT_ONCE):
                some = rows[begin : begin + AT_ONCE]
                connection.exec_driver_sql(_build_insert(mark, len(some)), tuple(chain.from_iterable(some)))

    def sum_usage(self, since: int, grain: int, before: int | None = None) -> Iterator[UsedAmounts]:
        """Yields sums of usage per `grain`, key, user, project and model, for requests since `since`."""
        row = schema.ledger.c
        group = (row.at // grain, row.key, row.user, row.project, row.model)
        sums = [sa.func.sum(each) for each in (row.prompt_tokens, row.output_tokens, row.cost)]
        ended = () if before is None else (row.at + sa.func.coalesce(row.total_ms, 0) < before,)
        summed = (
            sa.select(sa.func.max(row.at), *group[1:], _count_where(row.parent.is_(None)), *sums)
            .where(row.at >= since, *ended)
            .group_by(*group)
            .order_by(group[0])
            .execution_options(yield_per=PAGE)
        )
        with self._database.reading() as connection, connection.execute(summed) as rows:
            for at, key, user, project, model, *amounts in rows:
                yield UsedAmounts(at, key, user, project, model, Amounts(*map(int, amounts)))


def build_row(entry: Entry) -> EntryRow:
    """Builds an entry's row. Most entries are short ASCII and skip the conversion."""
    text = "".join([each for each in _TEXTS(entry) if each])
    plain = text.isascii() and "\0" not in text and len(text) <= LONGEST and not entry.tags
    if plain and max([each or 0 for each in _COUNTS(entry)]) <= LARGEST:
        return (*_VALUES(entry), "{}")
    values = {name: _replace_unsupported(getattr(entry, name)) for name in COLUMNS}
    for name in INDEXED:
        content = values[name]
        values[name] = content[:LONGEST] if isinstance(content, str) else content
    tags = {_replace_unsupported(name): _replace_unsupported(value) for name, value in entry.tags.items()}
    return (*values.values(), json.dumps(tags, ensure_ascii=False))


def _replace_unsupported(value: object) -> object:
    """Returns a value that every database can hold."""
    if isinstance(value, str):
        return value.translate(ABSENT)
    return min(value, LARGEST) if isinstance(value, int) else value


@cache
def _build_insert(mark: str, rows: int) -> str:
    """Builds the SQL that inserts `rows` rows and skips existing ids. `mark`: the placeholder of a value. It
    is plain SQL, since SQLAlchemy takes more time for each row than the database."""
    names = ", ".join(f'"{name}"' for name in (*COLUMNS, "tags"))
    row_marks = f"({', '.join([mark] * len(NAMES))})"
    values = ", ".join([row_marks] * rows)
    return f"INSERT INTO ledger ({names}) VALUES {values} ON CONFLICT (id) DO NOTHING"  # noqa: S608 - constants


HOUR = 3_600_000
"""Milliseconds."""
DAY = 24 * HOUR
MONDAY = 3 * DAY
"""Milliseconds from a Monday to the beginning of 1970."""
HALF = 1 << 32
"""Costs are summed in two halves: SQLite's integers end at 2**63, and a larger sum is an error."""

MEASURED = ("queue_ms", "ttft_ms", "total_ms")
SUMMED = ("prompt_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")

WITHIN_S = 30.0
"""Seconds that a statement may take: two threads read for all callers."""

ledger = schema.ledger.c


class SqlUsage:
    """`store.base.UsageStore` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def report(self, chosen: EntrySelection, dimensions: Sequence[Dimension], most: int) -> LedgerReport:
        with self._database.reading(WITHIN_S) as connection:
            if not dimensions:
                return LedgerReport(_load_total(connection, chosen))
            groups = tuple(_load_groups(connection, chosen, dimensions, most + 1))
            if len(groups) > most:
                return LedgerReport(_load_total(connection, chosen), groups[:most], more=True)
            return LedgerReport(sum((group.totals for group in groups), UsageTotals()), groups)

    def entries(
        self, chosen: EntrySelection, most: int, after: EntryPosition | None = None
    ) -> Sequence[Entry]:
        with self._database.reading(WITHIN_S) as connection:
            query = sa.select(schema.ledger).where(*_build_conditions(chosen, connection.dialect.name))
            if after is not None:
                query = query.where(ledger.at >= after.at, sa.or_(ledger.at > after.at, ledger.id > after.id))
            rows = connection.execute(query.order_by(ledger.at, ledger.id).limit(most)).mappings()
            return [_to_entry(row) for row in rows]


def _load_total(connection: Connection, chosen: EntrySelection) -> UsageTotals:
    """Loads the totals over all selected entries."""
    query = sa.select(*_build_sums()).where(*_build_conditions(chosen, connection.dialect.name))
    return _to_totals(connection.execute(query).mappings().one())


def _load_groups(
    connection: Connection, chosen: EntrySelection, dimensions: Sequence[Dimension], most: int
) -> Iterator[ReportGroup]:
    """Yields at most `most` groups with their totals, in the order of a report."""
    backend = connection.dialect.name
    keys = [_build_expression(each, backend).label(f"by_{number}") for number, each in enumerate(dimensions)]
    # By their names: a database does not recognise an expression that it gets twice with
    # separate values.
    names: list[sa.ColumnElement[str]] = [sa.literal_column(key.name) for key in keys]
    buckets = [name for name, each in zip(names, dimensions, strict=True) if isinstance(each, Bucket)]
    query = (
        sa.select(*keys, *_build_sums())
        .where(*_build_conditions(chosen, backend))
        .group_by(*names)
        .order_by(
            *buckets, sa.literal_column("requests").desc(), *(name.asc().nulls_first() for name in names)
        )
        .limit(most)
    )
    for row in connection.execute(query).mappings():
        yield ReportGroup(
            tuple(_to_value(row[key.name], each) for key, each in zip(keys, dimensions, strict=True)),
            _to_totals(row),
        )


def _to_value(value: object, dimension: Dimension) -> str | int | None:
    """Converts a column's value to the value in a report. Milliseconds of a time bucket become seconds."""
    if isinstance(dimension, Bucket):
        return int(str(value)) // 1000
    return None if value is None else str(value)


def _build_conditions(chosen: EntrySelection, backend: str) -> Iterator[sa.ColumnElement[bool]]:
    """Yields the SQL conditions of a selection."""
    yield ledger.at >= chosen.since
    yield ledger.at < chosen.until
    for each in chosen.conditions:
        yield _build_condition(each, backend)


def _build_condition(condition: Condition, backend: str) -> sa.ColumnElement[bool]:
    """Builds the SQL of one condition. An empty value also selects NULL."""
    column = _text_column(condition.of, backend)
    if condition.value:
        return column == condition.value.translate(ABSENT)  # as the row holds it
    return sa.or_(column.is_(None), column == "")


def _build_expression(of: Dimension, backend: str) -> sa.ColumnElement[str] | sa.ColumnElement[int]:
    """Returns the SQL expression of a dimension."""
    return _bucket_column(of, backend) if isinstance(of, Bucket) else _text_column(of, backend)


def _text_column(of: EntryField | Tag, backend: str) -> sa.ColumnElement[str]:
    return _tag_column(of.name, backend) if isinstance(of, Tag) else ledger[of]


def _tag_column(name: str, backend: str) -> sa.ColumnElement[str]:
    """Returns the expression for the value of an entry's tag. The tag's name may be any text, and is never
    read as a path or a pattern."""
    name = name.translate(ABSENT)
    if backend == "sqlite":
        each = sa.func.json_each(ledger.tags).table_valued("key", "value")
        return sa.select(each.c.value).where(each.c.key == name).correlate(schema.ledger).scalar_subquery()
    return sa.cast(ledger.tags, sa.JSON).op("->>", return_type=sa.Text())(sa.literal(name, sa.Text()))


def _bucket_column(of: Bucket, backend: str) -> sa.ColumnElement[int]:
    """Returns the expression for the Unix millisecond in which the period begins."""
    match of:
        case Bucket.HOUR:
            return ledger.at - ledger.at % HOUR
        case Bucket.DAY:
            return ledger.at - ledger.at % DAY
        case Bucket.WEEK:
            return ledger.at - (ledger.at + MONDAY) % (7 * DAY)
        case Bucket.MONTH:
            return _month_column(backend)


def _month_column(backend: str) -> sa.ColumnElement[int]:
    """Returns the expression for the Unix millisecond in which the month begins."""
    seconds = ledger.at // 1000
    if backend == "sqlite":
        begins = sa.func.strftime("%s", seconds, "unixepoch", "start of month")
    else:
        there = sa.func.timezone("UTC", sa.func.to_timestamp(seconds))
        begins = sa.func.date_part("epoch", sa.func.date_trunc("month", there))
    return sa.cast(begins, sa.BigInteger) * 1000


def _build_sums() -> Iterator[sa.ColumnElement[int]]:
    """Yields the columns that `_to_totals` reads. Calls that a request made on its way count tokens and cost,
    and no request."""
    is_request = ledger.parent.is_(None)
    yield _count_where(is_request).label("requests")
    for status in (OK, CANCELLED, ABORTED):
        yield _count_where(sa.and_(is_request, ledger.status == status)).label(status)
    yield _count_where(ledger.price.is_(None)).label("unpriced")
    for name in SUMMED:
        yield _sum(ledger[name]).label(name)
    yield _sum(ledger.cost // HALF).label("cost_high")
    yield _sum(ledger.cost % HALF).label("cost_low")
    for name in MEASURED:
        measured = sa.case((is_request, ledger[name]))
        yield _sum(measured).label(f"{name}_sum")
        yield sa.func.count(measured).label(f"{name}_count_where")


def _sum(of: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Returns the sum of a column; 0 without rows."""
    return sa.func.coalesce(sa.func.sum(of), 0)


def _count_where(those: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    """Returns the number of rows that satisfy a condition."""
    return _sum(sa.case((those, 1), else_=0))


def _to_totals(row: Row) -> UsageTotals:
    """Converts a row of sums to totals. PostgreSQL's sums are decimals."""

    def of(name: str) -> int:
        return int(row[name])

    def mean(name: str) -> Mean:
        return Mean(of(f"{name}_sum"), of(f"{name}_count_where"))

    return UsageTotals(
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


def _to_entry(row: Row) -> Entry:
    values = dict(row)
    source, tags = UsageSource(values.pop("source")), json.loads(values.pop("tags"))
    return Entry(source=source, tags=tags, **values)
