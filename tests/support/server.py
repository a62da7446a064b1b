"""The real server as a user starts it, in processes of its own, for tests that speak to it over the wire."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import psutil

from antiphon.cli.bootstrap import STORE_FILE
from antiphon.domain.models import Load
from antiphon.engines.base import LoadSpec
from antiphon.engines.host.client import open_host_engine
from tests.support.processes import bare_environment, list_children
from tests.support.stores import open_new_store
from tests.support.waiting import wait_until

START_DEADLINE = 120.0
"""Seconds; a start takes about one."""

END_DEADLINE = 50.0
"""Seconds; an end takes about one."""

LISTENS = re.compile(r'Antiphon listens on (http://\S+)|"event": "serving", "url": "(http://[^"]+)"')
"""The panel, or the record of a JSON log."""


@dataclass
class Server:
    """One `antiphon serve` process tree."""

    process: subprocess.Popen[str]
    url: str = ""
    lines: list[str] = field(default_factory=list)
    """What it wrote to standard output and error, so far."""
    reader: threading.Thread | None = None
    """Reads the lines."""

    @property
    def supervisor(self) -> psutil.Process:
        return psutil.Process(self.process.pid)

    def children(self, word: str) -> list[psutil.Process]:
        """Children whose command holds the word: `engines.host`, `assembly`."""
        return [child for child in list_children(self.supervisor) if word in _command(child)]

    def host(self) -> psutil.Process:
        (only,) = self.children("engines.host")
        return only

    def log(self) -> list[dict[str, object]]:
        """The JSON records among the lines."""
        return [json.loads(line) for line in list(self.lines) if line.startswith("{")]

    def records(self, event: str) -> list[dict[str, object]]:
        return [line for line in self.log() if line["event"] == event]

    def client(self, **options: object) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=60, **options)  # type: ignore[arg-type]

    def load(self) -> Load:
        """Reads the engine's load over its socket, without the gateway."""
        path = next(place.laddr for place in self.host().net_connections("unix") if place.laddr)
        return asyncio.run(_load_at(str(path)))

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends the signal and waits for the end, and for the last line; returns the exit status."""
        self.process.send_signal(number)
        status = self.process.wait(END_DEADLINE)
        if self.reader is not None:
            self.reader.join(END_DEADLINE)
        return status

    def wait_until_idle(self) -> None:
        """Waits until the engine has nothing to do: what an earlier test left is cancelled a moment later."""

        def is_idle() -> bool:
            load = self.load()
            return load.running == load.queued == 0

        wait_until(is_idle, what="the engine is idle")


def _command(process: psutil.Process) -> str:
    """Of one that ends in this moment nothing."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def read_event(lines: Iterable[str] | Iterable[bytes]) -> str | bytes:
    """Reads a stream up to its first event. Where the machine takes long, comments come before it."""
    return next(line for line in lines if line[:5] in ("data:", b"data:"))


async def _load_at(path: str) -> Load:
    async with open_host_engine(path, "observed") as engine:
        return (await engine.load(LoadSpec(""))).load


def share_of(process: psutil.Process) -> int:
    """Its memory in bytes: the proportional set size."""
    share: int = process.memory_full_info().pss
    return share


def start(
    *arguments: str,
    threads: int | None = 1,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    python: str = sys.executable,
) -> Server:
    """Starts `antiphon serve` on a free port of loopback and returns at once.

    One thread takes a third of the CPU seconds with a small model, because several threads mostly wait for
    each other. None leaves the choice to the engine.
    """
    provide_store(env or {})
    command = [python, "-m", "antiphon", "serve", "--port", "0", "--log-format", "json", *arguments]
    if threads is not None:
        command += ["--threads", str(threads)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=bare_environment() | (env or {}),
        cwd=cwd,
    )
    server = Server(process)
    server.reader = threading.Thread(target=_read, args=(server,), daemon=True)
    server.reader.start()
    return server


def provide_store(env: dict[str, str]) -> None:
    """Gives a server with keys the database that it would make at its first start, because its migrations
    take 0.4 CPU seconds. If ANTIPHON_STORE is set, the server makes its own."""
    if env.get("ANTIPHON_KEYS") != "true" or "ANTIPHON_STORE" in env or "ANTIPHON_HOME" not in env:
        return
    file = Path(env["ANTIPHON_HOME"]) / STORE_FILE
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        open_new_store(file).close()


def _read(server: Server) -> None:
    assert server.process.stdout is not None
    with server.process.stdout as lines:
        for line in lines:
            server.lines.append(line.rstrip("\n"))
            if found := LISTENS.search(line):
                server.url = found[1] or found[2]


@contextmanager
def serving(
    *arguments: str,
    threads: int | None = 1,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    python: str = sys.executable,
    deadline: float = START_DEADLINE,
) -> Iterator[Server]:
    """A server that is ready; ended, with all its processes, when the context is left."""
    server = start(*arguments, threads=threads, env=env, cwd=cwd, python=python)
    tree: list[psutil.Process] = []
    try:
        wait_until(lambda: server.url or server.process.poll() is not None, deadline, "the server listens")
        assert server.url, f"the server ended: {server.lines}"
        yield server
    finally:
        if server.process.poll() is None:
            tree = server.supervisor.children(recursive=True)
            server.process.terminate()
            try:
                server.process.wait(END_DEADLINE)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait(10)
        for process in psutil.wait_procs(tree, timeout=10)[1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
