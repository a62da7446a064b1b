"""The display of `antiphon usage`: a chart of requests over time, and a table of sums."""

import sys
from collections.abc import Mapping, Sequence

from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from antiphon.cli.admin_client import Admin
from antiphon.cli.names import OWNERS, fetch_names
from antiphon.cli.output import PIPE_WIDTH, CallFailed, Card, escape_unprintable, format_time
from antiphon.domain.values import Struct, field

DEFAULT_ROWS = 20
"""Default number of the table's rows."""
BAR_WIDTH = 40
"""Columns of the longest bar."""
DAY = 24 * 3600
BUCKETS = ("hour", "day", "week", "month")
LONGEST_RANGES = (2 * DAY, 40 * DAY, 280 * DAY)
"""The longest ranges in seconds whose bars cover an hour, a day and a week. A bar covers a month in longer
ranges. So a chart has about forty lines."""
COUNT_HEADINGS = {
    "requests": "REQUESTS",
    "failed": "FAILED",
    "prompt_tokens": "PROMPT",
    "cached_tokens": "CACHED",
    "output_tokens": "OUTPUT",
}
MEAN_HEADINGS = {"mean_ttft_ms": "TTFT MS", "mean_total_ms": "TOTAL MS"}


class Selection(Struct, frozen=True):
    """The selected entries and the dimensions to group them by. Times are in Unix seconds."""

    by: str
    since: int
    until: int
    conditions: Mapping[str, str] = field(default_factory=dict)

    def build_query(self, **parameters: str) -> dict[str, str]:
        """Returns the query parameters for the server."""
        return {"since": str(self.since), "until": str(self.until), **self.conditions, **parameters}


def print_report(server: Admin, selection: Selection, limit: int) -> None:
    """Fetches the sums and prints them, with a chart over time unless they are grouped by time."""
    report = server.get("usage", **selection.build_query(by=selection.by, limit=str(limit)))
    dimensions = [dimension for dimension in selection.by.split(",") if dimension]
    parts: list[RenderableType] = [f"{format_time(selection.since)} to {format_time(selection.until)} UTC"]
    parts += [] if set(dimensions) & set(BUCKETS) else [_build_chart(server, selection)]
    parts += [_build_table(report, dimensions, _fetch_names(server, dimensions)), *_list_notes(report, limit)]
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    Console(highlight=False, markup=False, width=width).print(*parts, sep="\n")


def _build_chart(server: Admin, selection: Selection) -> Table:
    """Builds a chart with one bar for each hour, day, week or month with usage."""
    length = selection.until - selection.since
    bucket = BUCKETS[sum(length > longest_range for longest_range in LONGEST_RANGES)]
    rows = _get_rows(server.get("usage", **selection.build_query(by=bucket)))
    highest_count = max((_to_int(row["requests"]) for row in rows), default=0)
    chart = Table(bucket.upper(), "REQUESTS", "", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        count = _to_int(row["requests"])
        start = format_time(_to_int(_require_object(row.get("by")).get(bucket)))
        chart.add_row(start, f"{count:,}", Bar(highest_count, 0, count, width=BAR_WIDTH, color="cyan"))
    return chart


def _fetch_names(server: Admin, dimensions: Sequence[str]) -> dict[tuple[str, str], str]:
    """Returns names of projects, users and keys, by dimension and id.

    Omits objects that the caller may not list.
    """
    return {
        (subject.value, id_): name
        for subject, kind in OWNERS.items()
        if subject.value in dimensions
        for id_, name in fetch_names(server, [kind]).items()
    }


def _build_table(report: Card, dimensions: Sequence[str], names: Mapping[tuple[str, str], str]) -> Table:
    """Builds the table of a report: one row for each group, and a last row of sums."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for dimension in dimensions or [""]:
        table.add_column(escape_unprintable(dimension).upper())
    currency = report.get("currency")
    cost = f"COST {currency}" if isinstance(currency, str) else "COST"
    for heading in (*COUNT_HEADINGS.values(), cost, *MEAN_HEADINGS.values()):
        table.add_column(heading, justify="right")
    for card in _get_rows(report):
        group = _require_object(card.get("by"))
        table.add_row(
            *(Text(_format_name(dimension, group.get(dimension), names)) for dimension in dimensions),
            *_format_figures(card),
        )
    table.add_row(
        "all",
        *[""] * (len(dimensions) - 1),
        *_format_figures(_require_object(report.get("total"))),
        style="bold",
    )
    return table


def _format_name(dimension: str, value: object, names: Mapping[tuple[str, str], str]) -> str:
    """Formats the value of a dimension: a name, a time, or "-" without a value."""
    if value is None or value == "":
        return "-"
    if dimension in BUCKETS and isinstance(value, int):
        return format_time(value)
    return escape_unprintable(names.get((dimension, str(value)), str(value)))


def _format_figures(card: Card) -> list[str]:
    counts = [f"{_to_int(card[name]):,}" for name in COUNT_HEADINGS]
    means = [f"{mean:,.0f}" if isinstance(mean := card[name], int | float) else "-" for name in MEAN_HEADINGS]
    is_unknown = card["unpriced"] == card["requests"] and card["requests"]
    return [*counts, "-" if is_unknown else escape_unprintable(str(card["cost"])), *means]


def _list_notes(report: Card, limit: int) -> list[str]:
    """Returns sentences about what the table omits: further rows, and unknown costs."""
    total = _require_object(report.get("total"))
    notes = [] if total["requests"] else ["no request used tokens in this time"]
    if report.get("more"):
        notes.append(f"these are the first {limit} rows; --limit shows more, and the sum includes all rows")
    if unpriced := _to_int(total["unpriced"]):
        notes.append(f"{unpriced:,} requests had no price, and their cost counts as zero")
    return notes


def _get_rows(report: Card) -> list[Card]:
    rows = report.get("data")
    return [_require_object(row) for row in rows] if isinstance(rows, list) else [_require_object(rows)]


def _require_object(value: object) -> Card:
    """Returns a JSON object. Raises CallFailed for any other value."""
    if not isinstance(value, dict):
        raise CallFailed("the server does not answer like Antiphon")
    return value


def _to_int(value: object) -> int:
    return value if isinstance(value, int) else 0
