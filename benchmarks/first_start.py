"""The first start: `make serve` in a fresh copy of the repository, until an answer, in an empty home.

python benchmarks/first_start.py [--before COMMIT] [--rounds 1]

It prints the CPU seconds and the seconds of the start, of which a busy machine changes the second. With
--before it measures that commit by turns with this one, and prints the ratio. Only committed files count. It
serves cantor, so no model is fetched; pip fetches the locked packages from the user's index, or its cache.
"""

import argparse
import os
import resource
import signal
import socket
import statistics
import subprocess
import tarfile
import tempfile
import time
from io import BytesIO
from pathlib import Path

import httpx2

ROOT = Path(__file__).parents[1]
CHAT = {"model": "cantor", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", help="a commit to measure by turns")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    commits = [options.before, "HEAD"] if options.before else ["HEAD"]
    figures: dict[str, list[float]] = {commit: [] for commit in commits}
    for _ in range(options.rounds):
        for commit in commits:
            cpu_seconds, seconds = measure(commit)
            figures[commit].append(cpu_seconds)
            load = os.getloadavg()[0]
            print(f"{commit}: {cpu_seconds:.1f} CPU s, {seconds:.0f} s, load average {load:.0f}", flush=True)
    medians = [statistics.median(figures[commit]) for commit in commits]
    print(f"medians of {options.rounds}: {', '.join(f'{median:.1f} CPU s' for median in medians)}")
    if options.before:
        print(f"ratio {medians[1] / medians[0]:.2f}")


def measure(commit: str) -> tuple[float, float]:
    """Returns the CPU seconds of all processes and the seconds from `make serve` to the first answer."""
    with tempfile.TemporaryDirectory(prefix="first-") as name:
        home = Path(name)
        command = ["git", "archive", commit]
        committed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=BytesIO(committed)) as archive:
            archive.extractall(home / "antiphon", filter="data")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(("ANTIPHON", "PYTHON"))
        }
        before, began = _read_cpu_seconds(), time.monotonic()
        with subprocess.Popen(
            ["make", "serve", "MODEL=cantor", f"PORT={port}"],
            cwd=home / "antiphon",
            env=env | {"HOME": str(home)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as server:
            try:
                listens = any("listens on" in line for line in server.stdout or ())
                assert listens, "make serve failed"
                httpx2.post(
                    f"http://127.0.0.1:{port}/v1/chat/completions", json=CHAT, timeout=60
                ).raise_for_status()
                seconds = time.monotonic() - began
            finally:
                os.killpg(server.pid, signal.SIGINT)
                server.communicate()
        return _read_cpu_seconds() - before, seconds


def _read_cpu_seconds() -> float:
    """Returns the CPU seconds of all child processes that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
