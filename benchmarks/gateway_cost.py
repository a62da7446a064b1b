"""What this tree's gateway costs beside another commit's: CPU time over scripted engines, by turns.

    python benchmarks/gateway_cost.py [--against 32a9d91] [--rounds 5] [--seconds 2]

The other commit's sources are unpacked beside this tree and served by the same script, environment and load,
so that nothing but the gateway differs. Three loads of http_path.py: a buffered answer of 16 tokens and a
stream of 50 chunks whose engine gives events, and a buffered answer of 16 tokens that the renderer makes from
a template and a token engine that has every token ready. Each round measures both servers, one after the
other, the first by turns. Prints each round's ratio, and of all rounds the medians.
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

from antiphon.auth.keyring import ServiceKey
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.engines.base import Counts, SequenceFinished, SequenceStarted, Steps, StopCause, TextPiece
from antiphon.engines.base import TokenEvent as Event
from antiphon.engines.base import TokenRequest as Request
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.http.application import create_app
from antiphon.http.serve import serve
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.rendering.renderer import Renderer
from antiphon.rendering.template.chat_template import prove
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon.testing import ScriptedAnswer, ScriptedEngine, ScriptedTokenEngine
from benchmarks.http_path import CHUNKS, KEY, PACE, TEXT, TOKENS, Figure, measure, started

ROOT = Path(__file__).parents[1]

BASE = "32a9d91"
"""The commit before the fuller semantics."""


@dataclass(frozen=True)
class Load:
    """One way to ask."""

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


class Ready(ScriptedTokenEngine):
    """Has every token ready, those of the prompt too: a real engine makes them in its own process."""

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


def gateway(listener: socket.socket) -> None:
    """Antiphon with a key, logging to nowhere, over an engine of events and one of tokens."""
    logger = logging.getLogger("antiphon")
    logger.addHandler(logging.FileHandler(os.devnull))
    logger.setLevel(logging.INFO)
    at_once, one_by_one = (
        ScriptedAnswer((TEXT,) * TOKENS, pace=None),
        ScriptedAnswer((TEXT,) * CHUNKS, pace=PACE),
    )
    events = ScriptedEngine(lambda request: at_once if request.output.max_tokens == TOKENS else one_by_one)
    rendered = Renderer(Ready(), prove=prove_here)
    models = ModelRegistry(
        (Model("scripted", (ModelRoute(events),), 0), Model("rendered", (ModelRoute(rendered),), 0))
    )
    edge = AppState(Pipeline(models, Metrics(), 1.0), models, OpenAI(), ServerSettings(), (ServiceKey(KEY),))
    uvloop.run(serve(create_app(edge), edge, listener))


@contextmanager
def running(sources: Path) -> Iterator[tuple[psutil.Process, int]]:
    """A server of these sources: its process and port."""
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
def unpacked(commit: str) -> Iterator[Path]:
    """The sources of a commit, in a directory that lives as long."""
    packed = subprocess.run(
        ["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(place, filter="data")
        yield Path(place) / "src"


# --- the comparison -----------------------------------------------------------------------------------------


async def main(against: str, rounds: int, seconds: float) -> None:
    """Every load against both, by turns."""
    found: dict[Load, list[tuple[Figure, Figure]]] = {load: [] for load in LOADS}
    with unpacked(against) as before, running(before) as theirs, running(ROOT / "src") as ours:
        for _, port in (theirs, ours):
            await started(port)
        for number in range(rounds + 1):
            for load in LOADS:
                pair = await round_of(load, theirs, ours, seconds, number % 2 == 0)
                if number:  # the first round warms up
                    found[load].append(pair)
    print(f"{rounds} rounds of {seconds} s against {against}, {os.cpu_count()} {platform.machine()} cores,")
    print(f"Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}")
    for load, pairs in found.items():
        report(load, pairs)


Server = tuple[psutil.Process, int]


async def round_of(
    load: Load, theirs: Server, ours: Server, seconds: float, first: bool
) -> tuple[Figure, Figure]:
    """The other commit's figure and this tree's."""
    order = (theirs, ours) if first else (ours, theirs)
    figures = [await measure(*server, load.stream, seconds, load.model) for server in order]
    before, after = figures if first else reversed(figures)
    return before, after


def report(load: Load, pairs: list[tuple[Figure, Figure]]) -> None:
    before, after = (statistics.median(figure.cpu for figure in side) for side in zip(*pairs, strict=True))
    ratios = [mine.cpu / other.cpu for other, mine in pairs]
    print(f"  {load.name:<36}{before:8.1f} us before {after:8.1f} us now")
    shown = " ".join(f"{ratio:.3f}" for ratio in ratios)
    print(f"  {'':<36}ratio {statistics.median(ratios):.3f} (median of {shown})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", default=BASE, help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        gateway(socket.socket(fileno=options.serve))
    else:
        asyncio.run(main(options.against, options.rounds, options.seconds))
