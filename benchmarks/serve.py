"""Times of the running server: start to first token, departure to free sequence, death to service, memory.

    python benchmarks/serve.py [--rounds 20] [--model PATH.gguf]

Prints median and worst of the rounds. The random model is written to a temporary directory (`make_model.py`).
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

from tests.e2e.test_departures import LONG_PROMPT, posted  # noqa: E402
from tests.support.server import Server, serving, start  # noqa: E402 - the path above is where it lies
from tests.support.waiting import wait_until  # noqa: E402

LONG = 120.0
"""Seconds after which a wait is a failure."""


def say(what: str, seconds: list[float]) -> None:
    worst, median = max(seconds) * 1000, statistics.median(seconds) * 1000
    print(f"{what:58} median {median:8.1f} ms   worst {worst:8.1f} ms   rounds {len(seconds)}", flush=True)


def first_token(rounds: int) -> list[float]:
    """Seconds from starting the command to the first content chunk of cantor, as a client sees it."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        server = start(threads=None)
        try:
            wait_until(lambda: server.url, LONG, "it listens")  # noqa: B023
            body = {"model": "cantor", "messages": [{"role": "user", "content": "Hello!"}], "stream": True}
            with httpx2.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=LONG) as got:
                next(
                    line for line in got.iter_lines() if '"content":"' in line and '"content":""' not in line
                )
            taken.append(time.perf_counter() - began)
        finally:
            server.stop()
    return taken


def idle(server: Server) -> bool:
    load = server.load()
    return load.running == load.queued == 0


def departure(server: Server, begun: Callable[[], bool], **fields: object) -> float:
    """Seconds from closing the connection to no sequence running, by the engine's counters."""
    with closing(posted(server, **fields)):
        wait_until(begun, LONG, "it stands where it shall be left")
        left = time.perf_counter()
    wait_until(lambda: idle(server), LONG, "free again")
    return time.perf_counter() - left


def queued_departure(server: Server) -> float:
    with closing(posted(server, stream=True)), closing(posted(server, stream=True)):
        wait_until(lambda: server.load().running == 2, LONG, "both sequences are taken")
        with closing(posted(server)):
            wait_until(lambda: server.load().queued == 1, LONG, "the third waits")
            left = time.perf_counter()
        wait_until(lambda: server.load().queued == 0, LONG, "it left the queue")
        taken = time.perf_counter() - left
    wait_until(lambda: idle(server), LONG, "idle")
    return taken


def death(server: Server) -> float:
    """Seconds from kill -9 of the engine host to the next completed request."""
    server.host().kill()
    began = time.perf_counter()
    body = {"model": "noise", "prompt": "x", "max_tokens": 1}
    answer = httpx2.post(f"{server.url}/v1/completions", json=body, timeout=LONG)
    answer.raise_for_status()
    return time.perf_counter() - began


def memory() -> None:
    """Pss of each process of a server of cantor after sixteen streams."""
    from concurrent.futures import ThreadPoolExecutor

    body = {"model": "cantor", "prompt": "Once", "max_tokens": 200, "temperature": 1}
    with serving(threads=None) as server:
        with ThreadPoolExecutor(16) as pool:
            list(
                pool.map(
                    lambda _: httpx2.post(f"{server.url}/v1/completions", json=body, timeout=LONG), range(16)
                )
            )
        shares = {
            part: sum(process.memory_full_info().pss for process in found) / 1e6
            for part, found in (
                ("supervisor", [server.supervisor]),
                ("HTTP process", server.children("assembly")),
                ("engine host", server.children("engines.host")),
            )
        }
    print(f"memory (Pss) after 16 streams: {sum(shares.values()):.0f} MB", end="   ")
    print(", ".join(f"{part} {share:.0f}" for part, share in shares.items()))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=20)
    rounds = options.parse_args().rounds
    say("start of `antiphon serve` to first token", first_token(rounds))
    memory()
    with tempfile.TemporaryDirectory() as place:
        model = Path(place) / "noise.gguf"
        subprocess.run(
            [sys.executable, ROOT / "benchmarks/make_model.py", "--size", "middle", model], check=True
        )
        with serving("--model", str(model), "--sequences", "2", threads=None) as server:
            made = server.load

            def decoding() -> Callable[[], bool]:
                before = made().decoded_tokens
                return lambda: made().decoded_tokens > before + 3

            running = lambda: made().running == 1  # noqa: E731 - one word for one condition
            repeat = range(rounds)
            say("left while queued", [queued_departure(server) for _ in repeat])
            say(
                "left in prefill",
                [departure(server, running, prompt=LONG_PROMPT, max_tokens=8) for _ in repeat],
            )
            say("left mid-stream", [departure(server, decoding(), stream=True) for _ in repeat])
            say("left while buffered", [departure(server, decoding()) for _ in repeat])
        deaths = []
        for _ in range((rounds + 1) // 2):  # two deaths a server: the third within a minute would be its last
            with serving("--model", str(model), "--sequences", "2", threads=None) as server:
                deaths += [death(server), death(server)]
        say("kill -9 of the engine host to the next answer", deaths)


if __name__ == "__main__":
    main()
