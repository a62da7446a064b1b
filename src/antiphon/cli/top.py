"""`antiphon top`: what a running server does now, from its /metrics page, again and again or once.

Rates and percentiles are of the last few seconds. The server computes none of them, and is asked for nothing
else.
"""

import sys
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from antiphon.cli.admin import find_server
from antiphon.cli.client import Client
from antiphon.cli.engine_rates import Latency, ModelRates, Reading, rates, read
from antiphon.cli.errors import FORBIDDEN, UNAUTHORIZED, CallFailed, report_errors
from antiphon.cli.output import PIPE, escape_unprintable, print_json

WINDOW = 5.0
"""Seconds that rates and percentiles are of, at least: shorter ones jump, longer ones lag."""

PATIENCE = 5.0
"""Seconds to wait for a page: a server makes one within two."""

NOT_FOUND = 404
FOR_GOOD = frozenset({UNAUTHORIZED, FORBIDDEN, NOT_FOUND})
"""Statuses that asking again does not mend."""

DIGEST = 16
"""Characters of an adapter's digest: enough to tell it from others."""
NAME = 14
"""Columns of a model's name, so that a table fits into eighty."""
BAR = 20
"""Columns of the bar of cells."""
LONG = 10.0
"""Seconds from which a latency is written in seconds."""


def run(url: str | None, interval: float, once: bool, as_json: bool) -> None:
    """Shows until Ctrl-C, or once."""
    with report_errors(), suppress(KeyboardInterrupt):
        top = Top(Client(*find_server(url), patience=PATIENCE), interval)
        top.look()
        if as_json or once:
            time.sleep(interval)
            top.look()
            if as_json:
                print_json(top.as_object())
            else:
                width = None if sys.stdout.isatty() else PIPE
                Console(highlight=False, width=width).print(top.page())
        elif not sys.stdout.isatty():
            raise CallFailed("standard output is no terminal; --once prints what is now, --json for programs")
        else:
            top.watch()


class Top:
    """What was read so far of one server."""

    def __init__(self, client: Client, interval: float) -> None:
        self._client = client
        self._interval = interval
        self._readings: deque[Reading] = deque()
        self._problem = ""

    def look(self) -> None:
        """Reads the page once more. Raises CallFailed."""
        try:
            reading = read(self._client.text("/metrics"), time.monotonic())
        except CallFailed as problem:
            if problem.status != NOT_FOUND:
                raise
            said = "the server has no /metrics page: it is another one, or older than this command"
            raise CallFailed(said, status=NOT_FOUND) from None
        except ValueError:
            raise self._build_failure() from None
        if not reading.labels("antiphon_build_info", "version"):
            raise self._build_failure()
        self._readings.append(reading)
        while len(self._readings) > 2 and self._readings[1].when <= reading.when - WINDOW:
            self._readings.popleft()

    def _build_failure(self) -> CallFailed:
        return CallFailed(f"{self._client.url} does not answer like Antiphon")

    def watch(self) -> None:
        """Draws until interrupted. A server that goes away is waited for."""
        with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
            while True:
                live.update(self.page(), refresh=True)
                time.sleep(self._interval)
                self._look_again()

    def _look_again(self) -> None:
        try:
            self.look()
            self._problem = ""
        except CallFailed as problem:
            if problem.status in FOR_GOOD:
                raise
            self._problem = problem.message

    def models(self) -> tuple[ModelRates, ...]:
        return rates(self._readings[0], self._readings[-1])

    def page(self) -> RenderableType:
        """What is drawn."""
        head = Text(
            f"antiphon top  {escape_unprintable(self._client.url)}  {escape_unprintable(self._release())}"
        )
        away = (
            f"{escape_unprintable(self._problem)}\nwaiting for it; what was last seen:"
            if self._problem
            else ""
        )
        return Group(head, Text(away), *tables(self.models()))

    def as_object(self) -> dict[str, object]:
        """Times in seconds, rates per second."""
        models = [asdict(model) for model in self.models()]
        return {"url": self._client.url, "release": self._release(), "models": models}

    def _release(self) -> str:
        return self._readings[-1].labels("antiphon_build_info", "version")[0]


def tables(models: Iterable[ModelRates]) -> list[RenderableType]:
    """Load and latencies of each model, its cells, and its adapters."""
    loads = _table("model", "wait", "run", "prompt\ntok/s", "cached\ntok/s", "made\ntok/s")
    for heading in ("first token\np50/p95 ms", "per token\np50/p95 ms"):
        loads.add_column(heading, justify="right", no_wrap=True)
    cells = _table("model", "cells", "used", "kept", "prefix hits", "preempted", "refused")
    cells.add_column("")
    adapters = _table("model", "wait", "run", "made\ntok/s")
    adapters.add_column("adapter")
    for model in models:
        name = Text(escape_unprintable(model.model))
        if not model.up:
            loads.add_row(name, Text("down"))
            continue
        figures = (_rate(rate) for rate in (model.computed, model.cached, model.made))
        times = (_latency(latency) for latency in (model.first_token, model.inter_token))
        loads.add_row(name, str(model.queued), str(model.running), *figures, *times)
        if model.cells:
            shares = (f"{part / model.cells:.0%}" for part in (model.cells_used, model.cells_cached))
            hits = "-" if model.prefix_hits is None else f"{model.prefix_hits:.0%}"
            counts = (f"{model.preempted:,}", f"{model.refused:,}")
            bar = Bar(model.cells, 0, model.cells_used, width=BAR)
            cells.add_row(name, f"{model.cells:,}", *shares, hits, *counts, bar)
        for each in model.adapters:
            figure = (str(each.queued), str(each.running), _rate(each.made))
            adapters.add_row(name, *figure, Text(escape_unprintable(each.adapter[:DIGEST])))
    return [loads, *(each for table in (cells, adapters) if table.rows for each in (Text(), table))]


def _table(first: str, *figures: str) -> Table:
    """Names to the left, figures to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True, max_width=NAME)
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _latency(value: Latency | None) -> str:
    return "-" if value is None else f"{_milliseconds(value.p50)}/{_milliseconds(value.p95)}"


def _milliseconds(seconds: float) -> str:
    if seconds >= LONG:
        return f"{seconds:.0f}s"
    return f"{seconds * 1000:.0f}" if seconds >= 0.01 else f"{seconds * 1000:.1f}"
