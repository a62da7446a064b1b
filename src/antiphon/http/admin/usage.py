"""The handlers of /admin/v1/usage: sums over the ledger, and its entries; as JSON, or as files that are
streamed however long they are.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from antiphon.dialects.base import Answer, Endpoint, FileStream, Headers, Request, Response
from antiphon.dialects.common.strict_json import sanitize_key
from antiphon.domain.context import Clock
from antiphon.domain.identity import Right
from antiphon.domain.ledger import Entry
from antiphon.domain.reports import (
    TAG,
    Bucket,
    Condition,
    Dimension,
    Field,
    Place,
    Report,
    Selection,
    Tag,
    dimension,
)
from antiphon.errors import InvalidValue
from antiphon.http.admin.exports import MEDIA, Format, columns_of, encoded, header
from antiphon.http.admin.pages import (
    MOST,
    NO_STORE,
    TEXT,
    USUAL,
    answer,
    endpoint,
    limit_of,
    parameter,
    query_of,
)
from antiphon.http.admin.shapes_usage import (
    EntryCard,
    EntryPage,
    TotalsCard,
    UsageReport,
    entry_card,
    group_card,
    totals_card,
)
from antiphon.services.usage import UsageService

USUAL_SECONDS = 30 * 24 * 3600
"""The time that is looked at where none is said."""
LATEST = 10**14
"""The last Unix second that may be named; its milliseconds fit everywhere."""
MOST_GROUPS = 10_000
"""Groups of one answer."""
MOST_DIMENSIONS = 6
LONGEST = 1_000
"""Characters of a value that entries are chosen by."""
CHUNK = 1_000
"""Entries that are read and written at once: some fifty milliseconds of a thread."""

BY = (
    f"At most {MOST_DIMENSIONS} of {', '.join([*Field, *Bucket])} and tag:NAME, with commas between them; "
    "hours, days, weeks and months are UTC's"
)
MORE = (
    " Also `tag:NAME=VALUE` chooses by one of the caller's tags. `format=csv` and `format=jsonl` give a file."
)
REPORT = "Sums over the generations that the caller may see, in a time." + MORE
ENTRIES = "The generations that the caller may see, in a time, the earliest first." + MORE
FILES = {MEDIA[each].partition(";")[0]: TEXT for each in MEDIA}

TIME = ("since", "until")
FILTERS = tuple(Field)

ENTRY, TOTALS = columns_of(EntryCard), columns_of(TotalsCard)
"""The columns of files."""

Read = Callable[[int, Place | None], Sequence[Entry]]


class UsageResource:
    """The handlers over the ledger of one server."""

    def __init__(self, reading: UsageService, clock: Clock) -> None:
        self._reading = reading
        self._clock = clock

    def endpoints(self) -> tuple[Endpoint, ...]:
        """All of them. They ask for the right to read: who sees what is decided row by row."""
        return (
            endpoint(
                "GET",
                "/usage",
                self.report,
                "What was used, summed",
                gives=UsageReport,
                query=report_query(),
                right=Right.READ,
                description=REPORT,
                files=FILES,
            ),
            endpoint(
                "GET",
                "/usage/entries",
                self.entries,
                "What was used, one by one",
                gives=EntryPage,
                query=entries_query(),
                right=Right.READ,
                description=ENTRIES,
                files=FILES,
            ),
        )

    async def report(self, request: Request) -> Answer:
        """Sums, by whatever tells entries apart."""
        query = query_of(request, *TIME, "by", "limit", "format", *FILTERS, also=is_tag)
        chosen, by, shape = self._selection(query), dimensions(query.get("by", "")), shape_of(query)
        most = limit_of(query, MOST_GROUPS, MOST_GROUPS)
        report = await self._reading.build_report(request.actor, chosen, by, most)
        if shape is Format.JSON:
            return await self._reading.run_in_thread(partial(self._answer, report, chosen, by))
        if report.more and "limit" not in query:
            raise InvalidValue(
                f"these are more than {MOST_GROUPS} groups: name a shorter time or fewer dimensions, or say "
                "with limit how many of the first are enough",
                param="by",
            )
        names = (*map(str, by), *TOTALS)
        cards = [group_card(each, by) for each in report.groups] if by else [totals_card(report.total)]
        body = (header(names) if shape is Format.CSV else b"") + encoded(cards, names, shape)
        return Response(body, media_type=MEDIA[shape], headers=_file("usage", chosen, shape))

    async def entries(self, request: Request) -> Answer:
        """Single generations, the earliest first."""
        query = query_of(request, *TIME, "limit", "after", "format", *FILTERS, also=is_tag)
        chosen, after, shape = self._selection(query), place(query.get("after")), shape_of(query)
        read = self._reading.open_entries(request.actor, chosen)
        if shape is Format.JSON:
            limit = limit_of(query)
            return await self._reading.run_in_thread(partial(_page, read, limit, after))
        if "limit" in query:
            raise InvalidValue("limit is for pages of JSON; a file has all entries", param="limit")
        first, after = await self._reading.run_in_thread(partial(_chunk, read, shape, after))
        body = self._streamed(read, shape, first, after)
        return FileStream(body, MEDIA[shape], _file("entries", chosen, shape))

    async def _streamed(
        self, read: Read, shape: Format, first: bytes, after: Place | None
    ) -> AsyncIterator[bytes]:
        """Chunk by chunk, each read when the one before has gone: memory does not grow with the file. What
        fails in between breaks the response off, so that no part looks whole."""
        yield (header(ENTRY) if shape is Format.CSV else b"") + first
        while after is not None:
            chunk, after = await self._reading.run_in_thread(partial(_chunk, read, shape, after))
            yield chunk

    def _answer(self, report: Report, chosen: Selection, by: tuple[Dimension, ...]) -> Response:
        return answer(
            UsageReport(
                since=chosen.since // 1000,
                until=chosen.until // 1000,
                by=[*map(str, by)],
                currency=self._reading.currency,
                total=totals_card(report.total),
                data=[group_card(each, by) for each in report.groups],
                more=report.more,
            )
        )

    def _selection(self, query: Mapping[str, str]) -> Selection:
        """What the query chooses: without `until` all until now, without `since` of the last 30 days."""
        until = _second(query, "until", int(self._clock.wall()) + 1)
        since = _second(query, "since", max(0, until - USUAL_SECONDS))
        if since >= until and "since" not in query:
            raise InvalidValue("until must lie after 0, when time begins", param="until")
        if since >= until:
            end = "until" if "until" in query else "now, where no until is said"
            raise InvalidValue(f"since must lie before {end}", param="since")
        return Selection(since * 1000, until * 1000, tuple(_conditions(query)))


def _page(read: Read, limit: int, after: Place | None) -> Response:
    found = read(limit + 1, after)
    cards = [entry_card(each) for each in found[:limit]]
    return answer(EntryPage(data=cards, next=_name(found[limit - 1]) if len(found) > limit else None))


def _chunk(read: Read, shape: Format, after: Place | None) -> tuple[bytes, Place | None]:
    """The next lines, and where to go on; None at the end."""
    found = read(CHUNK, after)
    written = encoded([entry_card(each) for each in found], ENTRY, shape)
    return written, Place.of(found[-1]) if len(found) == CHUNK else None


def is_tag(name: str) -> bool:
    """Whether a query's field chooses by a tag."""
    return name.startswith(TAG) and isinstance(dimension(name), Tag)


