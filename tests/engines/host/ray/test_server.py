"""The server on a cluster: answers, kills under load, and another number of replicas."""

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from antiphon.engines.host.ray.config import ClusterAddress
from tests.support.ray_replicas import find_replicas
from tests.support.server import Server, serving
from tests.support.waiting import await_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200), pytest.mark.filterwarnings("ignore")]

PATIENCE = 400.0
STREAMS = 64

SETTINGS = """
[cluster]
upscale_delay = 1
downscale_delay = 3

[engine]
restart_patience = 300

[[models]]
name = "pair"
path = "cantor"
sequences = 16
threads = 1
replica_cpus = 1
replicas = 2

[[models]]
name = "growing"
path = "cantor"
sequences = 2
threads = 1
replicas = 1
max_replicas = 2
"""


@pytest.fixture(scope="module")
def joined(cluster: ClusterAddress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that joins the cluster."""
    file: Path = tmp_path_factory.mktemp("joined") / "antiphon.toml"
    file.write_text(SETTINGS)
    env = {"ANTIPHON_CLUSTER_TOKEN": cluster.token}
    options = ("--cluster", cluster.address, "--config", str(file))
    with serving(*options, threads=None, env=env, python=sys.executable, deadline=PATIENCE) as server:
        yield server


def complete(model: str, prompt: str, tokens: int) -> dict[str, object]:
    return {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}


async def stream(client: httpx2.AsyncClient, body: dict[str, object]) -> str:
    """How a stream ends: `done`, the code of an error event, or the status of a refusal."""
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        if response.status_code != 200:
            return str(response.status_code)
        last = ""
        async for line in response.aiter_lines():
            last = line if line.startswith("data:") else last
    return "done" if last == "data: [DONE]" else json.loads(last[5:])["error"]["code"]


def open_client(server: Server) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=2 * STREAMS)
    return httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE, limits=limits)


def count_replicas(server: Server, model: str) -> int:
    """The replicas of a model by the latest record of the log."""
    records = (json.loads(line) for line in server.lines if '"replicas_changed"' in line)
    counts = [int(each["replicas"]) for each in records if each["model"] == model]
    return counts[-1] if counts else 0


async def test_replicas_answer_alike(joined: Server) -> None:
    async with open_client(joined) as client:
        bodies = [complete("pair", "Antiphon is", 24) | {"logprobs": 1, "n": 2} for _ in range(8)]
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
        assert {answer.status_code for answer in answers} == {200}
        texts = {choice["text"] for answer in answers for choice in answer.json()["choices"]}
        assert len(texts) == 1
        tokens = await client.post("/v1/tokenize", json={"model": "pair", "prompt": "Antiphon"})
        assert tokens.json()["tokens"]


async def test_a_killed_replica_costs_only_its_running_streams(joined: Server, record_property) -> None:
    await await_until(lambda: count_replicas(joined, "pair") == 2, PATIENCE)
    async with open_client(joined) as client, asyncio.TaskGroup() as group:
        bodies = [complete("pair", f"Number {number} is", 300) for number in range(STREAMS)]
        tasks = [group.create_task(stream(client, body)) for body in bodies]
        await asyncio.sleep(3)
        os.kill(find_replicas("antiphon-pair")[0], signal.SIGKILL)
        killed = time.monotonic()
        assert (await client.get("/health/ready")).status_code == 200
        await await_until(lambda: count_replicas(joined, "pair") == 1, PATIENCE)
        await await_until(lambda: count_replicas(joined, "pair") == 2, PATIENCE)
        record_property("whole_after_s", round(time.monotonic() - killed, 1))
    ends = Counter(task.result() for task in tasks)
    record_property("ends", dict(ends))
    assert ends.keys() <= {"done", "engine_died"}
    assert 0 < ends["engine_died"] <= 16


async def test_a_replica_comes_and_goes_without_a_lost_answer(joined: Server, record_property) -> None:
    await await_until(lambda: count_replicas(joined, "growing") == 1, PATIENCE)
    few, none = asyncio.Event(), asyncio.Event()
    ends: Counter[str] = Counter()

    async def ask_until(over: asyncio.Event, client: httpx2.AsyncClient, number: int) -> None:
        while not over.is_set():
            ends[await stream(client, complete("growing", f"Number {number} is", 40))] += 1

    async with open_client(joined) as client, asyncio.TaskGroup() as group:
        group.create_task(ask_until(none, client, 0))
        for number in range(1, 12):
            group.create_task(ask_until(few, client, number))
        await await_until(lambda: count_replicas(joined, "growing") == 2, PATIENCE)
        few.set()
        await await_until(lambda: count_replicas(joined, "growing") == 1, PATIENCE)
        none.set()
    record_property("ends", dict(ends))
    assert ends.keys() == {"done"}


async def test_a_model_without_replicas_is_named(joined: Server) -> None:
    await await_until(
        lambda: len(find_replicas("antiphon-growing")) == 1, PATIENCE
    )  # the removed one has ended
    os.kill(find_replicas("antiphon-growing")[0], signal.SIGKILL)
    async with open_client(joined) as client:
        async with asyncio.timeout(PATIENCE):
            while (ready := await client.get("/health/ready")).status_code == 200:
                await asyncio.sleep(0.05)
        assert ready.json()["unavailable"] == {"growing": "restarting"}
        assert ready.headers["retry-after"]
        assert await stream(client, complete("growing", "One is", 8)) == "done"
        assert (await client.get("/health/ready")).status_code == 200
