"""`antiphon top`: what a running server does now, from its /metrics page, again and again or once.

Rates and percentiles are of the last few seconds. The server computes none of them, and is asked for nothing
else.
"""

import json
import sys
import time
from collections import deque
from dataclasses import asdict

from rich.console import Console
from rich.live import Live
from rich.text import Text

from antiphon.cli import top_page
from antiphon.cli.client import CallFailed, Client
from antiphon.cli.rates import ModelRates, rates
from antiphon.cli.scrape import Reading, read
from antiphon.cli.terminal import shown
from antiphon.cli.where import KEY_VARIABLE, where
from antiphon.errors import SettingsError

WINDOW = 5.0
"""Seconds that rates and percentiles are of, at least: shorter ones jump, longer ones lag."""

PATIENCE = 5.0
"""Seconds to wait for a page: a server makes one within two."""

UNAUTHORIZED, NOT_FOUND = 401, 404
FOR_GOOD = frozenset({UNAUTHORIZED, 403, NOT_FOUND})
"""Statuses that asking again does not mend."""


def run(url: str | None, interval: float, once: bool, as_json: bool) -> int:
    """Shows until Ctrl-C, or once; 1 when the server cannot be asked."""
    try:
        top = Top(Client(*where(url), patience=PATIENCE), interval)
        top.look()
        if as_json or once:
            time.sleep(interval)
            top.look()
            print(top.as_object() if as_json else "\n".join(top.page()))
        elif not sys.stdout.isatty():
            raise CallFailed("standard output is no terminal; --once prints what is now, --json for programs")
        else:
            top.watch()
    except (CallFailed, SettingsError) as problem:
        print(f"antiphon: {shown(_advised(problem))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def _advised(problem: CallFailed | SettingsError) -> str:
    status = problem.status if isinstance(problem, CallFailed) else 0
    if status == UNAUTHORIZED:
        return f"{problem.message} Set {KEY_VARIABLE} to the server's key."
    if status == NOT_FOUND:
        return "the server has no /metrics page: it is another one, or older than this command"
    return problem.message


class Top:
    """What was read so far of one server."""

    def __init__(self, client: Client, interval: float) -> None:
        self._client = client
        self._interval = interval
        self._readings: deque[Reading] = deque()
        self._problem = ""

    def look(self) -> None:
        """Reads the page once more. Raises CallFailed."""
        reading = read(self._client.metrics(), time.monotonic())
        if not reading.labels("antiphon_build_info", "version"):
            raise CallFailed(f"{self._client.url} does not answer like Antiphon")
        self._readings.append(reading)
        while len(self._readings) > 2 and self._readings[1].when <= reading.when - WINDOW:
            self._readings.popleft()

    def watch(self) -> None:
        """Draws until interrupted. A server that goes away is waited for."""
        console = Console(highlight=False)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                room = console.height - 1
                live.update(Text("\n".join(top_page.cut(self.page(), room)), no_wrap=True), refresh=True)
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

    def page(self) -> list[str]:
        """What is drawn."""
        head = f"antiphon top  {shown(self._client.url)}  {shown(self._release())}"
        if self._problem:
            away = [shown(self._problem), "waiting for it; what was last seen:"]
            return [head, *away, *top_page.lines(self.models())]
        return [head, "", *top_page.lines(self.models())]

    def as_object(self) -> str:
        """One JSON object; times in seconds, rates per second."""
        seen = {"url": self._client.url, "release": self._release()}
        return json.dumps(seen | {"models": [asdict(model) for model in self.models()]}, indent=2)

    def _release(self) -> str:
        return self._readings[-1].labels("antiphon_build_info", "version")[0]
