"""Whether a server's memory stays flat while it answers very many requests of all kinds.

    python benchmarks/memory.py [--requests 200000] [--callers 32] [--workers 1] [--threads 1] [--csv FILE]

`antiphon serve` with the demo model, an embedding model, keys, limits, a price and the ledger in SQLite gets
the mixed load of tests/e2e/traffic.py. A tenth as many requests warm it up, in which what is kept up to a
bound is filled. Printed are, of each process, megabytes then, after half of the requests and after all, and
by how many bytes a request it grew; the end is an error where one is not flat. Fewer than 100,000 requests
say little: each connection to the database gets a cache of 2 MB, and some are used seldom.

What is measured is memory that no file backs (RssAnon and RssShmem of /proc/PID/status): the heaps, and all
that a process could leak. Pages of the weights, of libraries and of the database's files come and go as the
system has room for them; they are printed beside it (the RSS) and judged by nobody.
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
MOST = 50.0
"""Bytes a request by which a process may grow: half of the smallest leak that must be seen. Anything that is
kept of each request takes more: one small object of Python takes 48 bytes and its place in a container 8 to
100."""
CALLERS = 32
SAMPLES = 200
WARM = 10
"""One part in so many warms up."""
LINES = 500
"""Of the server's output that are kept here."""
CONSTRAINED, FILLING = Kind(0, regex, ANSWERED), 6_000
"""What fills the memory of constraints that an engine's host has; it is bounded in bytes."""
CHECKER = "antiphon.constraints.checking_process"
PARTS = {
    "antiphon.assembly": "HTTP process",
    "antiphon.engines.host": "engine host",
    "antiphon.processes.coordinator": "coordinator",
}


@dataclass(frozen=True)
class Sample:
    """A process at one moment."""

    requests: int
    bytes: int
    """That no file backs."""
    resident: int
    """All of them."""


@dataclass
class Series:
    """A process over the run."""

    name: str
    process: psutil.Process
    samples: list[Sample] = field(default_factory=list)
    open: list[tuple[int, int]] = field(default_factory=list)
    """Descriptors and threads after the warm-up and after the last request."""

    def count(self) -> None:
        """Counts descriptors and threads. Raises psutil.NoSuchProcess of one that has died."""
        self.open.append((self.process.num_fds(), self.process.num_threads()))

    def look(self, requests: int) -> None:
        """Takes a sample."""
        self.samples.append(Sample(requests, *memory(self.process.pid)))

    @property
    def points(self) -> list[tuple[int, int]]:
        return [(sample.requests, sample.bytes) for sample in self.samples]


def memory(pid: int) -> tuple[int, int]:
    """Bytes of a process that no file backs, and all that are resident."""
    said = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    anonymous, shared, resident = (
        1024 * int(said[name].split()[0]) for name in ("RssAnon", "RssShmem", "VmRSS")
    )
    return anonymous + shared, resident


# --- the judgement ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Growth:
    """By how much a series of (requests, bytes) grew, in bytes a request."""

    between: float
    """From the median of its second fifth to that of its last one."""
    late: float
    """Of its second half: the median of what its points say by twos, the first with the middle one and so
    on, which single high points do not move."""

    @property
    def is_flat(self) -> bool:
        return max(self.between, self.late) <= MOST


def growth_of(points: Sequence[tuple[int, int]]) -> Growth:
    """How a series grew. It needs ten points at least."""
    fifth, half = len(points) // 5, points[len(points) // 2 :]
    early, last = points[fifth : 2 * fifth], points[-fifth:]
    between = (_middle(last, 1) - _middle(early, 1)) / (_middle(last, 0) - _middle(early, 0))
    apart = len(half) // 2
    slopes = [(then[1] - now[1]) / (then[0] - now[0]) for now, then in zip(half, half[apart:], strict=False)]
    return Growth(between, median(slopes))


def _middle(points: Sequence[tuple[int, int]], place: int) -> float:
    return median(point[place] for point in points)


# --- the run ------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """What came of it."""

    series: list[Series]
    traffic: Traffic
    seconds: float

    def require(self) -> None:
        """Raises AssertionError where a process is not flat, or holds more than it did."""
        for each in self.series:
            assert growth_of(each.points).is_flat, self.said()
            before, after = each.open
            assert all(now <= then + SLACK for then, now in zip(before, after, strict=True)), each

    def said(self) -> str:
        """The table."""
        first, last = self.series[0].samples[0].requests, self.series[0].samples[-1].requests
        pace = f"{(last - first) / self.seconds:.0f} a second, by {self.traffic.callers} callers"
        lines = [
            f"{last - first:,} requests after {first:,}, {pace}",
            f"{'':<20}{'warm':>9}{'half':>9}{'end':>9}{'RSS':>9}   bytes a request: by fifths, late",
        ]
        for each in self.series:
            middle = len(each.samples) // 2
            grown = growth_of(each.points)
            shown = [each.samples[at].bytes for at in (0, middle, -1)] + [each.samples[-1].resident]
            figures = "".join(f"{size / 1e6:9.1f}" for size in shown)
            verdict = "" if grown.is_flat else "  NOT FLAT"
            lines.append(f"{each.name:<20}{figures}   {grown.between:8.1f} {grown.late:8.1f}{verdict}")
        return "\n".join(lines)


SLACK = 4
"""Descriptors and threads that come and go: a connection, a file of the spool."""


def processes(server: Server) -> list[Series]:
    """All that belong to the server and stay."""
    found = [Series("supervisor", server.supervisor)]
    for word, name in PARTS.items():
        children = server.children(word)
        for number, process in enumerate(children):
            found.append(Series(f"{name} {number + 1}" if len(children) > 1 else name, process))
            found += [Series("checker", own) for own in process.children() if CHECKER in own.cmdline()]
    return found


def measured(
    directory: Path, requests: int, callers: int, *arguments: str, threads: int = 1, csv: Path | None = None
) -> Run:
    """Asks so many requests of a server in a new directory; `csv`: where all samples are written as they
    come."""
    with furnished(directory, *arguments, threads=threads) as place:
        Traffic(place, callers, kind_of=lambda _: CONSTRAINED).run(FILLING)
        traffic = Traffic(place, callers)
        traffic.run(requests // WARM)
        traffic.place.settle()
        series = processes(place.server)
        for each in series:
            each.look(traffic.done)
            each.count()

        def look(done: int) -> None:
            del place.server.lines[:-LINES]
            for each in series:
                each.look(done)
            if csv is not None:
                write(series, csv)

        began = time.monotonic()
        traffic.run(requests, max(1, requests // SAMPLES), look)
        seconds = time.monotonic() - began
        traffic.place.settle()
        for each in series:
            each.count()
        return Run(series, traffic, seconds)


def write(series: Sequence[Series], path: Path) -> None:
    """All samples, a line each."""
    rows = ["process,requests,bytes,resident"]
    rows += [f"{each.name},{at.requests},{at.bytes},{at.resident}" for each in series for at in each.samples]
    path.write_text("\n".join(rows) + "\n")


def main() -> None:
    """Prints the table; ends with an error where a process is not flat."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--callers", type=int, default=CALLERS)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--csv", type=Path)
    said = parser.parse_args()
    cores = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    with tempfile.TemporaryDirectory(prefix="antiphon-memory-") as directory:
        run = measured(
            Path(directory),
            said.requests,
            said.callers,
            f"--workers={said.workers}",
            threads=said.threads,
            csv=said.csv,
        )
    print(f"{cores}; load {os.getloadavg()[0]:.1f}\n{run.said()}")
    run.require()


if __name__ == "__main__":
    main()
