"""Handlers and endpoints of usage: sums over the ledger and its entries, as JSON or as streamed files of any
length."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial

from antiphon.bodies.strict_json import sanitize_key
from antiphon.dialects.base import Endpoint
from antiphon.dialects.http_types import Answer, FileStream, Headers, Request, Response
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
    Tag,
    parse_dimension,
)
from antiphon.errors import InvalidValue
from antiphon.http.admin.resource import (
    DEFAULT_PAGE,
    MAX_PAGE,
    MAX_SECOND,
    NO_STORE,
    SECOND_SCHEMA,
    TEXT_SCHEMA,
    answer_json,
    declare_endpoint,
    declare_page_size,
    declare_parameter,
    read_page_size,
    read_query,
    read_second,
)
from antiphon.http.admin.usage_cards import (
    EntryCard,
    EntryPage,
    FileFormat,
    TotalsCard,
    UsageReport,
    build_entry_card,
    build_group_card,
    build_totals_card,
    encode_header,
    encode_rows,
    list_columns,
)
from antiphon.services.usage import UsageService

MEDIA_TYPES = {
    FileFormat.CSV: "text/csv; charset=utf-8; header=present",
    FileFormat.JSONL: "application/jsonl",
}

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

LIMIT_DESCRIPTION = "The most groups, or entries of a page; not for a file of entries"

FILE_SCHEMAS = {media_type.partition(";")[0]: TEXT_SCHEMA for media_type in MEDIA_TYPES.values()}

TIME_FIELDS = ("since", "until")

FILTERS = tuple(EntryField)

ENTRY_COLUMNS, TOTALS_COLUMNS = list_columns(EntryCard), list_columns(TotalsCard)
"""The columns of files."""

ReadEntries = Callable[[int, EntryPosition | None], Sequence[Entry]]

_FORMAT = declare_parameter(
    "format",
    {"type": "string", "enum": [*FileFormat], "default": FileFormat.JSON},
    description="The format of the answer",
)


class UsageResource:
    """The handlers of usage."""

    def __init__(self, usage: UsageService, clock: Clock) -> None:
        self._usage = usage
        self._clock = clock

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Returns the endpoints of usage. They need only the right to read, because the service returns only
        rows that the actor can see."""
        since = "Unix seconds; the default is 30 days before `until`"
        until = "Unix seconds; entries that began at this second are left out. The default is now"
        filters = [
            declare_parameter("since", SECOND_SCHEMA, description=since),
            declare_parameter("until", SECOND_SCHEMA, description=until),
        ]
        for field in EntryField:
            description = f"Only entries with this {field.replace('_', ' ')}; empty: entries without one"
            filters.append(declare_parameter(field, description=description))
        return (
            declare_endpoint(
                "GET",
                "/usage",
                self.show_report,
                "Sums of usage",
                gives=UsageReport,
                query=[
                    *filters,
                    declare_parameter("by", description=BY_DESCRIPTION),
                    declare_page_size(MAX_GROUPS, MAX_GROUPS, description=LIMIT_DESCRIPTION),
                    _FORMAT,
                ],
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
                query=[
                    *filters,
                    declare_page_size(DEFAULT_PAGE, MAX_PAGE, description=LIMIT_DESCRIPTION),
                    declare_parameter("after", description="The `next` of the page before"),
                    _FORMAT,
                ],
                right=Right.READ,
                description=ENTRIES_DESCRIPTION,
                files=FILE_SCHEMAS,
            ),
        )

    async def show_report(self, request: Request) -> Answer:
        query = read_query(request, *TIME_FIELDS, "by", "limit", "format", *FILTERS, accepts=is_tag_filter)
        selection, file_format = self._read_selection(query), read_format(query)
        dimensions = parse_dimensions(query.get("by", ""))
        limit = read_page_size(query, MAX_GROUPS, MAX_GROUPS)
        actor = request.actor
        read_report = self._usage.open_report(actor, selection, dimensions, limit)
        if file_format is FileFormat.JSON:

            def answer_report() -> Response:
                report = read_report()
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

            return await self._usage.run_in_thread(actor, answer_report)
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
        query = read_query(request, *TIME_FIELDS, "limit", "after", "format", *FILTERS, accepts=is_tag_filter)
        selection, file_format = self._read_selection(query), read_format(query)
        after = parse_cursor(query.get("after"))
        read_entries = self._usage.open_entries(request.actor, selection)
        if file_format is FileFormat.JSON:
            limit = read_page_size(query)

            def read_page() -> Response:
                entries = read_entries(limit + 1, after)
                last = entries[limit - 1] if len(entries) > limit else None
                cards = [build_entry_card(entry) for entry in entries[:limit]]
                return answer_json(
                    EntryPage(data=cards, next=None if last is None else f"{last.at}.{last.id}")
                )

            return await self._usage.run_in_thread(request.actor, read_page)
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
        conditions: list[Condition] = []
        for name, value in query.items():
            dimension = parse_dimension(name)
            if isinstance(dimension, EntryField | Tag):
                if len(value) > MAX_VALUE_LENGTH:
                    raise InvalidValue(
                        f"{sanitize_key(name)} is longer than {MAX_VALUE_LENGTH}", param=sanitize_key(name)
                    )
                conditions.append(Condition(dimension, value or None))
        return EntrySelection(since * 1000, until * 1000, tuple(conditions))


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


def _build_file_headers(name: str, selection: EntrySelection, file_format: FileFormat) -> Headers:
    file_name = f"{name}-{selection.since // 1000}-{selection.until // 1000}.{file_format}"
    return ((b"content-disposition", f'attachment; filename="{file_name}"'.encode()), *NO_STORE)
