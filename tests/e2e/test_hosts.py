"""One model on two engine hosts of the real server, with cantor: affinity, a host that dies, adapters,
readiness, metrics, and a reload that changes their number."""

import asyncio
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx2
import openai
import psutil
import pytest

from benchmarks.make_adapter import write_adapter
from tests.support.commands import run_command
from tests.support.model_files import CANTOR
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

ROUTE_LABELS = re.compile(r'antiphon_route_in_flight\{model="twice",route="([^"]+)"\}')
BACK = 50.0
"""Seconds; a host is back within three."""
KEYS = "abcdef"
"""Some of them prefer each of two hosts, and of three."""
BOTH = {"twice/1", "twice/2"}

SETTINGS = """
[lora]
directories = ["{place}"]

[server]
drain_timeout = 0.5
retire_delay = 0.5

[[models]]
name = "twice"
path = "cantor"
hosts = {hosts}
sequences = 2
context_length = 2048

[[adapters]]
name = "first"
path = "{place}/first.gguf"

[[models]]
name = "around"
routes = [{{ engine = "twice" }}]
"""

pytestmark = pytest.mark.timeout(480)


@dataclass(frozen=True)
class Pair:
    """The server, and its settings file."""

    server: Server
    place: Path
    client: httpx2.Client

    def write(self, hosts: int) -> None:
        (self.place / "antiphon.toml").write_text(SETTINGS.format(place=self.place, hosts=hosts))

    def chat(self, model: str = "twice", text: str = "Hello", **more: object) -> httpx2.Response:
        messages = [{"role": "user", "content": text}]
        asked = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 8} | more
        reply = self.client.post("/v1/chat/completions", json=asked)
        assert reply.status_code == 200, reply.text
        return reply

    def list_routes(self, keys: str = KEYS) -> set[str]:
        """The routes of short answers to these keys."""
        return {read_route(self.chat(prompt_cache_key=key, max_tokens=1)) for key in keys}

    def read_health(self) -> tuple[int, dict[str, object]]:
        answer = self.client.get("/health/ready")
        return answer.status_code, answer.json()

    def has_hosts(self, count: int) -> bool:
        return len(self.server.children("engines.host")) == count

    def is_whole(self) -> bool:
        return self.read_health() == (200, {"status": "ok"})

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return run_command(*command, cwd=self.place, env={"ANTIPHON_HOME": str(self.place)})


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    place = tmp_path_factory.mktemp("hosts")
    for seed, name in enumerate(("first", "second"), 1):
        write_adapter(place / f"{name}.gguf", CANTOR, rank=4, seed=seed, weight=2.0)
    (place / "antiphon.toml").write_text(SETTINGS.format(place=place, hosts=2))
    with serving(env={"ANTIPHON_HOME": str(place)}, cwd=place) as server, server.client() as client:
        yield Pair(server, place, client)


@pytest.fixture
def pair(shared: Pair) -> Pair:
    """Both hosts are ready when a test begins."""
    wait_until(shared.is_whole, BACK, "both hosts are ready")
    return shared


def read_metrics(pair: Pair) -> str:
    return pair.client.get("/metrics").text


def read_route(reply: httpx2.Response) -> str:
    return reply.headers["x-antiphon-route"]


def read_text(reply: httpx2.Response) -> str:
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text


