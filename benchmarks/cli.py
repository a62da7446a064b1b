"""Measures how fast the command line starts.

python benchmarks/cli.py [--rounds 20]

Measures the wall time of `antiphon --help`, of two commands' help and of `antiphon config`, and compares it
with an empty Python program. Prints median, best and worst. The budget of `--help` is 0.3 s.
"""

import argparse
import platform
import statistics
import subprocess
import sys
import time

BUDGET = 0.3

COMMANDS: dict[str, list[str]] = {
    "python -c pass": ["-c", "pass"],
    "antiphon --help": ["-m", "antiphon", "--help"],
    "antiphon serve --help": ["-m", "antiphon", "serve", "--help"],
    "antiphon chat --help": ["-m", "antiphon", "chat", "--help"],
    "antiphon config": ["-m", "antiphon", "config"],
}


def time_run(arguments: list[str]) -> float:
    """Returns the seconds of one run."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    """Runs all commands in each round, so that a busy moment affects all of them."""
    parser = argparse.ArgumentParser(description="Time the command line")
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, arguments in COMMANDS.items():
            times[name].append(time_run(arguments))
    print(f"Python {platform.python_version()}, {platform.machine()}, {rounds} rounds")
    for name, seconds in times.items():
        median_seconds, best, worst = statistics.median(seconds), min(seconds), max(seconds)
        print(f"{name:24} median {median_seconds:.3f} s, best {best:.3f}, worst {worst:.3f}")
    ratio = statistics.median(times["antiphon --help"]) / statistics.median(times["python -c pass"])
    print(
        f"antiphon --help takes {ratio:.1f} times as long as an empty Python program; the budget is "
        f"{BUDGET} s"
    )


if __name__ == "__main__":
    main()
