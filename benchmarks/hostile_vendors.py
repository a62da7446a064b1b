"""Measures how long `/health` takes while a hostile vendor answers another request.

python benchmarks/hostile_vendors.py [--seconds 2] [--requests 3] [BEHAVIOUR ...]

The vendor of tests/support/vendors/hostile_vendor.py is a process of its own. For each of its behaviours,
whole and streamed, one caller sends requests one after another, at least --requests and for at least
--seconds. Meanwhile one connection asks for `/health` as fast as it is answered, with pauses of 5 ms. The
first line is a faultless vendor; its figures are the machine's. The script ends with an error if the server's
process ends.
"""

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.server import Server, serving
from tests.support.vendors.hostile_vendor import BEHAVIOURS

ROOT = Path(__file__).parents[1]
SETTINGS = """
[providers.hostile]
kind = "openai"
base_url = "{url}"
key = "env:VENDOR_KEY"
private = true
timeout = 4.0

[[models]]
name = "*"
provider = "hostile"
"""
FAULTLESS = "faultless"
PAUSE_S = 0.005
PATIENCE_S = 60.0


@contextmanager
def run_vendor() -> Iterator[str]:
    """Runs the vendor as a process, and yields its address."""
    command = [sys.executable, "-m", "tests.support.vendors.hostile_vendor"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        if process.stdout is None or process.stdin is None:
            raise SystemExit("the vendor has no pipes")
        yield process.stdout.readline().strip()
        process.stdin.close()


def measure(server: Server, name: str, is_streamed: bool, seconds: float, requests: int) -> list[float]:
    """Returns the seconds of each `/health` beside the requests of one behaviour."""
    behaviour = BEHAVIOURS.get(name)
    makes_vectors = behaviour is not None and behaviour.makes_vectors
    path = "/v1/embeddings" if makes_vectors else "/v1/chat/completions"
    body: dict[str, object] = {"model": name}
    if makes_vectors:
        body["input"] = ["a"] * 16
    else:
        body |= {"messages": [{"role": "user", "content": "Count."}], "stream": is_streamed, "max_tokens": 50}
    over = threading.Event()

    def send() -> None:
        ends_at, count = time.monotonic() + seconds, 0
        with server.client() as client:
            while time.monotonic() < ends_at or count < requests:
                client.post(path, json=body, timeout=PATIENCE_S)
                count += 1
        over.set()

    caller = threading.Thread(target=send)
    durations: list[float] = []
    with server.client() as client:
        client.get("/health")
        caller.start()
        while not over.is_set():
            began_at = time.monotonic()
            client.get("/health", timeout=PATIENCE_S).raise_for_status()
            durations.append(time.monotonic() - began_at)
            time.sleep(PAUSE_S)
    caller.join()
    return durations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("behaviours", nargs="*", default=list(BEHAVIOURS))
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--requests", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, run_vendor() as url:
        file = Path(home) / "antiphon.toml"
        file.write_text(SETTINGS.format(url=url))
        env = {"VENDOR_KEY": secrets.token_urlsafe(24), "ANTIPHON_HOME": home}
        with serving("--config", str(file), threads=None, env=env) as server:
            (process,) = server.children("assembly")
            print("| behaviour | answer | /health | p50 ms | p99 ms | longest ms | CPU s |")
            print("|---|---|---|---|---|---|---|")
            for name in (FAULTLESS, *options.behaviours):
                behaviour = BEHAVIOURS.get(name)
                for is_streamed in (False,) if behaviour and behaviour.makes_vectors else (False, True):
                    cpu_before = sum(process.cpu_times()[:2])
                    durations = measure(server, name, is_streamed, options.seconds, options.requests)
                    cpu = sum(process.cpu_times()[:2]) - cpu_before
                    shares = statistics.quantiles(durations, n=100, method="inclusive")
                    cells = [name, "stream" if is_streamed else "whole", len(durations)]
                    figures = [1e3 * shares[49], 1e3 * shares[98], 1e3 * max(durations)]
                    cells += [f"{figure:.1f}" for figure in figures]
                    print("| " + " | ".join(map(str, [*cells, f"{cpu:.2f}"])) + " |", flush=True)
            if server.children("assembly") != [process]:
                raise SystemExit("the server's process ended")
    print(json.dumps({"load": os.getloadavg(), "cores": os.cpu_count()}))


if __name__ == "__main__":
    main()
