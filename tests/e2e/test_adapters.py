"""Adapters of the real server, with cantor: of the settings, over HTTP, by `antiphon lora`, after deaths."""

import hashlib
import json
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.make_adapter import write_adapter
from tests.support.commands import run_command
from tests.support.model_files import CANTOR
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

BACK = 50.0
"""Seconds in which what died is back; it takes about two."""

LONG = {"model": "second", "prompt": "Once upon a time", "temperature": 0}
BETWEEN = 0.1
"""Seconds between two requests of a caller who asks all the time."""
SIZES = ({"max_tokens": 300}, {"max_tokens": 1500}, {"max_tokens": 1500, "n": 12})
"""Of an answer that runs when its adapter is unloaded. The next is asked for if one ended before."""


pytestmark = pytest.mark.timeout(480)
"""Each starts a server and several commands: seconds, and minutes where the machine is busy with others."""


@dataclass(frozen=True)
class Lender:
    """A server with one adapter of its settings and a directory of others."""

    server: Server
    shelf: Path
    home: Path

    def say(self, model: str, max_tokens: int = 24) -> str:
        asked = {"model": model, "prompt": "Once upon a time", "temperature": 0, "max_tokens": max_tokens}
        with self.server.client() as client:
            reply = client.post("/v1/completions", json=asked)
        assert reply.status_code == 200, reply.text
        assert reply.json()["model"] == model
        text: str = reply.json()["choices"][0]["text"]
        return text

    def lora(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `antiphon lora` against it."""
        return run_command("lora", *arguments, "--url", self.server.url, cwd=self.home.parent)

    def names(self) -> list[str]:
        with self.server.client() as client:
            return [model["id"] for model in client.get("/v1/models").json()["data"]]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapters of random weights for cantor, strong enough to be heard."""
    directory = tmp_path_factory.mktemp("shelf")
    for seed, name in enumerate(("first", "second", "third"), 1):
        write_adapter(directory / f"{name}.gguf", CANTOR, rank=4, seed=seed, weight=1.0)
    (directory / "cut.gguf").write_bytes((directory / "first.gguf").read_bytes()[:-5000])
    return directory


@pytest.fixture(scope="module")
def shared(shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lender]:
    place = tmp_path_factory.mktemp("lender")
    env = {"ANTIPHON_LORA_DIRECTORIES": str(shelf), "ANTIPHON_HOME": str(place / "home")}
    env["ANTIPHON_ENGINE_RESTART_PATIENCE"] = str(BACK)
    with serving("--lora", f"first={shelf / 'first.gguf'}", env=env, cwd=place) as server:
        yield Lender(server, shelf, place / "home")


@pytest.fixture
def lender(shared: Lender) -> Iterator[Lender]:
    """A server that has the adapter of its settings alone when a test begins."""
    yield shared
    with shared.server.client() as client:
        for name in set(shared.names()) - {"cantor", "first"}:
            client.post("/v1/unload_lora_adapter", json={"lora_name": name}).raise_for_status()


def file_name(path: Path) -> str:
    """The name under which the server keeps an adapter's file."""
    return f"{hashlib.sha256(path.read_bytes()).hexdigest()}.gguf"


def test_the_command_loads_and_unloads_adapters_that_differ(lender: Lender) -> None:
    before = {path.name for path in (lender.home / "adapters").glob("*.gguf")}
    alone, first = lender.say("cantor"), lender.say("first")
    assert first != alone
    added = lender.lora("add", f"second={lender.shelf / 'second.gguf'}")
    assert (added.returncode, added.stdout) == (0, "loaded second\n"), added.stderr
    assert lender.lora("add", "third=third.gguf").returncode == 0
    listed = json.loads(lender.lora("list", "--json").stdout)["adapters"]
    assert [(row["name"], row["model"]) for row in listed] == [
        ("first", "cantor"),
        ("second", "cantor"),
        ("third", "cantor"),
    ]
    said = {name: lender.say(name) for name in ("cantor", "first", "second", "third")}
    assert len(set(said.values())) == 4
    assert (said["cantor"], said["first"]) == (alone, first), "nobody's answer changed"
    cut = lender.lora("add", "cut=cut.gguf")
    assert cut.returncode == 1 and cut.stderr.startswith("antiphon: cut.gguf ends before"), cut.stderr
    assert lender.lora("remove", "second").returncode == 0
    gone = lender.lora("remove", "second")
    assert gone.returncode == 1 and "cannot be found" in gone.stderr
    assert lender.names() == ["cantor", "first", "third"]
    assert lender.say("third") == said["third"]
    kept = {path.name for path in (lender.home / "adapters").glob("*.gguf")}
    assert {file_name(lender.shelf / f"{name}.gguf") for name in ("first", "second", "third")} <= kept
    assert file_name(lender.shelf / "cut.gguf") not in kept and not before - kept, (
        "files stay under their digests"
    )
    assert len(kept - before) <= 2, "one file for each content"


def test_what_runs_with_an_adapter_ends_although_it_is_unloaded(lender: Lender) -> None:
    assert any(unload_while_it_runs(lender, size) for size in SIZES), "each answer ended first"


def unload_while_it_runs(lender: Lender, size: dict[str, int]) -> bool:
    """Unloads an adapter while it makes an answer. Returns whether the answer was still being made then."""
    with lender.server.client() as client:
        name = {"lora_name": "second"}
        client.post("/v1/load_lora_adapter", json=name | {"lora_path": "second.gguf"}).raise_for_status()
        asked = LONG | {"ignore_eos": True, "stream": True} | size
        with client.stream("POST", "/v1/completions", json=asked) as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("data: "))
            heard = [next(lines)]
            with lender.server.client() as other:
                other.post("/v1/unload_lora_adapter", json=name).raise_for_status()
                assert other.post("/v1/completions", json=LONG).status_code == 404
            is_running = lender.server.load().running > 0
            heard += lines
    assert heard.pop() == "data: [DONE]"
    answered = [json.loads(line.removeprefix("data: "))["choices"][0] for line in heard]
    ends = [choice["finish_reason"] for choice in answered if choice["finish_reason"]]
    assert ends == ["length"] * size.get("n", 1)
    return is_running


