"""Both servers over the same library and the same file: Antiphon as a user starts it, and llama-server.

xllamacpp's `Server` is llama-server in process; it runs in a child process of its own here. Both get the same
threads, the same number of sequences and as many KV cells; what a side's name says beyond that is its layout:

    antiphon:pool, antiphon:streams        one pool of cells, or a stream of cells for each sequence
    native:pool, native:streams            Antiphon over another library (--native)
    llama:unified, llama:split             the same of llama-server (kv_unified on or off)
    .../spin, .../nap, .../5000            OpenMP threads spin at barriers as long as they like, or for
                                           microseconds as is Antiphon's default, or so many rounds
    .../nap+large, .../small               memory in large pages, as is Antiphon's default, or in small ones

Without a word each side has what it has by default: llama-server spins and has small pages.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx2
import psutil

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.server import Server, serving  # noqa: E402 - the path above is where it lies
from tests.support.waiting import wait_until  # noqa: E402

MODEL = "bench"

HTTP = "HTTP process"
"""Of Antiphon, whose engine is another."""
PAGES = {"large": 1, "small": 0}
"""What glibc is told for a word about memory."""

LONG = 300.0
"""Seconds that a server may take to start or to come to rest."""


@dataclass(frozen=True)
class Shape:
    """What both sides load."""

    model: str
    sequences: int
    context: int
    """Cells of one sequence; there are `sequences` times as many."""
    threads: int
    settings: tuple[tuple[str, float], ...] = ()
    """Further settings of the model at Antiphon's sides."""
    native: str = ""
    """Path of another library, for sides that are called so."""


@dataclass
class Side:
    """A server that runs."""

    name: str
    port: int
    process: psutil.Process
    """The server, or the parent of all its processes."""
    antiphon: Server | None = None

    def cpu(self) -> dict[str, float]:
        """Seconds of processor time so far, by part of the server."""
        if self.antiphon is None:
            return {"engine": spent(self.process)}
        http, engine = (self.antiphon.children(word) for word in ("assembly", "engines.host"))
        return {HTTP: sum(map(spent, http)), "engine": sum(map(spent, engine))}

    def prefilled(self) -> int:
        """Prompt tokens computed so far, by the server's own counter."""
        if self.antiphon is not None:
            return self.antiphon.load().prefill_tokens
        text = httpx2.get(f"http://127.0.0.1:{self.port}/metrics", timeout=60).text
        found = [line for line in text.splitlines() if line.startswith("llamacpp:prompt_tokens_total")]
        return int(float(found[0].split()[1]))


def spent(process: psutil.Process) -> float:
    """Seconds of processor time of one process."""
    times = process.cpu_times()
    return times.user + times.system


def variables_of(word: str) -> dict[str, str]:
    """OpenMP's or glibc's variables for a word of a side's name."""
    if word in PAGES:
        return {"GLIBC_TUNABLES": f"glibc.malloc.hugetlb={PAGES[word]}"}
    if word == "spin":
        return {"OMP_WAIT_POLICY": "active"}
    return {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": {"nap": "1000"}.get(word, word)}


@contextmanager
def running(name: str, shape: Shape) -> Iterator[Side]:
    """One side, by its name, ready."""
    product, _, layout = name.partition(":")
    layout, *words = re.split(r"[/+]", layout)
    variables = {name: value for word in words for name, value in variables_of(word).items()}
    if product == "native":
        variables["ANTIPHON_ENGINE_LIBRARY"] = shape.native
    start = {"antiphon": antiphon, "native": antiphon, "llama": llama_server}[product]
    with start(name, layout, shape, variables) as side:
        yield side


@contextmanager
def antiphon(name: str, layout: str, shape: Shape, variables: dict[str, str]) -> Iterator[Side]:
    cells = shape.context * shape.sequences
    values = {"name": MODEL, "path": str(Path(shape.model).absolute()), "layout": layout, "cells": cells}
    values |= {"sequences": shape.sequences, "context_length": shape.context, "threads": shape.threads}
    values |= dict(shape.settings)
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
def llama_server(name: str, layout: str, shape: Shape, variables: dict[str, str]) -> Iterator[Side]:
    order = json.dumps(asdict(shape) | {"unified": {"unified": True, "split": False}[layout]})
    child = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-c",
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
            "from benchmarks.side_by_side.servers import be_llama_server as be; be()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | variables,
        start_new_session=True,  # as Antiphon's engine: Linux shares the machine out by session
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(order + "\n")
        child.stdin.flush()
        line = next((line for line in child.stdout if line.startswith("listening ")), None)
        assert line, f"llama-server ended with {child.wait()}"
        yield Side(name, int(line.split()[1]), psutil.Process(child.pid))
    finally:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def be_llama_server() -> None:
    """The child: serves until it is ended."""
    import xllamacpp

    order = json.loads(sys.stdin.readline())
    params = xllamacpp.CommonParams()
    params.model.path = order["model"]
    params.n_ctx = order["context"] * order["sequences"]
    params.n_parallel = order["sequences"]
    params.kv_unified = order["unified"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = order["threads"]
    params.fit_params = False
    params.endpoint_metrics = True
    params.cache_ram_mib = 0  # its store of old prompts in memory costs time and is of no use here
    server = xllamacpp.Server(params)
    print(f"listening {server.listening_address.rpartition(':')[2]}", flush=True)
    sys.stdin.read()


def at_rest(side: Side) -> None:
    """Waits until nothing runs any more."""
    if side.antiphon is not None:
        load = side.antiphon.load
        wait_until(lambda: load().running == load().queued == 0, LONG, f"{side.name} is at rest")
