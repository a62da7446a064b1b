"""Measures the cost of keys, limits and the ledger: requests per second and time of one request, on and off.

python benchmarks/tenancy_cost.py [--rounds 5] [--seconds 2] [--stores sqlite,postgresql]

Several servers run at once with the scripted engine of http_path.py: one with a single key
(ANTIPHON_API_KEY), and one for each database with keys, a price, the ledger and four limits that apply to
every request: requests and tokens per minute and a monthly budget of the key, and a daily budget of its
project. They are assembled as in `antiphon serve`. Each round measures all servers, one after the other, in
alternating order. PostgreSQL is Debian's, started in a new directory. Prints each round's ratio, and the
medians of all rounds.
"""

import argparse
import asyncio
import logging
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import psutil
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon.assembly.__main__ import SWITCH_INTERVAL
from antiphon.assembly.app_state import NodeClients, build_app_state
from antiphon.assembly.tenancy import TenancyParts, build_tenancy, open_accounting
from antiphon.cli.bootstrap import bootstrap_store
from antiphon.domain.context import SystemClock
from antiphon.domain.identity import EVERY_RIGHT, Actor, ActorKind
from antiphon.domain.limits import Measure, Subject, Window
from antiphon.domain.tenancy import DEFAULT_PROJECT, KeyKind
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.http.application import create_app
from antiphon.http.server import serve
from antiphon.limits.base import Limiter
from antiphon.processes.coordinator.client import connect_coordinator
from antiphon.processes.coordinator.coordinator import open_coordinator, open_database
from antiphon.services.limits import LimitService
from antiphon.services.policy import KeyRequest, LimitRequest
from antiphon.services.prices import PriceRequest
from antiphon.settings.schema import Settings
from antiphon.settings.tenancy import KeysSettings
from antiphon.store.tenancy import SqlRules
from antiphon_testing import ScriptedAnswer, ScriptedEngine
from benchmarks.http_path import (
    CHUNKS,
    KEY,
    PACE,
    TEXT,
    TOKENS,
    Caller,
    Figure,
    build_request,
    measure,
    wait_until_started,
)

OPERATOR = Actor(ActorKind.ADMIN, "benchmark", rights=EVERY_RIGHT)
PLENTY = 10**15
"""A limit that no benchmark reaches."""

LIMITS = (
    (Subject.KEY, Measure.REQUESTS, Window.MINUTE),
    (Subject.KEY, Measure.TOKENS, Window.MINUTE),
    (Subject.KEY, Measure.COST, Window.MONTH),
    (Subject.PROJECT, Measure.COST, Window.DAY),
)
KEY_FILE = "benchmark.key"

SINGLE_REQUESTS = 300
"""The number of sequential requests for the median time of one request."""


# --- the servers --------------------------------------------------------------------------------------------


def serve_side(listener: socket.socket, store: str, home: Path) -> None:
    """Serves one side. Without a store, it has a single key."""
    logger = logging.getLogger("antiphon")
    logger.addHandler(logging.FileHandler(os.devnull))
    logger.setLevel(logging.INFO)
    sys.setswitchinterval(SWITCH_INTERVAL)
    uvloop.run(serve_with_store(listener, store, home) if store else serve_with_single_key(listener))


def build_models() -> ModelRegistry:
    """Builds the registry with the scripted model."""
    at_once, one_by_one = (
        ScriptedAnswer((TEXT,) * TOKENS, pace=None),
        ScriptedAnswer((TEXT,) * CHUNKS, pace=PACE),
    )
    engine = ScriptedEngine(lambda request: at_once if request.output.max_tokens == TOKENS else one_by_one)
    return ModelRegistry((Model("scripted", (ModelRoute(engine, "scripted"),), 0),))


async def serve_with_single_key(listener: socket.socket) -> None:
    """Serves with a single key and without limits and ledger."""
    settings = Settings()
    settings = msgspec.structs.replace(settings, server=msgspec.structs.replace(settings.server, api_key=KEY))
    edge = build_app_state(settings, build_models(), SystemClock())
    await serve(create_app(edge), edge, listener)


async def serve_with_store(listener: socket.socket, store: str, home: Path) -> None:
    """Serves with keys, limits and ledger."""
    settings_with_keys = msgspec.structs.replace(Settings(), keys=KeysSettings(enabled=True, store=store))
    settings, clock = bootstrap_store(settings_with_keys, {"ANTIPHON_HOME": str(home)}, home), SystemClock()
    path, database = str(home / "coordinator"), open_database(settings)
    assert database is not None
    open_shared = partial(open_coordinator, settings, path, clock, database)
    async with connect_coordinator(path, clock, open_shared) as coordinator:
        tenancy = build_tenancy(settings, clock, coordinator, database)
        await tenancy.changes.load()
        async with open_accounting(settings, tenancy, clock, coordinator) as accounting:
            unfinished_file = home / "begun"
            unfinished_file.write_text(await create_limited_key(tenancy, accounting.limiter))
            unfinished_file.rename(home / KEY_FILE)
            edge = build_app_state(
                settings, build_models(), clock, tenancy, accounting, NodeClients(coordinator)
            )
            await serve(create_app(edge), edge, listener)
        tenancy.close()


