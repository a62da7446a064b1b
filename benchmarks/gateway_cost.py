"""Compares the CPU time of this tree's gateway with that of another commit, with scripted engines.

python benchmarks/gateway_cost.py [--against 32a9d91] [--rounds 5] [--seconds 2]

The other commit's sources are unpacked to a temporary directory and served by the same script, environment
and load, so that only the gateway differs. There are three loads of http_path.py: a buffered answer of 16
tokens and a stream of 50 chunks from an engine of events, and a buffered answer of 16 tokens that the
renderer makes with a template and a token engine that has every token ready. Each round measures both
servers, one after the other, in alternating order. Prints each round's ratio, and the medians of all rounds.
"""

import argparse
import asyncio
import io
import logging
import os
import platform
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon.auth.keyring import SettingsKey
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.engines.base import Counts, SequenceFinished, SequenceStarted, Steps, StopCause, TextPiece
from antiphon.engines.base import TokenEvent as Event
from antiphon.engines.base import TokenRequest as Request
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.http.application import create_app
from antiphon.http.server import serve
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.rendering.renderer import Renderer
from antiphon.rendering.template.chat_template import prove
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import ScriptedAnswer, ScriptedEngine, ScriptedTokenEngine
from benchmarks.http_path import CHUNKS, KEY, PACE, TEXT, TOKENS, Figure, measure, wait_until_started

ROOT = Path(__file__).parents[1]

BASE = "32a9d91"
"""The commit to compare with by default."""


@dataclass(frozen=True)
class Load:
    """One kind of request."""

    name: str
    model: str
    stream: bool


PROMPT_TOKENS = (5,) * 90

LOADS = (
    Load("events, buffered: CPU per answer", "scripted", False),
    Load("events, streamed: CPU per chunk", "scripted", True),
    Load("rendered, buffered: CPU per answer", "rendered", False),
)


# --- the server ---------------------------------------------------------------------------------------------


class ReadyEngine(ScriptedTokenEngine):
    """An engine that has every token ready, also those of the prompt, because a real engine is another
    process."""

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        return PROMPT_TOKENS

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        step = Steps(self.tokenizer.encode_plain(" world"))
        yield SequenceStarted(3)
        for _ in range(request.max_tokens):
            yield step
        yield SequenceFinished(StopCause.LENGTH, Counts(3, request.max_tokens))


async def prove_here(payload: Mapping[str, object]) -> None:
    prove(payload)


def serve_gateway(listener: socket.socket) -> None:
    """Serves Antiphon with a key, a hidden log, an engine of events and an engine of tokens."""
    logger = logging.getLogger("antiphon")
    logger.addHandler(logging.FileHandler(os.devnull))
    logger.setLevel(logging.INFO)
    at_once, one_by_one = (
        ScriptedAnswer((TEXT,) * TOKENS, pace=None),
        ScriptedAnswer((TEXT,) * CHUNKS, pace=PACE),
    )
    events = ScriptedEngine(lambda request: at_once if request.output.max_tokens == TOKENS else one_by_one)
    rendered = Renderer(ReadyEngine(), prove=prove_here)
    models = ModelRegistry(
        (Model("scripted", (ModelRoute(events),), 0), Model("rendered", (ModelRoute(rendered),), 0))
    )
    edge = AppState(Pipeline(models, Metrics(), 1.0), models, OpenAI(), ServerSettings(), (SettingsKey(KEY),))
    uvloop.run(serve(create_app(edge), edge, listener))


@contextmanager
def run_server(sources: Path) -> Iterator[tuple[psutil.Process, int]]:
    """Runs a server of these sources. Yields its process and port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, __file__, "--serve", str(listener.fileno())]
        env = os.environ | {"PYTHONPATH": str(sources)}
        child = subprocess.Popen(command, pass_fds=[listener.fileno()], env=env)
    try:
        yield psutil.Process(child.pid), port
    finally:
        child.terminate()
        child.wait(10)


@contextmanager
def unpack_commit(commit: str) -> Iterator[Path]:
    """Unpacks the sources of a commit into a temporary directory."""
    archive_bytes = subprocess.run(
        ["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tempfile.TemporaryDirectory() as directory:
        with tarfile.open(fileobj=io.BytesIO(archive_bytes)) as archive:
            archive.extractall(directory, filter="data")
        yield Path(directory) / "src"


# --- the comparison -----------------------------------------------------------------------------------------


async def main(against: str, rounds: int, seconds: float) -> None:
    """Measures every load with both servers in each round."""
    results: dict[Load, list[tuple[Figure, Figure]]] = {load: [] for load in LOADS}
    with (
        unpack_commit(against) as sources,
        run_server(sources) as other_server,
        run_server(ROOT / "src") as own_server,
    ):
        for _, port in (other_server, own_server):
            await wait_until_started(port)
        for number in range(rounds + 1):
            for load in LOADS:
                figures = await measure_round(load, other_server, own_server, seconds, number % 2 == 0)
                if number:  # the first round warms up
                    results[load].append(figures)
    print(f"{rounds} rounds of {seconds} s against {against}, {os.cpu_count()} {platform.machine()} cores,")
    print(f"Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}")
    for load, pairs in results.items():
        report(load, pairs)


Server = tuple[psutil.Process, int]


async def measure_round(
    load: Load, other_server: Server, own_server: Server, seconds: float, other_first: bool
) -> tuple[Figure, Figure]:
    """Measures one load. Returns the other commit's figure and this tree's."""
    order = (other_server, own_server) if other_first else (own_server, other_server)
    figures = [await measure(*server, load.stream, seconds, load.model) for server in order]
    other_figure, own_figure = figures if other_first else reversed(figures)
    return other_figure, own_figure


def report(load: Load, pairs: list[tuple[Figure, Figure]]) -> None:
    other_median, own_median = (
        statistics.median(figure.cpu for figure in side) for side in zip(*pairs, strict=True)
    )
    ratios = [own_figure.cpu / other_figure.cpu for other_figure, own_figure in pairs]
    print(f"  {load.name:<36}{other_median:8.1f} us before {own_median:8.1f} us now")
    ratio_list = " ".join(f"{ratio:.3f}" for ratio in ratios)
    print(f"  {'':<36}ratio {statistics.median(ratios):.3f} (median of {ratio_list})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", default=BASE, help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve_gateway(socket.socket(fileno=options.serve))
    else:
        asyncio.run(main(options.against, options.rounds, options.seconds))
