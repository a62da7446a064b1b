"""Usage: sums over the ledger and its entries, as JSON or as streamed files of any length.

Counts are exact integers. Money is an exact decimal text in the currency's unit, and also an integer of
nano-units. A CSV file contains no formulas of a spreadsheet.
"""

import csv
import io
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antiphon.bodies.strict_json import sanitize_key
from antiphon.dialects.base import Answer, Endpoint, FileStream, Headers, Request, Response
from antiphon.domain.context import Clock
from antiphon.domain.identity import Actor, Right
from antiphon.domain.ledger import (
    TAG,
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
    parse_dimension,
)
from antiphon.domain.prices import format_decimal
from antiphon.errors import InvalidValue
from antiphon.http.admin.resource import (
    DEFAULT_PAGE,
    MAX_PAGE,
    MAX_SECOND,
    NO_STORE,
    SECOND_SCHEMA,
    TEXT_SCHEMA,
    ListPage,
    answer_json,
    declare_endpoint,
    declare_parameter,
    read_page_size,
    read_query,
    read_second,
)
from antiphon.services.usage import UsageService

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MEAN_DECIMALS = 3
"""Decimals of a mean of milliseconds."""

FORMULA_STARTS = frozenset("=+-@\uff1d\uff0b\uff0d\uff20")
"""The first characters of a spreadsheet's formula, in half and full width."""
TEXT_QUOTE = "'"
"""The prefix that makes a spreadsheet treat a cell as text. The spreadsheet does not show it."""


class FileFormat(StrEnum):
    """The formats of a response about usage."""

    JSON = "json"
    CSV = "csv"
    JSONL = "jsonl"


MEDIA_TYPES = {
    FileFormat.CSV: "text/csv; charset=utf-8; header=present",
    FileFormat.JSONL: "application/jsonl",
}


def encode_rows(cards: Sequence[Struct], columns: Sequence[str], file_format: FileFormat) -> bytes:
    """Encodes cards as lines of CSV or JSON. `columns` are the columns of CSV, in order."""
    if file_format is FileFormat.CSV:
        return encode_csv(map(_flatten, cards), columns)
    return b"".join(msgspec.json.encode(card) + b"\n" for card in cards)


