"""The handlers of /admin/v1/usage: sums over the ledger, and its entries; as JSON, or as files that are
streamed however long they are.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from antiphon.auth.reading import Reading
from antiphon.dialects.strict_json import shown_key
from antiphon.domain.context import Clock
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
from antiphon.http.admin.pages import ROOT, Handler, actor_of, answer, limit_of, query_of
from antiphon.http.admin.shapes_usage import (
    EntryCard,
    EntryPage,
    TotalsCard,
    UsageReport,
    entry_card,
    group_card,
    totals_card,
)

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

TIME = ("since", "until")
FILTERS = tuple(Field)

ENTRY, TOTALS = columns_of(EntryCard), columns_of(TotalsCard)
"""The columns of files."""

Read = Callable[[int, Place | None], Sequence[Entry]]


class UsageRoutes:
    """The handlers over the ledger of one server."""

    def __init__(self, reading: Reading, clock: Clock) -> None:
        self._reading = reading
        self._clock = clock

    def table(self) -> Iterator[tuple[str, str, Handler]]:
        """Method, path and handler of each."""
        yield "GET", f"{ROOT}/usage", self.report
        yield "GET", f"{ROOT}/usage/entries", self.entries

    async def report(self, request: Request) -> Response:
        """Sums, by whatever tells entries apart."""
        query = query_of(request, *TIME, "by", "limit", "format", *FILTERS, also=is_tag)
        chosen, by, shape = self._selection(query), dimensions(query.get("by", "")), shape_of(query)
        most = limit_of(query, MOST_GROUPS, MOST_GROUPS)
        report = await self._reading.report(actor_of(request), chosen, by, most)
        if shape is Format.JSON:
            return await self._reading.threaded(partial(self._answer, report, chosen, by))
        if report.more and "limit" not in query:
            raise InvalidValue(
                f"these are more than {MOST_GROUPS} groups: name a shorter time or fewer dimensions, or say "
                "with limit how many of the first are enough",
                param="by",
            )
        names = (*map(str, by), *TOTALS)
        cards = [group_card(each, by) for each in report.groups] if by else [totals_card(report.total)]
        body = (header(names) if shape is Format.CSV else b"") + encoded(cards, names, shape)
        return Response(body, headers=_file("usage", chosen, shape))

    async def entries(self, request: Request) -> Response:
        """Single generations, the earliest first."""
        query = query_of(request, *TIME, "limit", "after", "format", *FILTERS, also=is_tag)
        chosen, after, shape = self._selection(query), place(query.get("after")), shape_of(query)
        read = self._reading.entries(actor_of(request), chosen)
        if shape is Format.JSON:
            limit = limit_of(query)
            return await self._reading.threaded(partial(_page, read, limit, after))
        if "limit" in query:
            raise InvalidValue("limit is for pages of JSON; a file has all entries", param="limit")
        first, after = await self._reading.threaded(partial(_chunk, read, shape, after))
        body = self._streamed(read, shape, first, after)
        return StreamingResponse(body, headers=_file("entries", chosen, shape))

    async def _streamed(
        self, read: Read, shape: Format, first: bytes, after: Place | None
    ) -> AsyncIterator[bytes]:
        """Chunk by chunk, each read when the one before has gone: memory does not grow with the file. What
        fails in between breaks the response off, so that no part looks whole."""
        yield (header(ENTRY) if shape is Format.CSV else b"") + first
        while after is not None:
            chunk, after = await self._reading.threaded(partial(_chunk, read, shape, after))
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
            raise InvalidValue(f"there is no dimension {shown_key(name)}; known: {known}", param="by")
        if each in found:
            raise InvalidValue(f"by names {shown_key(name)} twice", param="by")
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
                raise InvalidValue(f"{shown_key(name)} is longer than {LONGEST}", param=shown_key(name))
            yield Condition(each, value or None)


def _second(query: Mapping[str, str], name: str, otherwise: int) -> int:
    said = query.get(name, str(otherwise))
    if not (said.isascii() and said.isdigit() and len(said) <= len(str(LATEST)) and int(said) <= LATEST):
        raise InvalidValue(f"{name} must be a time in Unix seconds", param=name)
    return int(said)


def _file(name: str, chosen: Selection, shape: Format) -> dict[str, str]:
    """The headers of a file."""
    called = f"{name}-{chosen.since // 1000}-{chosen.until // 1000}.{shape}"
    return {
        "content-type": MEDIA[shape],
        "content-disposition": f'attachment; filename="{called}"',
        "cache-control": "no-store",
    }
