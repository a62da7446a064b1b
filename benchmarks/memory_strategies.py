"""Measures the time that a memory strategy adds to a request, in milliseconds.

    python benchmarks/memory_strategies.py [--rounds 9] [--requests 20]

It runs `antiphon serve` with the bundled model, without keys. It alternates two requests for one token: a
conversation of 200 turns with the strategy, and only the messages that the strategy keeps, without it. The
difference includes sending and reading the longer body. An earlier request creates summaries and vectors, so
the measured requests find them. Prints the medians over all rounds.
"""

import argparse
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.model_files import write_encoder
from tests.support.server import serving

CANTOR = Path(__file__).parents[1] / "src" / "antiphon" / "bundled" / "cantor.gguf"
TURNS = 200
STRATEGIES: dict[str, dict[str, Any]] = {
    "last_k 7": {"name": "last_k", "k": 7},
    "last_tokens 400": {"name": "last_tokens", "tokens": 400},
    "last_tokens 1500": {"name": "last_tokens", "tokens": 1500},
    "summary 700, kept": {"name": "summary", "tokens": 700},
    "relevant 400, kept": {"name": "relevant", "tokens": 400, "model": "encoder"},
}

Messages = list[dict[str, str]]


def build_conversation() -> Messages:
    """Builds a conversation of 200 turns that ends with a question."""
    messages: Messages = [{"role": "system", "content": "You are Cantor."}]
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"Question {turn}: what are keys, limits and prices?"})
        messages.append({"role": "assistant", "content": f"Answer {turn}: parts of this server."})
    return messages[:-1]


def ask(client: httpx2.Client, messages: Messages, strategy: dict[str, Any] | None) -> tuple[float, int]:
    """Sends one request. Returns its milliseconds, and the number of messages that the model saw."""
    body: dict[str, Any] = {"model": "cantor", "messages": messages, "max_tokens": 1}
    if strategy:
        body["memory_strategy"] = strategy
    began = time.perf_counter()
    answer = client.post("/v1/chat/completions", json=body)
    milliseconds = (time.perf_counter() - began) * 1000
    answer.raise_for_status()
    memory_header = answer.headers.get("x-antiphon-memory", f"kept={len(messages)},")
    return milliseconds, int(memory_header.partition(",")[0].removeprefix("kept="))


def measure(
    client: httpx2.Client, strategy: dict[str, Any], rounds: int, requests: int
) -> tuple[float, float]:
    """Returns the median with the strategy, and that of the same prompt without it."""
    messages = build_conversation()
    _, kept_count = ask(client, messages, strategy)
    kept_messages = [messages[0], *messages[1 - kept_count :]]
    medians: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(requests):
            times[0].append(ask(client, messages, strategy)[0])
            times[1].append(ask(client, kept_messages, None)[0])
        for series, round_times in zip(medians, times, strict=True):
            series.append(statistics.median(round_times))
    return statistics.median(medians[0]), statistics.median(medians[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=20)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; milliseconds")
    with TemporaryDirectory() as directory:
        encoder = write_encoder(Path(directory) / "encoder.gguf")
        measure_all(options, f"--model={CANTOR}", f"--model={encoder}")


def measure_all(options: argparse.Namespace, *models: str) -> None:
    """Prints a line for each strategy."""
    with serving(*models) as server, server.client() as client:
        for name, strategy in STRATEGIES.items():
            ask(client, build_conversation(), strategy)
            with_strategy, without_strategy = measure(client, strategy, options.rounds, options.requests)
            print(
                f"{name:18} {with_strategy:7.2f}  without {without_strategy:7.2f}  adds "
                f"{with_strategy - without_strategy:6.2f}  x{with_strategy / without_strategy:.2f}"
            )


if __name__ == "__main__":
    main()
