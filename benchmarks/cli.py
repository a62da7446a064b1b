"""How long the command line takes before it does anything.

    python benchmarks/cli.py [--rounds 20]

Wall time of `antiphon --help`, of each command's help and of `antiphon config`, as a user starts them, beside
that of an interpreter that does nothing. Prints median, best and worst. The budget of `--help` is 0.3 s.
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


def measured(arguments: list[str]) -> float:
    """Seconds of one run."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    """Rounds over all commands, so that a busy moment meets each of them."""
    parser = argparse.ArgumentParser(description="Time the command line")
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, arguments in COMMANDS.items():
            times[name].append(measured(arguments))
    print(f"Python {platform.python_version()}, {platform.machine()}, {rounds} rounds")
    for name, taken in times.items():
        middle, best, worst = statistics.median(taken), min(taken), max(taken)
        print(f"{name:24} median {middle:.3f} s, best {best:.3f}, worst {worst:.3f}")
    ratio = statistics.median(times["antiphon --help"]) / statistics.median(times["python -c pass"])
    print(f"antiphon --help takes {ratio:.1f} times what an empty Python takes; its budget is {BUDGET} s")


if __name__ == "__main__":
    main()
