"""One model on two hosts of vLLM, without Ray: equal answers, affinity, adapters, and the death of one."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.cluster.conftest import PYTHON, START_DEADLINE
from tests.support.model_files import BUNDLED
from tests.support.server import Server, serving
from tests.support.vllm_folders import write_cantor, write_peft
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

SETTINGS = """
[[models]]
name = "cantor"
engine = "vllm"
path = "{place}/cantor"
interpreter = "{python}"
dtype = "float32"
context_length = 1024
sequences = 2
hosts = 2
threads = 1

[[adapters]]
name = "mood"
path = "{place}/mood"

[lora]
directories = ["{place}"]
"""

KEYS = "abcdefgh"
"""Keys of prompts. Both hosts are preferred by some of them."""

NAMES = {"cantor/1", "cantor/2"}

RUNNING = 4
"""Chunks that a stream has had when its sequence certainly runs."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place: Path = tmp_path_factory.mktemp("pair")
    write_cantor(place / "cantor")
    for name in ("mood", "pirate"):
        write_peft(BUNDLED / "adapters" / f"{name}.gguf", place / name)
    file = place / "antiphon.toml"
    file.write_text(SETTINGS.format(place=place, python=PYTHON), "utf-8")
    env = {"ANTIPHON_HOME": str(place / "home"), "ANTIPHON_ENGINE_RESTART_PATIENCE": str(START_DEADLINE)}
    with serving("--config", str(file), threads=None, env=env, deadline=START_DEADLINE) as server:
        yield server


def chat(server: Server, model: str, key: str, text: str = "How are you?") -> httpx2.Response:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 16}
    with httpx2.Client(base_url=server.url, timeout=START_DEADLINE) as client:
        reply = client.post("/v1/chat/completions", json=body | {"temperature": 0, "prompt_cache_key": key})
    assert reply.status_code == 200, reply.text
    return reply


def collect(server: Server, model: str) -> set[str]:
    """The answers of both hosts."""
    replies = [chat(server, model, key) for key in KEYS]
    assert {reply.headers["x-antiphon-route"] for reply in replies} == NAMES
    return {reply.json()["choices"][0]["message"]["content"] for reply in replies}


def read_health(server: Server) -> tuple[int, dict[str, object]]:
    answer = httpx2.get(f"{server.url}/health/ready", timeout=60)
    return answer.status_code, answer.json()


def find_core(host: psutil.Process) -> psutil.Process:
    return next(each for each in host.children(recursive=True) if "EngineCore" in each.name())


def test_both_hosts_answer_alike_and_keep_prefixes(pair: Server) -> None:
    assert len(collect(pair, "cantor")) == 1
    page = httpx2.get(f"{pair.url}/metrics", timeout=60).text
    assert all(f'antiphon_engine_up{{model="{name}"}} 1' in page for name in NAMES)
    beginning = "A long beginning. " * 64
    first, second = (chat(pair, "cantor", "same", beginning) for _ in range(2))
    assert first.headers["x-antiphon-route"] == second.headers["x-antiphon-route"]
    assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_an_adapter_loaded_at_run_time_is_on_both_hosts(pair: Server) -> None:
    with httpx2.Client(base_url=pair.url, timeout=START_DEADLINE) as client:
        loaded = {"lora_name": "pirate", "lora_path": "pirate"}
        client.post("/v1/load_lora_adapter", json=loaded).raise_for_status()
    said = [collect(pair, model) for model in ("cantor", "mood", "pirate")]
    assert [len(texts) for texts in said] == [1, 1, 1]
    assert len(set.union(*said)) == 3


def find_keys(server: Server) -> tuple[str, str]:
    """A key of prompts that prefers the first host, and one that prefers the second."""
    keys = {chat(server, "cantor", key).headers["x-antiphon-route"]: key for key in KEYS}
    return keys["cantor/1"], keys["cantor/2"]


async def stream(client: httpx2.AsyncClient, key: str, begun: asyncio.Event) -> str:
    """How a long stream ends."""
    body: dict[str, object] = {"model": "cantor", "messages": [{"role": "user", "content": "Once"}]}
    body |= {"prompt_cache_key": key, "max_tokens": 400, "ignore_eos": True, "temperature": 0, "stream": True}
    text = ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for part in answer.aiter_text():
            text += part
            if text.count("data:") >= RUNNING:
                begun.set()
    return "done" if "[DONE]" in text else "died" if "engine_died" in text else text


@pytest.mark.parametrize("part", ["engine core", "engine host"])
async def test_the_other_host_serves_what_waited_for_a_dead_one(pair: Server, part: str) -> None:
    """Four streams run, two on each host; six wait."""
    host = pair.children("engines.host")[0]
    core, keys = find_core(host), await asyncio.to_thread(find_keys, pair)
    async with (
        httpx2.AsyncClient(base_url=pair.url, timeout=START_DEADLINE) as client,
        asyncio.TaskGroup() as group,
    ):
        begun = [asyncio.Event() for _ in range(10)]
        streams = [
            group.create_task(stream(client, keys[number % 2], each)) for number, each in enumerate(begun)
        ]
        while any(sum(each.is_set() for each in begun[host_number::2]) < 2 for host_number in (0, 1)):
            await asyncio.sleep(0.05)
        (core if part == "engine core" else host).kill()
        killed = time.monotonic()
        await asyncio.to_thread(wait_until, lambda: "unavailable" in read_health(pair)[1], 60, "it is named")
        status, health = read_health(pair)
        named = time.monotonic() - killed
        ends = Counter(await asyncio.gather(*streams))
        seconds = time.monotonic() - killed
    assert (status, health["status"]) == (200, "ok")
    assert ends == {"died": 2, "done": 8}
    wait_until(lambda: read_health(pair) == (200, {"status": "ok"}), START_DEADLINE, "both are back")
    print(
        f"killed an {part}: {dict(ends)}; readiness named it after {named:.1f} s, the last stream ended "
        f"after {seconds:.1f} s, both hosts were ready after {time.monotonic() - killed:.0f} s"
    )
    _, alive = psutil.wait_procs([host, core], timeout=60)
    assert not alive, "neither outlives the other"
    assert [len(collect(pair, model)) for model in ("cantor", "mood", "pirate")] == [1, 1, 1]
