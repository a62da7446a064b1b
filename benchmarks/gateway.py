"""Compares the CPU time of Antiphon as a gateway with that of a bare relay and of other gateways.

python benchmarks/gateway.py [--slices 30] [--parts gateway,tools,workers,tracing,embedded,calls]
    [--tree TREE] [--against TREE] [--python PYTHON] [--litellm ENV] [--router ENV]
python benchmarks/gateway.py --parts paced --seconds 2 --slices 5

A vendor that answers at once is a process of its own. All sides of a cell run at the same time and take
turns, in slices of 0.2 seconds, because the speed of a shared machine changes from second to second. The CPU
time of a side is user and system time of all its processes, summed over all slices. A slice is charged from
its begin to the side's next one, so it includes the drain of the ledger. The ratio of two sides has a 95 %
interval: slices of the same number are a pair, and the pairs are drawn 2,000 times.

`floor` is a bare ASGI relay (uvicorn, uvloop, httptools, one aiohttp session). `antiphon` is `antiphon serve`
with keys, four limits, a price and the ledger in SQLite, and one HTTP process. `one-key` has one key in the
settings. `before` is the checkout of --against. --tree has another checkout served as `antiphon`. LiteLLM and
the Router need environments of their own, made by

python -m venv ENV && ENV/bin/pip install 'litellm[proxy]==1.106.0' (or vllm-router==0.1.17)

The parts:

- gateway: buffered and streamed answers (20 chunks at once), at 1, 16 and 64 connections, to the relay;
- tools: a chat of 20 messages with 3 tools and a schema, to a plain chat;
- workers: two HTTP processes with the limits in the coordinator, to one;
- tracing: every request traced, to none;
- embedded: CPU of the HTTP process per token that the demo model streams, to `before`;
- calls: calls of Python and of C for one request on the event loop's thread, by package, and suspended frames
  while a buffered chat waits for the vendor; they do not depend on the load;
- paced: 64 streams of 50 chunks a second: the delay between the vendor's write and the arrival of a chunk.
"""

import argparse
import asyncio
import os
import platform
import random
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.gateway_sides.calls import count_calls, find_frames
from benchmarks.gateway_sides.load import Load, LoadTimes
from benchmarks.gateway_sides.servers import ROOT, Runner, Side, list_runners, read_clock, run_upstream

PARTS = ("gateway", "tools", "workers", "tracing", "embedded", "calls", "paced")
PACED_CONNECTIONS = 64
EXTRA_CONNECTIONS = 16
"""Connections of the parts that compare Antiphon with itself."""
WARM_SECONDS = 1.0
"""Seconds of warm-up of each cell. LiteLLM imports many modules at its first requests."""
SETTLE_SECONDS = 0.6
"""Seconds after the last slice in which the drain of the ledger finishes."""
RESAMPLES = 2_000


@dataclass
class Entry:
    """One side with one kind of load, and what its slices took."""

    name: str
    side: Side
    load: Load
    main_only: bool
    """Whether the CPU time is that of the HTTP process alone."""
    clocks: list[float] = field(default_factory=list)
    """CPU seconds at the begin of each slice, and at the end."""
    counts: list[int] = field(default_factory=list)
    """What each slice divides by: its requests, chunks or tokens."""
    seconds: float = 0.0
    times: LoadTimes = field(default_factory=LoadTimes)

    def read_clock(self) -> float:
        return read_clock(self.side.find_main()) if self.main_only else self.side.read_cpu_time()

    def list_slices(self) -> list[tuple[float, int]]:
        """Lists CPU seconds and count of each slice."""
        seconds = [end - begin for begin, end in pairwise(self.clocks)]
        return list(zip(seconds, self.counts, strict=True))


async def measure(entries: list[Entry], slices: int, seconds: float) -> None:
    """Has the entries take turns, each time in another order."""
    for entry in entries:
        await entry.load.connect()
        await entry.load.run(WARM_SECONDS)
    await asyncio.sleep(SETTLE_SECONDS)
    for number in range(slices):
        offset = number % len(entries)
        for entry in entries[offset:] + entries[:offset]:
            entry.clocks.append(entry.read_clock())
            times = await entry.load.run(seconds)
            entry.counts.append(times.count)
            entry.seconds += times.seconds
            entry.times.add(times)
    await asyncio.sleep(SETTLE_SECONDS)
    for entry in entries:
        entry.clocks.append(entry.read_clock())
        entry.load.close()


