"""Which threads of an engine stay on a core, with one engine and with two, as a settings file says it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psutil
import pytest

from antiphon.engines.llama.machine import count_cores
from tests.support.commands import run_command
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

CORES = count_cores()
PATIENCE = 60.0

MODEL = """
[[models]]
name = "{name}"
path = "cantor"
context_length = 256
threads = {threads}
bind_threads = {binds}
"""


@contextmanager
def serve(place: Path, *models: str) -> Iterator[Server]:
    (place / "antiphon.toml").write_text("".join(models))
    with serving(env={"ANTIPHON_HOME": str(place)}, cwd=place, threads=None) as server:
        yield server


def describe(name: str = "first", threads: int = CORES, binds: str = "true") -> str:
    return MODEL.format(name=name, threads=threads, binds=binds)


def chat(server: Server, model: str, tokens: int = 4) -> None:
    """Has the engine compute a prompt, which all its threads do together, and then single rows."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": tokens}
    assert httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE).status_code == 200


def count_bound(host: psutil.Process) -> int:
    """The number of threads that may run on fewer processors than the process."""
    usable = len(os.sched_getaffinity(host.pid))
    return sum(len(os.sched_getaffinity(thread.id)) < usable for thread in host.threads())


def change(server: Server, place: Path, *models: str) -> None:
    """Writes other models, reloads, and waits for the new engines."""
    before = {host.pid for host in server.children("engines.host")}
    (place / "antiphon.toml").write_text("".join(models))
    done = run_command("reload", cwd=place, env={"ANTIPHON_HOME": str(place)})
    assert done.returncode == 0, done.stderr

    def has_new_hosts() -> bool:
        hosts = {host.pid for host in server.children("engines.host")}
        return len(hosts) == len(models) and not hosts <= before

    wait_until(has_new_hosts, PATIENCE, "the engines of the new settings")
    wait_until(
        lambda: httpx2.get(f"{server.url}/health/ready").status_code == 200, PATIENCE, "they are ready"
    )


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux tells the affinity of a thread")
def test_threads_are_bound_if_one_engine_uses_all_cores(tmp_path: Path) -> None:
    with serve(tmp_path, describe()) as server:
        chat(server, "first", 1)
        assert count_bound(server.host()) == 0, "the last decode was a prompt's"
        chat(server, "first")
        assert count_bound(server.host()) == (CORES if CORES > 1 else 0)
        change(server, tmp_path, describe(binds="false"))
        chat(server, "first")
        assert count_bound(server.host()) == 0
        change(server, tmp_path, describe(), describe("second"))
        hosts = server.children("engines.host")
        for name in ("first", "second"):
            chat(server, name)
        assert [count_bound(host) for host in hosts] == [0, 0]
