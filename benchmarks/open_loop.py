"""Measures what a gateway adds to the time of a request while requests arrive at a fixed rate.

python benchmarks/open_loop.py [--rates 200,500,1000] [--sides floor,antiphon,workers] [--slices 4]
    [--seconds 3] [--tree TREE] [--against TREE] [--python PYTHON] [--litellm ENV] [--router ENV]

Requests arrive at random times (Poisson), whether or not earlier ones are answered, so a gateway that is too
slow gets a queue. Half of them ask for a buffered answer, half for a stream of 20 chunks, and every twentieth
has a body of 100 kB. The vendor answers at once. The same requests go to it directly; what a gateway adds is
the difference of the quantiles. The vendor and all gateways take turns, in slices of some seconds.

The sides are those of gateway.py: `antiphon` has a key, four limits, a price and the ledger in SQLite;
`workers` is the same with two HTTP processes. A time begins when the request is due, and it includes the
delay of this load generator. An answer that is not complete, not 200 or later than 10 seconds is an error.
"""

import argparse
import asyncio
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.gateway_sides.load import LENGTH, build_fields, build_request
from benchmarks.gateway_sides.servers import ROOT, Side, list_runners, run_upstream
from benchmarks.gateway_sides.upstream import CHUNKS, TEXT

LARGE_BYTES = 100_000
LARGE_EVERY = 20
"""Every request of this number has a large body."""
ANSWER_DEADLINE = 10.0
"""Seconds."""
WARM_SECONDS = 1.0
WARM_RATE = 100
SETTLE_SECONDS = 0.5
"""Seconds between two slices, in which the drain of the ledger finishes."""

KINDS = ("buffered", "streamed", "large")


@dataclass
class Target:
    """The vendor or a gateway, and what its requests took at one rate."""

    name: str
    port: int
    key: str
    prefix: str
    side: Side | None
    """None for the vendor."""
    idle: list["Connection"] = field(default_factory=list)
    """Open connections of this slice without a request."""
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Milliseconds by kind of request."""
    errors: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    memory: float = 0.0
    """The most resident megabytes at the end of a slice."""

    def build_requests(self) -> list[tuple[str, bytes]]:
        """Builds one round of requests with their kinds."""
        model = self.prefix + "fake"
        small = {
            kind: build_request(self.key, model, build_fields(kind)) for kind in ("buffered", "streamed")
        }
        long = {"messages": [{"role": "user", "content": "Once upon a time. " * (LARGE_BYTES // 18)}]}
        large = [
            build_request(self.key, model, build_fields(kind) | long) for kind in ("buffered", "streamed")
        ]
        requests = [(kind, small[kind]) for kind in ("buffered", "streamed") * LARGE_EVERY]
        requests[LARGE_EVERY - 2], requests[2 * LARGE_EVERY - 1] = [("large", each) for each in large]
        return requests


class Connection(asyncio.Protocol):
    """A connection with at most one request at a time."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    async def ask(self, request: bytes) -> bytes:
        """Sends a request, and returns the bytes of its answer. Raises ConnectionError."""
        self._received.clear()
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if not received.endswith(b"0\r\n\r\n"):
            head, end, body = received.partition(b"\r\n\r\n")
            length = LENGTH.search(head) if end else None
            if length is None or len(body) < int(length[1]):
                return
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(bytes(received))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError("the connection broke"))


async def ask(target: Target, kind: str, request: bytes, due: float) -> None:
    """Sends one request, checks its answer, and notes its time or its error."""
    connection = None
    try:
        async with asyncio.timeout(ANSWER_DEADLINE):
            if target.idle:
                connection = target.idle.pop()
            else:
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(Connection, "127.0.0.1", target.port)
            answer = await connection.ask(request)
    except (OSError, TimeoutError) as error:
        target.errors[type(error).__name__] += 1
        if connection is not None:
            connection.transport.close()
        return
    target.idle.append(connection)
    is_stream = b"event-stream" in answer
    is_whole = (
        b"[DONE]" in answer and answer.count(TEXT.encode()) == CHUNKS
        if is_stream
        else TEXT.encode() * CHUNKS in answer
    )
    if answer.startswith(b"HTTP/1.1 200") and is_whole:
        target.times[kind].append((time.perf_counter() - due) * 1000)
    else:
        target.errors[answer[9:12].decode()] += 1


