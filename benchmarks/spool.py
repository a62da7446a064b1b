"""What the ledger costs a request on the event loop: an intent and a completion written into the spool.

    python benchmarks/spool.py [--pairs 20000] [--directory PLACE]

The spool's own thread makes files and syncs them meanwhile, as in a server; no drain and no database. Prints
the median and the tail of `begin`, of `complete` and of both, and beside them the bare `pwrite` of as many
bytes into a file of the same kind. On a busy machine the tail is that of the interpreter's turns, on any file
system.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec

from antiphon.domain.events import UsageSource
from antiphon.domain.ledger import Entry
from antiphon.ledger.records import HEADER, encode_entry
from antiphon.ledger.segments import SIZE, create_segment
from antiphon.ledger.spool import Spool

P = ParamSpec("P")

ROOM = 1024 * SIZE
INTERVAL_S = 0.2
"""Between two syncs, as the setting has it."""
TURN_S = 0.001
"""As the HTTP process has it: how long another thread computes before this one gets its turn."""
BREATHER = 200
"""Pairs after which the spool's thread gets a moment, as an event loop gives it many."""
TAILS = (0.5, 0.9, 0.99, 0.999)


def intent(number: int) -> Entry:
    """A chat as it begins."""
    return Entry(
        id=f"{number:032x}",
        request_id=f"{number:032x}",
        at=1_900_000_000_000 + number,
        project="prj_0123456789abcdef",
        key="key_0123456789abcdef",
        user=None,
        dialect="openai",
        operation="/v1/chat/completions",
        asked="cantor",
        model="cantor",
        engine="llama",
        prompt_tokens=137,
        price="price_0123456789abcdef",
        currency="USD",
    )


def completion(begun: Entry) -> Entry:
    """How it ended."""
    return replace(
        begun,
        status="ok",
        output_tokens=211,
        source=UsageSource.ENGINE,
        cost=123_456,
        queue_ms=0,
        ttft_ms=31,
        total_ms=1234,
    )


def timed(call: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> float:
    """Seconds."""
    began = time.perf_counter()
    call(*arguments, **named)
    return time.perf_counter() - began


def pairs(spool: Spool, count: int) -> tuple[list[float], list[float]]:
    """Seconds of each `begin` and each `complete`."""
    begins, completes = [], []
    for number in range(count):
        begun = intent(number)
        ended = completion(begun)
        begins.append(timed(spool.begin, begun))
        completes.append(timed(spool.complete, ended))
        if number % BREATHER == 0:
            time.sleep(0.01)
    return begins, completes


def bare(directory: Path, count: int, size: int) -> list[float]:
    """Seconds of each `pwrite` of so many bytes into a file made ahead."""
    segment = create_segment(directory)
    descriptor = os.open(segment.path, os.O_RDWR)
    data = bytes(size)
    places = (at * size % (SIZE - size) for at in range(count))
    found = [timed(os.pwrite, descriptor, data, place) for place in places]
    os.close(descriptor)
    segment.close()
    return found


def shown(name: str, seconds: list[float]) -> None:
    """Prints microseconds."""
    seconds = sorted(seconds)
    tails = "  ".join(f"{1e6 * seconds[int(tail * len(seconds))]:8.1f}" for tail in TAILS)
    print(f"{name:24} {tails}")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="What the ledger costs a request on the event loop.")
    parser.add_argument("--pairs", type=int, default=20_000, help="intents with their completions")
    parser.add_argument("--directory", type=Path, help="where the spool lies; else where temporary files do")
    chosen = parser.parse_args()
    sys.setswitchinterval(TURN_S)
    size = len(encode_entry(completion(intent(1)))) + HEADER
    with tempfile.TemporaryDirectory(dir=chosen.directory) as place:
        spool = Spool(Path(place) / "spool", ROOM, INTERVAL_S)
        spool.start()
        begins, completes = pairs(spool, chosen.pairs)
        spool.close()
        writes = bare(Path(place), chosen.pairs, size)
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{chosen.pairs} pairs, {size} bytes a completion; load {load}; Python {sys.version.split()[0]}")
    print(f"{'microseconds':24} " + "  ".join(f"{f'p{100 * tail:g}':>8}" for tail in TAILS))
    shown("begin", begins)
    shown("complete", completes)
    shown("both", [begin + end for begin, end in zip(begins, completes, strict=True)])
    shown("a bare pwrite", writes)
    both = sorted(begin + end for begin, end in zip(begins, completes, strict=True))[chosen.pairs // 2]
    print(f"both against two bare writes: {both / 2 / sorted(writes)[chosen.pairs // 2]:.1f} times")


if __name__ == "__main__":
    main()
