"""vLLM as two replicas of a Ray cluster: answers as the embedded engine gives them, and deaths under load.

The server runs under .venvs/ray, which has the gateway and Ray; the replicas under .venvs/cluster."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from models.cantor.convert import write_gguf
from tests.cluster.conftest import PYTHON, START_DEADLINE
from tests.support.model_files import BUNDLED
from tests.support.server import Server, serving
from tests.support.vllm_folders import write_cantor, write_peft
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

GATEWAY = PYTHON.parents[2] / "ray" / "bin" / "python"

SETTINGS = """
[cluster]
address = "local"
cpus = 4

[engine]
restart_patience = {deadline}

[[models]]
name = "cantor"
engine = "vllm"
path = "{place}/cantor"
interpreter = "{python}"
dtype = "float32"
context_length = 1024
sequences = {sequences}
queue = {streams}
queue_per_actor = {streams}
threads = 1
replicas = 2

[[models]]
name = "llama"
path = "{place}/cantor.gguf"
context_length = 1024
sequences = 4
exact = true
kv_type = "f32"
threads = 1
cluster = false

[[adapters]]
name = "mood"
path = "{place}/mood"
model = "cantor"

[[adapters]]
name = "llama-mood"
path = "{bundled}/adapters/mood.gguf"
model = "llama"
"""

SEQUENCES, STREAMS = 4, 64

PROMPTS = ("Antiphon is", "Once upon a time", "The capital of France", "def add(a, b):")


@pytest.fixture(scope="module")
def clustered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place: Path = tmp_path_factory.mktemp("replicas")
    write_cantor(place / "cantor")
    write_gguf(place / "cantor.gguf", "F32")
    write_peft(BUNDLED / "adapters" / "mood.gguf", place / "mood")
    file = place / "antiphon.toml"
    values = {"place": place, "python": PYTHON, "bundled": BUNDLED, "deadline": START_DEADLINE}
    file.write_text(SETTINGS.format(**values, sequences=SEQUENCES, streams=STREAMS), "utf-8")
    env = {"ANTIPHON_HOME": str(place / "home")}
    options = {"threads": None, "env": env, "python": str(GATEWAY), "deadline": START_DEADLINE}
    with serving("--config", str(file), **options) as server:  # type: ignore[arg-type]
        yield server


def ask(server: Server, model: str, prompt: str, **more: object) -> httpx2.Response:
    body = {"model": model, "prompt": prompt, "max_tokens": 16, "temperature": 0} | more
    return httpx2.post(f"{server.url}/v1/completions", json=body, timeout=START_DEADLINE)


def complete(server: Server, model: str, prompt: str, **more: object) -> dict[str, object]:
    """The only choice of an answer."""
    reply = ask(server, model, prompt, **more)
    assert reply.status_code == 200, reply.text
    choice: dict[str, object] = reply.json()["choices"][0]
    return choice


def find_replicas() -> list[psutil.Process]:
    """Ray names the process of a replica after its class."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any("ServeReplica" in word and "cantor" in word for word in process.info["cmdline"] or ())
    ]


def find_core(replica: psutil.Process) -> psutil.Process:
    """vLLM's engine core."""
    return next(each for each in replica.children(recursive=True) if "EngineCore" in each.name())


def count_replicas(server: Server) -> int:
    """The replicas by the latest record of the log."""
    counts = [record["replicas"] for record in server.records("replicas_changed")]
    return int(str(counts[-1])) if counts else 0


@pytest.mark.parametrize(("model", "other"), [("cantor", "llama"), ("mood", "llama-mood")])
def test_a_replica_answers_as_the_embedded_engine(clustered: Server, model: str, other: str) -> None:
    texts = {}
    for each in (model, other):
        texts[each] = [complete(clustered, each, prompt, logprobs=1) for prompt in PROMPTS]
    for ours, theirs in zip(texts[model], texts[other], strict=True):
        assert (ours["text"], ours["finish_reason"]) == (theirs["text"], theirs["finish_reason"])
        ours_scores, their_scores = (each["logprobs"]["token_logprobs"] for each in (ours, theirs))  # type: ignore[index]
        assert ours_scores == pytest.approx(their_scores, abs=1e-2)


def test_seeds_and_constraints_act_in_a_replica(clustered: Server) -> None:
    seeded = {"temperature": 1.0, "seed": 7, "mirostat_target": 4.0}
    drawn = [complete(clustered, "cantor", "Once", **seeded)["text"] for _ in range(2)]
    assert drawn[0] == drawn[1] == complete(clustered, "llama", "Once", **seeded)["text"]
    shape = {"guided_regex": "(yes|no), [0-9]{3}"}
    text = complete(clustered, "cantor", "Is it?", **shape)["text"]
    assert (
        isinstance(text, str)
        and text.partition(", ")[0] in ("yes", "no")
        and len(text.partition(", ")[2]) == 3
    )
    refused = ask(clustered, "cantor", "x", suffix="y")
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "suffix"


async def stream(client: httpx2.AsyncClient, number: int, begun: asyncio.Event) -> str:
    """How a stream ends: `done`, the code of an error event, or the status of a refusal."""
    body = {"model": "cantor", "prompt": f"Number {number} is", "max_tokens": 60, "ignore_eos": True}
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        if answer.status_code != 200:
            return str(answer.status_code)
        last = ""
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                last = line
                begun.set()
    return "done" if last == "data: [DONE]" else json.loads(last[5:])["error"]["code"]


@pytest.mark.parametrize("part", ["engine core", "replica"])
async def test_a_death_under_load_costs_only_running_streams(clustered: Server, part: str) -> None:
    await asyncio.to_thread(wait_until, lambda: count_replicas(clustered) == 2, START_DEADLINE, "both run")
    replica = find_replicas()[0]
    core = find_core(replica)
    limits = httpx2.Limits(max_connections=2 * STREAMS)
    async with (
        httpx2.AsyncClient(base_url=clustered.url, timeout=START_DEADLINE, limits=limits) as client,
        asyncio.TaskGroup() as group,
    ):
        begun = [asyncio.Event() for _ in range(STREAMS)]
        tasks = [group.create_task(stream(client, number, each)) for number, each in enumerate(begun)]
        while sum(each.is_set() for each in begun) < 2 * SEQUENCES:
            await asyncio.sleep(0.02)
        (core if part == "engine core" else replica).kill()
        killed = time.monotonic()
        assert (await client.get("/health/ready")).status_code == 200
        ends = Counter(await asyncio.gather(*tasks))
        ended = time.monotonic() - killed
        await asyncio.to_thread(
            wait_until, lambda: count_replicas(clustered) == 2, START_DEADLINE, "both run again"
        )
    print(
        f"killed a {part} beside {STREAMS} streams: {dict(ends)}; the last ended after {ended:.1f} s, two "
        f"replicas ran after {time.monotonic() - killed:.0f} s"
    )
    assert ends.keys() <= {"done", "engine_died"}
    assert 0 < ends["engine_died"] <= SEQUENCES
    _, alive = psutil.wait_procs([replica, core], timeout=60)
    assert not alive, "neither outlives the other"
    texts = {complete(clustered, model, PROMPTS[0])["text"] for model in ("cantor", "llama")}
    assert len(texts) == 1


def test_nothing_is_left_when_the_server_ends(clustered: Server) -> None:
    replicas = find_replicas()
    assert len(replicas) == 2
    children = [child for replica in replicas for child in replica.children(recursive=True)]
    assert clustered.stop() == 0
    _, alive = psutil.wait_procs([*replicas, *children], timeout=120)
    assert not alive
