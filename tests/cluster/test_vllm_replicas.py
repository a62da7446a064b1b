"""vLLM as a replica of a Ray cluster: answers as the embedded engine gives them, and the death of a replica.

The server runs under .venvs/ray, which has the gateway and Ray; the replica under .venvs/cluster."""

import asyncio
import json
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

[engine]
restart_patience = {deadline}

[[models]]
name = "cantor"
engine = "vllm"
path = "{place}/cantor"
interpreter = "{python}"
dtype = "float32"
context_length = 1024
sequences = 4
threads = 1

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

PROMPTS = ("Antiphon is", "Once upon a time", "The capital of France", "def add(a, b):")


@pytest.fixture(scope="module")
def clustered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place: Path = tmp_path_factory.mktemp("replicas")
    write_cantor(place / "cantor")
    write_gguf(place / "cantor.gguf", "F32")
    write_peft(BUNDLED / "adapters" / "mood.gguf", place / "mood")
    file = place / "antiphon.toml"
    values = {"place": place, "python": PYTHON, "bundled": BUNDLED, "deadline": START_DEADLINE}
    file.write_text(SETTINGS.format(**values), "utf-8")
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


def find_replica() -> psutil.Process:
    """Ray names the process of a replica after its class."""
    (found,) = (
        process
        for process in psutil.process_iter(["cmdline"])
        if any("ServeReplica" in word and "cantor" in word for word in process.info["cmdline"] or ())
    )
    return found


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


async def test_a_killed_replica_ends_its_stream_and_comes_back(clustered: Server) -> None:
    body = {"model": "cantor", "prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
    async with httpx2.AsyncClient(base_url=clustered.url, timeout=START_DEADLINE) as client:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.aiter_lines()
            assert (await anext(lines)).startswith("data: {")
            replica = await asyncio.to_thread(find_replica)
            replica.kill()
            data = [line async for line in lines if line.startswith("data:")]
        assert json.loads(data[-1][5:])["error"]["code"] == "engine_died"
        waited = await client.post("/v1/completions", json=body | {"stream": False, "max_tokens": 2})
        assert waited.status_code == 200, waited.text
    seconds = wait_until(
        lambda: httpx2.get(f"{clustered.url}/health/ready", timeout=60).status_code == 200,
        START_DEADLINE,
        "it is ready",
    )
    print(f"ready {seconds:.0f} s after the first answer of the new replica")
    assert (
        complete(clustered, "cantor", PROMPTS[0])["text"] == complete(clustered, "llama", PROMPTS[0])["text"]
    )


def test_nothing_is_left_when_the_server_ends(clustered: Server) -> None:
    replica = find_replica()
    children = replica.children(recursive=True)
    assert clustered.stop() == 0
    _, alive = psutil.wait_procs([replica, *children], timeout=120)
    assert not alive
