"""Measures the wait for the first token of a request that is alone, beside llama-server.

python benchmarks/first_token.py [--model smollm2 cantor] [--prompt 16 128 512] [--rounds 24] [--before TREE]

The sides (benchmarks/side_by_side/servers.py) run at once and answer by turns, in another order in each
round, so that each pair of answers is a second apart at most. Nobody else runs meanwhile. Prompts are token
ids, or with `--text` a chat of about as many words, which is rendered and tokenized. Nothing of a prompt is
cached. Printed are the medians in milliseconds, and the median of the pairs' ratios to the last side with its
95 % interval.
"""

import argparse
import asyncio
import os
import random
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.model_files import add_models, find_model
from benchmarks.peer import read_facts
from benchmarks.side_by_side.client import send_request
from benchmarks.side_by_side.report import compute_interval
from benchmarks.side_by_side.servers import MODEL, Shape, Side, run_side

WORDS = "the old fox saw a hen near mill and river while rain fell on green fields of late summer".split()

PAUSE = 0.05
"""Seconds between two requests: waiting threads sleep by then, as before a request that comes alone."""


async def time_first_token(side: Side, prompt: list[int], text: str) -> float:
    """Returns the milliseconds to the first token of one request, which asks for two."""
    await asyncio.sleep(PAUSE)
    fields: dict[str, object] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 1}
    if text:
        fields["messages"] = [{"role": "user", "content": text}]
    else:
        fields["ignore_eos"] = True
    stream = await send_request(side.port, MODEL, prompt, 2, fields)
    await stream.closed
    return 1000 * stream.read().first


def measure(sides: list[Side], vocabulary: int, length: int, args: argparse.Namespace) -> None:
    """Measures all rounds of one length of prompt."""
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    salt = random.SystemRandom().randrange(1 << 30)
    for number in range(-2, args.rounds):  # the first two warm up
        randomizer = random.Random(f"{salt}.{number}")
        prompt = randomizer.sample(range(vocabulary // 8, vocabulary), length)
        text = " ".join(randomizer.choices(WORDS, k=length)) if args.text else ""
        for side in randomizer.sample(sides, len(sides)):
            milliseconds = asyncio.run(time_first_token(side, prompt, text))
            if number >= 0:
                times[side.name].append(milliseconds)
    reference = sides[-1].name
    for name, found in times.items():
        ratio, low, high = compute_interval([a / b for a, b in zip(found, times[reference], strict=True)])
        print(
            f"  {length:5} {'words' if args.text else 'tokens'}  {name:24} {median(found):8.2f} ms, "
            f"best {min(found):8.2f}, to {reference} {ratio:.3f} ({low:.3f} to {high:.3f})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_models(parser)
    parser.add_argument(
        "--sides", nargs="+", default=["antiphon:streams", "llama:split"], help="the last is the ratio's"
    )
    parser.add_argument("--prompt", type=int, nargs="+", default=[16, 128, 512])
    parser.add_argument("--text", action="store_true", help="a chat of words instead of token ids")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--before", type=Path, default=Path(), help="checkout of the sides `before:...`")
    args = parser.parse_args()
    for path in map(find_model, args.model):
        vocabulary, _ = read_facts(path)
        shape = Shape(str(path), args.sequences, 2048, args.threads, before=str(args.before))
        with ExitStack() as stack:
            sides = [stack.enter_context(run_side(name, shape)) for name in args.sides]
            time.sleep(1)
            print(f"{path.name}, {args.rounds} rounds, load average {os.getloadavg()[0]:.1f}", flush=True)
            for length in args.prompt:
                measure(sides, vocabulary, length, args)


if __name__ == "__main__":
    main()
