"""The display of `antiphon usage`: bars of requests over time, and a table of sums."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from antiphon.cli.admin_client import Admin
from antiphon.cli.names import OWNERS, fetch_names
from antiphon.cli.output import PIPE, CallFailed, Card, escape_unprintable, format_time

ROWS = 20
"""Default number of the table's rows."""
BAR = 40
"""Columns of the longest bar."""
DAY = 24 * 3600
BUCKETS = ("hour", "day", "week", "month")
LONGEST = (2 * DAY, 40 * DAY, 280 * DAY)
"""Longest ranges, in seconds, that are drawn by hours, by days and by weeks. A chart then has about forty
lines."""
FIGURES = {
    "requests": "REQUESTS",
    "failed": "FAILED",
    "prompt_tokens": "PROMPT",
    "cached_tokens": "CACHED",
    "output_tokens": "OUTPUT",
}
MEANS = {"mean_ttft_ms": "TTFT MS", "mean_total_ms": "TOTAL MS"}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which entries are summed, and by which dimensions; times in Unix seconds."""

    by: str
    since: int
    until: int
    conditions: Mapping[str, str] = field(default_factory=dict)

    def query(self, **more: str) -> dict[str, str]:
        """Returns the parameters of the server's query."""
        return {"since": str(self.since), "until": str(self.until), **self.conditions, **more}


def print_report(server: Admin, selection: Selection, most: int) -> None:
    """Fetches the sums and draws them; also draws a chart over time, unless they are grouped by time."""
    report = server.get("usage", **selection.query(by=selection.by, limit=str(most)))
    dimensions = [each for each in selection.by.split(",") if each]
    parts: list[RenderableType] = [f"{format_time(selection.since)} to {format_time(selection.until)} UTC"]
    parts += [] if set(dimensions) & set(BUCKETS) else [_build_chart(server, selection)]
    parts += [_build_table(report, dimensions, _fetch_names(server, dimensions)), *_list_notes(report, most)]
    width = None if sys.stdout.isatty() else PIPE
    Console(highlight=False, markup=False, width=width).print(*parts, sep="\n")


def _build_chart(server: Admin, selection: Selection) -> Table:
    """Builds a chart with a bar for each hour, day, week or month with usage."""
    length = selection.until - selection.since
    bucket = BUCKETS[sum(length > most for most in LONGEST)]
    rows = _rows(server.get("usage", **selection.query(by=bucket)))
    highest = max((_int(row["requests"]) for row in rows), default=0)
    chart = Table(bucket.upper(), "REQUESTS", "", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        count = _int(row["requests"])
        start = format_time(_int(_object(row.get("by")).get(bucket)))
        chart.add_row(start, f"{count:,}", Bar(highest, 0, count, width=BAR, color="cyan"))
    return chart


def _fetch_names(server: Admin, dimensions: Sequence[str]) -> dict[tuple[str, str], str]:
    """Returns readable names of projects, users and keys, by dimension and id. Objects that the caller may
    not list are left out."""
    return {
        (subject.value, id_): name
        for subject, kind in OWNERS.items()
        if subject.value in dimensions
        for id_, name in fetch_names(server, [kind]).items()
    }


def _build_table(report: Card, dimensions: Sequence[str], names: Mapping[tuple[str, str], str]) -> Table:
    """Builds the table of a report: one row for each group, and a last row with the sums."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for dimension in dimensions or [""]:
        table.add_column(escape_unprintable(dimension).upper())
    currency = report.get("currency")
    cost = f"COST {currency}" if isinstance(currency, str) else "COST"
    for heading in (*FIGURES.values(), cost, *MEANS.values()):
        table.add_column(heading, justify="right")
    for card in _rows(report):
        group = _object(card.get("by"))
        table.add_row(
            *(Text(_format_name(each, group.get(each), names)) for each in dimensions), *_format_figures(card)
        )
    table.add_row(
        "all", *[""] * (len(dimensions) - 1), *_format_figures(_object(report.get("total"))), style="bold"
    )
    return table


def _format_name(dimension: str, value: object, names: Mapping[tuple[str, str], str]) -> str:
    """Formats the value of a dimension: a name for an id, a time for a bucket, "-" for no value."""
    if value is None or value == "":
        return "-"
    if dimension in BUCKETS and isinstance(value, int):
        return format_time(value)
    return escape_unprintable(names.get((dimension, str(value)), str(value)))


def _format_figures(card: Card) -> list[str]:
    counts = [f"{_int(card[name]):,}" for name in FIGURES]
    means = [f"{mean:,.0f}" if isinstance(mean := card[name], int | float) else "-" for name in MEANS]
    is_unknown = card["unpriced"] == card["requests"] and card["requests"]
    return [*counts, "-" if is_unknown else escape_unprintable(str(card["cost"])), *means]


def _list_notes(report: Card, most: int) -> list[str]:
    """Returns the sentences below a report, about what its figures leave out."""
    total = _object(report.get("total"))
    notes = [] if total["requests"] else ["nothing was used in this time"]
    if report.get("more"):
        notes.append(f"these are the first {most}; --limit shows more, and all counts them too")
    if unpriced := _int(total["unpriced"]):
        notes.append(f"of {unpriced:,} requests the cost is not known, as no price held; it counts as none")
    return notes


def _rows(report: Card) -> list[Card]:
    rows = report.get("data")
    return [_object(row) for row in rows] if isinstance(rows, list) else [_object(rows)]


def _object(value: object) -> Card:
    """Returns a JSON object. Raises CallFailed for any other value."""
    if not isinstance(value, dict):
        raise CallFailed("the server does not answer like Antiphon")
    return value


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
