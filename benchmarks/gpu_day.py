"""Everything that this project wants to know of a GPU, in one run on a machine that has one.

python benchmarks/gpu_day.py [--streams 1 8 32 128] [--rounds 3] [--source llama_cpp_python.tar.gz]
python benchmarks/gpu_day.py --cpu --streams 1 2 --rounds 1 --prompt 8 --tokens 8     # tries the script

It builds llama.cpp's library and its llama-server from llama-cpp-python's locked source, by CMake, for CUDA.
Then it measures smollm2 and `half` (benchmarks/model_files.py) at each number of streams:

  - tokens a second, first token and the time between tokens of `antiphon serve` and of llama-server of the
    same build, by turns, and the ratio;
  - the engine's step: the time between two calls of llama_decode, and the call;
  - agreement with the processor: greedy tokens before the first difference, and how near a tie it was.

It prints a table in Markdown for each. `--built FOLDER` takes the folder of an earlier build. Without
`--source`, pip downloads the source. A build takes minutes of all cores, and needs CMake, Ninja and the CUDA
toolkit. `--cpu` builds nothing: it takes the library and the llama-server of xllamacpp, to try all the rest.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon.domain.request import Sampling
from antiphon.engines.base import EngineInfo, KVLayout, LoadSpec
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.engines.llama.libllama.library import find_library
from antiphon.engines.llama.libllama.placement import list_devices
from benchmarks.engine import draw_prompt
from benchmarks.model_files import ROOT, add_models, find_model
from benchmarks.offload import compare, measure
from benchmarks.peer import read_facts
from benchmarks.sampler_share import measure as measure_steps
from benchmarks.side_by_side.report import compute_interval
from benchmarks.side_by_side.scenarios import SAMPLING, Load, SideClient, measure_throughput
from benchmarks.side_by_side.servers import Shape, run_side, wait_until_idle

SIDES = ("native:streams", "llama:split")

FIGURES = ("after all first tokens, tokens/s", "first token, ms", "between tokens, ms")


def build(source: Path | None, folder: Path) -> Path:
    """Builds the library and llama-server. Returns the folder of both."""
    if source is None:
        requirement = ROOT / "requirements" / "native.txt"
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--require-hashes",
        ]
        subprocess.run([*pip, "--dest", str(folder), "--requirement", str(requirement)], check=True)
        source = next(folder.glob("llama_cpp_python-*.tar.gz"))
    if source.is_file():
        with tarfile.open(source) as archive:
            archive.extractall(folder / "source", filter="data")
        source = next((folder / "source").glob("*/vendor/llama.cpp"))
    options = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DBUILD_SHARED_LIBS=ON",
        "-DGGML_NATIVE=ON",
        "-DLLAMA_OPENSSL=OFF",
    ]
    options += [f"-DLLAMA_{name}=OFF" for name in ("BUILD_TESTS", "BUILD_EXAMPLES", "USE_PREBUILT_UI")]
    options += ["-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=native"]
    built = folder / "build"
    began = time.perf_counter()
    subprocess.run(["cmake", "-S", str(source), "-B", str(built), "-G", "Ninja", *options], check=True)
    subprocess.run(["cmake", "--build", str(built), "--target", "llama-server"], check=True)
    print(f"\nbuilt in {time.perf_counter() - began:.0f} s", flush=True)
    return built


def print_row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def print_header(title: str, *names: str) -> None:
    print(f"\n{title}; load average {os.getloadavg()[0]:.1f}\n")
    print_row(*names)
    print_row(*("---" for _ in names))


def compare_servers(path: Path, library: str, program: str, args: argparse.Namespace) -> None:
    """Measures both servers by turns at each number of streams."""
    vocabulary, _ = read_facts(path)
    print_header(f"{path.name}, both servers", "streams", *FIGURES, "ratio of tokens/s (95 % interval)")
    for streams in args.streams:
        shape = Shape(
            str(path),
            streams,
            args.prompt + args.tokens + 64,
            args.threads,
            native=library,
            program=program,
        )
        load = Load(vocabulary, streams, args.prompt, args.tokens, SAMPLING | {"ignore_eos": True})
        found: dict[str, list[dict[str, float]]] = {name: [] for name in SIDES}
        with ExitStack() as stack:
            sides = [stack.enter_context(run_side(name, shape)) for name in SIDES]
            for number in range(-1, args.rounds):  # the first one warms up
                for side in sides if number % 2 else reversed(sides):
                    figures = asyncio.run(measure_throughput(SideClient(side, load, f"{path.name}.{number}")))
                    wait_until_idle(side)
                    if number >= 0:
                        found[side.name].append(figures)
        own, other = ([figures[FIGURES[0]] for figures in found[name]] for name in SIDES)
        ratio, low, high = compute_interval([a / b for a, b in zip(own, other, strict=True)])
        columns = [
            " and ".join(f"{median(figures[name] for figures in found[side]):.4g}" for side in SIDES)
            for name in FIGURES
        ]
        print_row(streams, *columns, f"{ratio:.2f} ({low:.2f} to {high:.2f})")


async def load_engine(
    path: Path,
    library: str,
    sequences: int,
    context: int,
    threads: int | None = None,
    gpu_layers: int | None = None,
) -> tuple[LlamaTokenEngine, EngineInfo]:
    engine = LlamaTokenEngine()
    spec = LoadSpec(
        str(path),
        context_length=context,
        sequences=sequences,
        library=library,
        layout=KVLayout.STREAMS,
        keep_prefixes=False,
        threads=threads,
        gpu_layers=gpu_layers,
    )
    return engine, await engine.load(spec)


async def time_steps(path: Path, library: str, args: argparse.Namespace) -> None:
    """Measures the time between two calls of llama_decode, and the call, at each number of streams."""
    print_header(
        f"{path.name}, a step", "streams", "between two calls, ms", "llama_decode, ms", "layers on devices"
    )
    for streams in args.streams:
        engine, info = await load_engine(path, library, streams, args.tokens + 64, threads=args.threads)
        sampling = Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
        steps = (await measure_steps(engine, info, sampling, args.tokens)).list_steps(streams)
        gap, decode = (
            median(1000 * value for value in column)
            for column in zip(*((step - decode, decode) for step, decode, _ in steps), strict=True)
        )
        layers = ", ".join(f"{device.layers} on {device.device}" for device in info.devices) or "none"
        print_row(streams, f"{gap:.2f}", f"{decode:.2f}", layers)
        await engine.aclose()


async def check_agreement(path: Path, library: str, args: argparse.Namespace) -> None:
    """Compares greedy tokens with those of the processor."""
    answers = []
    for layers in (0, None):
        engine, info = await load_engine(path, library, 8, args.prompt + args.tokens + 64, gpu_layers=layers)
        prompts = [draw_prompt(info, args.prompt, number) for number in range(8)]
        answers.append((await measure(engine, prompts, args.tokens)).answers)
        await engine.aclose()
    print(
        f"\n{path.name}, eight greedy answers beside the processor's: {compare(answers[1], answers[0])}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_models(parser, "smollm2", "half")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--cpu", action="store_true", help="try the script without a GPU and without a build")
    parser.add_argument(
        "--source", type=Path, help="llama-cpp-python's source archive, or a tree of llama.cpp"
    )
    parser.add_argument("--built", type=Path, help="the folder of an earlier build")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library_path = program = ""
        if args.built or not args.cpu:
            programs = (args.built or build(args.source, Path(folder))) / "bin"
            library_path = str(next(path for path in sorted(programs.glob("libllama.*"))))
            program = str(programs / "llama-server")
        library, found = find_library(library_path or None)
        print(f"{found.origin}, {library.describe_version()}")
        devices = list_devices(library)
        for device in devices:
            print(f"{device.name}: {device.description}, {device.total / 1e6:,.0f} MB")
        if not devices and not args.cpu:
            sys.exit("this library finds no device: see `antiphon doctor`")
        for path in map(find_model, args.model):
            compare_servers(path, str(found.path), program, args)
            asyncio.run(time_steps(path, str(found.path), args))
            asyncio.run(check_agreement(path, str(found.path), args))


if __name__ == "__main__":
    main()