def encode_csv(rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> bytes:
    """Encodes rows as CSV (RFC 4180)."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([format_cell(row[name]) for name in columns] for row in rows)
    return text.getvalue().encode("utf-8", "replace")


def encode_header(columns: Sequence[str]) -> bytes:
    """Encodes the first line of a CSV file."""
    return encode_csv([dict(zip(columns, columns, strict=True))], columns)


def format_cell(value: object) -> str:
    """Formats a value as a cell of CSV. A quote precedes a text that a spreadsheet could run as a formula.
    Such a text begins, after blanks, with a formula's first character or a control character."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return str(value) if isinstance(value, int | float) else msgspec.json.encode(value).decode()
    first_character = value.lstrip(" \u00a0\u3000")[:1]
    is_formula = (
        first_character in FORMULA_STARTS
        or (first_character < " " and first_character)
        or first_character == "\x7f"
    )
    return TEXT_QUOTE + value if is_formula else value


def list_columns(card: type[Struct]) -> tuple[str, ...]:
    """Returns the fields of a card as columns, without the constant `object`."""
    return tuple(name for name in card.__struct_fields__ if name != "object")


def _flatten(card: Struct) -> dict[str, object]:
    """Returns the fields of a card in one level. The dimensions of a group come first."""
    fields = msgspec.structs.asdict(card)
    dimensions = fields.pop("by", None)
    return {**dimensions, **fields} if isinstance(dimensions, dict) else fields


class TotalsCard(Struct, frozen=True, kw_only=True):
    """Sums over entries of the ledger. `failed` ended with an error, and `aborted` ended with the process. No
    price applied to `unpriced` entries, so their cost is unknown and counts as zero. Each mean covers the
    entries that have the value, and is null if none has it."""

    requests: int
    ok: int
    cancelled: int
    aborted: int
    failed: int
    unpriced: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost: str
    cost_nano: int
    mean_queue_ms: float | None
    mean_ttft_ms: float | None
    mean_total_ms: float | None


class GroupCard(TotalsCard, frozen=True, kw_only=True):
    """The sums of entries with the same values. `by` contains these values by dimension. The value of `hour`,
    `day`, `week` and `month` is the Unix second of its start in UTC."""

    by: dict[str, str | int | None]


class UsageReport(Struct, frozen=True, kw_only=True):
    """Sums of the entries that began at or after `since` and before `until` (Unix seconds). `more`: whether
    there are groups beyond `data`; `total` counts them too."""

    object: Literal["usage"] = "usage"
    since: int
    until: int
    by: list[str]
    currency: str | None
    total: TotalsCard
    data: list[GroupCard]
    more: bool


class RouteTryCard(Struct, frozen=True, kw_only=True):
    """One route that a request tried. `error` is null if the route served the request. `ms` is the time until
    its first event, or until the error."""

    route: str
    error: str | None
    ms: int


class EntryCard(Struct, frozen=True, kw_only=True):
    """One generation. `at_ms` is its start in Unix milliseconds, and `time` is the same in ISO 8601. `source`
    says who counted the tokens. `price` is the id of the price that determined `cost`."""

    object: Literal["ledger_entry"] = "ledger_entry"
    id: str
    request_id: str
    parent: str | None
    at_ms: int
    time: str
    project: str
    user: str | None
    key: str
    end_user: str | None
    dialect: str
    operation: str
    asked: str
    model: str
    adapter: str | None
    engine: str
    attempts: int
    status: str
    source: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    price: str | None
    cost: str
    cost_nano: int
    currency: str
    queue_ms: int | None
    ttft_ms: int | None
    total_ms: int | None
    tags: dict[str, str]
    routes: list[RouteTryCard]


class EntryPage(ListPage, frozen=True, kw_only=True):
    """Entries, the earliest first."""

    data: list[EntryCard]


_DECODE_ROUTES = msgspec.json.Decoder(list[RouteTryCard]).decode

DEFAULT_SECONDS = 30 * 24 * 3600
"""The default time span of a query in seconds."""
MAX_GROUPS = 10_000
"""The most groups of one response."""
MAX_DIMENSIONS = 6
MAX_VALUE_LENGTH = 1_000
"""The most characters of a value in a filter."""
CHUNK_ENTRIES = 1_000
"""The number of entries that are read and written at once. They take about fifty milliseconds of a thread."""

BY_DESCRIPTION = (
    f"At most {MAX_DIMENSIONS} of {', '.join([*EntryField, *Bucket])} and tag:NAME, separated by commas; "
    "hours, days, weeks and months are in UTC"
)
FILTERS_AND_FILES = (
    " Also `tag:NAME=VALUE` chooses by one of the caller's tags. `format=csv` and `format=jsonl` give a file."
)
REPORT_DESCRIPTION = "Sums over the generations of a time span that the caller can see." + FILTERS_AND_FILES
ENTRIES_DESCRIPTION = (
    "The generations of a time span that the caller can see, the earliest first." + FILTERS_AND_FILES
)
FILE_SCHEMAS = {media_type.partition(";")[0]: TEXT_SCHEMA for media_type in MEDIA_TYPES.values()}

TIME_FIELDS = ("since", "until")
FILTERS = tuple(EntryField)

ENTRY_COLUMNS, TOTALS_COLUMNS = list_columns(EntryCard), list_columns(TotalsCard)
"""The columns of files."""

ReadEntries = Callable[[int, EntryPosition | None], Sequence[Entry]]


class UsageResource:
    """The handlers of usage."""

    def __init__(self, usage: UsageService, clock: Clock) -> None:
        self._usage = usage
        self._clock = clock

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Returns the endpoints of usage. They need only the right to read, because the service returns only
        rows that the actor can see."""
        return (
            declare_endpoint(
                "GET",
                "/usage",
                self.show_report,
                "Sums of usage",
                gives=UsageReport,
                query=declare_report_query(),
                right=Right.READ,
                description=REPORT_DESCRIPTION,
                files=FILE_SCHEMAS,
            ),
            declare_endpoint(
                "GET",
                "/usage/entries",
                self.list_entries,
                "Single entries of usage",
                gives=EntryPage,
                query=declare_entries_query(),
                right=Right.READ,
                description=ENTRIES_DESCRIPTION,
                files=FILE_SCHEMAS,
            ),
        )

    async def show_report(self, request: Request) -> Answer:
        """Shows sums, grouped by dimensions."""
        query = read_query(request, *TIME_FIELDS, "by", "limit", "format", *FILTERS, accepts=is_tag_filter)
        selection, file_format = self._read_selection(query), read_format(query)
        dimensions = parse_dimensions(query.get("by", ""))
        limit = read_page_size(query, MAX_GROUPS, MAX_GROUPS)
        actor = request.actor
        read_report = self._usage.open_report(actor, selection, dimensions, limit)
        if file_format is FileFormat.JSON:
            return await self._usage.run_in_thread(
                actor, lambda: self._answer_report(read_report(), selection, dimensions)
            )
        report = await self._usage.run_in_thread(actor, read_report)
        if report.has_more_groups and "limit" not in query:
            raise InvalidValue(
                f"there are more than {MAX_GROUPS} groups: choose a shorter time or fewer dimensions, or set "
                "limit to get only the first groups",
                param="by",
            )
        columns = (*map(str, dimensions), *TOTALS_COLUMNS)
        totals = [build_totals_card(report.total)]
        cards = [build_group_card(group, dimensions) for group in report.groups] if dimensions else totals
        rows = encode_rows(cards, columns, file_format)
        body = encode_header(columns) + rows if file_format is FileFormat.CSV else rows
        headers = _build_file_headers("usage", selection, file_format)
        return Response(body, media_type=MEDIA_TYPES[file_format], headers=headers)

    async def list_entries(self, request: Request) -> Answer:
        """Lists single generations, the earliest first."""
        query = read_query(request, *TIME_FIELDS, "limit", "after", "format", *FILTERS, accepts=is_tag_filter)
        selection, after, file_format = (
            self._read_selection(query),
            parse_cursor(query.get("after")),
            read_format(query),
        )
        read_entries = self._usage.open_entries(request.actor, selection)
        if file_format is FileFormat.JSON:
            limit = read_page_size(query)
            return await self._usage.run_in_thread(
                request.actor, partial(_read_page, read_entries, limit, after)
            )
        if "limit" in query:
            raise InvalidValue("limit is for pages of JSON; a file has all entries", param="limit")
        first_chunk, after = await self._usage.run_in_thread(
            request.actor, partial(_read_chunk, read_entries, file_format, after)
        )
        body = self._stream_chunks(request.actor, read_entries, file_format, first_chunk, after)
        return FileStream(
            body, MEDIA_TYPES[file_format], _build_file_headers("entries", selection, file_format)
        )

    async def _stream_chunks(
        self,
        actor: Actor,
        read_entries: ReadEntries,
        file_format: FileFormat,
        first_chunk: bytes,
        after: EntryPosition | None,
    ) -> AsyncIterator[bytes]:
        """Yields a file in chunks. Each chunk is read after the previous one is written, so memory does not
        grow with the file. An error breaks the response off, so that no incomplete file looks complete."""
        yield (encode_header(ENTRY_COLUMNS) if file_format is FileFormat.CSV else b"") + first_chunk
        while after is not None:
            chunk, after = await self._usage.run_in_thread(
                actor, partial(_read_chunk, read_entries, file_format, after)
            )
            yield chunk

    def _answer_report(
        self, report: LedgerReport, selection: EntrySelection, dimensions: tuple[Dimension, ...]
    ) -> Response:
        """Answers with sums as JSON."""
        return answer_json(
            UsageReport(
                since=selection.since // 1000,
                until=selection.until // 1000,
                by=[*map(str, dimensions)],
                currency=self._usage.currency,
                total=build_totals_card(report.total),
                data=[build_group_card(group, dimensions) for group in report.groups],
                more=report.has_more_groups,
            )
        )

    def _read_selection(self, query: Mapping[str, str]) -> EntrySelection:
        """Returns the query's selection of entries. `until` defaults to now, `since` to 30 days before
        `until`."""
        until = read_second(query, "until", int(self._clock.wall()) + 1)
        since = read_second(query, "since", max(0, until - DEFAULT_SECONDS))
        if since >= until and "since" not in query:
            raise InvalidValue("until must be greater than 0", param="until")
        if since >= until:
            bound = "until" if "until" in query else "now, if there is no until"
            raise InvalidValue(f"since must be before {bound}", param="since")
        return EntrySelection(since * 1000, until * 1000, tuple(_read_conditions(query)))


def _read_page(read_entries: ReadEntries, limit: int, after: EntryPosition | None) -> Response:
    """Reads one page of entries and answers with it as JSON."""
    entries = read_entries(limit + 1, after)
    cards = [build_entry_card(entry) for entry in entries[:limit]]
    return answer_json(
        EntryPage(data=cards, next=_format_cursor(entries[limit - 1]) if len(entries) > limit else None)
    )


def _read_chunk(
    read_entries: ReadEntries, file_format: FileFormat, after: EntryPosition | None
) -> tuple[bytes, EntryPosition | None]:
    """Returns the next lines of a file, and the position of their last entry. The position is None if there
    are no more entries."""
    entries = read_entries(CHUNK_ENTRIES, after)
    lines = encode_rows([build_entry_card(entry) for entry in entries], ENTRY_COLUMNS, file_format)
    return lines, EntryPosition.from_entry(entries[-1]) if len(entries) == CHUNK_ENTRIES else None


def is_tag_filter(name: str) -> bool:
    """Whether a query field filters by a tag."""
    return name.startswith(TAG) and isinstance(parse_dimension(name), Tag)


def parse_dimensions(text: str) -> tuple[Dimension, ...]:
    """Parses a list of dimensions with commas. Raises InvalidValue."""
    dimensions: list[Dimension] = []
    for name in filter(None, text.split(",")):
        dimension = parse_dimension(name)
        if dimension is None:
            known_names = ", ".join([*EntryField, *Bucket, f"{TAG}NAME"])
            raise InvalidValue(
                f"there is no dimension {sanitize_key(name)}; known: {known_names}", param="by"
            )
        if dimension in dimensions:
            raise InvalidValue(f"by names {sanitize_key(name)} twice", param="by")
        dimensions.append(dimension)
    if len(dimensions) > MAX_DIMENSIONS:
        raise InvalidValue(f"by names more than {MAX_DIMENSIONS} dimensions", param="by")
    return tuple(dimensions)


def read_format(query: Mapping[str, str]) -> FileFormat:
    """Returns the format that the query asks for. Raises InvalidValue."""
    text = query.get("format", FileFormat.JSON)
    if text not in tuple(FileFormat):
        raise InvalidValue(f"format must be {', '.join(FileFormat)}", param="format")
    return FileFormat(text)


def parse_cursor(cursor: str | None) -> EntryPosition | None:
    """Parses the position in a page's `next`. Raises InvalidValue."""
    if cursor is None:
        return None
    start_ms, _, id_ = cursor.partition(".")
    if not (start_ms.isascii() and start_ms.isdigit() and len(start_ms) < len(str(MAX_SECOND)) + 3 and id_):
        raise InvalidValue("after must be the value of next in the previous page", param="after")
    return EntryPosition(int(start_ms), id_[:MAX_VALUE_LENGTH])


def _format_cursor(entry: Entry) -> str:
    """Formats the position of an entry as the value of a page's `next`."""
    return f"{entry.at}.{entry.id}"


def _read_conditions(query: Mapping[str, str]) -> Iterator[Condition]:
    """Yields the query's filters by field and tag. Raises InvalidValue."""
    for name, value in query.items():
        dimension = parse_dimension(name)
        if isinstance(dimension, EntryField | Tag):
            if len(value) > MAX_VALUE_LENGTH:
                raise InvalidValue(
                    f"{sanitize_key(name)} is longer than {MAX_VALUE_LENGTH}", param=sanitize_key(name)
                )
            yield Condition(dimension, value or None)


def _build_file_headers(name: str, selection: EntrySelection, file_format: FileFormat) -> Headers:
    """Returns the headers of a file."""
    file_name = f"{name}-{selection.since // 1000}-{selection.until // 1000}.{file_format}"
    return ((b"content-disposition", f'attachment; filename="{file_name}"'.encode()), *NO_STORE)


def declare_report_query() -> list[Mapping[str, Any]]:
    """Declares the query of sums for the OpenAPI document."""
    return [
        *_declare_filters(),
        declare_parameter("by", description=BY_DESCRIPTION),
        *_declare_limit(MAX_GROUPS, MAX_GROUPS),
        _FORMAT,
    ]


def declare_entries_query() -> list[Mapping[str, Any]]:
    """Declares the query of entries for the OpenAPI document."""
    after = declare_parameter("after", description="The `next` of the page before")
    return [*_declare_filters(), *_declare_limit(DEFAULT_PAGE, MAX_PAGE), after, _FORMAT]


def _declare_filters() -> Iterator[Mapping[str, Any]]:
    """Yields the parameters that choose entries."""
    since = "Unix seconds; the default is 30 days before `until`"
    until = "Unix seconds; entries that began at this second are left out. The default is now"
    yield declare_parameter("since", SECOND_SCHEMA, description=since)
    yield declare_parameter("until", SECOND_SCHEMA, description=until)
    for field in EntryField:
        description = f"Only entries with this {field.replace('_', ' ')}; empty: entries without one"
        yield declare_parameter(field, description=description)


def _declare_limit(default: int, maximum: int) -> Iterator[Mapping[str, Any]]:
    """Yields the parameter of the page size."""
    limit = {"type": "integer", "minimum": 1, "maximum": maximum, "default": default}
    yield declare_parameter(
        "limit", limit, description="The most groups, or entries of a page; not for a file of entries"
    )


_FORMAT = declare_parameter(
    "format",
    {"type": "string", "enum": [*FileFormat], "default": FileFormat.JSON},
    description="The format of the answer",
)


def build_totals_card(totals: UsageTotals) -> TotalsCard:
    """Builds the card of totals."""
    return TotalsCard(**_list_totals(totals))


def build_group_card(group: ReportGroup, dimensions: tuple[Dimension, ...]) -> GroupCard:
    """Builds the card of a group."""
    return GroupCard(
        by=dict(zip(map(str, dimensions), group.values, strict=True)), **_list_totals(group.totals)
    )


def build_entry_card(entry: Entry) -> EntryCard:
    """Builds the card of an entry."""
    return EntryCard(
        id=entry.id,
        request_id=entry.request_id,
        parent=entry.parent,
        at_ms=entry.at,
        time=_format_time(entry.at),
        project=entry.project,
        user=entry.user,
        key=entry.key,
        end_user=entry.end_user,
        dialect=entry.dialect,
        operation=entry.operation,
        asked=entry.asked,
        model=entry.model,
        adapter=entry.adapter,
        engine=entry.engine,
        attempts=entry.attempts,
        status=entry.status,
        source=entry.source,
        prompt_tokens=entry.prompt_tokens,
        cached_tokens=entry.cached_tokens,
        output_tokens=entry.output_tokens,
        reasoning_tokens=entry.reasoning_tokens,
        price=entry.price,
        cost=format_decimal(entry.cost),
        cost_nano=entry.cost,
        currency=entry.currency,
        queue_ms=entry.queue_ms,
        ttft_ms=entry.ttft_ms,
        total_ms=entry.total_ms,
        tags=dict(entry.tags),
        routes=_DECODE_ROUTES(entry.routes) if entry.routes else [],
    )


def _list_totals(totals: UsageTotals) -> dict[str, Any]:
    """Returns the fields of a card of totals."""
    return {
        "requests": totals.requests,
        "ok": totals.ok,
        "cancelled": totals.cancelled,
        "aborted": totals.aborted,
        "failed": totals.failed,
        "unpriced": totals.unpriced,
        "prompt_tokens": totals.prompt_tokens,
        "cached_tokens": totals.cached_tokens,
        "output_tokens": totals.output_tokens,
        "reasoning_tokens": totals.reasoning_tokens,
        "cost": format_decimal(totals.cost),
        "cost_nano": totals.cost,
        "mean_queue_ms": _round_mean(totals.queue_ms),
        "mean_ttft_ms": _round_mean(totals.ttft_ms),
        "mean_total_ms": _round_mean(totals.total_ms),
    }


def _round_mean(mean: Mean) -> float | None:
    """Returns the mean with few decimals, or None if there is none."""
    return None if mean.value is None else round(mean.value, MEAN_DECIMALS)


def _format_time(milliseconds: int) -> str:
    """Formats Unix milliseconds in ISO 8601."""
    moment = EPOCH + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
