"""`antiphon usage`: the usage of a running server, as a table with a chart over time, or written to a file.

Options without effect are reported by name before a request is sent.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli import console
from antiphon.cli.admin_client import Admin, connect_admin
from antiphon.cli.names import KEY, OWNERS, PRICE, PROJECT, USER, fetch_names, find_id, find_used_id
from antiphon.cli.output import PIPE_WIDTH, CallFailed, JsonObject, escape_unprintable, format_time
from antiphon.cli.times import now, parse_past
from antiphon.domain.ledger import TAG, Bucket, EntryField, parse_dimension
from antiphon.domain.values import Struct, field
from antiphon.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

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
WIDE_COUNTS = ("cached_tokens",)
"""Counts that only --wide shows, as the means."""
MEAN_HEADINGS = {"mean_ttft_ms": "TTFT MS", "mean_total_ms": "TOTAL MS"}

FORMATS = ("table", "csv", "json")
JSON_LINES = "jsonl"
"""The server's name of JSON Lines."""

OBJECT_KINDS = {EntryField.USER.value: USER, EntryField.KEY.value: KEY, EntryField.PRICE.value: PRICE}
"""The kinds of objects in conditions, by the condition's name."""


class Selection(Struct, frozen=True):
    """The selected entries and the dimensions to group them by. Times are in Unix seconds."""

    by: str
    since: int
    until: int
    conditions: Mapping[str, str] = field(default_factory=dict)

    def build_query(self, **parameters: str) -> dict[str, str]:
        """Returns the query parameters for the server."""
        return {"since": str(self.since), "until": str(self.until), **self.conditions, **parameters}


def print_report(server: Admin, selection: Selection, limit: int, wide: bool = False) -> None:
    """Fetches the sums and prints them, with a chart over time unless they are grouped by time."""
    from rich.console import Console

    report = server.get("usage", **selection.build_query(by=selection.by, limit=str(limit)))
    dimensions = [dimension for dimension in selection.by.split(",") if dimension]
    parts: list[RenderableType] = [f"{format_time(selection.since)} to {format_time(selection.until)} UTC"]
    parts += [] if set(dimensions) & set(BUCKETS) else [_build_chart(server, selection)]
    names: dict[tuple[str, str], str] = {
        (subject.value, id_): name
        for subject, kind in OWNERS.items()
        if subject.value in dimensions
        for id_, name in fetch_names(server, [kind]).items()
    }
    parts += [_build_table(report, dimensions, names, wide), *_list_notes(report, limit)]
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    Console(highlight=False, markup=False, width=width).print(*parts, sep="\n")


def _build_chart(server: Admin, selection: Selection) -> "Table":
    """Builds a chart with one bar for each hour, day, week or month with usage."""
    from rich.bar import Bar
    from rich.table import Table

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


