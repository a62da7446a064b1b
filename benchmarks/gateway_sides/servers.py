"""Starts the gateways, each with its own processes, in front of one upstream."""

import argparse
import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil

from benchmarks.gateway_sides.hook.sitecustomize import ANSWER_VARIABLE

ROOT = Path(__file__).parents[2]
HOOK = Path(__file__).parent / "hook"
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
    """A running gateway."""

    name: str
    process: psutil.Process
    port: int
    key: str = KEY
    prefix: str = ""
    """The prefix of model names."""

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


def build_path(*folders: Path) -> str:
    """Builds a PYTHONPATH of these folders and the packages of this interpreter, for any interpreter of the
    same version."""
    return os.pathsep.join(map(str, (*folders, sysconfig.get_path("purelib"))))


@contextmanager
def run_floor(upstream: int, python: str) -> Iterator[Side]:
    """Runs the bare relay."""
    port = find_port()
    command = [python, "-m", "benchmarks.gateway_sides.floor", str(port), str(upstream)]
    with run_process(command, port, "/v1/models", {"PYTHONPATH": build_path()}) as process:
        yield Side("floor", process, port)


@dataclass(frozen=True)
class AntiphonSide:
    """Runs Antiphon from a checkout, with keys, limits, a price and the ledger in SQLite."""

    name: str
    home: Path
    tree: Path
    python: str
    has_keys: bool = True
    """Whether keys are in the database. If not, one is in the settings, without limits and ledger."""
    workers: int = 1
    is_traced: bool = False
    is_embedded: bool = False
    """Whether it serves the demo model, and not the vendor."""

    @contextmanager
    def __call__(self, upstream: int, answer_file: Path | None = None) -> Iterator[Side]:
        """`answer_file`: for the answers of the hook that counts calls (hook/sitecustomize.py)."""
        home, port = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=self.home)), find_port()
        env = {"FIRST_KEY": "upstream-key", "ANTIPHON_HOME": str(home)}
        env["PYTHONPATH"] = build_path(self.tree / "src")
        if answer_file is not None:
            env |= {ANSWER_VARIABLE: str(answer_file), "PYTHONPATH": build_path(HOOK, self.tree / "src")}
        if self.has_keys:
            env |= {"ANTIPHON_KEYS": "true", "ANTIPHON_STORE": f"sqlite:///{home / 'antiphon.db'}"}
        else:
            env |= {"ANTIPHON_API_KEY": KEY}
        if self.is_traced:
            env |= {"ANTIPHON_TRACING_ENDPOINT": f"http://127.0.0.1:{upstream}"}
        command = [
            self.python,
            "-m",
            "antiphon",
            "serve",
            "--port",
            str(port),
            "--workers",
            str(self.workers),
        ]
        if self.is_embedded:
            command += ["--threads", "1"]
        else:
            config = home / "antiphon.toml"
            config.write_text(ANTIPHON.format(port=upstream))
            command += ["--config", str(config)]
        with run_process(command, port, "/health/ready", env) as process:
            key = create_limited_key(port, home) if self.has_keys else KEY
            yield Side(self.name, process, port, key, "" if self.is_embedded else "first/")


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


Runner = Callable[..., AbstractContextManager[Side]]
"""Starts a gateway in front of the upstream of this port."""


def list_runners(home: Path, options: argparse.Namespace) -> dict[str, Runner]:
    """Lists the gateways that can be started here, by name."""
    own = AntiphonSide("antiphon", home, options.tree, options.python)
    runners: dict[str, Runner] = {
        "floor": partial(run_floor, python=options.python),
        "antiphon": own,
        "one-key": replace(own, name="one-key", has_keys=False),
        "workers": replace(own, name="workers", workers=2),
        "traced": replace(own, name="traced", is_traced=True),
        "embedded": replace(own, name="embedded", is_embedded=True),
    }
    if options.against is not None:
        before = replace(own, name="before", tree=options.against)
        runners["before"] = before
        runners["embedded-before"] = replace(before, name="embedded-before", is_embedded=True)
    if options.litellm is not None:
        runners["litellm"] = partial(run_litellm, home=home / "litellm", environment=options.litellm)
    if options.router is not None:
        runners["router"] = partial(run_router, environment=options.router)
    return runners
