"""Starts the gateways, each with its own processes, in front of one upstream."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
KEY = "sk-benchmark-0123456789abcdef0123456789abcdef"
PLENTY = 10**15
"""A limit that no benchmark reaches."""
LIMITS = (
    {"measure": "requests", "window": "minute"},
    {"measure": "tokens", "window": "minute"},
    {"measure": "cost", "window": "month"},
)
START_DEADLINE = 120.0
"""Seconds. LiteLLM needs about ten on a quiet machine."""

ANTIPHON = """
[providers.first]
kind = "openai"
base_url = "http://127.0.0.1:{port}/v1"
key = "env:FIRST_KEY"
private = true

[[models]]
name = "first/*"
provider = "first"
"""

LITELLM = """
model_list:
  - {{model_name: fake, litellm_params: {{model: openai/fake, api_base: "{url}", api_key: none}}}}
  - {{model_name: paced, litellm_params: {{model: openai/paced, api_base: "{url}", api_key: none}}}}
"""


@dataclass(frozen=True)
class Side:
    """A running gateway. `settles`: the seconds after the load until its background work is done."""

    name: str
    process: psutil.Process
    port: int
    key: str = KEY
    prefix: str = ""
    """The prefix of model names."""
    settles: float = 0.0

    def list_processes(self) -> list[psutil.Process]:
        """Lists all processes of the gateway."""
        return [self.process, *self.process.children(recursive=True)]

    def read_cpu_time(self) -> float:
        """Returns the CPU seconds of all processes, with a resolution of nanoseconds."""
        return sum(map(read_clock, self.list_processes()))

    def find_main(self) -> psutil.Process:
        """Finds the process that serves HTTP."""
        processes = self.list_processes()
        return next(
            (process for process in processes if "antiphon.assembly" in " ".join(process.cmdline())),
            processes[0],
        )

    def read_memory(self) -> float:
        """Returns the resident megabytes of all processes."""
        return sum(process.memory_info().rss for process in self.list_processes()) / 1e6


def read_clock(process: psutil.Process) -> float:
    """Returns the CPU seconds of all threads of a process. Linux derives the id of its clock from the pid."""
    return time.clock_gettime(~process.pid << 3 | 2)


def find_port() -> int:
    """Finds a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def run_process(
    command: Sequence[str], port: int, path: str, env: Mapping[str, str] | None = None
) -> Iterator[psutil.Process]:
    """Starts a process, waits until it answers on the port, and ends it with its children afterwards."""
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | (env or {}), cwd=ROOT
    )
    process = psutil.Process(child.pid)
    try:
        deadline = time.monotonic() + START_DEADLINE
        while not answers_requests(f"http://127.0.0.1:{port}{path}"):
            if child.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{' '.join(command)} did not start")
            time.sleep(0.1)
        yield process
    finally:
        tree = process.children(recursive=True) if child.poll() is None else []
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
        for remaining in psutil.wait_procs(tree, timeout=5)[1]:
            remaining.kill()


def answers_requests(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except urllib.error.HTTPError as answer:
        return answer.code < 500
    except OSError:
        return False
    return True


@contextmanager
def run_upstream() -> Iterator[int]:
    """Runs the upstream. Yields its port."""
    port = find_port()
    command = [sys.executable, "-m", "benchmarks.gateway_sides.upstream", str(port)]
    with run_process(command, port, "/health"):
        yield port


@contextmanager
def run_floor(upstream: int) -> Iterator[Side]:
    """Runs the bare relay."""
    port = find_port()
    command = [sys.executable, "-m", "benchmarks.gateway_sides.floor", str(port), str(upstream)]
    with run_process(command, port, "/v1/models") as process:
        yield Side("floor", process, port)


@contextmanager
def run_antiphon(upstream: int, name: str, home: Path, tree: Path, keys: bool) -> Iterator[Side]:
    """Runs Antiphon from a checkout: with keys, limits, prices and ledger in SQLite, or with a single key."""
    home.mkdir()
    config = home / "antiphon.toml"
    config.write_text(ANTIPHON.format(port=upstream))
    env = {"FIRST_KEY": "upstream-key", "ANTIPHON_HOME": str(home), "PYTHONPATH": str(tree / "src")}
    if keys:
        env |= {"ANTIPHON_KEYS": "true", "ANTIPHON_STORE": f"sqlite:///{home / 'antiphon.db'}"}
    else:
        env |= {"ANTIPHON_API_KEY": KEY}
    port = find_port()
    command = [sys.executable, "-m", "antiphon", "serve", "--config", str(config), "--port", str(port)]
    with run_process(command, port, "/health/ready", env) as process:
        key = create_limited_key(port, home) if keys else KEY
        yield Side(name, process, port, key, "first/", settles=1.5 if keys else 0.0)


def create_limited_key(port: int, home: Path) -> str:
    """Creates a key with limits that are never reached, and a price. Returns the key's secret."""
    admin = (home / "admin.key").read_text().strip()

    def create(path: str, **values: object) -> dict[str, str]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/admin/v1/{path}",
            json.dumps(values).encode(),
            {"x-api-key": admin, "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            created: dict[str, str] = json.loads(answer.read())
            return created

    key = create("keys", kind="service", project="default")
    for limit in LIMITS:
        create("limits", subject="key", target=key["id"], amount=PLENTY, **limit)
    create("limits", subject="project", target="default", amount=PLENTY, measure="cost", window="day")
    create("prices", models="*", currency="USD", input="0.15", output="0.6")
    return key["secret"]


@contextmanager
def run_litellm(upstream: int, home: Path, environment: Path) -> Iterator[Side]:
    """Runs LiteLLM's proxy, with one worker and one key, without limits and database."""
    home.mkdir()
    config, port = home / "litellm.yaml", find_port()
    config.write_text(LITELLM.format(url=f"http://127.0.0.1:{upstream}/v1"))
    command = [str(environment / "bin" / "litellm"), "--config", str(config)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": KEY, "PYTHONPATH": ""}
    with run_process(command, port, "/health/liveliness", env) as process:
        yield Side("litellm", process, port)


@contextmanager
def run_router(upstream: int, environment: Path) -> Iterator[Side]:
    """Runs vLLM's Router."""
    port = find_port()
    command = [str(environment / "bin" / "vllm-router"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-urls", f"http://127.0.0.1:{upstream}", "--policy", "round_robin"]
    with run_process(command, port, "/health") as process:
        yield Side("router", process, port)


Runner = Callable[[int], AbstractContextManager[Side]]


def list_runners(
    home: Path, against: Path | None, litellm: Path | None, router: Path | None
) -> dict[str, Runner]:
    """Lists the gateways that can be started here, by name."""
    antiphon = partial(run_antiphon, tree=ROOT, home=home / "ours", name="antiphon", keys=True)
    one_key = partial(run_antiphon, tree=ROOT, home=home / "one-key", name="one-key", keys=False)
    runners: dict[str, Runner] = {"floor": run_floor, "antiphon": antiphon, "one-key": one_key}
    if against is not None:
        runners["before"] = partial(
            run_antiphon, tree=against, home=home / "before", name="before", keys=True
        )
    if litellm is not None and (litellm / "bin" / "litellm").exists():
        runners["litellm"] = partial(run_litellm, home=home / "litellm", environment=litellm)
    if router is not None and (router / "bin" / "vllm-router").exists():
        runners["router"] = partial(run_router, environment=router)
    return runners
