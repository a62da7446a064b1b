"""What the process border costs: a round trip, tokens per second, and CPU time per token event on each side.

    python benchmarks/host_ipc.py [--rounds 20] [--seconds 1.0]

A real engine host holds an engine that has every token ready, and this process reads 16 sequences from it, on
uvloop as the HTTP process does. Beside it run a bare echo of as many bytes over the same kind of socket, and
the same engine without any border. One event is one token with its log-probability. Prints median and worst
of the rounds.
"""

import argparse
import asyncio
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvloop

from antiphon.engines.base import (
    LoadSpec,
    SequenceStarted,
    Steps,
    TextPiece,
    TokenEngine,
    TokenEvent,
    TokenRequest,
    TokenSegment,
)
from antiphon.engines.host.client import open_host_engine
from antiphon.engines.host.control import HostConfig
from antiphon.processes.ipc import to_line
from antiphon.testing import ScriptedTokenEngine

SEQUENCES = 16
TEXT = (TextPiece("hello"),)
PROMPT = (TokenSegment(tuple(range(1, 200))),)
ECHO_BYTES = 64


class Ready(ScriptedTokenEngine):
    """Has every token ready; each step lets the others run, as a decode step does."""

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        yield SequenceStarted(3)
        while True:
            yield Steps((7,), (-0.5,))
            await asyncio.sleep(0)


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined] # every stream transport has it


async def echo_server(path: str) -> None:
    """The bare socket."""
    await (await asyncio.get_running_loop().create_unix_server(Echo, path)).serve_forever()


@contextmanager
def processes(place: Path) -> Iterator[tuple[str, str, psutil.Process]]:
    """Paths of the bare echo and of an engine host, and the host's process."""
    echo, ours = str(place / "echo"), str(place / "0.sock")
    reading, writing = os.pipe()
    config = HostConfig("ready", "host_ipc:Ready", LoadSpec("none"), ours, writing)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    bare = subprocess.Popen([sys.executable, __file__, "--echo", echo])
    host = subprocess.Popen(
        [sys.executable, "-m", "antiphon.engines.host"],
        stdin=subprocess.PIPE,
        pass_fds=[writing],
        env=environment,
    )
    assert host.stdin is not None
    host.stdin.write(to_line(config))
    host.stdin.flush()
    try:
        while not (Path(echo).exists() and Path(ours).exists()):
            time.sleep(0.01)
        yield echo, ours, psutil.Process(host.pid)
    finally:
        for child in (bare, host):
            child.terminate()
            child.wait()
        os.close(reading)
        os.close(writing)


@dataclass(frozen=True)
class Flow:
    """One round of tokens."""

    rate: float
    """Events per second."""
    reader: float
    """Microseconds of this process's CPU time per event."""
    maker: float
    """The same of the host; 0 without one."""


async def flow(engine: TokenEngine, host: psutil.Process | None, seconds: float) -> Flow:
    """Reads all sequences for so long."""
    counts = [0] * SEQUENCES
    stop = asyncio.Event()

    async def read(index: int) -> None:
        async with aclosing(engine.generate(TokenRequest(PROMPT, 10**9, logprobs=0))) as events:
            async for _ in events:
                counts[index] += 1
                if stop.is_set():
                    return

    async with asyncio.TaskGroup() as group:
        for index in range(SEQUENCES):
            group.create_task(read(index))
        await asyncio.sleep(0.1)
        already, mine, theirs, began = sum(counts), time.process_time(), cpu(host), time.perf_counter()
        await asyncio.sleep(seconds)
        done, took = sum(counts) - already, time.perf_counter() - began
        spent, made = time.process_time() - mine, cpu(host) - theirs
        stop.set()
    return Flow(done / took, spent / done * 1e6, made / done * 1e6)


def cpu(process: psutil.Process | None) -> float:
    if process is None:
        return 0.0
    times = process.cpu_times()
    return times.user + times.system


async def round_trip(once: Callable[[], Awaitable[object]], seconds: float) -> float:
    """Microseconds from question to answer, one at a time; the median of the round."""
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        await once()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e6


def report(name: str, figures: list[float], unit: str, worst: Callable[[list[float]], float]) -> float:
    """Prints one line and returns the median."""
    middle = statistics.median(figures)
    print(f"  {name:<52}{middle:10,.1f} {unit:<4} worst {worst(figures):10,.1f}")
    return middle


@dataclass(frozen=True)
class Round:
    """Everything measured once."""

    ours: float
    bare: float
    across: Flow
    within: Flow


async def measured(rounds: int, seconds: float, echo: str, ours: str, host: psutil.Process) -> list[Round]:
    """Every measurement in each round, so that a noisy neighbour hits all. The first round warms up."""
    reader, writer = await asyncio.open_unix_connection(echo)

    async def bounce() -> None:
        writer.write(b"a" * ECHO_BYTES)
        await reader.readexactly(ECHO_BYTES)

    async with open_host_engine(ours, "ready") as engine:
        await engine.load(LoadSpec("none"))
        found = [
            Round(
                await round_trip(lambda: engine.tokenize(TEXT, False), seconds / 2),
                await round_trip(bounce, seconds / 2),
                await flow(engine, host, seconds),
                await flow(Ready(), None, seconds / 2),
            )
            for _ in range(rounds + 1)
        ]
    writer.close()
    return found[1:]


def main(rounds: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="ap-") as place, processes(Path(place)) as (echo, ours, host):
        found = uvloop.run(measured(rounds, seconds, echo, ours, host))
    print(
        f"{rounds} rounds of {seconds} s, {SEQUENCES} sequences; {os.cpu_count()} cores, "
        f"{platform.machine()}, Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}"
    )
    trip = report("round trip of tokenize, 5 characters", [item.ours for item in found], "us", max)
    bare = report(f"round trip of a bare echo, {ECHO_BYTES} bytes", [item.bare for item in found], "us", max)
    print(f"  ratio of round trips, engine host to bare echo: {trip / bare:.1f}")
    report("token events across the border", [item.across.rate for item in found], "/s", min)
    report("token events without a border", [item.within.rate for item in found], "/s", min)
    reader = report("CPU of the reader per event", [item.across.reader for item in found], "us", max)
    maker = report(
        "CPU of the host per event, engine included", [item.across.maker for item in found], "us", max
    )
    both = report(
        "CPU of engine and reader without a border", [item.within.reader for item in found], "us", max
    )
    print(f"  ratio of CPU per event, with the border to without: {(reader + maker) / both:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo:
        uvloop.run(echo_server(options.echo))
    else:
        main(options.rounds, options.seconds)