async def run_slice(target: Target, rate: float, seconds: float, generator: random.Random) -> None:
    """Sends requests at a rate, and waits for all answers. Connections end with the slice, because a gateway
    closes idle ones."""
    requests = target.build_requests()
    began = due = time.perf_counter()
    number = 0
    async with asyncio.TaskGroup() as group:
        while due < began + seconds:
            if (pause := due - time.perf_counter()) > 0:
                await asyncio.sleep(pause)
            group.create_task(ask(target, *requests[number % len(requests)], due))
            number += 1
            due += generator.expovariate(rate)
    target.sent += number
    target.seconds += time.perf_counter() - began
    for connection in target.idle:
        connection.transport.close()
    target.idle.clear()


async def measure(targets: list[Target], rate: int, slices: int, seconds: float) -> None:
    """Has the targets take turns, each time in another order. All get the same arrivals."""
    for target in targets:
        await run_slice(target, WARM_RATE, WARM_SECONDS, random.Random(0))
        target.times.clear()
        target.errors.clear()
        target.sent, target.seconds = 0, 0.0
    for number in range(slices):
        offset = number % len(targets)
        for target in targets[offset:] + targets[:offset]:
            before = target.side.read_cpu_time() if target.side else 0.0
            await run_slice(target, rate, seconds, random.Random(number))
            await asyncio.sleep(SETTLE_SECONDS)
            if target.side:
                target.cpu += target.side.read_cpu_time() - before
                target.memory = max(target.memory, target.side.read_memory())


def find_quantiles(times: list[float]) -> tuple[float, float]:
    """Finds the median and the 99th percentile; NaN without times."""
    values = sorted(times) or [float("nan")]
    return values[len(values) // 2], values[len(values) * 99 // 100]


def report(rate: int, targets: list[Target]) -> None:
    """Prints one rate, with a line for each target."""
    print(f"\n{rate} requests/s; added milliseconds, p50 and p99; of the vendor its own")
    titles = "".join(f"{kind:>18}" for kind in KINDS)
    print(f"{'':12}{titles}{'answers/s':>11}{'errors':>8}{'CPU us':>8}{'MB':>6}")
    vendor_quantiles = {kind: find_quantiles(targets[0].times[kind]) for kind in KINDS}
    for target in targets:
        cells = ""
        for kind in KINDS:
            p50, p99 = find_quantiles(target.times[kind])
            if target.side:
                p50, p99 = p50 - vendor_quantiles[kind][0], p99 - vendor_quantiles[kind][1]
            cells += f"{p50:9.2f}{p99:9.2f}"
        answers = sum(map(len, target.times.values())) / target.seconds
        cpu = target.cpu / target.sent * 1e6
        count = target.errors.total()
        print(f"{target.name:12}{cells}{answers:11.0f}{count:8}{cpu:8.0f}{target.memory:6.0f}", end="  ")
        print(" ".join(f"{name}: {number}" for name, number in target.errors.items()), flush=True)


def main(options: argparse.Namespace) -> None:
    command = ["git", "-C", str(options.tree), "describe", "--always", "--dirty", "--abbrev=8"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    version = subprocess.run(
        [options.python, "-V"], capture_output=True, text=True, check=True
    ).stdout.strip()
    print(f"{options.slices} slices of {options.seconds} s, commit {commit or options.tree}, {version},")
    print(f"{os.cpu_count()} {platform.machine()} cores, load average {os.getloadavg()[0]:.1f}", flush=True)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = stack.enter_context(run_upstream())
        runners = list_runners(home, options)
        names = [name for name in options.sides.split(",") if name in runners]
        sides = [stack.enter_context(runners[name](upstream)) for name in names]
        for rate in map(int, options.rates.split(",")):
            targets = [Target("vendor", upstream, "none", "", None)]
            targets += [Target(side.name, side.port, side.key, side.prefix, side) for side in sides]
            uvloop.run(measure(targets, rate, options.slices, options.seconds))
            report(rate, targets)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rates", default="200,500,1000")
    sides = "floor,antiphon,workers,before,litellm,router"
    parser.add_argument("--sides", default=sides)
    parser.add_argument("--slices", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a slice")
    parser.add_argument("--litellm", type=Path, help="environment of LiteLLM's proxy")
    parser.add_argument("--router", type=Path, help="environment of vLLM's Router")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout to measure")
    parser.add_argument("--against", type=Path, help="another checkout to measure beside it")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of relay and Antiphon")
    main(parser.parse_args())
