"""Runs both servers with the same library and the same model file: Antiphon as a user starts it, and
llama-server.

xllamacpp's `Server` is llama-server inside a Python process; here it runs in a child process. Both servers
get the same numbers of threads, sequences and KV cells. The name of a side tells its layout and options:

  - antiphon:pool, antiphon:streams: one pool of cells, or a stream of cells for each sequence
  - native:pool, native:streams: Antiphon over another library (--native)
  - before:pool, before:streams: Antiphon of another checkout (--before), with this one's packages
  - llama:unified, llama:split: the same layouts of llama-server (kv_unified on or off)
  - .../spin, .../nap, .../5000: OpenMP threads spin at barriers without limit, for microseconds (Antiphon's
    default), or for this number of rounds
  - .../bound, .../unbound: each thread on a core of its own (Antiphon's default for one engine), or on any
  - .../nap+large, .../small: memory in large pages (Antiphon's default), or in small pages

Without options each side has its defaults: llama-server spins and uses small pages.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.server import Server, serving  # noqa: E402 - needs the path above
from tests.support.waiting import wait_until  # noqa: E402

MODEL = "bench"

HTTP = "HTTP process"
"""Antiphon's HTTP process; its engine is a second process."""
PAGES = {"large": 1, "small": 0}
"""glibc's value for each option about memory pages."""

LONG = 300.0
"""The most seconds for a server to start, or to finish all requests."""


@dataclass(frozen=True)
class Shape:
    """The model and sizes that both sides load."""

    model: str
    sequences: int
    context: int
    """The cells of one sequence."""
    threads: int
    settings: tuple[tuple[str, float | str], ...] = ()
    """Further model settings for Antiphon's sides."""
    native: str = ""
    """The path of another library, for the sides `native:...`."""
    before: str = ""
    """The path of another checkout, for the sides `before:...`."""
    program: str = ""
    """The path of a llama-server to run, instead of the one in xllamacpp. It uses every device."""
    projector: str = ""
    """The path of the projector's file, with which both sides take images of at most 1,024 tokens."""


@dataclass
class Side:
    """A running server."""

    name: str
    port: int
    process: psutil.Process
    """The server, or the parent of all its processes."""
    antiphon: Server | None = None

    def read_cpu(self) -> dict[str, float]:
        """Returns the CPU seconds so far, by part of the server."""
        if self.antiphon is None:
            return {"engine": read_process_cpu(self.process)}
        http, engine = (self.antiphon.children(word) for word in ("assembly", "engines.host"))
        return {HTTP: sum(map(read_process_cpu, http)), "engine": sum(map(read_process_cpu, engine))}

    def read_prefill_tokens(self) -> int:
        """Returns the prompt tokens computed so far, by the server's counter."""
        if self.antiphon is not None:
            return self.antiphon.load().prefill_tokens
        text = httpx2.get(f"http://127.0.0.1:{self.port}/metrics", timeout=60).text
        lines = [line for line in text.splitlines() if line.startswith("llamacpp:prompt_tokens_total")]
        return int(float(lines[0].split()[1]))


def read_process_cpu(process: psutil.Process) -> float:
    """Returns the CPU seconds of one process."""
    times = process.cpu_times()
    return times.user + times.system


