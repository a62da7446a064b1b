"""Measures whether a server's memory stays constant while it answers very many requests of all kinds.

python benchmarks/memory.py [--requests 200000] [--callers 32] [--workers 1] [--threads 1] [--csv FILE]

It sends the mixed load of tests/e2e/traffic.py to `antiphon serve` with the demo model, an embedding model,
keys, limits, a price and the ledger in SQLite. A tenth as many requests warm it up and fill the bounded
caches. For each process the script prints the megabytes after the warm-up, after half of the requests and
after all, and the growth in bytes per request. It ends with an error if a process grows too much. Fewer than
100,000 requests show little: each connection to the database gets a cache of 2 MB, and some connections are
rarely used.

It measures memory that no file backs (RssAnon, RssShmem and VmSwap of /proc/PID/status): the heaps, and
everything that a process could leak, also where the system has swapped it out. Pages of weights, libraries
and database files come and go with the system's free memory; they are printed too (the RSS) but not checked.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.e2e.furnished import furnished
from tests.e2e.traffic import ANSWERED, Kind, Traffic, regex
from tests.support.server import Server

REQUESTS = 200_000
MAX_GROWTH = 50.0
"""The most bytes per request by which a process may grow: half of the smallest leak that must be found. Any
object that is kept for each request takes more: a small Python object has 48 bytes, and its place in a
container 8 to 100."""
CALLERS = 32
SAMPLES = 200
WARM_UP_PART = 10
"""The warm-up has one request for this many measured ones."""
LINES = 500
"""The most lines of the server's output that are kept."""
CONSTRAINED, FILLING = Kind(0, regex, ANSWERED), 6_000
"""The requests that fill the engine host's cache of constraints, which is bounded in bytes."""
CHECKER = "antiphon.constraints.checking_process"
PARTS = {
    "antiphon.assembly": "HTTP process",
    "antiphon.engines.host": "engine host",
    "antiphon.processes.coordinator": "coordinator",
}


@dataclass(frozen=True)
class Sample:
    """The memory of a process at one moment."""

    requests: int
    bytes: int
    """Bytes that no file backs."""
    resident: int
    """All resident bytes."""


@dataclass
class Series:
    """The samples of one process."""

    name: str
    process: psutil.Process
    samples: list[Sample] = field(default_factory=list)
    open: list[tuple[int, int]] = field(default_factory=list)
    """Descriptors and threads after the warm-up and after the last request."""

    def count_open(self) -> None:
        """Counts descriptors and threads. Raises psutil.NoSuchProcess if the process has died."""
        self.open.append((self.process.num_fds(), self.process.num_threads()))

    def take_sample(self, requests: int) -> None:
        """Takes a sample."""
        self.samples.append(Sample(requests, *read_memory(self.process.pid)))

    @property
    def points(self) -> list[tuple[int, int]]:
        return [(sample.requests, sample.bytes) for sample in self.samples]


