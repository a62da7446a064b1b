"""Compares Antiphon as a gateway to a vendor with a bare relay, LiteLLM's proxy and vLLM's Router.

python benchmarks/gateway.py [--rounds 5] [--seconds 1.5] [--litellm ENV] [--router ENV] [--against TREE]
python benchmarks/gateway.py --paced [--rounds 5]

The upstream writes fixed bytes. It and the load generator are separate processes. All gateways run at once
and are measured in turn, in a different order in each round; the first round warms up. `floor` is a bare ASGI
relay (uvicorn, uvloop, httptools, one aiohttp session). `antiphon` is `antiphon serve` with keys, four
limits, a price and the ledger in SQLite, and one HTTP process. `one-key` is the same with one key in the
settings. `before` is another checkout, if --against names its directory. LiteLLM and the Router need separate
environments, made by

python -m venv ENV && ENV/bin/pip install 'litellm[proxy]==1.106.0' (or vllm-router==0.1.17)

A cell is a kind of answer, buffered or streamed (20 chunks at once), with a number of connections. CPU time
is that of all processes of a gateway, including the drain of the ledger. The main result is its ratio to the
floor's in the same round. With --paced, there are 64 streams of 50 chunks a second, and the result is the
delay between the upstream's write and the arrival of a chunk, for the first chunk of a stream and for all
chunks.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.gateway_sides.servers import ROOT, Side, list_runners, read_clock, run_upstream

Figures = dict[str, float]
Cell = tuple[str, int]

PACED_CONNECTIONS = 64
WARM_SECONDS = 2.0
"""Seconds of warm-up. LiteLLM imports many modules at its first requests."""


def measure(side: Side, cell: Cell, seconds: float) -> Figures:
    """Measures one cell of one gateway."""
    kind, connections = cell
    model = side.prefix + ("paced" if kind == "paced" else "fake")
    main_process = side.find_main()
    began, main_began = side.read_cpu_time(), read_clock(main_process)
    command = [sys.executable, "-m", "benchmarks.gateway_sides.load", str(side.port), side.key, model]
    command += [str(connections), str(seconds), kind]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{side.name}, {cell}: {run.stderr[-2000:]}")
    time.sleep(side.settles)
    figures: Figures = json.loads(run.stdout)
    count = figures["chunks"] or figures["requests"]
    figures["cpu"] = (side.read_cpu_time() - began) / count * 1e6
    figures["main"] = (read_clock(main_process) - main_began) / count * 1e6
    figures["memory"] = side.read_memory()
    return figures


def take_turns(
    sides: list[Side], cells: list[Cell], rounds: int, seconds: float
) -> dict[tuple[Cell, str], list[Figures]]:
    """Measures all cells of all gateways, in a different order in each round."""
    results: dict[tuple[Cell, str], list[Figures]] = defaultdict(list)
    for round_number in range(rounds):
        for cell in cells:
            offset = round_number % len(sides)
            for side in sides[offset:] + sides[:offset]:
                results[cell, side.name].append(measure(side, cell, seconds))
    return results


def get_median(rounds: list[Figures], name: str) -> float:
    return statistics.median(figures[name] for figures in rounds)


def format_ratio(rounds: list[Figures], others: list[Figures], name: str = "cpu") -> str:
    """Formats the ratio of medians, and the range of the rounds' ratios."""
    ratios = [
        figures[name] / base_figures[name] for figures, base_figures in zip(rounds, others, strict=True)
    ]
    median_ratio = get_median(rounds, name) / get_median(others, name)
    return f"{median_ratio:5.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def report(cell: Cell, by_gateway: dict[str, list[Figures]], base: str) -> None:
    """Prints one cell, with a line for each gateway."""
    kind, connections = cell
    print(f"\n{kind}, {connections} connections")
    print(
        f"{'':10}{'CPU us':>9}{'main':>9}  {'to ' + base:<22}{'per s':>8}{'p50 ms':>8}{'p99 ms':>8}{'MB':>7}"
    )
    for name, rounds in by_gateway.items():
        cpu, main, rate = (get_median(rounds, figure_name) for figure_name in ("cpu", "main", "rate"))
        p50, p99, memory = (get_median(rounds, figure_name) for figure_name in ("p50", "p99", "memory"))
        ratio = format_ratio(rounds, by_gateway[base])
        print(f"{name:10}{cpu:9.1f}{main:9.1f}  {ratio:<22}{rate:8,.0f}{p50:8.2f}{p99:8.2f}{memory:7.0f}")


def report_paced(by_gateway: dict[str, list[Figures]], base: str) -> None:
    """Prints the delays of chunks."""
    print(f"\n{PACED_CONNECTIONS} streams of 50 chunks/s; milliseconds after the upstream's write")
    print(f"{'':10}{'first p50':>10}{'p99':>8}{'any p50':>9}{'p99':>8}{'CPU us a chunk':>16}  {'to ' + base}")
    for name, rounds in by_gateway.items():
        first, first_p99 = get_median(rounds, "first_p50"), get_median(rounds, "first_p99")
        chunk_p50, chunk_p99 = get_median(rounds, "chunk_p50"), get_median(rounds, "chunk_p99")
        cpu, ratio = get_median(rounds, "cpu"), format_ratio(rounds, by_gateway[base])
        print(f"{name:10}{first:10.2f}{first_p99:8.2f}{chunk_p50:9.2f}{chunk_p99:8.2f}{cpu:16.1f}  {ratio}")


def main(options: argparse.Namespace) -> None:
    kinds = ["paced"] if options.paced else options.kinds.split(",")
    numbers = (
        [PACED_CONNECTIONS] if options.paced else [int(number) for number in options.connections.split(",")]
    )
    cells = [(kind, connections) for kind in kinds for connections in numbers]
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = stack.enter_context(run_upstream())
        runners = list_runners(home, options.against, options.litellm, options.router)
        names = options.sides.split(",") if options.sides else list(runners)
        for name in ("litellm", "router"):
            if name not in runners and not options.sides:
                print(f"{name} is left out: give its environment by --{name}")
        sides = [stack.enter_context(runners[name](upstream)) for name in names]
        for side in sides:
            for kind in ("buffered", "streamed"):
                measure(side, (kind, 16), WARM_SECONDS)
        results = take_turns(sides, cells, options.rounds, options.seconds)
    print(f"{options.rounds} rounds of {options.seconds} s, {os.cpu_count()} {platform.machine()} cores,")
    print(f"Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}; medians (rounds)")
    base = "floor" if "floor" in names else names[0]
    for cell in cells:
        by_gateway = {side.name: results[cell, side.name] for side in sides}
        if options.paced:
            report_paced(by_gateway, base)
        else:
            report(cell, by_gateway, base)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--kinds", default="buffered,streamed")
    parser.add_argument("--connections", default="1,16,64")
    parser.add_argument("--sides", default="", help="of floor, antiphon, one-key, before, litellm, router")
    parser.add_argument("--litellm", type=Path, help="environment of LiteLLM's proxy")
    parser.add_argument("--router", type=Path, help="environment of vLLM's Router")
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--paced", action="store_true")
    main(parser.parse_args())