def test_one_key_or_one_beginning_prefers_one_host(pair: Pair) -> None:
    by_key = {key: pair.list_routes(key * 2) for key in KEYS}
    assert all(len(routes) == 1 for routes in by_key.values()), by_key
    assert set.union(*by_key.values()) == BOTH
    beginning = "A long beginning. " * 64
    assert len({read_route(pair.chat(text=f"{beginning}{at}", max_tokens=1)) for at in range(4)}) == 1
    again = pair.chat(text=beginning + "0", max_tokens=1).json()["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] > 0
    assert read_route(pair.chat("around")) in BOTH


def test_each_host_has_its_metrics(pair: Pair) -> None:
    assert pair.list_routes() == BOTH

    def are_up() -> bool:
        """A host that does not answer within a second counts as not up."""
        page = read_metrics(pair)
        return all(f'antiphon_engine_up{{model="{name}"}} 1' in page for name in BOTH)

    wait_until(are_up, BACK, "both hosts are up")
    page = read_metrics(pair)
    for name in BOTH:
        assert f'antiphon_route_in_flight{{model="twice",route="{name}"}}' in page
    shown = pair.run("top", "--json", "--interval", "0.2", "--url", pair.server.url)
    rows = json.loads(shown.stdout)
    assert [model["model"] for model in rows["models"]] == ["twice/1", "twice/2"]
    assert {route["route"] for route in rows["routes"] if route["model"] == "twice"} == BOTH


async def ask(client: openai.AsyncOpenAI, key: str, max_tokens: int, begun: list[str]) -> str:
    """How one stream ended, on the host that the key prefers. Adds the key to `begun` at the first chunk."""
    try:
        stream = await client.chat.completions.create(
            model="twice",
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=max_tokens,
            stream=True,
            temperature=0,
            prompt_cache_key=key,
            extra_body={"ignore_eos": True},
        )
        await anext(stream)
        begun.append(key)
        async for _ in stream:
            pass
    except openai.APIError as error:
        return getattr(error, "code", None) or str(error)
    return "ok"


async def ask_while(
    pair: Pair, keys: list[str], killed: psutil.Process, other: psutil.Process
) -> Counter[str]:
    """Twelve streams of which one host dies when it computes. Both hosts stand still while the streams that
    wait are sent, so those that run do not end before it."""
    async with openai.AsyncOpenAI(base_url=f"{pair.server.url}/v1", api_key="none", max_retries=0) as client:
        async with asyncio.TaskGroup() as group:
            begun: list[str] = []
            asking = [group.create_task(ask(client, key, 500, begun)) for key in keys * 2]
            full = lambda: len(begun) == 4 and count_sequences(pair, "running") == 4  # noqa: E731
            await asyncio.to_thread(wait_until, full, BACK, "both hosts are full")
            killed.suspend()
            other.suspend()
            try:
                asking += [group.create_task(ask(client, key, 20, begun)) for key in keys * 4]
                waiting = lambda: count_in_flight(pair) == 12  # noqa: E731
                await asyncio.to_thread(wait_until, waiting, BACK, "the others wait")
                killed.kill()
            finally:
                other.resume()
        return Counter(task.result() for task in asking)


def count_in_flight(pair: Pair) -> int:
    """The streams that the gateway has sent to a host, and that have not ended."""
    found = re.findall(rf"^{ROUTE_LABELS.pattern} (\S+)$", read_metrics(pair), re.MULTILINE)
    return sum(int(float(value)) for _, value in found)


def count_sequences(pair: Pair, state: str) -> int:
    lines = [
        line for line in read_metrics(pair).splitlines() if line.startswith(f"antiphon_engine_{state}{{")
    ]
    return sum(int(float(line.rpartition(" ")[2])) for line in lines)


def test_the_queue_of_a_dead_host_is_served_by_the_other(pair: Pair) -> None:
    """Of twelve streams two run on each host and the others wait."""
    by_route = {route: key for key in KEYS for route in pair.list_routes(key)}
    assert by_route.keys() == BOTH
    (victim, other) = pair.server.children("engines.host")
    ends = asyncio.run(ask_while(pair, list(by_route.values()), victim, other))
    assert ends["engine_died"] == 2, ends
    assert ends["ok"] == 10, ends
    assert other.is_running()


@pytest.mark.parametrize("counts", [(1, 2), pytest.param((3, 1, 2), marks=pytest.mark.soak)])
def test_a_host_that_was_given_up_is_skipped_until_reloads_change_their_number(
    pair: Pair, counts: tuple[int, ...]
) -> None:
    """It died three times within a minute. What was its share is the other's, and adapters can be loaded."""
    base, first = read_text(pair.chat()), read_text(pair.chat("first"))
    assert pair.list_routes() == BOTH
    other = pair.server.children("engines.host")[1].pid
    while "failed" not in str(pair.read_health()):  # another test may have killed it before
        (victim,) = (each for each in pair.server.children("engines.host") if each.pid != other)
        victim.kill()
        victim.wait(BACK)
        wait_until(partial(is_back_or_given_up, pair, victim.pid), BACK, "it is back, or given up")
    status, health = pair.read_health()
    ((named, state),) = health["unavailable"].items()  # type: ignore[attr-defined]
    assert (status, health["status"], state) == (200, "ok", "failed")
    assert pair.list_routes() == BOTH - {named}
    tokens = pair.client.post("/tokenize", json={"model": "twice", "prompt": "Hello"})
    assert tokens.status_code == 200 and tokens.json()["count"] > 0
    loaded = {"lora_name": "second", "lora_path": "second.gguf"}
    pair.client.post("/v1/load_lora_adapter", json=loaded).raise_for_status()
    assert read_text(pair.chat("second")) != base
    pair.client.post("/v1/unload_lora_adapter", json={"lora_name": "second"}).raise_for_status()
    for count in counts:
        pair.write(count)
        done = pair.run("reload")
        assert done.returncode == 0, done.stderr
        names = {f"twice/{number}" for number in range(1, count + 1)} if count > 1 else {"twice"}
        assert pair.list_routes() == names
        assert read_text(pair.chat("first")) == first
        wait_until(partial(pair.has_hosts, count), BACK, "old hosts have ended")
        assert set(ROUTE_LABELS.findall(read_metrics(pair))) == names, "the series of removed routes end"


def is_back_or_given_up(pair: Pair, victim: int) -> bool:
    """Readiness may be told before a death is noticed; two hosts without the victim are a new one."""
    pids = [child.pid for child in pair.server.children("engines.host")]
    health = pair.read_health()
    return "failed" in str(health) or (
        len(pids) == 2 and victim not in pids and health == (200, {"status": "ok"})
    )


def test_adapters_are_on_both_hosts(pair: Pair) -> None:
    loaded = {"lora_name": "second", "lora_path": "second.gguf"}
    pair.client.post("/v1/load_lora_adapter", json=loaded).raise_for_status()

    def collect() -> dict[str, set[str]]:
        """The texts of each model over keys that reach both hosts."""
        replies = {
            model: [pair.chat(model, prompt_cache_key=key) for key in KEYS]
            for model in ("twice", "first", "second")
        }
        assert {read_route(reply) for each in replies.values() for reply in each} == BOTH
        return {model: {read_text(each) for each in replies[model]} for model in replies}

    said = collect()
    assert all(len(texts) == 1 for texts in said.values()), said
    assert len(set.union(*said.values())) == 3, "the adapters and the base model differ"
    (victim, _) = pair.server.children("engines.host")
    victim.kill()
    victim.wait(BACK)

    def are_back() -> bool:
        return is_back_or_given_up(pair, victim.pid) and pair.list_routes() == BOTH

    wait_until(are_back, BACK, "the host is back")
    assert collect() == said, "a host that starts again has the adapters"
    pair.client.post("/v1/unload_lora_adapter", json={"lora_name": "second"}).raise_for_status()
    gone = pair.client.post("/v1/completions", json={"model": "second", "prompt": "x", "max_tokens": 1})
    assert gone.status_code == 404
