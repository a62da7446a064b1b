"""Measures the ledger's cost on the event loop for a request: one intent and one completion in the spool.

python benchmarks/spool.py [--pairs 20000] [--directory PLACE]

As in a server, the spool's thread creates and syncs files meanwhile. There is no drain and no database.
Prints the median and the tail of `begin`, of `complete` and of both. It compares them with a bare `pwrite` of
as many bytes into a file of the same kind. On a busy machine the tail comes from waits for the interpreter's
lock, on any file system.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

from antiphon.domain.events import UsageSource
from antiphon.domain.ledger import Entry
from antiphon.domain.values import replace
from antiphon.ledger.segments import HEADER_BYTES, SEGMENT_SIZE, create_segment, encode_entry
from antiphon.ledger.spool import Spool

P = ParamSpec("P")

SPOOL_BYTES = 1024 * SEGMENT_SIZE
INTERVAL_S = 0.2
"""Seconds between two syncs, as in the default settings."""
TURN_S = 0.001
"""The interpreter's switch interval in seconds, as in the HTTP process."""
PAIRS_BETWEEN_PAUSES = 200
"""Pairs between two pauses, in which the spool's thread can work, as it can in an event loop."""
TAILS = (0.5, 0.9, 0.99, 0.999)


def build_intent(number: int) -> Entry:
    """Builds the intent of a chat."""
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


def build_completion(intent: Entry) -> Entry:
    """Builds the completion of an intent."""
    return replace(
        intent,
        status="ok",
        output_tokens=211,
        source=UsageSource.ENGINE,
        cost=123_456,
        queue_ms=0,
        ttft_ms=31,
        total_ms=1234,
    )


def time_call(call: Callable[P, object], *arguments: P.args, **keywords: P.kwargs) -> float:
    """Returns the seconds of one call."""
    began = time.perf_counter()
    call(*arguments, **keywords)
    return time.perf_counter() - began


def time_pairs(spool: Spool, count: int) -> tuple[list[float], list[float]]:
    """Returns the seconds of each `begin` and each `complete`."""
    begins, completes = [], []
    for number in range(count):
        intent = build_intent(number)
        completion = build_completion(intent)
        begins.append(time_call(spool.begin, intent))
        completes.append(time_call(spool.complete, completion))
        if number % PAIRS_BETWEEN_PAUSES == 0:
            time.sleep(0.01)
    return begins, completes


def time_writes(directory: Path, count: int, size: int) -> list[float]:
    """Returns the seconds of each `pwrite` of `size` bytes into a file that was created ahead."""
    segment = create_segment(directory)
    descriptor = os.open(segment.path, os.O_RDWR)
    data = bytes(size)
    offsets = (number * size % (SEGMENT_SIZE - size) for number in range(count))
    times = [time_call(os.pwrite, descriptor, data, offset) for offset in offsets]
    os.close(descriptor)
    segment.close()
    return times


def print_times(name: str, seconds: list[float]) -> None:
    """Prints the percentiles in microseconds."""
    seconds = sorted(seconds)
    tails = "  ".join(f"{1e6 * seconds[int(tail * len(seconds))]:8.1f}" for tail in TAILS)
    print(f"{name:24} {tails}")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="What the ledger costs a request on the event loop.")
    parser.add_argument("--pairs", type=int, default=20_000, help="intents with their completions")
    parser.add_argument(
        "--directory", type=Path, help="directory of the spool; default: the directory of temporary files"
    )
    options = parser.parse_args()
    sys.setswitchinterval(TURN_S)
    size = len(encode_entry(build_completion(build_intent(1)))) + HEADER_BYTES
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        spool = Spool(Path(directory) / "spool", SPOOL_BYTES, INTERVAL_S)
        spool.start()
        begins, completes = time_pairs(spool, options.pairs)
        spool.close()
        writes = time_writes(Path(directory), options.pairs, size)
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{options.pairs} pairs, {size} bytes a completion; load {load}; Python {sys.version.split()[0]}")
    print(f"{'microseconds':24} " + "  ".join(f"{f'p{100 * tail:g}':>8}" for tail in TAILS))
    print_times("begin", begins)
    print_times("complete", completes)
    print_times("both", [begin + end for begin, end in zip(begins, completes, strict=True)])
    print_times("a bare pwrite", writes)
    both = sorted(begin + end for begin, end in zip(begins, completes, strict=True))[options.pairs // 2]
    print(f"both against two bare writes: {both / 2 / sorted(writes)[options.pairs // 2]:.1f} times")


if __name__ == "__main__":
    main()