@pytest.mark.slow
def test_loading_and_unloading_under_load_changes_nobodys_answer(lender: Lender) -> None:
    """cantor ships exact, so that one token of another adapter's would show."""
    alone = {name: lender.say(name, 32) for name in ("cantor", "first")}
    stop = threading.Event()

    def keep_asking(name: str) -> set[str]:
        said = set()
        while not stop.wait(BETWEEN):
            said.add(lender.say(name, 32))
        return said

    with ThreadPoolExecutor(2) as pool, lender.server.client() as client:
        running = {name: pool.submit(keep_asking, name) for name in alone}
        others = set()
        try:
            for name in ("second", "third", "second"):
                body = {"lora_name": name, "lora_path": f"{name}.gguf"}
                client.post("/v1/load_lora_adapter", json=body).raise_for_status()
                others.add(lender.say(name, 32))
                client.post("/v1/unload_lora_adapter", json={"lora_name": name}).raise_for_status()
        finally:
            stop.set()
    assert len(others) == 2, "the second said the same both times"
    assert {name: task.result() for name, task in running.items()} == {
        name: {text} for name, text in alone.items()
    }


def test_adapters_outlive_both_processes_and_return_by_themselves_with_their_files(lender: Lender) -> None:
    """Neither a new engine nor a new HTTP process ends the server for a lost file, and nobody gets the base
    model. A name that was removed stays removed."""
    for name in ("second", "third"):
        assert lender.lora("add", f"{name}={name}.gguf").returncode == 0
    said = {name: lender.say(name) for name in ("cantor", "first", "second", "third")}
    assert lender.lora("remove", "first").returncode == 0
    with lender.server.client() as client:
        digest = client.get("/v1/models/second").json()["root"].removeprefix("sha256:")
        (kept,) = lender.home.rglob(f"{digest}.gguf")
        kept.rename(away := kept.with_suffix(".away"))
        host = lender.server.host()
        host.kill()
        host.wait(BACK)
        asked = {"model": "second", "prompt": "a", "max_tokens": 2}
        wait_until(lambda: lender.server.records("adapter_lost"), BACK, "it is missed")
        refused = client.post("/v1/completions", json=asked)
        assert refused.status_code == 503 and refused.headers["retry-after"], refused.text
        assert "second" in refused.json()["error"]["message"]
        assert {name: lender.say(name) for name in ("cantor", "third")} == {
            name: said[name] for name in ("cantor", "third")
        }
        (http,) = lender.server.children("assembly")
        http.kill()
        http.wait(BACK)
    assert {name: lender.say(name) for name in ("cantor", "third")} == {
        name: said[name] for name in ("cantor", "third")
    }
    assert "first" not in lender.names()
    away.rename(kept)

    def is_back() -> bool:
        with lender.server.client() as client:
            return client.post("/v1/completions", json=asked).status_code == 200

    wait_until(is_back, 2 * BACK, "it is back")
    assert lender.lora("add", "first=first.gguf").returncode == 0
    assert {name: lender.say(name) for name in said} == said
