"""Measures the wait for the first token of requests with pictures, beside llama-server with the same files.

python benchmarks/media.py [--family smolvlm] [--size small] [--pixels 448] [--rounds 12] [--threads 2]

The pair of files has random weights (make_media_model.py). The family `smolvlm` has a projector of that size,
the others have tiny ones, so that what is around the encoder takes most of the time. Both servers run at once
and answer by turns, in another order in each round. Each round has pictures that no server has seen:

  - cold: a question about one picture
  - again: another question about the same picture
  - four: a question about each of four pictures at once, until the last first token

Printed are the medians in milliseconds, and the median of the pairs' ratios to llama-server with its 95 %
interval; then the ratio of again to cold within the rounds of each server. Nobody else runs meanwhile.
"""

import argparse
import asyncio
import base64
import os
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.make_media_model import FAMILIES, SMOLVLM, write_projector, write_text_model
from benchmarks.make_model import SIZES
from benchmarks.side_by_side.client import send_request
from benchmarks.side_by_side.report import compute_interval
from benchmarks.side_by_side.servers import MODEL, Shape, Side, run_side

SIDES = ("antiphon:streams", "llama:split")

SCENARIOS = ("cold", "again", "four")

SEQUENCES, CONTEXT = 4, 2048

PAUSE = 0.05
"""Seconds between two requests: waiting threads sleep by then, as before a request that comes alone."""


def draw_picture(seed: str, pixels: int) -> str:
    """Returns a PNG of random squares as a data: URL."""
    squares = np.random.default_rng(list(seed.encode())).integers(
        0, 255, (pixels // 8, pixels // 8, 3), np.uint8
    )
    file = BytesIO()
    Image.fromarray(squares.repeat(8, 0).repeat(8, 1)).save(file, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


async def time_first_tokens(side: Side, pictures: list[str], question: str) -> float:
    """Returns the milliseconds until each of the requests, one for each picture, has its first token."""
    await asyncio.sleep(PAUSE)
    streams = []
    for picture in pictures:
        content = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": question}]
        messages = [{"role": "user", "content": content}]
        fields: dict[str, object] = {"messages": messages, "temperature": 0.8, "seed": 1, "ignore_eos": True}
        streams.append(await send_request(side.port, MODEL, "", 4, fields))
    for stream in streams:
        await stream.closed
    results = [stream.read() for stream in streams]
    return 1000 * (max(result.times[0] for result in results) - min(result.began for result in results))


def measure(sides: list[Side], args: argparse.Namespace) -> None:
    """Measures and prints all rounds."""
    times: dict[tuple[str, str], list[float]] = {
        (scenario, side.name): [] for scenario in SCENARIOS for side in sides
    }
    salt, began, longest = random.SystemRandom().randrange(1 << 30), time.monotonic(), 0.0
    for number in range(-1, args.rounds):  # the first one warms up
        round_began = time.monotonic()
        if round_began + longest > began + args.seconds:
            print(f"  no time for more than {number} rounds")
            break
        first, *others = [draw_picture(f"{salt}.{number}.{index}", args.pixels) for index in range(5)]
        for scenario, pictures, question in (
            ("cold", [first], "What is it?"),
            ("again", [first], "Which colors has it?"),
            ("four", others, "What is it?"),
        ):
            for side in random.Random(f"{salt}.{number}").sample(sides, len(sides)):
                milliseconds = asyncio.run(time_first_tokens(side, pictures, question))
                if number >= 0:
                    times[scenario, side.name].append(milliseconds)
        longest = max(longest, time.monotonic() - round_began)
    for scenario in SCENARIOS:
        ours, theirs = (times[scenario, side.name] for side in sides)
        ratio, low, high = compute_interval([a / b for a, b in zip(ours, theirs, strict=True)])
        print(
            f"  {scenario:6} {sides[0].name} {median(ours):8.2f} ms, "
            f"{sides[1].name} {median(theirs):8.2f} ms, ratio {ratio:.3f} ({low:.3f} to {high:.3f})",
            flush=True,
        )
    for side in sides:
        pairs = zip(times["again", side.name], times["cold", side.name], strict=True)
        ratio, low, high = compute_interval([again / cold for again, cold in pairs])
        print(f"  {side.name}: again to cold {ratio:.3f} ({low:.3f} to {high:.3f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=(*FAMILIES, "smolvlm"), default="smolvlm")
    parser.add_argument("--size", choices=SIZES, default="small", help="of the text model")
    parser.add_argument("--pixels", type=int, default=448, help="of a picture's side")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=600, help="after which no further round begins")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        text, projector = Path(directory) / "text.gguf", Path(directory) / "mmproj.gguf"
        family = "idefics3" if args.family == "smolvlm" else args.family
        write_text_model(text, family, SIZES[args.size])
        shape = SMOLVLM if args.family == "smolvlm" else None
        write_projector(projector, family, SIZES[args.size].hidden, shape=shape)
        serving = Shape(str(text), SEQUENCES, CONTEXT, args.threads, projector=str(projector))
        sides = [stack.enter_context(run_side(name, serving)) for name in SIDES]
        time.sleep(1)
        load = os.getloadavg()[0]
        print(
            f"{args.family}, {args.pixels} pixels, {args.rounds} rounds, load average {load:.1f}", flush=True
        )
        measure(sides, args)


if __name__ == "__main__":
    main()
