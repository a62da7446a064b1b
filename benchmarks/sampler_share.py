"""Measures the sampler's share of a step of the engine, without a server.

    python benchmarks/sampler_share.py [--model smollm2] [--rows 32] [--tokens 24]

A step is the time from one decode to the next while every sequence has one row in it. Printed are the medians
of the step, of llama_decode and of the sampler's call, and the sampler's share of the step. Without `--model`
all of benchmarks/model_files.py are measured, smollm2 first. benchmarks/sampler.py measures the sampler by
itself. For a larger vocabulary: `python benchmarks/make_model.py --size half --vocabulary 131072 wide.gguf`.
"""

import argparse
import asyncio
import os
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from antiphon.domain.request import Sampling
from antiphon.domain.values import replace
from antiphon.engines.base import EngineInfo, KVLayout, LoadSpec, PromptTokens, TokenRequest
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.engines.llama.batch import Logits
from antiphon.engines.llama.libllama.context import NativeContext
from antiphon.engines.sampling.sampler import SampledToken, Sampler
from antiphon.engines.sampling.sampling_state import SamplingState
from antiphon.errors import AntiphonError

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.model_files import add_models, find_model

SAMPLINGS = {
    "temperature 0.8, top-k 40, top-p 0.95, min-p 0.05": Sampling(0.8, top_p=0.95, top_k=40, min_p=0.05),
    "temperature 1": Sampling(1.0),
    "temperature 1, top-p 0.95": Sampling(1.0, top_p=0.95),
    "the same with three penalties": Sampling(
        0.8,
        top_p=0.95,
        top_k=40,
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.2,
    ),
    "greedy": Sampling(0.0),
}


@dataclass
class StepTimes:
    """The begin and end times of each decode and each draw."""

    decodes: list[tuple[int, float, float]] = field(default_factory=list)
    """The number of rows, the begin and the end of each decode."""
    draws: list[tuple[float, float]] = field(default_factory=list)

    def list_steps(self, rows: int) -> list[tuple[float, float, float]]:
        """Lists the seconds of step, decode and draw of each step whose `rows` equal those of the next
        step."""
        steps = []
        for (count, began, ended), (next_count, next_began, _) in zip(
            self.decodes, self.decodes[1:], strict=False
        ):
            drawn = sum(end - start for start, end in self.draws if ended <= start < next_began)
            if count == next_count == rows:
                steps.append((next_began - began, ended - began, drawn))
        return steps


class StepTimer:
    """Measures the engine's decodes and draws while the context lasts."""

    def __enter__(self) -> StepTimes:
        self.decode, self.draw, times = NativeContext.decode, Sampler.draw, StepTimes()

        def decode(context: NativeContext, rows: int) -> int:
            began = time.perf_counter()
            status = self.decode(context, rows)
            times.decodes.append((rows, began, time.perf_counter()))
            return status

        def draw(
            sampler: Sampler, logits: Logits, states: list[SamplingState | None]
        ) -> list[SampledToken | AntiphonError | None]:
            began = time.perf_counter()
            drawn = self.draw(sampler, logits, states)
            times.draws.append((began, time.perf_counter()))
            return drawn

        setattr(NativeContext, "decode", decode)  # noqa: B010 - a method may not be assigned to otherwise
        setattr(Sampler, "draw", draw)  # noqa: B010
        return times

    def __exit__(self, *_: object) -> None:
        setattr(NativeContext, "decode", self.decode)  # noqa: B010
        setattr(Sampler, "draw", self.draw)  # noqa: B010


async def run_one(engine: LlamaTokenEngine, request: TokenRequest) -> None:
    async for _ in engine.generate(request):
        pass


async def measure(engine: LlamaTokenEngine, info: EngineInfo, sampling: Sampling, tokens: int) -> StepTimes:
    """Runs all sequences at once, with short prompts."""
    randomizer = random.Random(0)
    prompts = [tuple(randomizer.sample(range(1000, info.vocabulary), 4)) for _ in range(info.sequences)]
    samplings = [replace(sampling, seed=seed, ignore_eos=True) for seed in range(info.sequences)]
    with StepTimer() as times:
        await asyncio.gather(
            *(
                run_one(engine, TokenRequest(PromptTokens(prompt), tokens, seeded))
                for prompt, seeded in zip(prompts, samplings, strict=True)
            )
        )
    return times


async def run(path: Path, args: argparse.Namespace) -> None:
    engine = LlamaTokenEngine()
    spec = LoadSpec(
        str(path),
        context_length=args.tokens + 64,
        sequences=args.rows,
        threads=args.threads,
        layout=KVLayout.STREAMS,
        library=args.library,
    )
    info = await engine.load(spec)
    print(
        f"{info.parameters / 1e6:.0f} M parameters, {info.quantization}, vocabulary {info.vocabulary:,},",
        end=" ",
    )
    print(f"{args.rows} rows, {info.threads} threads, {info.library}; load average {os.getloadavg()[0]:.1f}")
    for name, sampling in SAMPLINGS.items():
        steps = (await measure(engine, info, sampling, args.tokens)).list_steps(args.rows)
        step, decode, draw = (1000 * median(part) for part in zip(*steps, strict=True))
        share = median(draw_seconds / step_seconds for step_seconds, _, draw_seconds in steps)
        print(
            f"{name:52} step {step:6.1f} ms, decode {decode:6.1f}, sampler {draw:5.1f}: {share:.1%}",
            flush=True,
        )
    await engine.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_models(parser)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--library")
    args = parser.parse_args()
    for path in map(find_model, args.model):
        asyncio.run(run(path, args))


if __name__ == "__main__":
    main()
