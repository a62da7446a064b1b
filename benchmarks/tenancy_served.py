"""Measures the cost of keys, limits and the ledger in a complete server: requests per second, on and off.

python benchmarks/tenancy_served.py [--rounds 9] [--seconds 2] [--stores sqlite,postgresql] [--workers 1]

It runs `antiphon serve` with the bundled model in several set-ups: one with a single key (ANTIPHON_API_KEY),
and one for each database with keys, a price, the ledger and four limits that apply to every request: requests
and tokens per minute and a monthly budget of the key, and a daily budget of its project. Each round sends
requests for 16 tokens over 16 connections to all servers, one server after the other, in alternating order.
PostgreSQL is Debian's, started in a new directory. Prints each round's ratio, and the medians of all rounds.
See tenancy_cost.py for the HTTP process alone.
"""

import argparse
import asyncio
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.http_path import KEY, build_request, measure
from benchmarks.tenancy_cost import TimedCaller, print_ratios
from tests.support.server import Server, serving

MODEL = "cantor"
PLENTY = 10**15
SINGLE_REQUESTS = 50
"""The number of sequential requests for the median time of one request."""
LIMITS = (
    {"measure": "requests", "window": "minute"},
    {"measure": "tokens", "window": "minute"},
    {"measure": "cost", "window": "month"},
)


@dataclass(frozen=True)
class Side:
    """One running server, and a key that it accepts."""

    name: str
    server: Server
    key: str

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2])


@contextmanager
def run_server(name: str, store: str, workers: int) -> Iterator[Side]:
    """Runs a server. With a store, it creates a key with limits and a price."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        variables = {"ANTIPHON_KEYS": "true", "ANTIPHON_STORE": store} if store else {"ANTIPHON_API_KEY": KEY}
        options = ("--log-level", "warning", "--workers", str(workers))
        with serving(
            *options, threads=None, env=variables | {"ANTIPHON_HOME": directory}, cwd=home
        ) as server:
            yield Side(name, server, create_limited_key(server, home) if store else KEY)


def create_limited_key(server: Server, home: Path) -> str:
    """Creates a key with limits that are never reached, and a price. Returns the key's secret."""
    admin = (home / "admin.key").read_text().strip()
    with httpx2.Client(base_url=f"{server.url}/admin/v1", headers={"x-api-key": admin}) as client:

        def create(path: str, **fields: object) -> dict[str, str]:
            response = client.post(path, json=fields)
            response.raise_for_status()
            content: dict[str, str] = response.json()
            return content

        key = create("keys", kind="service", project="default")
        for limit in LIMITS:
            create("limits", subject="key", target=key["id"], amount=PLENTY, **limit)
        create("limits", subject="project", target="default", amount=PLENTY, measure="cost", window="day")
        create("prices", models="*", currency="USD", input="0.15", output="0.6")
    return key["secret"]


async def time_single_requests(side: Side) -> float:
    """Returns the median milliseconds of one request without other load."""
    request = build_request(False, MODEL, side.key)
    _, caller = await asyncio.get_running_loop().create_connection(
        lambda: TimedCaller(request, SINGLE_REQUESTS), "127.0.0.1", side.port
    )
    await caller.closed
    return statistics.median(caller.times[1:]) * 1000


async def compare(sides: list[Side], rounds: int, seconds: float) -> None:
    """Measures all sides in each round. The first round warms up."""
    rates: dict[str, list[float]] = {side.name: [] for side in sides}
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    for round_number in range(rounds + 1):
        for side in sides if round_number % 2 else sides[::-1]:
            figure = await measure(side.server.supervisor, side.port, False, seconds, MODEL, side.key)
            milliseconds = await time_single_requests(side)
            if round_number:
                rates[side.name].append(figure.rate)
                times[side.name].append(milliseconds)
    print(f"{rounds} rounds of {seconds} s, {os.cpu_count()} {platform.machine()} cores,")
    print(f"Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}")
    for name, side_rates in rates.items():
        rate, milliseconds = statistics.median(side_rates), statistics.median(times[name])
        print(f"{name:<12}{rate:8,.0f} answers/s {milliseconds:7.2f} ms alone")
        if name != "off":
            rate_pairs = zip(side_rates, rates["off"], strict=True)
            print_ratios("answers/s, to off", [value / baseline for value, baseline in rate_pairs])
            added = [value - baseline for value, baseline in zip(times[name], times["off"], strict=True)]
            print(f"  added to one request {statistics.median(added):.3f} ms")


def main(rounds: int, seconds: float, stores: list[str], workers: int) -> None:
    with ExitStack() as stack:
        sides = [stack.enter_context(run_server("off", "", workers))]
        for store in stores:
            url = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/antiphon.db"
            if store == "postgresql":
                from tests.support.databases import running as cluster

                url = stack.enter_context(cluster()).database()
            sides.append(stack.enter_context(run_server(store, url, workers)))
        asyncio.run(compare(sides, rounds, seconds))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--stores", default="sqlite,postgresql")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    main(
        options.rounds, options.seconds, [name for name in options.stores.split(",") if name], options.workers
    )
