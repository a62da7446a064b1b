"""Measures the running server: start to first token, disconnect to free place, crash to service, and memory.

    python benchmarks/serve.py [--rounds 20] [--model smollm2 cantor]

Prints median and worst of the rounds. Start and memory are those of each named model of
benchmarks/model_files.py, smollm2 first. The other figures are of random weights (`make_model.py`).
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx2

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.model_files import add_models, find_model  # noqa: E402
from tests.support.departures import LONG_PROMPT, posted  # noqa: E402
from tests.support.server import Server, serving, start  # noqa: E402 - needs the path above
from tests.support.waiting import wait_until  # noqa: E402

LONG = 120.0
"""Seconds after which a wait fails."""


def print_times(label: str, seconds: list[float]) -> None:
    worst, median = max(seconds) * 1000, statistics.median(seconds) * 1000
    print(f"{label:58} median {median:8.1f} ms   worst {worst:8.1f} ms   rounds {len(seconds)}", flush=True)


def time_first_token(model: Path, rounds: int) -> list[float]:
    """Returns the seconds from the start of the command to the first content chunk at the client."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        server = start("--model", f"measured={model}", threads=None)
        try:
            wait_until(lambda: server.url, LONG, "it listens")  # noqa: B023
            body = {"model": "measured", "messages": [{"role": "user", "content": "Hello!"}], "stream": True}
            with httpx2.stream(
                "POST", f"{server.url}/v1/chat/completions", json=body, timeout=LONG
            ) as response:
                next(
                    line
                    for line in response.iter_lines()
                    if '"content":"' in line and '"content":""' not in line
                )
            times.append(time.perf_counter() - began)
        finally:
            server.stop()
    return times


def is_idle(server: Server) -> bool:
    load = server.load()
    return load.running == load.queued == 0


def time_departure(server: Server, has_begun: Callable[[], bool], **fields: object) -> float:
    """Closes a connection. Returns the seconds until no sequence runs, by the engine's counters."""
    with closing(posted(server, "left", **fields)):
        wait_until(has_begun, LONG, "the request has reached the phase")
        left_at = time.perf_counter()
    wait_until(lambda: is_idle(server), LONG, "free again")
    return time.perf_counter() - left_at


def time_queued_departure(server: Server) -> float:
    with closing(posted(server, stream=True)), closing(posted(server, stream=True)):
        wait_until(lambda: server.load().running == 2, LONG, "both sequences are taken")
        with closing(posted(server)):
            wait_until(lambda: server.load().queued == 1, LONG, "the third waits")
            left_at = time.perf_counter()
        wait_until(lambda: server.load().queued == 0, LONG, "it left the queue")
        seconds = time.perf_counter() - left_at
    wait_until(lambda: is_idle(server), LONG, "idle")
    return seconds


def time_restart(server: Server) -> float:
    """Kills the engine host. Returns the seconds until the next completed request."""
    server.host().kill()
    killed_at = time.perf_counter()
    body = {"model": "noise", "prompt": "x", "max_tokens": 1}
    answer = httpx2.post(f"{server.url}/v1/completions", json=body, timeout=LONG)
    answer.raise_for_status()
    return time.perf_counter() - killed_at


def print_memory(model: Path) -> None:
    """Prints the Pss of each process of a server after sixteen streams."""
    from concurrent.futures import ThreadPoolExecutor

    body = {"model": "measured", "prompt": "Once", "max_tokens": 200, "temperature": 1}
    with serving("--model", f"measured={model}", threads=None) as server:
        with ThreadPoolExecutor(16) as pool:
            list(
                pool.map(
                    lambda _: httpx2.post(f"{server.url}/v1/completions", json=body, timeout=LONG), range(16)
                )
            )
        megabytes = {
            part: sum(process.memory_full_info().pss for process in processes) / 1e6
            for part, processes in (
                ("supervisor", [server.supervisor]),
                ("HTTP process", server.children("assembly")),
                ("engine host", server.children("engines.host")),
            )
        }
    print(f"{model.name}, memory (Pss) after 16 streams: {sum(megabytes.values()):.0f} MB", end="   ")
    print(", ".join(f"{part} {size:.0f}" for part, size in megabytes.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    add_models(parser, "smollm2", "cantor")
    options = parser.parse_args()
    rounds = options.rounds
    for path in map(find_model, options.model):
        print_times(f"{path.name}, start of `antiphon serve` to first token", time_first_token(path, rounds))
        print_memory(path)
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "noise.gguf"
        subprocess.run(
            [sys.executable, ROOT / "benchmarks/make_model.py", "--size", "middle", model], check=True
        )
        with serving("--model", str(model), "--sequences", "2", threads=None) as server:
            read_load = server.load

            def create_decode_check() -> Callable[[], bool]:
                tokens_before = read_load().decoded_tokens
                return lambda: read_load().decoded_tokens > tokens_before + 3

            is_running = lambda: read_load().running == 1  # noqa: E731 - one name for one condition
            round_numbers = range(rounds)
            print_times("left while queued", [time_queued_departure(server) for _ in round_numbers])
            print_times(
                "left in prefill",
                [time_departure(server, is_running, prompt=LONG_PROMPT, max_tokens=8) for _ in round_numbers],
            )
            print_times(
                "left mid-stream",
                [time_departure(server, create_decode_check(), stream=True) for _ in round_numbers],
            )
            print_times(
                "left while buffered", [time_departure(server, create_decode_check()) for _ in round_numbers]
            )
        restart_times = []
        for _ in range(
            (rounds + 1) // 2
        ):  # two crashes for each server, since the supervisor gives up at the third
            with serving("--model", str(model), "--sequences", "2", threads=None) as server:
                restart_times += [time_restart(server), time_restart(server)]
        print_times("kill -9 of the engine host to the next answer", restart_times)


if __name__ == "__main__":
    main()
