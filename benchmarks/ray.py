"""What a Ray cluster costs and gains: the time of a request and of a token through a replica, beside an
engine host on a socket, and the share of prompt tokens that two replicas have cached, by affinity and by
chance.

Run it in .venvs/ray, on a machine of a cluster: `python -m benchmarks.ray --cluster HOST:PORT`, with the
token in ANTIPHON_CLUSTER_TOKEN. Replicas import this file, so PYTHONPATH of the cluster must hold the
repository.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

from antiphon.domain.sampling import Sampling
from antiphon.engines.base import (
    LoadSpec,
    SequenceFinished,
    Steps,
    TextPiece,
    TokenEngine,
    TokenRequest,
    TokenSegment,
)
from antiphon.engines.host.client import open_host_engine
from antiphon.engines.host.ray.config import ClusterAddress, DeploymentSpec, DriverConfig, Placement
from antiphon.engines.host.ray.engine import RayTokenEngine
from antiphon.engines.host.server import serve_engine
from antiphon.testing import Script, ScriptedTokenEngine, scripted_info

CANTOR = Path(__file__).parents[1] / "src" / "antiphon" / "bundled" / "cantor.gguf"
LLAMA = "antiphon.engines.llama.engine:LlamaTokenEngine"
TOKENS = 512
CONVERSATIONS, TURNS, TURN_TOKENS = 12, 6, 96


def talkative() -> ScriptedTokenEngine:
    """An engine that makes tokens without computing."""
    script = Script(text="on and on ", endless=True)
    return ScriptedTokenEngine(script, info=scripted_info(context_length=1_000_000, sequences=64))


@asynccontextmanager
async def open_socket_engine() -> AsyncIterator[TokenEngine]:
    """The scripted engine behind a socket, in this process: the hop of an engine host without its process."""
    path = f"{tempfile.mkdtemp()}/bench.sock"
    async with serve_engine(talkative(), path), open_host_engine(path, "talkative") as engine:
        await engine.load(LoadSpec("none"))
        yield engine


async def open_ray_engine(
    cluster: ClusterAddress, name: str, factory: str, model: str, replicas: int
) -> RayTokenEngine:
    """The engine on replicas of the cluster."""
    load = LoadSpec(model, sequences=16, context_length=2048, threads=1)
    spec = DeploymentSpec(name, factory, load, Placement(0.5), replicas)
    engine = RayTokenEngine(DriverConfig(cluster, spec))
    await engine.load(load)
    while len(engine.table.names) < replicas:  # noqa: ASYNC110 - a measurement waits for its replicas
        await asyncio.sleep(0.1)
    return engine


async def time_requests(engine: TokenEngine, tokens: int, rounds: int) -> tuple[float, float]:
    """Milliseconds of a request of one token after the other, and CPU seconds of this process for each."""
    request = TokenRequest((TokenSegment((1, 2, 3)),), tokens)
    took = []
    cpu = time.process_time()
    for _ in range(rounds):
        begun = time.perf_counter()
        async for _ in engine.generate(request):
            pass
        took.append(time.perf_counter() - begun)
    return median(took) * 1000, (time.process_time() - cpu) / rounds


async def compare(name: str, engine: TokenEngine, rounds: int) -> None:
    """Prints what requests and tokens take."""
    await time_requests(engine, 1, 20)
    one, _ = await time_requests(engine, 1, rounds)
    many, cpu = await time_requests(engine, TOKENS, max(3, rounds // 10))
    pieces = []
    for _ in range(rounds):
        begun = time.perf_counter()
        await engine.tokenize([TextPiece("Hello there")], True)
        pieces.append(time.perf_counter() - begun)
    print(
        f"{name}: request of 1 token {one:.2f} ms, tokenize {median(pieces) * 1000:.2f} ms, "
        f"{TOKENS} tokens {many:.0f} ms, {(many - one) * 1000 / TOKENS:.0f} us a token, "
        f"{cpu * 1e6 / TOKENS:.0f} us CPU here a token"
    )


async def share_prefixes(engine: RayTokenEngine, salt: str, affinity: bool) -> float:
    """The share of prompt tokens that conversations have cached from their second turn on."""
    engine.table.uses_affinity = affinity
    prompts = {
        number: [(number * 7 + each) % 900 + 100 for each in range(256)] for number in range(CONVERSATIONS)
    }
    cached = total = 0
    for turn in range(TURNS):
        for number, tokens in prompts.items():
            request = TokenRequest(
                (TokenSegment(tuple(tokens)),), 8, Sampling(temperature=0.0), cache_salt=salt
            )
            made: list[int] = []
            async for event in engine.generate(request):
                match event:
                    case Steps():
                        made += event.tokens
                    case SequenceFinished() if turn:
                        cached += event.counts.cached_tokens
                        total += event.counts.prompt_tokens
            tokens += [*made, *((number + turn + each) % 900 + 100 for each in range(TURN_TOKENS))]
    return cached / total


async def run(cluster: ClusterAddress, rounds: int) -> None:
    """Measures, and prints the figures."""
    async with open_socket_engine() as engine:
        await compare("engine host on a socket", engine, rounds)
    on_ray = await open_ray_engine(cluster, "talkative", "benchmarks.ray:talkative", "none", 1)
    await compare("replica through Ray Serve", on_ray, rounds)
    pair = await open_ray_engine(cluster, "shared", LLAMA, str(CANTOR), 2)
    for name, affinity in (("affinity", True), ("chance", False)):
        share = await share_prefixes(pair, name, affinity)
        print(f"prompt tokens cached with 2 replicas by {name}: {share:.1%}")


def main() -> None:
    """Runs the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", required=True, help="HOST:PORT of a cluster's head")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    asyncio.run(run(ClusterAddress(options.cluster, os.environ["ANTIPHON_CLUSTER_TOKEN"]), options.rounds))


if __name__ == "__main__":
    main()
