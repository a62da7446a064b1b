"""Measures what drafts gain end to end, by a prediction and by lookup, and what they cost elsewhere.

    python benchmarks/predictions.py prediction --model smollm2 --seconds 100
    python benchmarks/predictions.py lookup free streams --model half

  - prediction: one stream that makes an answer of 400 tokens which the server has made before. The prediction
    is that answer with 5 % of its tokens replaced. Beside it: the same request without prediction.
  - lookup: the same answer again, which stands in the prompt, with `drafts = "auto"`. Beside it: "off".
  - free: another story, which repeats nothing on purpose, with "auto". Beside it: "off".
  - streams: eight such stories at once, with "auto". Beside it: "off".

Requests of both sides take turns, and each pair has a ratio of times. Printed are the median tokens/s of
both sides, and the ratio of the sums of their times with a 95 % interval (the pairs are drawn 2,000 times).
The factor of steps is what drafts would gain if their rows cost nothing. Predictions are token ids, because
random weights make tokens that no tokenizer makes of their text. Run nothing else meanwhile.
"""

import argparse
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx2

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon.domain.models import Load
from antiphon.engines.llama.machine import choose_thread_count
from benchmarks.model_files import add_models, find_model
from benchmarks.side_by_side.servers import MODEL, Shape, Side, run_side

SCENARIOS = ("prediction", "lookup", "free", "streams")

CHANGED, STREAMS = 0.05, 8

FIRST_SEED = 11

CONTEXT = 1536

DRAWS = 2000
"""The number of samples of pairs for the interval."""

OPENING = "Write a long story about a lighthouse keeper and a lost whale. Tell each day of the week in turn."


Prompt = list[int] | str


@dataclass
class Found:
    """What one side took: the seconds of each request, and totals of the engine."""

    seconds: list[float] = field(default_factory=list)
    steps: int = 0
    tokens: int = 0
    drafts: int = 0
    accepted: int = 0


class Caller:
    """Sends requests to one server."""

    def __init__(self, side: Side, tokens: int) -> None:
        """`tokens`: the length of each answer."""
        self._side, self._tokens = side, tokens
        url = f"http://127.0.0.1:{side.port}/fireworks/inference/v1/completions"
        self._post = httpx2.Client(timeout=600).post
        self._url = url

    def complete(self, prompt: Prompt, seed: int, **more: object) -> list[int]:
        """Makes an answer, and returns its token ids."""
        body = {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": self._tokens,
            "seed": seed,
            "temperature": 0.7,
        }
        reply = self._post(self._url, json=body | {"ignore_eos": True, "return_token_ids": True} | more)
        reply.raise_for_status()
        ids: list[int] = reply.json()["choices"][0]["token_ids"]
        return ids

    def measure(self, found: Found, prompts: list[Prompt], seed: int, **more: object) -> list[int]:
        """Adds the time of these requests, sent at once. Returns the tokens of the first answer."""
        before = self._read_load()
        with ThreadPoolExecutor(len(prompts)) as threads:
            started = time.perf_counter()
            answers = list(threads.map(lambda prompt: self.complete(prompt, seed, **more), prompts))
            found.seconds.append(time.perf_counter() - started)
        after = self._read_load()
        found.tokens += self._tokens * len(prompts)
        found.steps += after.steps - before.steps
        found.drafts += after.drafts - before.drafts
        found.accepted += after.accepted_drafts - before.accepted_drafts
        return answers[0]

    def _read_load(self) -> Load:
        if self._side.antiphon is None:
            raise TypeError("only Antiphon's sides are measured")
        return self._side.antiphon.load()


def replace_some(tokens: list[int], rng: random.Random) -> list[int]:
    """Replaces CHANGED of the tokens, evenly and never two neighbours, by others of the same text."""
    step = round(1 / CHANGED)
    return [rng.choice(tokens) if index % step == step // 2 else token for index, token in enumerate(tokens)]


def run(scenario: str, plain: Caller, drafting: Caller, seconds: float) -> tuple[Found, Found]:
    """Measures pairs for so many seconds, at least two."""
    rng, without, having = random.Random(7), Found(), Found()
    ends_at, pair, answer = time.monotonic() + seconds, 0, list[int]()
    while pair < 2 or time.monotonic() < ends_at:
        seed = FIRST_SEED + pair // 2  # each answer is made twice without drafts, and twice with them
        if scenario == "lookup" and not pair % 2:
            answer = plain.complete(OPENING, seed)
        count = STREAMS if scenario == "streams" else 1
        prompts: list[Prompt] = [f"{OPENING} Name the whale {100 * seed + one}." for one in range(count)]
        if scenario == "lookup":
            prompts = [[*answer, *answer[:40]]]
        for is_plain in (pair % 2 == 0, pair % 2 == 1):
            if is_plain:
                ids = plain.measure(without, prompts, seed)
                answer = ids if scenario == "prediction" else answer
            elif scenario == "prediction":
                plain.measure(having, prompts, seed, speculation=replace_some(answer, rng))
            else:
                drafting.measure(having, prompts, seed)
        pair += 1
        print(report(scenario, without, having), file=sys.stderr, flush=True)
    return without, having


def report(scenario: str, without: Found, having: Found) -> str:
    """Formats one line."""
    pairs, rng = list(zip(without.seconds, having.seconds, strict=True)), random.Random(1)
    ratios = []
    for _ in range(DRAWS):
        drawn = rng.choices(pairs, k=len(pairs))
        ratios.append(sum(pair[0] for pair in drawn) / sum(pair[1] for pair in drawn))
    ratios.sort()
    ratio = sum(without.seconds) / sum(having.seconds)
    low, high = ratios[DRAWS // 40], ratios[-DRAWS // 40]
    tokens = without.tokens / len(pairs)
    speeds = [median(tokens / value for value in found.seconds) for found in (without, having)]
    share = having.accepted / having.drafts if having.drafts else 0.0
    return (
        f"| {scenario} | {len(pairs)} | {speeds[0]:.1f} | {speeds[1]:.1f} "
        f"| **{ratio:.2f}** ({low:.2f}-{high:.2f}) | {without.steps / having.steps:.2f} "
        f"| {having.drafts} | {share:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS), metavar="SCENARIO")
    parser.add_argument("--seconds", type=float, default=60, help="seconds of each scenario")
    parser.add_argument("--tokens", type=int, default=400, help="tokens of each answer")
    parser.add_argument("--layout", choices=("pool", "streams"), default="streams")
    add_models(parser)
    args = parser.parse_args()
    for model in args.model:
        path = find_model(model)
        shapes = [
            Shape(str(path), STREAMS, CONTEXT, choose_thread_count(), (("drafts", mode),))
            for mode in ("off", "auto")
        ]
        needs_both = any(scenario != "prediction" for scenario in args.scenarios)
        with ExitStack() as stack:
            sides = [
                stack.enter_context(run_side(f"antiphon:{args.layout}", shape))
                for shape in shapes[: 1 + needs_both]
            ]
            callers = [Caller(side, args.tokens) for side in sides]
            for caller in callers:
                caller.complete(OPENING, 1, max_tokens=16)
            print(f"\n{model}, {args.layout}\n")
            print("| scenario | pairs | tokens/s without | with | ratio | of steps | drafts | accepted |")
            print("|---|---|---|---|---|---|---|---|")
            for scenario in args.scenarios:
                print(report(scenario, *run(scenario, callers[0], callers[-1], args.seconds)), flush=True)


if __name__ == "__main__":
    main()
