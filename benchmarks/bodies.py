"""Measures the CPU time of decoding the body of a chat, and of writing the same request for a vendor.

python benchmarks/bodies.py [--slices 40] [--against TREE]

Each tree has a process of its own. The processes take turns, in slices of 20 milliseconds of CPU time,
because the speed of a shared machine changes from second to second. Prints the microseconds of one decoding
and of one encoding, summed over all slices, and the ratio to the other tree. The bodies: one message; 20
messages with 3 tools and a schema; the same with a field of null, which most clients leave out; one message
of 100 kB.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
SLICE_S = 0.02
PROMPT = "Tell me a story about a fox and a hen: let it end well. "
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "The city"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city"],
}


def build_bodies() -> dict[str, bytes]:
    plain = {"model": "m", "temperature": 0.7, "max_tokens": 64}
    plain["messages"] = [{"role": "user", "content": PROMPT * 5}]
    large = plain | {
        "messages": [{"role": ("user", "assistant")[index % 2], "content": PROMPT * 5} for index in range(19)]
        + [{"role": "user", "content": PROMPT}],
        "tools": [
            {"type": "function", "function": {"name": f"weather_{index}", "parameters": WEATHER}}
            for index in range(3)
        ],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": WEATHER}},
    }
    long_text = plain | {"messages": [{"role": "user", "content": PROMPT * 1800}]}
    bodies = {"plain": plain, "tools": large, "null": large | {"user": None}, "100 kB": long_text}
    return {name: json.dumps(body).encode() for name, body in bodies.items()}


def serve() -> None:
    """Runs slices: reads the name of a part from standard input, and prints the count and the CPU time."""
    from antiphon.dialects.openai.dialect import decode_chat
    from antiphon.engines.vendors.base import NO_ATTRIBUTES, VendorModel
    from antiphon.engines.vendors.openai.dialect import OpenAIUpstream

    upstream, model = OpenAIUpstream(), VendorModel("m", "vendor")
    parts: dict[str, Callable[[], object]] = {}
    for name, body in build_bodies().items():
        request = decode_chat(body).request
        parts[f"decode {name}"] = partial(decode_chat, body)
        parts[f"encode {name}"] = partial(upstream.encode, request, model, NO_ATTRIBUTES)
    for line in sys.stdin:
        part, count, began = parts[line.strip()], 0, time.thread_time()
        while time.thread_time() - began < SLICE_S:
            part()
            count += 1
        print(json.dumps((count, time.thread_time() - began)), flush=True)


def start(tree: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tree / "src")},
    )


def run_slice(process: subprocess.Popen[str], part: str) -> tuple[int, float]:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process has no pipes")
    process.stdin.write(part + "\n")
    process.stdin.flush()
    count, seconds = json.loads(process.stdout.readline())
    return count, seconds


def main(options: argparse.Namespace) -> None:
    trees = [ROOT] if options.against is None else [ROOT, options.against]
    processes = [start(tree) for tree in trees]
    print(f"{options.slices} slices of {SLICE_S} s, {os.cpu_count()} {platform.machine()} cores,")
    print(f"Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}; us of CPU")
    for part in [f"{kind} {name}" for kind in ("decode", "encode") for name in build_bodies()]:
        sums = [(0, 0.0)] * len(processes)
        for process in processes:
            run_slice(process, part)  # warms up
        for number in range(options.slices):
            order = range(len(processes)) if number % 2 else reversed(range(len(processes)))
            for index in order:
                count, seconds = run_slice(processes[index], part)
                sums[index] = (sums[index][0] + count, sums[index][1] + seconds)
        costs = [seconds / count * 1e6 for count, seconds in sums]
        ratio = f"  {costs[0] / costs[1]:.2f} of {costs[1]:.1f}" if len(costs) > 1 else ""
        print(f"{part:16}{costs[0]:9.1f}{ratio}")
    for process in processes:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--slices", type=int, default=40)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
    else:
        main(options)
