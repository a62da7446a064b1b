"""Measures the cost of the process boundary: a round trip, tokens per second, and CPU time per token event.

python benchmarks/host_ipc.py [--rounds 20] [--seconds 1.0]

A real engine host has an engine with every token ready. This process reads 16 sequences from it with uvloop,
as the HTTP process does. The results are compared with a bare echo over the same kind of socket, and with the
same engine in this process. One event is one token with its log-probability. Prints median and worst of the
rounds.
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
    PromptTokens,
    SequenceStarted,
    Steps,
    TextPiece,
    TokenEngine,
    TokenEvent,
    TokenRequest,
)
from antiphon.engines.host.client import open_host_engine
from antiphon.engines.host.control import HostConfig
from antiphon.processes.ipc import to_line
from antiphon_testing import ScriptedTokenEngine

SEQUENCES = 16
TEXT = (TextPiece("hello"),)
PROMPT = PromptTokens(tuple(range(1, 200)))
ECHO_BYTES = 64


class ReadyEngine(ScriptedTokenEngine):
    """An engine that has every token ready. Each step lets other tasks run, as a decode step does."""

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        yield SequenceStarted(3)
        while True:
            yield Steps((7,), (-0.5,))
            await asyncio.sleep(0)


class Echo(asyncio.Protocol):
    """Sends back all received bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined] # every stream transport has it


async def serve_echo(path: str) -> None:
    """Serves the echo on a socket."""
    await (await asyncio.get_running_loop().create_unix_server(Echo, path)).serve_forever()


@contextmanager
def run_processes(directory: Path) -> Iterator[tuple[str, str, psutil.Process]]:
    """Runs the bare echo and an engine host. Yields their socket paths, and the host's process."""
    echo_path, host_path = str(directory / "echo"), str(directory / "0.sock")
    read_end, write_end = os.pipe()
    config = HostConfig("ready", "host_ipc:ReadyEngine", LoadSpec("none"), host_path, write_end)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    echo_process = subprocess.Popen([sys.executable, __file__, "--echo", echo_path])
    host_process = subprocess.Popen(
        [sys.executable, "-m", "antiphon.engines.host"],
        stdin=subprocess.PIPE,
        pass_fds=[write_end],
        env=environment,
    )
    assert host_process.stdin is not None
    host_process.stdin.write(to_line(config))
    host_process.stdin.flush()
    try:
        while not (Path(echo_path).exists() and Path(host_path).exists()):
            time.sleep(0.01)
        yield echo_path, host_path, psutil.Process(host_process.pid)
    finally:
        for child in (echo_process, host_process):
            child.terminate()
            child.wait()
        os.close(read_end)
        os.close(write_end)


@dataclass(frozen=True)
class TokenFlow:
    """The result of one round of token events."""

    rate: float
    """Events per second."""
    reader: float
    """CPU microseconds of this process per event."""
    maker: float
    """CPU microseconds of the host per event; 0 without a host."""


async def measure_flow(engine: TokenEngine, host: psutil.Process | None, seconds: float) -> TokenFlow:
    """Reads all sequences for `seconds`."""
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
        count_before, reader_cpu_before, host_cpu_before, began = (
            sum(counts),
            time.process_time(),
            read_cpu(host),
            time.perf_counter(),
        )
        await asyncio.sleep(seconds)
        event_count, elapsed = sum(counts) - count_before, time.perf_counter() - began
        reader_cpu, host_cpu = time.process_time() - reader_cpu_before, read_cpu(host) - host_cpu_before
        stop.set()
    return TokenFlow(event_count / elapsed, reader_cpu / event_count * 1e6, host_cpu / event_count * 1e6)


def read_cpu(process: psutil.Process | None) -> float:
    if process is None:
        return 0.0
    times = process.cpu_times()
    return times.user + times.system


async def measure_round_trip(call: Callable[[], Awaitable[object]], seconds: float) -> float:
    """Returns the median microseconds of sequential calls."""
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        began = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def report(name: str, figures: list[float], unit: str, worst: Callable[[list[float]], float]) -> float:
    """Prints one line and returns the median."""
    median_value = statistics.median(figures)
    print(f"  {name:<52}{median_value:10,.1f} {unit:<4} worst {worst(figures):10,.1f}")
    return median_value


@dataclass(frozen=True)
class Round:
    """The results of one round."""

    ours: float
    bare: float
    across: TokenFlow
    within: TokenFlow


async def run_rounds(
    rounds: int, seconds: float, echo_path: str, host_path: str, host: psutil.Process
) -> list[Round]:
    """Makes every measurement in each round, so that other load affects all. The first round warms up."""
    reader, writer = await asyncio.open_unix_connection(echo_path)

    async def send_echo() -> None:
        writer.write(b"a" * ECHO_BYTES)
        await reader.readexactly(ECHO_BYTES)

    async with open_host_engine(host_path, "ready") as engine:
        await engine.load(LoadSpec("none"))
        results = [
            Round(
                await measure_round_trip(lambda: engine.tokenize(TEXT, False), seconds / 2),
                await measure_round_trip(send_echo, seconds / 2),
                await measure_flow(engine, host, seconds),
                await measure_flow(ReadyEngine(), None, seconds / 2),
            )
            for _ in range(rounds + 1)
        ]
    writer.close()
    return results[1:]


def main(rounds: int, seconds: float) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="ap-") as directory,
        run_processes(Path(directory)) as (echo_path, host_path, host),
    ):
        results = uvloop.run(run_rounds(rounds, seconds, echo_path, host_path, host))
    print(
        f"{rounds} rounds of {seconds} s, {SEQUENCES} sequences; {os.cpu_count()} cores, "
        f"{platform.machine()}, Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}"
    )
    host_trip = report("round trip of tokenize, 5 characters", [item.ours for item in results], "us", max)
    echo_trip = report(
        f"round trip of a bare echo, {ECHO_BYTES} bytes", [item.bare for item in results], "us", max
    )
    print(f"  ratio of round trips, engine host to bare echo: {host_trip / echo_trip:.1f}")
    report("token events across the border", [item.across.rate for item in results], "/s", min)
    report("token events without a border", [item.within.rate for item in results], "/s", min)
    reader = report("CPU of the reader per event", [item.across.reader for item in results], "us", max)
    maker = report(
        "CPU of the host per event, engine included", [item.across.maker for item in results], "us", max
    )
    direct_cpu = report(
        "CPU of engine and reader without a border", [item.within.reader for item in results], "us", max
    )
    print(f"  ratio of CPU per event, with the border to without: {(reader + maker) / direct_cpu:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo:
        uvloop.run(serve_echo(options.echo))
    else:
        main(options.rounds, options.seconds)