def read_memory(pid: int) -> tuple[int, int]:
    """Returns the bytes of a process that no file backs, and all resident bytes."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    anonymous, shared, swapped, resident = (
        1024 * int(status[name].split()[0]) for name in ("RssAnon", "RssShmem", "VmSwap", "VmRSS")
    )
    return anonymous + shared + swapped, resident


# --- the judgement ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Growth:
    """The growth of a series of (requests, bytes), in bytes per request."""

    between: float
    """From the median of the second fifth to the median of the last fifth."""
    late: float
    """In the second half: the median slope of pairs of points, each half of this part apart. Single high
    points do not change it."""

    @property
    def is_flat(self) -> bool:
        return max(self.between, self.late) <= MAX_GROWTH


def compute_growth(points: Sequence[tuple[int, int]]) -> Growth:
    """Computes the growth of a series of at least ten points."""
    fifth, half = len(points) // 5, points[len(points) // 2 :]
    early_points, last_points = points[fifth : 2 * fifth], points[-fifth:]
    between = (_find_median(last_points, 1) - _find_median(early_points, 1)) / (
        _find_median(last_points, 0) - _find_median(early_points, 0)
    )
    pair_distance = len(half) // 2
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for earlier, later in zip(half, half[pair_distance:], strict=False)
    ]
    return Growth(between, median(slopes))


def _find_median(points: Sequence[tuple[int, int]], place: int) -> float:
    return median(point[place] for point in points)


# --- the run ------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """The result of a measurement."""

    series: list[Series]
    traffic: Traffic
    seconds: float

    def require(self) -> None:
        """Raises AssertionError if a process grew too much, or has more descriptors or threads than
        before."""
        for process_series in self.series:
            assert compute_growth(process_series.points).is_flat, self.format_table()
            counts_before, counts_after = process_series.open
            assert all(
                count_after <= count_before + MAX_EXTRA_OPEN
                for count_before, count_after in zip(counts_before, counts_after, strict=True)
            ), process_series

    def format_table(self) -> str:
        """Formats the table of all processes."""
        first, last = self.series[0].samples[0].requests, self.series[0].samples[-1].requests
        pace = f"{(last - first) / self.seconds:.0f} a second, by {self.traffic.callers} callers"
        lines = [
            f"{last - first:,} requests after {first:,}, {pace}",
            f"{'':<20}{'warm':>9}{'half':>9}{'end':>9}{'RSS':>9}   bytes a request: by fifths, late",
        ]
        for process_series in self.series:
            middle_index = len(process_series.samples) // 2
            growth = compute_growth(process_series.points)
            sizes = [process_series.samples[index].bytes for index in (0, middle_index, -1)] + [
                process_series.samples[-1].resident
            ]
            figures = "".join(f"{size / 1e6:9.1f}" for size in sizes)
            verdict = "" if growth.is_flat else "  NOT FLAT"
            lines.append(
                f"{process_series.name:<20}{figures}   {growth.between:8.1f} {growth.late:8.1f}{verdict}"
            )
        return "\n".join(lines)


MAX_EXTRA_OPEN = 4
"""The most additional descriptors and threads. Connections and files of the spool come and go."""


def list_processes(server: Server) -> list[Series]:
    """Lists the permanent processes of the server."""
    series = [Series("supervisor", server.supervisor)]
    for word, name in PARTS.items():
        children = server.children(word)
        for number, process in enumerate(children):
            series.append(Series(f"{name} {number + 1}" if len(children) > 1 else name, process))
            series += [
                Series("checker", checker) for checker in process.children() if CHECKER in checker.cmdline()
            ]
    return series


def measure_memory(
    directory: Path, requests: int, callers: int, *arguments: str, threads: int = 1, csv: Path | None = None
) -> Run:
    """Sends requests to a server in a new directory, and measures its memory. `csv`: the file for all
    samples."""
    with furnished(directory, *arguments, threads=threads) as server:
        Traffic(server, callers, kind_of=lambda _: CONSTRAINED).run(FILLING)
        traffic = Traffic(server, callers)
        traffic.run(requests // WARM_UP_PART)
        traffic.place.settle()
        series = list_processes(server.server)
        for process_series in series:
            process_series.take_sample(traffic.done)
            process_series.count_open()

        def look(done: int) -> None:
            del server.server.lines[:-LINES]
            for process_series in series:
                process_series.take_sample(done)
            if csv is not None:
                write(series, csv)

        began = time.monotonic()
        traffic.run(requests, max(1, requests // SAMPLES), look)
        seconds = time.monotonic() - began
        traffic.place.settle()
        for process_series in series:
            process_series.count_open()
        return Run(series, traffic, seconds)


def write(series: Sequence[Series], path: Path) -> None:
    """Writes all samples, one on each line."""
    rows = ["process,requests,bytes,resident"]
    rows += [
        f"{process_series.name},{sample.requests},{sample.bytes},{sample.resident}"
        for process_series in series
        for sample in process_series.samples
    ]
    path.write_text("\n".join(rows) + "\n")


def main() -> None:
    """Prints the table. Ends with an error if a process grew too much."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--callers", type=int, default=CALLERS)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    cores = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    with tempfile.TemporaryDirectory(prefix="antiphon-memory-") as directory:
        run = measure_memory(
            Path(directory),
            options.requests,
            options.callers,
            f"--workers={options.workers}",
            threads=options.threads,
            csv=options.csv,
        )
    print(f"{cores}; load {os.getloadavg()[0]:.1f}\n{run.format_table()}")
    run.require()


if __name__ == "__main__":
    main()
