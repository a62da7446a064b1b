"""Measures the time between two decodes of llama.cpp, in an engine host, beside an earlier version by turns.

    python benchmarks/step.py --model cantor --streams 1 8 32 --before TREE --rounds 3

TREE is a checkout of the earlier version, such as one that `git worktree add` makes. In each round every side
serves the same streams from a host of its own, in a different order. A host is `serve_engine` over
`LlamaTokenEngine`, whose decodes are timed; this process is its client, as the HTTP process is. Only gaps
between two decodes that compute all streams count. `bound` sides bind their threads to cores, as the server
does for its only engine. What tokens per second become of it is measured by `peer.py throughput`.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

import uvloop

SCRIPT = Path(__file__).absolute()
ROOT = SCRIPT.parents[1]
sys.path.insert(0, str(ROOT))

CONTEXT, PROMPT = 512, 16


# --- the host, under either version -------------------------------------------------------------------------


async def serve_timed() -> None:
    """Serves a model until standard input ends. For each line with a number of rows, prints the decodes of so
    many rows since the last line: rows, begin, end, and the thread's CPU seconds at both."""
    from antiphon.engines.base import KVLayout, LoadSpec
    from antiphon.engines.host.server import serve_engine
    from antiphon.engines.llama import LlamaTokenEngine
    from antiphon.engines.llama.libllama.context import NativeContext

    decodes: list[tuple[int, float, float, float, float]] = []
    decode = NativeContext.decode

    def decode_timed(context: NativeContext, rows: int) -> int:
        began, began_cpu = time.perf_counter(), time.thread_time()
        status = decode(context, rows)
        decodes.append((rows, began, time.perf_counter(), began_cpu, time.thread_time()))
        return status

    setattr(NativeContext, "decode", decode_timed)  # noqa: B010 - it replaces a method
    options = json.loads(sys.stdin.readline())
    engine = LlamaTokenEngine()
    await engine.load(LoadSpec(layout=KVLayout.STREAMS, weights_in_memory=True, **options["spec"]))
    async with serve_engine(engine, options["socket"]):
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            rows = int(line)
            print(json.dumps([each for each in decodes if each[0] == rows]), flush=True)
            decodes.clear()
    await engine.aclose()


# --- the client ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Host:
    """A running host of one side."""

    name: str
    process: asyncio.subprocess.Process
    socket: str

    async def read_decodes(self, rows: int) -> list[tuple[int, float, float, float, float]]:
        """Reads the decodes of so many rows since the last call."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{rows}\n".encode())
        return [tuple(each) for each in json.loads(await self.process.stdout.readline())]


@asynccontextmanager
async def run_host(name: str, tree: Path, model: Path, args: argparse.Namespace) -> AsyncIterator[Host]:
    binding = name.partition("/")[2]
    environment = os.environ | {"PYTHONPATH": f"{tree / 'src'}", "OMP_WAIT_POLICY": "passive"}
    if binding == "bound":
        environment |= {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
    spec = {
        "model": str(model),
        "sequences": max(args.streams),
        "context_length": CONTEXT,
        "threads": args.threads,
    }
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", str(SCRIPT), "--serve"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            limit=1 << 26,
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None
        host = Host(name, process, f"{folder}/host.sock")
        process.stdin.write(json.dumps({"spec": spec, "socket": host.socket}).encode() + b"\n")
        try:
            assert await process.stdout.readline() == b"ready\n", f"{name} did not start"
            yield host
        finally:
            process.stdin.close()
            await process.wait()


async def measure(host: Host, streams: int, tokens: int, salt: int) -> dict[str, float]:
    """Runs the streams, and returns the figures of the steps that computed all of them."""
    from antiphon.domain.request import Sampling
    from antiphon.engines.base import LoadSpec, PromptTokens, Steps, TokenRequest
    from antiphon.engines.host.client import open_host_engine

    randomizer = random.Random(salt)

    async with open_host_engine(host.socket, host.name) as client:
        await client.load(LoadSpec(""))

        async def run(number: int) -> None:
            prompt = tuple(randomizer.randrange(300, 2000) for _ in range(PROMPT))
            sampling = Sampling(0.8, top_p=0.95, top_k=40, min_p=0.05, seed=number, ignore_eos=True)
            request = TokenRequest(PromptTokens(prompt), tokens, sampling)
            count = 0
            async for event in client.generate(request):
                count += len(event.tokens) if isinstance(event, Steps) else 0
            assert count == tokens

        await host.read_decodes(streams)
        async with asyncio.TaskGroup() as tasks:
            for number in range(streams):
                tasks.create_task(run(number))
        decodes = await host.read_decodes(streams)
    gaps, cpu, steps = [], [], []
    for (_, _, ended, _, ended_cpu), (_, began, _, began_cpu, _) in pairwise(decodes):
        gaps.append(1000 * (began - ended))
        cpu.append(1000 * (began_cpu - ended_cpu))
    steps = [1000 * (ended - began) for _, began, ended, _, _ in decodes]
    tenth = quantiles(gaps, n=10)[0]
    whole = median(gaps) + median(steps)
    return {
        "gap, ms": median(gaps),
        "best tenth, ms": tenth,
        "CPU of the gap, ms": median(cpu),
        "decode, ms": median(steps),
        "share of the gap, %": 100 * median(gaps) / whole,
    }


async def compare(name: str, args: argparse.Namespace) -> None:
    """Runs all sides of one model by turns, and prints the medians of the rounds."""
    from benchmarks.model_files import find_model

    trees = {"now": ROOT} | ({"before": args.before.absolute()} if args.before else {})
    async with AsyncExitStack() as stack:
        hosts = [
            await stack.enter_async_context(
                run_host(side, trees[side.partition("/")[0]], find_model(name), args)
            )
            for side in args.sides
            if side.partition("/")[0] in trees
        ]
        for host in hosts:
            await measure(host, 1, 8, 0)
        for streams in args.streams:
            found: dict[str, list[dict[str, float]]] = {host.name: [] for host in hosts}
            for number in range(args.rounds):
                for host in random.Random(number).sample(hosts, len(hosts)):
                    tokens = max(24, args.tokens // streams if streams > 1 else args.tokens)
                    found[host.name].append(await measure(host, streams, tokens, number))
            print(f"{name}, {streams} streams, {args.rounds} rounds, load {os.getloadavg()[0]:.1f}")
            for side, rounds in found.items():
                medians = {figure: median(each[figure] for each in rounds) for figure in rounds[0]}
                gaps = " ".join(f"{each['gap, ms']:.2f}" for each in rounds)
                text = ", ".join(f"{figure} {value:.3g}" for figure, value in medians.items())
                print(f"  {side:14} {text} (gap by round {gaps})", flush=True)


def main() -> None:
    if "--serve" in sys.argv:
        uvloop.run(serve_timed())  # as in an engine host
        return
    from benchmarks.model_files import add_models

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_models(parser)
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument(
        "--sides", nargs="+", default=["now", "before"], help="now or before, each with /bound or not"
    )
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--tokens", type=int, default=200, help="of one stream; of all together if they are many"
    )
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    for name in args.model:
        asyncio.run(compare(name, args))


if __name__ == "__main__":
    main()
