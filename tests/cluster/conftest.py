"""One real server for all tests, with cantor on vLLM and, under the name llama, on the embedded engine, from
the same weights. The tests that end vLLM come last: test_vllm_death.py."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import openai
import psutil
import pytest

from antiphon.engines.host.client import HostTokenEngine, open_host_engine
from models.cantor.convert import write_gguf
from tests.support.model_files import BUNDLED
from tests.support.server import Server, serving
from tests.support.vllm_folders import write_cantor, write_peft
from tests.support.waiting import wait_until

PYTHON = Path(__file__).parents[2] / ".venvs" / "cluster" / "bin" / "python"

START_DEADLINE = 1200.0
"""Seconds; an idle machine takes 35."""

SEQUENCES, QUEUE, QUEUE_PER_ACTOR = 4, 20, 18
CONTEXT = 1024

SETTINGS = """
[[models]]
name = "cantor"
engine = "vllm"
path = "{place}/cantor"
interpreter = "{python}"
dtype = "float32"
context_length = {context}
sequences = {sequences}
queue = {queue}
queue_per_actor = {queue_per_actor}
threads = 1

[[models]]
name = "llama"
path = "{place}/cantor.gguf"
context_length = {context}
sequences = {sequences}
exact = true
kv_type = "f32"
threads = 1

[[adapters]]
name = "mood"
path = "{place}/mood"
model = "cantor"

[[adapters]]
name = "llama-mood"
path = "{bundled}/adapters/mood.gguf"
model = "llama"

[lora]
directories = ["{place}"]

[server]
max_logprobs = 20
"""


@dataclass
class Cluster:
    """The server, and ways to it."""

    server: Server
    place: Path

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.server.url}/v1", api_key="none", timeout=600, max_retries=0)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.server.url}/v1", api_key="none", timeout=600, max_retries=0
        )

    def host(self) -> psutil.Process:
        """vLLM's engine host: the one under the other interpreter."""
        hosts = self.server.children("engines.host")
        return next(each for each in hosts if each.cmdline()[0] == str(PYTHON))

    def core(self) -> psutil.Process:
        """vLLM's engine core."""
        return next(each for each in self.host().children(recursive=True) if "EngineCore" in each.name())

    def open_engine(self) -> AbstractAsyncContextManager[HostTokenEngine]:
        """The token engine of vLLM's host, beside the gateway."""
        sockets = (place.laddr for place in self.host().net_connections("unix"))
        path = next(
            str(each) for each in sockets if str(each).endswith(".sock") and "failures" not in str(each)
        )
        return open_host_engine(path, "vllm")

    def wait_until_ready(self) -> float:
        """Waits until vLLM serves; returns the seconds."""
        with httpx2.Client(base_url=self.server.url, timeout=60) as client:
            return wait_until(
                lambda: client.get("/health/ready").status_code == 200, START_DEADLINE, "all is ready"
            )


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server that is ready. Without the environment the tests fail: `make cluster-test` makes it."""
    place = tmp_path_factory.mktemp("cluster")
    write_cantor(place / "cantor")
    write_gguf(place / "cantor.gguf", "F32")
    write_peft(BUNDLED / "adapters" / "mood.gguf", place / "mood")
    write_peft(BUNDLED / "adapters" / "pirate.gguf", place / "pirate")
    file = place / "antiphon.toml"
    values = {"place": place, "python": PYTHON, "bundled": BUNDLED, "context": CONTEXT}
    limits = {"sequences": SEQUENCES, "queue": QUEUE, "queue_per_actor": QUEUE_PER_ACTOR}
    file.write_text(SETTINGS.format(**values, **limits), "utf-8")
    env = {
        "ANTIPHON_HOME": str(place / "home"),
        "ANTIPHON_ENGINE_RESTART_PATIENCE": str(START_DEADLINE),
        "ANTIPHON_REQUEST_TEMPLATES": "true",
    }
    with serving("--config", str(file), threads=None, env=env, deadline=START_DEADLINE) as server:
        yield Cluster(server, place)