def dimensions(text: str) -> tuple[Dimension, ...]:
    """The dimensions that a list with commas names. Raises InvalidValue."""
    found: list[Dimension] = []
    for name in filter(None, text.split(",")):
        each = dimension(name)
        if each is None:
            known = ", ".join([*Field, *Bucket, f"{TAG}NAME"])
            raise InvalidValue(f"there is no dimension {sanitize_key(name)}; known: {known}", param="by")
        if each in found:
            raise InvalidValue(f"by names {sanitize_key(name)} twice", param="by")
        found.append(each)
    if len(found) > MOST_DIMENSIONS:
        raise InvalidValue(f"by names more than {MOST_DIMENSIONS} dimensions", param="by")
    return tuple(found)


def shape_of(query: Mapping[str, str]) -> Format:
    """As what the answer is asked for. Raises InvalidValue."""
    said = query.get("format", Format.JSON)
    if said not in tuple(Format):
        raise InvalidValue(f"format must be {', '.join(Format)}", param="format")
    return Format(said)


def place(cursor: str | None) -> Place | None:
    """The place that a page named as its end. Raises InvalidValue."""
    if cursor is None:
        return None
    at, _, id_ = cursor.partition(".")
    if not (at.isascii() and at.isdigit() and len(at) < len(str(LATEST)) + 3 and id_):
        raise InvalidValue("after must be what the page before said as next", param="after")
    return Place(int(at), id_[:LONGEST])


def _name(entry: Entry) -> str:
    return f"{entry.at}.{entry.id}"


def _conditions(query: Mapping[str, str]) -> Iterator[Condition]:
    for name, value in query.items():
        each = dimension(name)
        if isinstance(each, Field | Tag):
            if len(value) > LONGEST:
                raise InvalidValue(f"{sanitize_key(name)} is longer than {LONGEST}", param=sanitize_key(name))
            yield Condition(each, value or None)


def _second(query: Mapping[str, str], name: str, otherwise: int) -> int:
    said = query.get(name, str(otherwise))
    if not (said.isascii() and said.isdigit() and len(said) <= len(str(LATEST)) and int(said) <= LATEST):
        raise InvalidValue(f"{name} must be a time in Unix seconds", param=name)
    return int(said)


def _file(name: str, chosen: Selection, shape: Format) -> Headers:
    """The headers of a file."""
    called = f"{name}-{chosen.since // 1000}-{chosen.until // 1000}.{shape}"
    return ((b"content-disposition", f'attachment; filename="{called}"'.encode()), *NO_STORE)


def report_query() -> list[Mapping[str, Any]]:
    """The query of sums, for the OpenAPI document."""
    return [*_chosen_by(), parameter("by", description=BY), *_amount(MOST_GROUPS, MOST_GROUPS), _FORMAT]


def entries_query() -> list[Mapping[str, Any]]:
    """The query of entries, for the OpenAPI document."""
    after = parameter("after", description="The `next` of the page before")
    return [*_chosen_by(), *_amount(USUAL, MOST), after, _FORMAT]


def _chosen_by() -> Iterator[Mapping[str, Any]]:
    second = {"type": "integer", "minimum": 0, "maximum": LATEST}
    since = "Unix seconds; 30 days before `until` where it is left out"
    until = "Unix seconds; what began then is no more in it. Left out: until now"
    yield parameter("since", second, description=since)
    yield parameter("until", second, description=until)
    for field in Field:
        yield parameter(field, description=f"Only of this {field.replace('_', ' ')}; empty: of none")


def _amount(usual: int, most: int) -> Iterator[Mapping[str, Any]]:
    limit = {"type": "integer", "minimum": 1, "maximum": most, "default": usual}
    yield parameter("limit", limit, description="Groups, or entries of a page; a file of entries takes none")


_FORMAT = parameter(
    "format", {"type": "string", "enum": [*Format], "default": Format.JSON}, description="As what"
)
