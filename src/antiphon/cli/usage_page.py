"""What `antiphon usage` draws: a line over all of the time, a table, and a line for each of its rows."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

from antiphon.cli import sparks
from antiphon.cli.admin import Admin, Card, moment
from antiphon.cli.client import CallFailed
from antiphon.cli.terminal import shown

ROWS = 20
"""Of a table, where nobody says how many."""
LINE, CELL = 60, 24
"""Columns of the line over all, and of that of a row."""
PIPE = 240
"""Columns where nobody looks: nothing is cut."""
DRAWN = 5
"""Dimensions that the server takes beside a stretch of time."""
NAMED = {"project": ("name",), "user": ("name",), "key": ("prefix", "note")}
"""Of what has an id, by what people know it."""
BUCKETS = ("hour", "day", "week", "month")
FIGURES = (
    ("requests", "REQUESTS"),
    ("failed", "FAILED"),
    ("prompt_tokens", "PROMPT"),
    ("cached_tokens", "CACHED"),
    ("output_tokens", "OUTPUT"),
)
MEANS = (("mean_ttft_ms", "TTFT MS"), ("mean_total_ms", "TOTAL MS"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for; times in Unix seconds."""

    by: str
    since: int
    until: int
    chosen: Mapping[str, str] = field(default_factory=dict)

    def query(self, **more: str) -> dict[str, str]:
        """As the server takes it."""
        return {"since": str(self.since), "until": str(self.until), **self.chosen, **more}


@dataclass(frozen=True, slots=True)
class Drawn:
    """Requests over time, for each row by what it is called."""

    stretch: str
    whole: list[int]
    rows: Mapping[tuple[str, ...], list[int]]


def show(server: Admin, wanted: Wanted, most: int) -> None:
    """Asks for the sums and for the series, and draws both."""
    report = server.asked("usage", **wanted.query(by=wanted.by, limit=str(most)))
    by = [each for each in wanted.by.split(",") if each]
    drawn, names = _drawn(server, wanted, by), _names(server, by)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE)
    console.print(Text(f"{moment(wanted.since)} to {moment(wanted.until)} UTC"))
    console.print(_over_time(drawn))
    console.print(_table(report, by, drawn, names))
    total = _totals(report.get("total"))
    for line in _notes(report, total, most):
        console.print(Text(line))


def _names(server: Admin, by: Sequence[str]) -> dict[tuple[str, str], str]:
    """What people call projects, users and keys, by the dimension and the id; of what the caller may not
    list nothing."""
    known: dict[tuple[str, str], str] = {}
    for dimension in (each for each in NAMED if each in by):
        with suppress(CallFailed):
            for card in server.listed(f"{dimension}s"):
                said = " ".join(str(card[field]) for field in NAMED[dimension] if card.get(field))
                known[dimension, str(card.get("id"))] = said
    return known


def _drawn(server: Admin, wanted: Wanted, by: Sequence[str]) -> Drawn:
    """The rows' own series only where they are not stretches of time, and where the server answers them
    whole."""
    stretch = sparks.stretch(wanted.since, wanted.until)
    at = sparks.beginnings(stretch, wanted.since, wanted.until)
    whole = server.asked("usage", **wanted.query(by=stretch))
    line = sparks.series({_int(_by(card)[stretch]): _int(card["requests"]) for card in _data(whole)}, at)
    rows: dict[tuple[str, ...], dict[int, int]] = {}
    if by and len(by) <= DRAWN and not set(by) & set(BUCKETS):
        each = server.asked("usage", **wanted.query(by=",".join([*by, stretch])))
        for card in [] if each.get("more") else _data(each):
            said = _by(card)
            called = tuple(_name(said.get(name), name) for name in by)
            rows.setdefault(called, {})[_int(said[stretch])] = _int(card["requests"])
    return Drawn(stretch, line, {name: sparks.series(said, at) for name, said in rows.items()})


def _over_time(drawn: Drawn) -> Text:
    line = sparks.folded(drawn.whole, LINE)
    text = Text("requests  ")
    text.append(sparks.spark(line), style="cyan")
    each = -(-len(drawn.whole) // max(1, len(line)))
    per = drawn.stretch if each == 1 else f"{each} {drawn.stretch}s"
    return text.append(f"  a bar for each {per}, the highest {max(line, default=0):,}")


def _table(report: Card, by: Sequence[str], drawn: Drawn, names: Mapping[tuple[str, str], str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for dimension in by or [""]:
        table.add_column(shown(dimension).upper())
    for _, heading in FIGURES:
        table.add_column(heading, justify="right")
    currency = report.get("currency")
    table.add_column(f"COST {currency}" if isinstance(currency, str) else "COST", justify="right")
    for _, heading in MEANS:
        table.add_column(heading, justify="right")
    if drawn.rows:
        table.add_column("OVER TIME")
    for card in _data(report):
        called = tuple(_name(_by(card).get(each), each) for each in by)
        line = sparks.spark(sparks.folded(drawn.rows.get(called, []), CELL))
        over_time = [Text(line, style="cyan")] if drawn.rows else []
        shown_as = [shown(names.get(known, known[1])) for known in zip(by, called, strict=True)]
        table.add_row(*map(Text, (*shown_as, *_figures(card))), *over_time)
    blanks = [Text("all"), *[Text("")] * (len(by) - 1)]
    table.add_row(*blanks, *map(Text, _figures(_totals(report.get("total")))), style="bold")
    return table


def _figures(card: Card) -> list[str]:
    counts = [f"{_int(card[name]):,}" for name, _ in FIGURES]
    means = [f"{mean:,.0f}" if isinstance(mean := card[name], int | float) else "-" for name, _ in MEANS]
    unknown = card["unpriced"] == card["requests"] and card["requests"]
    return [*counts, "-" if unknown else str(card["cost"]), *means]


def _notes(report: Card, total: Card, most: int) -> list[str]:
    notes = [] if total["requests"] else ["nothing was used in this time"]
    if report.get("more"):
        notes.append(f"these are the first {most}; --limit shows more, and all counts them too")
    if unpriced := _int(total["unpriced"]):
        notes.append(f"of {unpriced:,} requests the cost is not known, as no price held; it counts as none")
    return notes


def _name(value: object, of: str) -> str:
    if value is None or value == "":
        return "-"
    return moment(value) if of in BUCKETS and isinstance(value, int) else shown(str(value))


def _data(report: Card) -> list[Card]:
    rows = report.get("data")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise CallFailed("the server does not answer like Antiphon")
    return rows


def _by(card: Card) -> Card:
    return _totals(card.get("by"))


def _totals(value: object) -> Card:
    if not isinstance(value, dict):
        raise CallFailed("the server does not answer like Antiphon")
    return value


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
