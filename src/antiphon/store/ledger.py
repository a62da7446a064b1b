"""The ledger in a database: adds entries and reports over them. Every value is sent as a bound parameter.

Every entry can be stored: characters and numbers that a database does not accept are replaced.
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

ROWS_PER_FETCH = 1_000
"""The number of rows per fetch, which is also the number of sums in memory."""
ROWS_PER_INSERT = 50
"""The number of rows per statement. Around each statement the driver releases the interpreter lock and waits
for it. While requests run, this costs more than a row."""
MAX_INDEXED_LENGTH = 400
"""The most characters of an indexed text: PostgreSQL refuses index entries above 2,700 bytes."""
INDEXED = ("project", "key", "user", "model")
UNSUPPORTED = str.maketrans({"\0": "\ufffd"} | dict.fromkeys(range(55296, 57344), "�"))
"""Replaces characters that UTF-8 or PostgreSQL does not support: NUL and lone surrogates."""
MAX_INTEGER = 2**63 - 1
SUM_BASE = 1 << 32
"""Amounts are split at this value into a high and a low part, which are summed separately. A sum above 2**63
would be an error in SQLite, and costs can be that large."""
NAMES = tuple(field.name for field in fields(Entry))
COLUMNS = tuple(name for name in NAMES if name != "tags")

_get_values = attrgetter(*("source.value" if name == "source" else name for name in COLUMNS))
_get_texts = attrgetter(*(field.name for field in fields(Entry) if field.type in (str, str | None)))
_get_integers = attrgetter(*(field.name for field in fields(Entry) if field.type in (int, int | None)))

EntryRow = tuple[object, ...]
"""The values of `COLUMNS`, then the tags."""


HOUR = 3_600_000
"""Milliseconds."""
DAY = 24 * HOUR
MONDAY = 3 * DAY
"""Milliseconds from a Monday to the start of 1970."""

DURATIONS = ("queue_ms", "ttft_ms", "total_ms")
TOKEN_COUNTS = ("prompt_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")

TIME_LIMIT_S = 30.0
"""The time limit of a statement in seconds. Few threads read for all callers."""

ledger = schema.ledger.c


class SqlEntries:
    """`store.base.EntryStore` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        # The order prevents a deadlock between servers that add the same entries.
        rows = [build_row(entry) for entry in sorted(entries, key=attrgetter("id"))]
        with self._database.writing() as connection:
            placeholder = "?" if connection.dialect.paramstyle == "qmark" else "%s"
            for begin in range(0, len(rows), ROWS_PER_INSERT):
                batch = rows[begin : begin + ROWS_PER_INSERT]
                connection.exec_driver_sql(
                    _build_insert(placeholder, len(batch)), tuple(chain.from_iterable(batch))
                )

    def sum_usage(self, since: int, bucket_ms: int, before: int | None = None) -> Iterator[UsedAmounts]:
        """See `EntryStore.sum_usage`."""
        row = schema.ledger.c
        group_columns = (row.at // bucket_ms, row.key, row.user, row.project, row.model)
        counted = (row.prompt_tokens, row.output_tokens, row.cost)
        sums = [_sum(part) for column in counted for part in (column // SUM_BASE, column % SUM_BASE)]
        conditions = () if before is None else (row.at + sa.func.coalesce(row.total_ms, 0) < before,)
        query = (
            sa.select(sa.func.max(row.at), *group_columns[1:], _count_where(row.parent.is_(None)), *sums)
            .where(row.at >= since, *conditions)
            .group_by(*group_columns)
            .order_by(group_columns[0])
            .execution_options(yield_per=ROWS_PER_FETCH)
        )
        with self._database.reading() as connection, connection.execute(query) as rows:
            for at, key, user, project, model, requests, *parts in rows:
                high_and_low = zip(parts[::2], parts[1::2], strict=True)
                amounts = [int(high) * SUM_BASE + int(low) for high, low in high_and_low]
                yield UsedAmounts(at, key, user, project, model, Amounts(int(requests), *amounts))


def build_row(entry: Entry) -> EntryRow:
    """Builds the table row of an entry. Most entries are short ASCII and need no replacement."""
    if not entry.tags:
        text = "".join(filter(None, _get_texts(entry)))
        is_short_ascii = len(text) <= MAX_INDEXED_LENGTH and text.isascii() and "\0" not in text
        if is_short_ascii and max(filter(None, _get_integers(entry)), default=0) <= MAX_INTEGER:
            return (*_get_values(entry), "{}")
    values = {name: _replace_unsupported(getattr(entry, name)) for name in COLUMNS}
    for name in INDEXED:
        content = values[name]
        values[name] = content[:MAX_INDEXED_LENGTH] if isinstance(content, str) else content
    tags = {_replace_unsupported(name): _replace_unsupported(value) for name, value in entry.tags.items()}
    return (*values.values(), json.dumps(tags, ensure_ascii=False))


def _replace_unsupported(value: object) -> object:
    """Returns the value with characters replaced that a database does not support. Lowers an integer to the
    largest that a database supports."""
    if isinstance(value, str):
        return value.translate(UNSUPPORTED)
    return min(value, MAX_INTEGER) if isinstance(value, int) else value


@cache
def _build_insert(placeholder: str, row_count: int) -> str:
    """Builds the SQL that inserts `row_count` rows and skips existing ids. `placeholder`: the driver's
    placeholder of a value. SQLAlchemy is not used here: it would take more time for each row than the
    database."""
    names = ", ".join(f'"{name}"' for name in (*COLUMNS, "tags"))
    row_placeholders = f"({', '.join([placeholder] * len(NAMES))})"
    values = ", ".join([row_placeholders] * row_count)
    return f"INSERT INTO ledger ({names}) VALUES {values} ON CONFLICT (id) DO NOTHING"  # noqa: S608 - constants


class SqlUsage:
    """`store.base.UsageStore` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def report(
        self, selection: EntrySelection, dimensions: Sequence[Dimension], max_groups: int
    ) -> LedgerReport:
        with self._database.reading(TIME_LIMIT_S) as connection:
            if not dimensions:
                return LedgerReport(_load_total(connection, selection))
            groups = tuple(_load_groups(connection, selection, dimensions, max_groups + 1))
            if len(groups) > max_groups:
                return LedgerReport(
                    _load_total(connection, selection), groups[:max_groups], has_more_groups=True
                )
            return LedgerReport(sum((group.totals for group in groups), UsageTotals()), groups)

    def load_entries(
        self, selection: EntrySelection, max_entries: int, after: EntryPosition | None = None
    ) -> Sequence[Entry]:
        with self._database.reading(TIME_LIMIT_S) as connection:
            query = sa.select(schema.ledger).where(*_build_conditions(selection, connection.dialect.name))
            if after is not None:
                query = query.where(ledger.at >= after.at, sa.or_(ledger.at > after.at, ledger.id > after.id))
            rows = connection.execute(query.order_by(ledger.at, ledger.id).limit(max_entries)).mappings()
            return [_to_entry(row) for row in rows]


def _load_total(connection: Connection, selection: EntrySelection) -> UsageTotals:
    """Loads the totals over all selected entries."""
    query = sa.select(*_build_sums()).where(*_build_conditions(selection, connection.dialect.name))
    return _to_totals(connection.execute(query).mappings().one())


def _load_groups(
    connection: Connection, selection: EntrySelection, dimensions: Sequence[Dimension], max_groups: int
) -> Iterator[ReportGroup]:
    """Yields at most `max_groups` groups with their totals, in the order of a report."""
    backend = connection.dialect.name
    keys = [
        _build_expression(dimension, backend).label(f"by_{number}")
        for number, dimension in enumerate(dimensions)
    ]
    # Refer to columns by name: a database cannot tell that two expressions with bound values are equal.
    names: list[sa.ColumnElement[str]] = [sa.literal_column(key.name) for key in keys]
    buckets = [
        name for name, dimension in zip(names, dimensions, strict=True) if isinstance(dimension, Bucket)
    ]
    query = (
        sa.select(*keys, *_build_sums())
        .where(*_build_conditions(selection, backend))
        .group_by(*names)
        .order_by(
            *buckets, sa.literal_column("requests").desc(), *(name.asc().nulls_first() for name in names)
        )
        .limit(max_groups)
    )
    for row in connection.execute(query).mappings():
        yield ReportGroup(
            tuple(
                _to_value(row[key.name], dimension) for key, dimension in zip(keys, dimensions, strict=True)
            ),
            _to_totals(row),
        )


def _to_value(value: object, dimension: Dimension) -> str | int | None:
    """Converts a column's value for the report. The start of a time bucket is converted from milliseconds to
    seconds."""
    if isinstance(dimension, Bucket):
        return int(str(value)) // 1000
    return None if value is None else str(value)


def _build_conditions(selection: EntrySelection, backend: str) -> Iterator[sa.ColumnElement[bool]]:
    """Yields the SQL conditions of a selection."""
    yield ledger.at >= selection.since
    yield ledger.at < selection.until
    for condition in selection.conditions:
        yield _build_condition(condition, backend)


def _build_condition(condition: Condition, backend: str) -> sa.ColumnElement[bool]:
    """Builds the SQL of one condition. An empty value also matches NULL."""
    column = _build_text_column(condition.dimension, backend)
    if condition.value:
        return column == condition.value.translate(UNSUPPORTED)  # the row has the translated text
    return sa.or_(column.is_(None), column == "")


def _build_expression(dimension: Dimension, backend: str) -> sa.ColumnElement[str] | sa.ColumnElement[int]:
    """Returns the SQL expression of a dimension."""
    if isinstance(dimension, Bucket):
        return _build_bucket_column(dimension, backend)
    return _build_text_column(dimension, backend)


def _build_text_column(field: EntryField | Tag, backend: str) -> sa.ColumnElement[str]:
    return _build_tag_column(field.name, backend) if isinstance(field, Tag) else ledger[field]


def _build_tag_column(name: str, backend: str) -> sa.ColumnElement[str]:
    """Returns the SQL expression for the value of a tag. The tag's name can be any text; it is never
    interpreted as a path or a pattern."""
    name = name.translate(UNSUPPORTED)
    if backend == "sqlite":
        tag = sa.func.json_each(ledger.tags).table_valued("key", "value")
        return sa.select(tag.c.value).where(tag.c.key == name).correlate(schema.ledger).scalar_subquery()
    return sa.cast(ledger.tags, sa.JSON).op("->>", return_type=sa.Text())(sa.literal(name, sa.Text()))


def _build_bucket_column(bucket: Bucket, backend: str) -> sa.ColumnElement[int]:
    """Returns the SQL expression for the start of a time bucket in Unix milliseconds."""
    match bucket:
        case Bucket.HOUR:
            return ledger.at - ledger.at % HOUR
        case Bucket.DAY:
            return ledger.at - ledger.at % DAY
        case Bucket.WEEK:
            return ledger.at - (ledger.at + MONDAY) % (7 * DAY)
        case Bucket.MONTH:
            return _build_month_column(backend)


def _build_month_column(backend: str) -> sa.ColumnElement[int]:
    """Returns the SQL expression for the start of the month in Unix milliseconds."""
    seconds = ledger.at // 1000
    if backend == "sqlite":
        start = sa.func.strftime("%s", seconds, "unixepoch", "start of month")
    else:
        moment = sa.func.timezone("UTC", sa.func.to_timestamp(seconds))
        start = sa.func.date_part("epoch", sa.func.date_trunc("month", moment))
    return sa.cast(start, sa.BigInteger) * 1000


def _build_sums() -> Iterator[sa.ColumnElement[int]]:
    """Yields the sums that `_to_totals` reads. The entry of a call that another request started counts its
    tokens and cost, but not as a request."""
    is_request = ledger.parent.is_(None)
    yield _count_where(is_request).label("requests")
    for status in (OK, CANCELLED, ABORTED):
        yield _count_where(sa.and_(is_request, ledger.status == status)).label(status)
    yield _count_where(ledger.price.is_(None)).label("unpriced")
    for name in TOKEN_COUNTS:
        yield _sum(ledger[name]).label(name)
    yield _sum(ledger.cost // SUM_BASE).label("cost_high")
    yield _sum(ledger.cost % SUM_BASE).label("cost_low")
    for name in DURATIONS:
        duration = sa.case((is_request, ledger[name]))
        yield _sum(duration).label(f"{name}_sum")
        yield sa.func.count(duration).label(f"{name}_count_where")


def _sum(column: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Returns the SQL sum of a column; 0 without rows."""
    return sa.func.coalesce(sa.func.sum(column), 0)


def _count_where(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    """Returns the SQL count of the rows that meet a condition."""
    return _sum(sa.case((condition, 1), else_=0))


def _to_totals(row: Row) -> UsageTotals:
    """Converts a row of sums to totals. PostgreSQL returns sums as decimals."""

    def get_sum(name: str) -> int:
        return int(row[name])

    def get_mean(name: str) -> Mean:
        return Mean(get_sum(f"{name}_sum"), get_sum(f"{name}_count_where"))

    return UsageTotals(
        requests=get_sum("requests"),
        ok=get_sum(OK),
        cancelled=get_sum(CANCELLED),
        aborted=get_sum(ABORTED),
        failed=get_sum("requests") - get_sum(OK) - get_sum(CANCELLED) - get_sum(ABORTED),
        unpriced=get_sum("unpriced"),
        prompt_tokens=get_sum("prompt_tokens"),
        cached_tokens=get_sum("cached_tokens"),
        output_tokens=get_sum("output_tokens"),
        reasoning_tokens=get_sum("reasoning_tokens"),
        cost=get_sum("cost_high") * SUM_BASE + get_sum("cost_low"),
        queue_ms=get_mean("queue_ms"),
        ttft_ms=get_mean("ttft_ms"),
        total_ms=get_mean("total_ms"),
    )


def _to_entry(row: Row) -> Entry:
    values = dict(row)
    source, tags = UsageSource(values.pop("source")), json.loads(values.pop("tags"))
    return Entry(source=source, tags=tags, **values)
