"""Compares Antiphon with llama-server: the same shared library, model file, prompts and HTTP client, in one
run.

  - python benchmarks/peer.py throughput --requests 32: different prompts at once
  - python benchmarks/peer.py shared --model smollm2: 16 users with one uncached system prompt
  - python benchmarks/peer.py newcomer --model half: a long prompt arrives while 8 streams run
  - python benchmarks/peer.py alone --model half: one stream, compared with the memory's speed
  - python benchmarks/peer.py throughput --save found.jsonl; python benchmarks/peer.py --report found.jsonl

Without `--model` all of benchmarks/model_files.py are measured, smollm2 first. The sides (`--sides`, see
side_by_side/servers.py) are measured in a different order in each round. Prints the median and the range of
each figure. It also prints the ratio of Antiphon's better layout to llama-server's better one: of the
medians, and the range over the rounds. Run nothing else meanwhile.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.model_files import add_models, find_model
from benchmarks.side_by_side import report
from benchmarks.side_by_side.scenarios import (
    NEWCOMER,
    SAMPLING,
    SCENARIOS,
    STREAMS,
    SYSTEM,
    USERS,
    Load,
    SideClient,
)
from benchmarks.side_by_side.servers import Shape, Side, run_side, wait_until_idle

SIDES = ["antiphon:pool", "antiphon:streams", "llama:unified", "llama:split"]

COPIED = 1 << 28
"""Bytes of the array that is copied to measure the memory: far more than any cache."""


def choose_shape(args: argparse.Namespace, model: Path) -> Shape:
    """Chooses the sizes that both sides load for a scenario."""
    sequences, context = {
        "throughput": (args.sequences, args.prompt + args.tokens + 64),
        "shared": (USERS, SYSTEM + 128),
        "newcomer": (STREAMS + 1, NEWCOMER + 256),
        "alone": (1, args.prompt + args.tokens + 64),
    }[args.scenario]
    return Shape(str(model), sequences, context, args.threads, tuple(args.set), args.native, args.before)


def read_facts(path: Path) -> tuple[int, int]:
    """Reads the size of a model's vocabulary, and the bytes of the weights that each token needs."""
    reader = gguf.GGUFReader(path)
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in reader.tensors}
    embedding = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    is_tied = "output.weight" not in sizes  # then the embedding is the output layer too
    return int(embedding.shape[1]), sum(sizes.values()) - (0 if is_tied else sizes["token_embd.weight"])


def measure_copy_speed(threads: int) -> float:
    """Returns the best speed at which numpy copies an array, in bytes read and written per second."""
    source = np.ones(COPIED // 8)
    target = np.empty_like(source)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))

    def once() -> float:
        workers = [
            threading.Thread(target=np.copyto, args=(target_part, part)) for part, target_part in parts
        ]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return 2 * COPIED / (time.perf_counter() - began)

    return max(once() for _ in range(6))


def run_rounds(
    args: argparse.Namespace, model: str, sides: list[Side], load: Load, token_bytes: int
) -> Iterator[report.Row]:
    """Runs the rounds, with every side once in each."""
    salt = random.SystemRandom().randrange(1 << 30)
    for number in range(args.rounds):
        for side in random.Random(number).sample(sides, len(sides)):
            speed = measure_copy_speed(args.threads) if args.scenario == "alone" else 0.0
            client = SideClient(side, load, f"{salt}.{number}")
            figures = asyncio.run(SCENARIOS[args.scenario](client))
            if speed:
                figures["GB/s that a copy reads and writes"] = speed / 1e9
                figures["share of that, %"] = 100 * token_bytes * figures["tokens/s"] / speed
            wait_until_idle(side)
            yield report.Row(args.scenario, model, load.requests, side.name, f"{salt}.{number}", figures)


def measure(args: argparse.Namespace, name: str) -> list[report.Row]:
    """Starts the sides on one model, warms them up, and runs the rounds."""
    model = find_model(name)
    vocabulary, token_bytes = read_facts(model)
    load = Load(vocabulary, args.requests, args.prompt, args.tokens, SAMPLING | {"ignore_eos": True})
    if args.may_end:
        load.fields.pop("ignore_eos")
    rows = []
    with ExitStack() as stack:
        sides = [stack.enter_context(run_side(side, choose_shape(args, model))) for side in args.sides]
        for side in sides:
            asyncio.run(SideClient(side, load, "warm").run(list(range(300, 316)), 4, 0))
        for row in run_rounds(args, model.name, sides, load, token_bytes):
            rows.append(row)
            print(
                f"  {row.model}, {row.side}: {report.format_figures(row.figures)};",
                f"load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
            if args.save:
                with args.save.open("a") as file:
                    file.write(json.dumps(row._asdict()) + "\n")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", choices=SCENARIOS, nargs="?", default="throughput")
    add_models(parser)
    parser.add_argument("--sides", nargs="+", default=SIDES)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--requests", type=int, default=8, help="at once, of `throughput`")
    parser.add_argument("--sequences", type=int, default=32, help="that there is room for, of `throughput`")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--may-end", action="store_true", help="let sequences end where the model ends them")
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        type=lambda text: (text.partition("=")[0], float(text.partition("=")[2])),
        metavar="NAME=NUMBER",
        help="settings of the model at Antiphon's sides: step_latency=0.5",
    )
    parser.add_argument("--native", default="", help="library of the sides `native:...`; see make native")
    parser.add_argument("--before", default="", help="checkout of the sides `before:...`")
    parser.add_argument("--save", type=Path, help="append each round to this file")
    parser.add_argument(
        "--report",
        type=Path,
        nargs="+",
        help="print what such files hold (of one kind of run each), and measure nothing",
    )
    args = parser.parse_args()
    if args.report:
        report.print_report(report.load_rows(args.report))
        return
    report.print_report([row for name in args.model for row in measure(args, name)])


if __name__ == "__main__":
    main()