def _build_table(
    report: JsonObject, dimensions: Sequence[str], names: Mapping[tuple[str, str], str], wide: bool
) -> "Table":
    """Builds the table of a report: one row for each group, and a last row of sums."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for dimension in dimensions or [""]:
        table.add_column(escape_unprintable(dimension).upper(), overflow="fold")
    currency = report.get("currency")
    cost = f"COST {currency}" if isinstance(currency, str) else "COST"
    counts = [name for name in COUNT_HEADINGS if wide or name not in WIDE_COUNTS]
    means = list(MEAN_HEADINGS) if wide else []
    headings = [*(COUNT_HEADINGS[name] for name in counts), cost, *(MEAN_HEADINGS[name] for name in means)]
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in _get_rows(report):
        group = _require_object(row.get("by"))
        table.add_row(
            *(Text(_format_name(dimension, group.get(dimension), names)) for dimension in dimensions),
            *_format_figures(row, counts, means),
        )
    table.add_row(
        "all",
        *[""] * (len(dimensions) - 1),
        *_format_figures(_require_object(report.get("total")), counts, means),
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


def _format_figures(row: JsonObject, counts: Sequence[str], means: Sequence[str]) -> list[str]:
    count_cells = [f"{_to_int(row[name]):,}" for name in counts]
    mean_cells = [f"{mean:,.0f}" if isinstance(mean := row[name], int | float) else "-" for name in means]
    is_unknown = row["unpriced"] == row["requests"] and row["requests"]
    return [*count_cells, "-" if is_unknown else escape_unprintable(str(row["cost"])), *mean_cells]


def _list_notes(report: JsonObject, limit: int) -> list[str]:
    """Returns sentences about what the table omits: further rows, and unknown costs."""
    total = _require_object(report.get("total"))
    notes = [] if total["requests"] else ["no request used tokens in this time"]
    if report.get("more"):
        notes.append(f"these are the first {limit} rows; --limit shows more, and the sum includes all rows")
    if unpriced := _to_int(total["unpriced"]):
        notes.append(f"{unpriced:,} requests had no price, and their cost counts as zero")
    return notes


def _get_rows(report: JsonObject) -> list[JsonObject]:
    rows = report.get("data")
    return [_require_object(row) for row in rows] if isinstance(rows, list) else [_require_object(rows)]


def _require_object(value: object) -> JsonObject:
    """Returns a JSON object. Raises CallFailed for any other value."""
    if not isinstance(value, dict):
        raise CallFailed("the server does not answer like Antiphon")
    return value


def _to_int(value: object) -> int:
    return value if isinstance(value, int) else 0


def usage(
    by: Annotated[
        str | None,
        typer.Option(
            help="Group by, with commas: model, project, user, key, status, day, tag:NAME, ... [model]"
        ),
    ] = None,
    since: Annotated[str, typer.Option(help="The start: 90d or 12h ago, or a date in UTC.")] = "7d",
    until: Annotated[str | None, typer.Option(help="The end, in the same form. [now]")] = None,
    project: Annotated[str | None, typer.Option(help="Only usage of this project: name or id.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Only usage with this value: model=m, tag:team=a; repeatable."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            max=10_000,
            help="Most rows of sums, the largest first. [20 in the table, all in csv and json]",
        ),
    ] = None,
    entries: Annotated[
        bool, typer.Option("--entries", help="Print every generation as csv or as JSON Lines.")
    ] = False,
    requested_format: Annotated[
        str | None, typer.Option("--format", help="table, csv or json. [table]")
    ] = None,
    wide: console.Wide = False,
    url: console.ServerUrl = None,
) -> None:
    """Show usage and cost, in total and over time."""
    with connect_admin(url) as server:
        if entries and by is not None:
            raise SettingsError(
                f"--by {by} is for sums, but --entries prints every generation: leave one out"
            )
        if entries and limit is not None:
            raise SettingsError(
                f"--limit {limit} is for sums, but --entries prints every generation: select fewer by "
                "--since, --until and --only"
            )
        output_format = _parse_format(requested_format, entries)
        conditions, times = _parse_conditions(project, only or []), _parse_time_range(since, until)
        selection = Selection("model" if by is None else by, *times, _find_ids(server, conditions))
        if output_format == "table":
            print_report(server, selection, limit or DEFAULT_ROWS, wide)
        elif entries:
            _write_parts(server.stream("usage", "entries", **selection.build_query(format=output_format)))
        else:
            limit_query = {} if limit is None else {"limit": str(limit)}
            _write_parts(
                server.stream(
                    "usage", **selection.build_query(format=output_format, by=selection.by, **limit_query)
                )
            )
            print(end="\n" if output_format == "json" else "")


def _find_ids(server: Admin, conditions: Mapping[str, str]) -> dict[str, str]:
    """Replaces names of projects, users, keys and prices by ids. An empty value stays empty: it selects the
    usage without such an object."""
    ids = dict(conditions)
    if project := ids.get(EntryField.PROJECT):
        ids[EntryField.PROJECT] = find_id(server, PROJECT, project)
    for name, kind in OBJECT_KINDS.items():
        if value := ids.get(name):
            ids[name] = find_used_id(server, kind, value)
    return ids


def _write_parts(parts: Iterable[bytes]) -> None:
    """Writes the parts to standard output as they arrive."""
    for part in parts:
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()


def _parse_format(requested_format: str | None, entries: bool) -> str:
    """Returns the format to request from the server, or `table`. Raises SettingsError."""
    if entries and requested_format is None:
        raise SettingsError("--entries needs --format csv or --format json")
    if entries and requested_format == "table":
        raise SettingsError("--format table shows sums, not --entries: use --format csv or --format json")
    if requested_format is not None and requested_format not in FORMATS:
        raise SettingsError(f"--format {requested_format}: it must be {' or '.join(FORMATS[entries:])}")
    return JSON_LINES if entries and requested_format == "json" else requested_format or "table"


def _parse_time_range(since: str, until: str | None) -> tuple[int, int]:
    """Returns the start and the end in Unix seconds. Raises SettingsError."""
    start = _parse_second("--since", since)
    end = now() + 1 if until is None else _parse_second("--until", until)
    if start >= end:
        bound = "now" if until is None else f"--until {until}"
        raise SettingsError(f"--since {since} must be before {bound}")
    return start, end


def _parse_second(option: str, text: str) -> int:
    """Parses an option's time to Unix seconds. Raises SettingsError with the option's name."""
    try:
        return parse_past(text)
    except SettingsError as problem:
        raise SettingsError(f"{option}: {problem.message}") from None


def _parse_conditions(project: str | None, only: Sequence[str]) -> dict[str, str]:
    """Parses the values of --project and --only. Returns the required values by the field's name. Raises
    SettingsError."""
    conditions = {} if project is None else {EntryField.PROJECT.value: project}
    for text in only:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"--only {text}: it takes NAME=VALUE")
        if name in conditions:
            earlier_option = "--project" if project is not None and name == EntryField.PROJECT else "--only"
            raise SettingsError(f"--only {text}: {earlier_option} sets {name} already")
        dimension = parse_dimension(name)
        if isinstance(dimension, Bucket):
            raise SettingsError(f"--only {text}: use --since and --until to select a time")
        if dimension is None:
            known_names = ", ".join([*EntryField, f"{TAG}NAME"])
            raise SettingsError(
                f"--only {text}: there is no field {name or 'without a name'}; fields: {known_names}"
            )
        conditions[name] = value
    return conditions