def list_variables(word: str) -> dict[str, str]:
    """Returns the environment variables of OpenMP or glibc for an option in a side's name."""
    if word in PAGES:
        return {"GLIBC_TUNABLES": f"glibc.malloc.hugetlb={PAGES[word]}"}
    if word in ("bound", "unbound"):
        return {"OMP_PROC_BIND": str(word == "bound").lower(), "OMP_PLACES": "cores"}
    if word == "spin":
        return {"OMP_WAIT_POLICY": "active"}
    return {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": {"nap": "1000"}.get(word, word)}


@contextmanager
def run_side(name: str, shape: Shape) -> Iterator[Side]:
    """Runs one side by its name, until it is ready."""
    product, _, layout = name.partition(":")
    layout, *words = re.split(r"[/+]", layout)
    variables = {name: value for word in words for name, value in list_variables(word).items()}
    if product == "native":
        variables["ANTIPHON_ENGINE_LIBRARY"] = shape.native
    if product == "before":
        variables["PYTHONPATH"] = str(Path(shape.before).absolute() / "src")
    start = run_llama_server if product == "llama" else run_antiphon
    with start(name, layout, shape, variables) as side:
        yield side


@contextmanager
def run_antiphon(name: str, layout: str, shape: Shape, variables: dict[str, str]) -> Iterator[Side]:
    cells = shape.context * shape.sequences
    values = {"name": MODEL, "path": str(Path(shape.model).absolute()), "layout": layout, "cells": cells}
    values |= {"sequences": shape.sequences, "context_length": shape.context, "threads": shape.threads}
    values |= dict(shape.settings) | ({"mmproj": shape.projector} if shape.projector else {})
    lines = [
        f"{key} = {json.dumps(value)}" for key, value in values.items() if layout == "pool" or key != "cells"
    ]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "antiphon.toml"
        config.write_text("\n".join(["[[models]]", *lines, ""]))
        with serving(
            "--config", str(config), "--log-level", "warning", threads=None, env=variables
        ) as server:
            yield Side(name, int(server.url.rpartition(":")[2]), server.supervisor, server)


@contextmanager
def run_llama_server(name: str, layout: str, shape: Shape, variables: dict[str, str]) -> Iterator[Side]:
    is_unified = {"unified": True, "split": False}[layout]
    if shape.program:
        with run_program(name, is_unified, shape, variables) as side:
            yield side
        return
    options = json.dumps(asdict(shape) | {"unified": is_unified})
    child = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-c",
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
            "from benchmarks.side_by_side.servers import serve_llama; serve_llama()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | variables,
        start_new_session=True,  # like Antiphon's engine, because Linux shares CPU time between sessions
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(options + "\n")
        child.stdin.flush()
        line = next((line for line in child.stdout if line.startswith("listening ")), None)
        assert line, f"llama-server ended with {child.wait()}"
        yield Side(name, int(line.split()[1]), psutil.Process(child.pid))
    finally:
        end(child)


@contextmanager
def run_program(name: str, is_unified: bool, shape: Shape, variables: dict[str, str]) -> Iterator[Side]:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    values: dict[str, object] = {"--model": shape.model, "--ctx-size": shape.context * shape.sequences}
    values |= {"--parallel": shape.sequences, "--threads": shape.threads, "--threads-batch": shape.threads}
    values |= {"--host": "127.0.0.1", "--port": port, "--cache-ram": 0, "--gpu-layers": 999, "--fit": "off"}
    child = subprocess.Popen(
        [
            shape.program,
            *(str(part) for pair in values.items() for part in pair),
            "--kv-unified" if is_unified else "--no-kv-unified",
            "--metrics",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | variables,
        start_new_session=True,
    )

    def is_ready() -> bool:
        if child.poll() is not None:
            raise RuntimeError(f"{shape.program} ended with {child.returncode}")
        with suppress(httpx2.TransportError):
            return httpx2.get(f"http://127.0.0.1:{port}/health").status_code == 200
        return False

    try:
        wait_until(is_ready, LONG, f"{name} is ready")
        yield Side(name, port, psutil.Process(child.pid))
    finally:
        end(child)


def end(child: "subprocess.Popen[Any]") -> None:
    child.terminate()
    try:
        child.wait(20)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def serve_llama() -> None:
    """Runs llama-server in the child process until the process is ended."""
    import xllamacpp

    options = json.loads(sys.stdin.readline())
    params = xllamacpp.CommonParams()
    params.model.path = options["model"]
    params.n_ctx = options["context"] * options["sequences"]
    params.n_parallel = options["sequences"]
    params.kv_unified = options["unified"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options["threads"]
    params.fit_params = False
    if options["projector"]:
        params.mmproj.path, params.image_max_tokens = options["projector"], 1024
    params.endpoint_metrics = True
    params.cache_ram_mib = 0  # its cache of old prompts costs time and is not used here
    server = xllamacpp.Server(params)
    print(f"listening {server.listening_address.rpartition(':')[2]}", flush=True)
    sys.stdin.read()


def wait_until_idle(side: Side) -> None:
    """Waits until no request runs or waits."""
    if side.antiphon is not None:
        load = side.antiphon.load
        wait_until(lambda: load().running == load().queued == 0, LONG, f"{side.name} is at rest")
