"""What keys, limits and the ledger cost a server as people run it: requests per second, on against off.

    python benchmarks/tenancy_served.py [--rounds 9] [--seconds 2] [--stores sqlite,postgresql] [--workers 1]

`antiphon serve` with the bundled model, the cheapest there is to ask, in three set-ups beside each other: one
that knows a single key (ANTIPHON_API_KEY), and for each database one with keys, a price, the ledger and four
limits that are for every request (of the key requests and tokens per minute and a budget for the month, of
its project one for the day). Each round asks all of them for answers of 16 tokens over 16 connections, one
after the other, the first by turns. PostgreSQL is Debian's, started in a directory of its own. Prints each
round's ratio, and of all rounds the medians. What the HTTP process alone does is in tenancy_cost.py.
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

from benchmarks.http_path import KEY, measure, request_bytes
from benchmarks.tenancy_cost import Timed, ratios
from tests.support.server import Server, serving

MODEL = "cantor"
PLENTY = 10**15
ONE_BY_ONE = 50
"""Requests of which the median is taken, one after the other."""
LIMITS = (
    {"measure": "requests", "window": "minute"},
    {"measure": "tokens", "window": "minute"},
    {"measure": "cost", "window": "month"},
)


@dataclass(frozen=True)
class Side:
    """One running server, and the key it lets in."""

    name: str
    server: Server
    key: str

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2])


@contextmanager
def running(name: str, store: str, workers: int) -> Iterator[Side]:
    """A server of its own, furnished where it has keys."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        said = {"ANTIPHON_KEYS": "true", "ANTIPHON_STORE": store} if store else {"ANTIPHON_API_KEY": KEY}
        options = ("--log-level", "warning", "--workers", str(workers))
        with serving(*options, threads=None, env=said | {"ANTIPHON_HOME": place}, cwd=home) as server:
            yield Side(name, server, furnished(server, home) if store else KEY)


def furnished(server: Server, home: Path) -> str:
    """A key with limits that are never reached, and a price."""
    admin = (home / "admin.key").read_text().strip()
    with httpx2.Client(base_url=f"{server.url}/admin/v1", headers={"x-api-key": admin}) as client:

        def made(path: str, **said: object) -> dict[str, str]:
            answer = client.post(path, json=said)
            answer.raise_for_status()
            found: dict[str, str] = answer.json()
            return found

        key = made("keys", kind="service", project="default")
        for limit in LIMITS:
            made("limits", subject="key", target=key["id"], amount=PLENTY, **limit)
        made("limits", subject="project", target="default", amount=PLENTY, measure="cost", window="day")
        made("prices", models="*", currency="USD", input="0.15", output="0.6")
    return key["secret"]


async def alone(side: Side) -> float:
    """Milliseconds of one request while there is no other."""
    question = request_bytes(False, MODEL, side.key)
    _, caller = await asyncio.get_running_loop().create_connection(
        lambda: Timed(question, ONE_BY_ONE), "127.0.0.1", side.port
    )
    await caller.over
    return statistics.median(caller.times[1:]) * 1000


async def compare(sides: list[Side], rounds: int, seconds: float) -> None:
    """All sides by turns; the first round warms up."""
    rates: dict[str, list[float]] = {side.name: [] for side in sides}
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(rounds + 1):
        for side in sides if number % 2 else sides[::-1]:
            figure = await measure(side.server.supervisor, side.port, False, seconds, MODEL, side.key)
            single = await alone(side)
            if number:
                rates[side.name].append(figure.rate)
                times[side.name].append(single)
    print(f"{rounds} rounds of {seconds} s, {os.cpu_count()} {platform.machine()} cores,")
    print(f"Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}")
    for name, found in rates.items():
        rate, single = statistics.median(found), statistics.median(times[name])
        print(f"{name:<12}{rate:8,.0f} answers/s {single:7.2f} ms alone")
        if name != "off":
            pairs = zip(found, rates["off"], strict=True)
            ratios("answers/s, to off", [mine / other for mine, other in pairs])
            added = [mine - other for mine, other in zip(times[name], times["off"], strict=True)]
            print(f"  added to one request {statistics.median(added):.3f} ms")


def main(rounds: int, seconds: float, stores: list[str], workers: int) -> None:
    with ExitStack() as stack:
        sides = [stack.enter_context(running("off", "", workers))]
        for store in stores:
            url = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/antiphon.db"
            if store == "postgresql":
                from tests.support.databases import running as cluster

                url = stack.enter_context(cluster()).database()
            sides.append(stack.enter_context(running(store, url, workers)))
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
