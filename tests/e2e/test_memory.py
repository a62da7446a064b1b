"""What a server keeps of a request when it is over: nothing. Objects are counted in every process; in
`make soak` memory stays flat over 200,000 requests."""

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.memory import CALLERS, MAX_GROWTH, REQUESTS, compute_growth, list_processes, measure_memory
from tests.e2e.furnished import Place, furnished
from tests.e2e.traffic import KINDS, Kind, Traffic, kind_of, template
from tests.support.waiting import wait_until

COUNTING = str(Path(__file__).parent / "counting")
EACH = 10
"""Requests of each kind before anything is counted: what is made once is made then. So many that each of two
processes gets nearly every kind; with 6, one kind in 64 missed one of them, and its thread began later."""
TEMPLATES = 4
"""Of those with a chat template, each of which starts a process: 0.3 CPU seconds. A process that misses them
makes what it needs after the first count, which is growth, but not both times."""
ASKED = 150
"""Between one count and the next, of which there are three or more: only what grows every time is a leak.
Some things fill up to a bound: what a database's driver has prepared, the keys that a decoder has seen,
constraints that were understood."""
MOST = 8
"""Counts after which what has grown every time is a leak; three are usual."""
SHARE, BLOCKS = 0.04, 4.0
"""Objects of one type, and blocks of memory, for each of these requests, by which a process may hold more.
Until it has answered a thousand an HTTP process fills its bounds, with up to six blocks for each; what is
smaller than that shows in the soak."""
ALONE, TIMES = 300, 3
"""Requests of a single kind between one count and the next, and how often."""
SHARE_ALONE, BLOCKS_ALONE = 0.25, 0.5
"""What is kept of every request is one object or block for each at least."""
KEPT = {"schema", "regex", "tools", "revoked"}
"""Kinds of which something is kept, up to a bound: constraints in the engine's host; keys, which are listed
when they are revoked."""
SPARED = "weakref.ReferenceType"
"""Python's sqlite3 keeps up to 200 of cursors that are gone, for each connection."""
FEW = 4
"""Descriptors that come and go: a connection, a file of the spool."""
GONE = (
    *(
        "RequestAccount",
        "BodyCounter",
        "OpenRoute",
        "Held",
        "Claim",
        "Request",
        "Progress",
        "InFlight",
        "Call",
    ),
    "Sequence",
)
"""Types of which nothing is left when nothing runs."""

MB = 1_000_000


# --- the judgement ------------------------------------------------------------------------------------------


def series(
    grows: float, requests: int = REQUESTS, noise: int = 0, level: int = 80 * MB
) -> list[tuple[int, int]]:
    """Two hundred samples of a process that grows by so many bytes a request."""
    chance = random.Random(7)
    step = requests // 200
    return [
        (at, level + round(grows * at) + chance.randint(-noise, noise)) for at in range(0, requests + 1, step)
    ]


@pytest.mark.parametrize("noise", [0, 2 * MB])
def test_a_leak_of_100_bytes_a_request_is_found_and_noise_is_not(noise: int) -> None:
    assert not compute_growth(series(100, noise=noise)).is_flat
    assert compute_growth(series(0, noise=noise)).is_flat
    assert compute_growth(series(-20, noise=noise)).is_flat
    assert compute_growth(series(100)).between == pytest.approx(100) == compute_growth(series(100)).late


