"""`antiphon bench`: measures a server from outside and shows a table and a plot, or JSON."""

import json
import sys
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from antiphon.cli.choosing import first
from antiphon.cli.client import CallFailed, Client
from antiphon.cli.figures import Figures, Spread, figures, gaps, histogram, waits
from antiphon.cli.load import Plan, Timed, generate_load
from antiphon.cli.where import where
from antiphon.errors import SettingsError

INTERRUPTED = 130

PERCENTILES = ("median", "p95", "p99", "maximum")

TABLE = 72
"""Columns that the table needs; a narrower terminal gets its figures one below the other."""

SHOWN_PROBLEMS = 3
"""Reasons why requests failed."""


def run(url: str | None, model: str | None, plan: Plan, as_json: bool) -> int:
    """Measures and prints; 1 when the server cannot be measured or a request failed."""
    try:
        client = Client(*where(url))
        asked = model or first(client)
        progress = Progress(plan.requests)
        results = generate_load(client, asked, plan, progress.tell)
    except (CallFailed, SettingsError) as problem:
        print(f"antiphon: {problem.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    found = figures(results)
    print(as_object(client.url, asked, plan, found)) if as_json else show(client.url, asked, plan, results)
    return 1 if found.failed else 0


class Progress:
    """A line on a terminal's standard error that says how far it is."""

    def __init__(self, requests: int) -> None:
        self._requests = requests
        self._done = 0
        self._shown = sys.stderr.isatty()

    def tell(self, _: Timed) -> None:
        """One more is done."""
        self._done += 1
        if self._shown:
            end = "\r\x1b[K" if self._done == self._requests else ""
            print(f"\r{self._done} of {self._requests} requests{end}", end="", file=sys.stderr, flush=True)


def as_object(url: str, model: str, plan: Plan, found: Figures) -> str:
    """One JSON object: conditions first, then figures; times in seconds."""
    measured = asdict(found)
    shown = {
        "url": url,
        "model": model,
        "plan": asdict(plan),
        "tokens_per_second": found.tokens_per_second,
        "requests_per_second": found.requests_per_second,
        **measured,
    }
    return json.dumps(shown, indent=2)


def show(url: str, model: str, plan: Plan, results: list[Timed]) -> None:
    """The table, the plots, and why requests failed."""
    console = Console(highlight=False)
    found = figures(results)
    prompt = "of unknown length" if found.prompt_tokens is None else f"of {found.prompt_tokens:.0f} tokens"
    console.print(
        f"\n{model} at {url}: {plan.requests} requests, {plan.concurrency} at once, prompts {prompt}, "
        f"answers of at most {plan.max_tokens}\n",
        markup=False,
    )
    if found.answered:
        if console.width < TABLE:
            console.print("\n".join(lines(found)), markup=False)
        else:
            console.print(table(found))
    good = [result for result in results if not result.problem]
    for title, values in (("time to first token", waits(good)), ("between tokens", gaps(good))):
        if values:
            console.print("\n".join(["", title, *histogram(values, console.width)]), markup=False)
    if found.answered and not found.counted:
        console.print("\nThe server does not count tokens: pieces of text were counted.")
    for problem, count in list(found.problems.items())[:SHOWN_PROBLEMS]:
        console.print(f"{count} failed: {problem}", markup=False)
    if len(found.problems) > SHOWN_PROBLEMS:
        console.print(f"and {len(found.problems) - SHOWN_PROBLEMS} other reasons; --json shows them all")


def table(found: Figures) -> Table:
    """Rates, then latencies with their percentiles."""
    rows = Table(show_header=True, header_style="bold")
    for heading in ("", *PERCENTILES):
        rows.add_column(heading, justify="right" if heading else "left")
    for name, figure in _rates(found):
        rows.add_row(name, figure, "", "", "")
    for name, spread in _latencies(found):
        rows.add_row(name, *_milliseconds(spread))
    return rows


def lines(found: Figures) -> list[str]:
    """The same for narrow terminals, a figure to a line."""
    listed = [f"{name}: {figure}" for name, figure in _rates(found)]
    for name, spread in _latencies(found):
        figures_of = zip(PERCENTILES, _milliseconds(spread), strict=True)
        listed += [name, *(f"  {heading:8}{figure:>9}" for heading, figure in figures_of)]
    return listed


def _rates(found: Figures) -> list[tuple[str, str]]:
    return [
        ("tokens/s, all together", f"{found.tokens_per_second:.1f}"),
        ("requests/s", f"{found.requests_per_second:.2f}"),
    ]


def _latencies(found: Figures) -> list[tuple[str, Spread | None]]:
    return [("time to first token, ms", found.ttft), ("between tokens, ms", found.inter_token)]


def _milliseconds(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["-"] * 4
    return [f"{value * 1000:.1f}" for value in (spread.median, spread.p95, spread.p99, spread.maximum)]