def divide(slices: list[tuple[float, int]]) -> float:
    """Returns the CPU microseconds of one request over all slices."""
    return sum(cpu for cpu, _ in slices) / sum(count for _, count in slices) * 1e6


def format_ratio(slices: list[tuple[float, int]], base: list[tuple[float, int]]) -> str:
    """Formats the ratio of two sides with its 95 % interval."""
    generator, numbers = random.Random(0), range(len(base))
    ratios = []
    for _ in range(RESAMPLES):
        drawn = generator.choices(numbers, k=len(base))
        ratios.append(divide([slices[each] for each in drawn]) / divide([base[each] for each in drawn]))
    ratios.sort()
    low, high = ratios[RESAMPLES * 25 // 1000], ratios[RESAMPLES * 975 // 1000]
    return f"{divide(slices) / divide(base):5.2f} ({low:.2f} to {high:.2f})"


def report(title: str, unit: str, entries: list[Entry]) -> None:
    """Prints a cell, with a line for each entry. The ratio is to the first."""
    print(f"\n{title}")
    header = f"{'':12}{'CPU us a ' + unit:>17}  {'to ' + entries[0].name:<23}"
    print(f"{header}{unit + 's/s':>11}{'p50 ms':>9}{'p99 ms':>9}{'MB':>6}")
    base = entries[0].list_slices()
    for entry in entries:
        cpu, ratio = divide(entry.list_slices()), format_ratio(entry.list_slices(), base)
        rate = sum(entry.counts) / entry.seconds
        p50, p99 = entry.times.find_quantiles("times")
        memory = entry.side.read_memory()
        print(f"{entry.name:12}{cpu:17.1f}  {ratio:<23}{rate:11,.0f}{p50:9.2f}{p99:9.2f}{memory:6.0f}")
    sys.stdout.flush()


def report_delays(entries: list[Entry]) -> None:
    """Prints the delays of paced chunks."""
    print(
        f"{'':12}{'first p50':>10}{'p99':>8}{'any p50':>9}{'p99':>8}   milliseconds after the vendor's write"
    )
    for entry in entries:
        first, first_p99 = entry.times.find_quantiles("firsts")
        chunk, chunk_p99 = entry.times.find_quantiles("delays")
        print(f"{entry.name:12}{first:10.2f}{first_p99:8.2f}{chunk:9.2f}{chunk_p99:8.2f}")


def add_up(calls: dict[str, tuple[float, float]]) -> tuple[float, float]:
    """Adds the calls of all packages."""
    return sum(python_calls for python_calls, _ in calls.values()), sum(
        c_calls for _, c_calls in calls.values()
    )


class Comparison:
    """Runs the parts. Each part starts its own sides."""

    def __init__(self, options: argparse.Namespace, runners: dict[str, Runner], upstream: int) -> None:
        self._options = options
        self._runners = runners
        self._upstream = upstream

    def run_gateway(self) -> None:
        names = [name for name in self._options.sides.split(",") if name in self._runners]
        with ExitStack() as stack:
            sides = [stack.enter_context(self._runners[name](self._upstream)) for name in names]
            for kind in self._options.kinds.split(","):
                for connections in map(int, self._options.connections.split(",")):
                    title = f"{kind}, {connections} connections"
                    self._measure(title, "request", [(side.name, side, kind) for side in sides], connections)

    def run_tools(self) -> None:
        with self._start("antiphon") as plain, self._start("antiphon") as other:
            entries = [("plain", plain, "buffered"), ("tools", other, "tools")]
            self._measure("20 messages, 3 tools and a schema", "request", entries)

    def run_workers(self) -> None:
        with self._start("antiphon") as one, self._start("workers") as two:
            for kind in ("buffered", "streamed"):
                entries = [("one process", one, kind), ("two", two, kind)]
                self._measure(f"two HTTP processes, {kind}", "request", entries)

    def run_tracing(self) -> None:
        with self._start("antiphon") as plain, self._start("traced") as traced:
            for kind in ("buffered", "streamed"):
                entries = [("untraced", plain, kind), ("traced", traced, kind)]
                self._measure(f"tracing, {kind}", "request", entries)

    def run_embedded(self) -> None:
        with ExitStack() as stack:
            names = [name for name in ("embedded-before", "embedded") if name in self._runners]
            sides = [stack.enter_context(self._start(name)) for name in names]
            for connections in (1, 8):
                title = f"the demo model, {connections} streams; CPU of the HTTP process"
                entries = [(side.name, side, "tokens") for side in sides]
                self._measure(title, "token", entries, connections, main_only=True)

    def run_paced(self) -> None:
        with ExitStack() as stack:
            names = [name for name in ("floor", "antiphon", "before") if name in self._runners]
            sides = [stack.enter_context(self._start(name)) for name in names]
            title = f"{PACED_CONNECTIONS} streams of 50 chunks a second"
            entries = [(side.name, side, "paced") for side in sides]
            report_delays(self._measure(title, "chunk", entries, PACED_CONNECTIONS))

    def run_calls(self) -> None:
        for name in ("antiphon", "before"):
            if name not in self._runners:
                continue
            with tempfile.TemporaryDirectory() as directory:
                counts_file = Path(directory) / "counts"
                with self._runners[name](self._upstream, counts_file) as side:
                    print(f"\n{name}: calls on the event loop's thread for one request")
                    for kind in ("buffered", "streamed"):
                        calls = uvloop.run(count_calls(side, counts_file, kind))
                        for package, (python_calls, c_calls) in [("all", add_up(calls)), *calls.items()]:
                            if python_calls + c_calls >= 1:
                                print(
                                    f"  {kind:10}{package:28}{python_calls:8.1f} of Python{c_calls:8.1f} of C"
                                )
                    frames = uvloop.run(find_frames(side, counts_file))
                    print(f"  {len(frames)} suspended frames in a buffered chat:")
                    print("\n".join(f"    {frame}" for frame in frames))

    def _start(self, name: str) -> AbstractContextManager[Side]:
        return self._runners[name](self._upstream)

    def _measure(
        self,
        title: str,
        unit: str,
        sides: list[tuple[str, Side, str]],
        connections: int = EXTRA_CONNECTIONS,
        main_only: bool = False,
    ) -> list[Entry]:
        """Measures and prints one cell. `sides`: names in the report, sides, and their kinds of load."""
        entries = [
            Entry(name, side, Load(side.port, side.key, side.prefix, kind, connections), main_only)
            for name, side, kind in sides
        ]
        uvloop.run(measure(entries, self._options.slices, self._options.seconds))
        report(title, unit, entries)
        return entries


def main(options: argparse.Namespace) -> None:
    command = ["git", "-C", str(options.tree), "describe", "--always", "--dirty", "--abbrev=8"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    version = subprocess.run(
        [options.python, "-V"], capture_output=True, text=True, check=True
    ).stdout.strip()
    print(f"{options.slices} slices of {options.seconds} s, commit {commit or options.tree}, {version},")
    print(f"{os.cpu_count()} {platform.machine()} cores, load average {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as home, run_upstream() as upstream:
        runners = list_runners(Path(home), options)
        comparison = Comparison(options, runners, upstream)
        for part in options.parts.split(","):
            getattr(comparison, f"run_{part}")()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--slices", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a slice")
    parser.add_argument("--parts", default="gateway", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--kinds", default="buffered,streamed")
    parser.add_argument("--connections", default="1,16,64")
    sides = "floor,antiphon,before,litellm,router"
    parser.add_argument("--sides", default=sides, help="of the gateway part; one-key is another")
    parser.add_argument("--litellm", type=Path, help="environment of LiteLLM's proxy")
    parser.add_argument("--router", type=Path, help="environment of vLLM's Router")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout to measure")
    parser.add_argument("--against", type=Path, help="another checkout to measure beside it")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of relay and Antiphon")
    main(parser.parse_args())