def test_a_leak_that_begins_late_is_told() -> None:
    flat = series(0)
    late = [(at, size + max(0, at - REQUESTS // 2) * 200) for at, size in flat]
    assert compute_growth(late).late > MAX_GROWTH and not compute_growth(late).is_flat


def test_what_is_filled_early_and_single_peaks_are_no_leak() -> None:
    filled = [(at, size + min(at, REQUESTS // 10) * 400) for at, size in series(0)]
    assert compute_growth(filled).is_flat
    peaks = [
        (at, size + (50 * MB if number % 17 == 16 else 0)) for number, (at, size) in enumerate(series(0))
    ]
    assert compute_growth(peaks).is_flat


def test_steps_that_come_back_again_and_again_are_told() -> None:
    """As of a list that doubles, or an arena of many small things."""
    steps = [(at, size + at // 40_000 * 4 * MB) for at, size in series(0)]
    assert not compute_growth(steps).is_flat


# --- what is held -------------------------------------------------------------------------------------------


@dataclass
class Holding:
    """What a process holds while nothing runs."""

    blocks: int
    """Of Python's own allocator: everything of up to 512 bytes."""
    objects: Counter[str]
    """That may hold others, by type."""
    descriptors: int
    threads: int


def holdings(place: Place) -> dict[str, Holding]:
    """Of each process but the one that checks constraints, whose words nobody hears."""
    found, server = {}, place.server
    for each in list_processes(server):
        if each.name == "checker":
            continue
        process = each.process
        server.lines.clear()  # thousands of records would be read again and again
        process.send_signal(signal.SIGPROF)
        wait_until(lambda: server.records("held"), 60, f"{each.name} counts")
        (said,) = server.records("held")
        assert said["pid"] == process.pid
        objects = said["objects"]
        assert isinstance(objects, dict)
        blocks = int(str(said["blocks"]))
        found[each.name] = Holding(blocks, Counter(objects), process.num_fds(), process.num_threads())
    return found


Counts = dict[str, Holding]
"""By process."""


@contextmanager
def counted(home: Path, workers: int) -> Iterator[Traffic]:
    """Traffic to a server whose processes say what they hold; each kind has been asked for."""
    path = os.pathsep.join(filter(None, (COUNTING, os.environ.get("PYTHONPATH"))))
    arguments = (f"--workers={workers}",)
    with furnished(home, *arguments, embeds=False, window="day", env={"PYTHONPATH": path}) as place:
        first = [kind for at in range(EACH) for kind in KINDS if at < TEMPLATES or kind.ask is not template]
        traffic = Traffic(place, callers=16, kind_of=lambda number: first[number % len(first)])
        traffic.run(len(first))
        yield traffic


def only(kind: Kind, _number: int) -> Kind:
    """This kind, whatever the number."""
    return kind


def grown(before: Holding, after: Holding, objects: float, blocks: float) -> dict[str, int]:
    """What a process holds more of than it may, by how much."""
    more = after.objects - before.objects
    found = {kind: count for kind, count in more.items() if count > objects and kind != SPARED}
    if after.blocks - before.blocks > blocks:
        found["blocks"] = after.blocks - before.blocks
    return found


def leaks(counts: list[Counts], objects: float, blocks: float) -> dict[str, dict[str, int]]:
    """What grew from each count to the next, by process."""
    found = {}
    for name in counts[0]:
        gaps = [grown(now[name], then[name], objects, blocks) for now, then in pairwise(counts)]
        if always := set.intersection(*(set(gap) for gap in gaps)):
            found[name] = {kind: gaps[-1][kind] for kind in always}
    return found


def held(traffic: Traffic, requests: int, times: int, most: int, bounds: tuple[float, float]) -> list[Counts]:
    """What all processes hold now, and so many times after so many requests; more often, up to `most` counts,
    while something has grown every time, since what only fills up stops. Requests come before every count but
    the first: a count without any would show no growth, and pass every leak."""
    found: list[Counts] = []
    while len(found) <= times or (len(found) < most and leaks(found, *bounds)):
        traffic.run(requests if found else 0)
        traffic.place.settle()
        found.append(holdings(traffic.place))
    return found


def remains(holding: Holding) -> dict[str, int]:
    """What there is of types of which nothing should be."""
    return {
        kind: count
        for kind, count in holding.objects.items()
        if kind.startswith("antiphon.") and kind.rpartition(".")[2] in GONE
    }


def remaining(counts: Counts) -> dict[str, dict[str, int]]:
    """What remains, by process."""
    return {name: found for name, holding in counts.items() if (found := remains(holding))}


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_nothing_is_kept_of_hundreds_of_requests_in_any_process(tmp_path: Path) -> None:
    bounds = (SHARE * ASKED, BLOCKS * ASKED)
    with counted(tmp_path, workers=2) as traffic:
        traffic.kind_of = kind_of
        counts = held(traffic, ASKED, 2, MOST, bounds)
        if remaining(counts[-1]):  # of requests that were left: they may end a moment later
            wait_until(lambda: not remaining(holdings(traffic.place)), what="nothing remains")
    first, *_, last = counts
    assert set(last) == {"supervisor", "HTTP process 1", "HTTP process 2", "engine host", "coordinator"}
    assert leaks(counts, *bounds) == {}
    for name, holding in last.items():
        assert holding.descriptors <= first[name].descriptors + FEW, name
        gaps = [then[name].threads - now[name].threads for now, then in pairwise(counts)]
        assert min(gaps) <= 0, (
            f"{name}: a pool starts a thread when it needs one, and not again and again: {gaps}"
        )


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_nothing_is_kept_of_any_kind_of_request(tmp_path: Path) -> None:
    """Each by itself: what is kept of a rare kind would be little among all."""
    found, bounds = {}, (SHARE_ALONE * ALONE, BLOCKS_ALONE * ALONE)
    with counted(tmp_path, workers=1) as traffic:
        for kind in KINDS:
            traffic.kind_of = partial(only, kind)
            counts = held(traffic, ALONE, TIMES, 2 * TIMES + 1, bounds)
            if leaked := leaks(counts, *bounds):
                found[kind.ask.__name__] = leaked
    assert {name: leaked for name, leaked in found.items() if name not in KEPT} == {}


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_memory_stays_flat_over_two_hundred_thousand_requests(tmp_path: Path) -> None:
    run = measure_memory(tmp_path, REQUESTS, CALLERS)
    run.require()
