"""Measures the costs and gains of a Ray cluster: the time of a request and of a token through a replica,
compared with an engine host on a socket, and the share of cached prompt tokens with two replicas, by affinity
and by chance.

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

from antiphon.domain.request import Sampling
from antiphon.engines.base import (
    LoadSpec,
    PromptTokens,
    SequenceFinished,
    Steps,
    TextPiece,
    TokenEngine,
    TokenRequest,
)
from antiphon.engines.host.client import open_host_engine
from antiphon.engines.host.ray.config import ClusterAddress, DeploymentSpec, DriverConfig, Placement
from antiphon.engines.host.ray.engine import RayTokenEngine
from antiphon.engines.host.server import serve_engine
from antiphon_testing import Script, ScriptedTokenEngine, scripted_info

CANTOR = Path(__file__).parents[1] / "src" / "antiphon" / "bundled" / "cantor.gguf"
LLAMA = "antiphon.engines.llama.engine:LlamaTokenEngine"
TOKENS = 512
CONVERSATIONS, TURNS, TURN_TOKENS = 12, 6, 96


def create_endless_engine() -> ScriptedTokenEngine:
    """Creates an engine that returns tokens without computing."""
    script = Script(text="on and on ", endless=True)
    return ScriptedTokenEngine(script, info=scripted_info(context_length=1_000_000, sequences=64))


@asynccontextmanager
async def open_socket_engine() -> AsyncIterator[TokenEngine]:
    """Serves the scripted engine on a socket in this process, as an engine host does in another process."""
    path = f"{tempfile.mkdtemp()}/bench.sock"
    async with serve_engine(create_endless_engine(), path), open_host_engine(path, "talkative") as engine:
        await engine.load(LoadSpec("none"))
        yield engine


async def open_ray_engine(
    cluster: ClusterAddress, name: str, factory: str, model: str, replicas: int
) -> RayTokenEngine:
    """Deploys an engine, and waits for its replicas."""
    load = LoadSpec(model, sequences=16, context_length=2048, threads=1)
    spec = DeploymentSpec(name, factory, load, Placement(0.5), replicas)
    engine = RayTokenEngine(DriverConfig(cluster, spec))
    await engine.load(load)
    while len(engine.table.names) < replicas:  # noqa: ASYNC110 - a measurement waits for its replicas
        await asyncio.sleep(0.1)
    return engine


async def time_requests(engine: TokenEngine, tokens: int, rounds: int) -> tuple[float, float]:
    """Returns the median milliseconds of sequential requests, and the CPU seconds of this process for
    each."""
    request = TokenRequest(PromptTokens((1, 2, 3)), tokens)
    times = []
    cpu = time.process_time()
    for _ in range(rounds):
        began = time.perf_counter()
        async for _ in engine.generate(request):
            pass
        times.append(time.perf_counter() - began)
    return median(times) * 1000, (time.process_time() - cpu) / rounds


async def compare(name: str, engine: TokenEngine, rounds: int) -> None:
    """Prints the times of requests and tokens."""
    await time_requests(engine, 1, 20)
    one_token_ms, _ = await time_requests(engine, 1, rounds)
    many_tokens_ms, cpu = await time_requests(engine, TOKENS, max(3, rounds // 10))
    tokenize_times = []
    for _ in range(rounds):
        began = time.perf_counter()
        await engine.tokenize([TextPiece("Hello there")], True)
        tokenize_times.append(time.perf_counter() - began)
    print(
        f"{name}: request of 1 token {one_token_ms:.2f} ms, tokenize {median(tokenize_times) * 1000:.2f} ms, "
        f"{TOKENS} tokens {many_tokens_ms:.0f} ms, "
        f"{(many_tokens_ms - one_token_ms) * 1000 / TOKENS:.0f} us a token, "
        f"{cpu * 1e6 / TOKENS:.0f} us CPU here a token"
    )


async def share_prefixes(engine: RayTokenEngine, salt: str, affinity: bool) -> float:
    """Returns the share of prompt tokens that were cached, from the second turn of conversations on."""
    engine.table.uses_affinity = affinity
    prompts = {
        number: [(number * 7 + offset) % 900 + 100 for offset in range(256)]
        for number in range(CONVERSATIONS)
    }
    cached = total = 0
    for turn in range(TURNS):
        for number, tokens in prompts.items():
            request = TokenRequest(PromptTokens(tuple(tokens)), 8, Sampling(temperature=0.0), cache_salt=salt)
            generated: list[int] = []
            async for event in engine.generate(request):
                match event:
                    case Steps():
                        generated += event.tokens
                    case SequenceFinished() if turn:
                        cached += event.counts.cached_tokens
                        total += event.counts.prompt_tokens
            tokens += [*generated, *((number + turn + offset) % 900 + 100 for offset in range(TURN_TOKENS))]
    return cached / total


async def run(cluster: ClusterAddress, rounds: int) -> None:
    """Measures, and prints the figures."""
    async with open_socket_engine() as engine:
        await compare("engine host on a socket", engine, rounds)
    ray_engine = await open_ray_engine(
        cluster, "talkative", "benchmarks.ray:create_endless_engine", "none", 1
    )
    await compare("replica through Ray Serve", ray_engine, rounds)
    two_replicas = await open_ray_engine(cluster, "shared", LLAMA, str(CANTOR), 2)
    for name, affinity in (("affinity", True), ("chance", False)):
        share = await share_prefixes(two_replicas, name, affinity)
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