async def create_limited_key(tenancy: TenancyParts, limiter: Limiter) -> str:
    """Creates a key with limits that are never reached, and a price. Returns the key's secret."""
    created_key = await tenancy.tenants.add_key(OPERATOR, KeyRequest(KeyKind.SERVICE, DEFAULT_PROJECT))
    limit_service = LimitService(tenancy.changes, SqlRules(tenancy.database), limiter)
    for subject, limit_measure, window in LIMITS:
        target = created_key.key.id if subject is Subject.KEY else DEFAULT_PROJECT
        await limit_service.add(OPERATOR, LimitRequest(subject, target, limit_measure, PLENTY, window))
    await tenancy.pricing.add(OPERATOR, PriceRequest("*", "USD", input=150_000_000, output=600_000_000))
    return created_key.secret


# --- the load -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """One running server."""

    name: str
    process: psutil.Process
    port: int
    home: Path

    @property
    def key(self) -> str:
        """A key that the server accepts."""
        file = self.home / KEY_FILE
        return file.read_text() if file.exists() else KEY


@contextmanager
def run_server(name: str, store: str) -> Iterator[Side]:
    """Runs a server process."""
    with tempfile.TemporaryDirectory() as directory, socket.create_server(("127.0.0.1", 0)) as listener:
        home = Path(directory)
        url = f"sqlite:///{home / 'antiphon.db'}" if store == "sqlite" else store
        command = [
            sys.executable,
            __file__,
            "--serve",
            url,
            "--home",
            directory,
            "--fd",
            str(listener.fileno()),
        ]
        child = subprocess.Popen(command, pass_fds=[listener.fileno()])
        try:
            yield Side(name, psutil.Process(child.pid), listener.getsockname()[1], home)
        finally:
            child.terminate()
            child.wait(20)


def wait_for_key(side: Side) -> None:
    """Waits until the server has created its key."""
    deadline = time.monotonic() + 30
    while side.name != "off" and not (side.home / KEY_FILE).exists() and time.monotonic() < deadline:
        time.sleep(0.05)


class TimedCaller(Caller):
    """Measures the time of each answer."""

    def __init__(self, question: bytes, most: int = SINGLE_REQUESTS) -> None:
        super().__init__(question, stream=False)
        self.most = most
        self.times: list[float] = []
        self._asked = time.perf_counter()

    def data_received(self, data: bytes) -> None:
        before = self.count
        super().data_received(data)
        if self.count > before:
            now = time.perf_counter()
            self.times.append(now - self._asked)
            self._asked, self.stop = now, len(self.times) > self.most


async def median(side: Side) -> float:
    """Milliseconds of one request while there is no other."""
    question = build_request(False, key=side.key)
    _, caller = await asyncio.get_running_loop().create_connection(
        lambda: TimedCaller(question), "127.0.0.1", side.port
    )
    await caller.closed
    return statistics.median(caller.times[1:]) * 1000


@dataclass(frozen=True)
class Round:
    """One side's figures."""

    buffered: Figure
    streamed: Figure
    alone: float


async def measured(side: Side, seconds: float) -> Round:
    buffered = await measure(side.process, side.port, False, seconds, key=side.key)
    streamed = await measure(side.process, side.port, True, seconds, key=side.key)
    return Round(buffered, streamed, await median(side))


async def compare(sides: list[Side], rounds: int, seconds: float) -> None:
    """All sides by turns; the first round warms up."""
    found: dict[str, list[Round]] = {side.name: [] for side in sides}
    for side in sides:
        await wait_until_started(side.port, side.key)
    for number in range(rounds + 1):
        for side in sides if number % 2 else sides[::-1]:
            figures = await measured(side, seconds)
            if number:
                found[side.name].append(figures)
    print(f"{rounds} rounds of {seconds} s, {os.cpu_count()} {platform.machine()} cores,")
    print(f"Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}")
    off = found["off"]
    for name, rows in found.items():
        rate = statistics.median(each.buffered.rate for each in rows)
        cpu = statistics.median(each.buffered.cpu for each in rows)
        chunk = statistics.median(each.streamed.cpu for each in rows)
        alone = statistics.median(each.alone for each in rows)
        shown = f"{rate:8,.0f} answers/s {cpu:7.0f} us each {chunk:6.1f} us a chunk {alone:6.2f} ms alone"
        print(f"{name:<12}{shown}")
        if name != "off":
            report(rows, off)


def report(on: list[Round], off: list[Round]) -> None:
    pairs = list(zip(on, off, strict=True))
    print_ratios("answers/s, to off", [mine.buffered.rate / other.buffered.rate for mine, other in pairs])
    print_ratios("CPU of one, to off", [mine.buffered.cpu / other.buffered.cpu for mine, other in pairs])
    added = [mine.alone - other.alone for mine, other in pairs]
    print(f"  added to one request {statistics.median(added):.3f} ms")


def print_ratios(name: str, found: list[float]) -> None:
    shown = " ".join(f"{each:.3f}" for each in found)
    print(f"  {name:<20} {statistics.median(found):.3f} (of {shown})")


def main(rounds: int, seconds: float, stores: list[str]) -> None:
    with ExitStack() as stack:
        sides = [stack.enter_context(run_server("off", ""))]
        for store in stores:
            url = store
            if store == "postgresql":
                from tests.support.databases import running as cluster

                url = stack.enter_context(cluster()).database()
            sides.append(stack.enter_context(run_server(store, url)))
        for side in sides:
            wait_for_key(side)
        asyncio.run(compare(sides, rounds, seconds))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--stores", default="sqlite,postgresql")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, default=Path(), help=argparse.SUPPRESS)
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fd is not None:
        serve_side(socket.socket(fileno=options.fd), options.serve, options.home)
    else:
        main(options.rounds, options.seconds, [name for name in options.stores.split(",") if name])
