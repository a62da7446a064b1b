"""The settings of a running server are loaded again, in all of its processes, and no stream ends by it."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.workers import CHAT, PATIENCE, Line, lines, workers
from tests.support.commands import run_command
from tests.support.model_files import BUNDLED, CANTOR
from tests.support.server import Server, serving
from tests.support.vendors.answer_shapes import WORDS
from tests.support.vendors.scripted_upstream import ScriptedUpstream, serve_upstream
from tests.support.waiting import wait_until

KEY = "sk-of-these-tests-only-0123456789"
ADAPTER = next((BUNDLED / "adapters").glob("*.gguf"))
RETIRE_S = 1.5
"""The retire timeout of a test; its retire delay is ten times as long."""
SERVER = """
[server]
workers = 2
drain_timeout = 0.05
retire_delay = 0.05
"""
ENGINE = """
[[models]]
name = "cantor"
path = "cantor"

[[adapters]]
name = "adapted"
path = "{adapter}"
model = "cantor"
"""
VENDOR = """
[providers.first]
kind = "openai"
base_url = "{url}"
key = "file:{key}"
private = true

[[models]]
name = "one"
routes = [{{ provider = "first", model = "fake" }}]
"""
BASE = SERVER + ENGINE + VENDOR
SECOND = """
[providers.second]
kind = "openai"
base_url = "{url}"
private = true

[[models]]
name = "second/*"
provider = "second"
"""
LOCAL = """
[[models]]
name = "other"
path = "cantor"
sequences = 2
"""


THIRD = "[providers.third]\nkind = 'openai'\nbase_url = 'http://x/v1'\nprivate = true\n"


def fill(text: str, url: str, home: Path) -> str:
    """The settings with the addresses and files of this run."""
    return text.format(url=url, key=home / "vendor.key", adapter=ADAPTER, fifo=home / "fifo")


class Gateway:
    """A server of two processes whose settings file the tests write."""

    def __init__(self, server: Server, home: Path, url: str) -> None:
        self.server = server
        self.home = home
        self.url = url
        self.file = home / "antiphon.toml"
        self.admin = (home / "admin.key").read_text().strip()

    def write(self, *parts: str) -> None:
        self.file.write_text(fill("".join(parts), self.url, self.home))

    def reload(self) -> "subprocess.CompletedProcess[str]":
        """Runs the command."""
        return run_command("reload", cwd=self.home, env={"ANTIPHON_HOME": str(self.home)})

    def ask(self, line: Line, model: str) -> int:
        """The status of a short chat in the process of a line."""
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        return line.ask("POST", CHAT, body, key=self.admin)[0]


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with serve_upstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def running(upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    home = tmp_path_factory.mktemp("reload")
    (home / "vendor.key").write_text(KEY)
    os.mkfifo(home / "fifo")
    (home / "antiphon.toml").write_text(fill(BASE, upstream.url, home))
    env = {"ANTIPHON_HOME": str(home), "ANTIPHON_KEYS": "true"}
    with serving("--config", str(home / "antiphon.toml"), env=env) as server:
        yield Gateway(server, home, upstream.url)


@pytest.fixture
def gateway(running: Gateway) -> Iterator[Gateway]:
    """The server, which has the settings of the start again when the test ends."""
    yield running
    running.write(BASE)
    assert running.reload().returncode == 0


@pytest.fixture
def both(gateway: Gateway) -> Iterator[list[Line]]:
    """A connection to each process."""
    with lines(gateway.server) as both:
        yield both


def test_new_and_removed_models_serve_in_all_processes(gateway: Gateway, both: list[Line]) -> None:
    gateway.write(BASE, SECOND, "[[aliases]]\nname = 'uno'\nmodel = 'one'\n")
    done = gateway.reload()
    assert done.stdout == "added provider second; added model second/*; added alias uno\n", done.stderr
    for line in both:
        assert [gateway.ask(line, name) for name in ("second/fake", "one", "uno")] == [200] * 3
    gateway.write(BASE)
    assert gateway.reload().stdout == "removed provider second; removed model second/*; removed alias uno\n"
    for line in both:
        assert [gateway.ask(line, name) for name in ("second/fake", "one", "uno")] == [404, 200, 404]


def test_a_stream_outlives_its_route(gateway: Gateway, both: list[Line], upstream: ScriptedUpstream) -> None:
    gateway.write(BASE, SECOND)
    gateway.reload()
    upstream.pace = 0.3
    try:
        line = both[0]
        body = {
            "model": "second/fake",
            "messages": [{"role": "user", "content": "Count."}],
            "stream": True,
        }
        headers = {"authorization": f"Bearer {gateway.admin}", "content-type": "application/json"}
        line.connection.request("POST", CHAT, json.dumps(body), headers)
        stream = line.connection.getresponse()
        first = stream.readline()
        gateway.write(BASE)
        assert "removed provider second" in gateway.reload().stdout
        assert gateway.ask(both[1], "second/fake") == 404
        rest = (first + stream.read()).decode()
    finally:
        upstream.pace = 0.0
    assert all(json.dumps(word) in rest for word in WORDS) and rest.rstrip().endswith("data: [DONE]")
    assert gateway.ask(line, "second/fake") == 404


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("[server\n", "not valid TOML"),
        ("\0", "not valid TOML"),
        ("[nothing]\n", "nothing"),
        ("[[models]]\nname = 'other'\npath = 'x'\ncontext_length = nan\n", "context_length"),
        ("[providers.third]\nkind = 'openai'\nbase_ulr = 'http://x'\n", "did you mean base_url?"),
        ("[providers.third]\nkind = 'openai'\nbase_url = 'http://10.0.0.1/v1'\n", "private"),
        (
            "[providers.third]\nkind = 'openai'\nbase_url = 'http://x/v1'\nkey = 'env:GONE'\n",
            "GONE is empty or not set",
        ),
        ("[[models]]\nname = 'no'\npath = '/no/such.gguf'\n", "/no/such.gguf"),
        ("[[models]]\nname = 'two'\nroutes = [{{ provider = 'nobody' }}]\n", "nobody"),
        (
            "[[models]]\nname = 'no'\npath = '~nosuchuser/a.gguf'\n",
            "path of the model no begins with '~nosuchuser'",
        ),
        (f"{THIRD}key = 'file:~nosuchuser/key'\n", "key of providers.third begins with '~nosuchuser'"),
        ('[[models]]\nname = "no"\npath = "a\\u0000"\n', "path of the model no has a NUL"),
        (THIRD.replace("//x", "//a..b"), "providers.third.base_url has no usable host"),
        (THIRD.replace("//x", "//xn--é.example"), "providers.third.base_url has no usable host"),
        (f"{THIRD}key = 'file:{{fifo}}'\n", "it is not a regular file"),
        (f"{THIRD}ca_file = '{{fifo}}'\n", "it is not a regular file"),
        ("[[models]]\nname = 'no'\npath = '{fifo}'\n", "not a regular file"),
        (f"deep = {'[' * 5000}", "is not valid TOML"),
    ],
)
def test_a_wrong_file_changes_nothing(gateway: Gateway, both: list[Line], wrong: str, said: str) -> None:
    """Whatever is wrong, the command says so in one line, and every process serves as before."""
    gateway.write(BASE, SECOND, wrong)
    done = gateway.reload()
    assert done.returncode == 1 and done.stdout == ""
    (line_of_refusal,) = done.stderr.strip().splitlines()
    assert "nothing was changed" in line_of_refusal and said in line_of_refusal
    for line in both:
        assert [gateway.ask(line, name) for name in ("second/fake", "one")] == [404, 200]


def test_a_local_model_starts_and_stops(gateway: Gateway, both: list[Line]) -> None:
    gateway.write(BASE, LOCAL)
    assert gateway.reload().stdout == "added model other\n"
    assert len(gateway.server.children("engines.host")) == 2
    for line in both:
        assert [gateway.ask(line, name) for name in ("other", "cantor")] == [200, 200]
    gateway.write(BASE, LOCAL.replace("sequences = 2", "sequences = 3"))
    assert gateway.reload().stdout == "changed model other (sequences)\n"
    for line in both:
        assert gateway.ask(line, "other") == 200
    gateway.write(BASE)
    assert gateway.reload().stdout == "removed model other\n"
    for line in both:
        assert [gateway.ask(line, name) for name in ("other", "cantor")] == [404, 200]
        assert line.ask("GET", "/health/ready")[0] == 200
    wait_until(lambda: len(gateway.server.children("engines.host")) == 1, PATIENCE, "its host has ended")
    assert not gateway.server.records("process_ended")


def test_a_stream_outlives_its_local_model(gateway: Gateway, both: list[Line]) -> None:
    """Two answers take turns on one place for ten times the retire delay, so they outlast it and the order
    to unload, which waits for the second one too."""
    wait_until(
        lambda: len(gateway.server.children("engines.host")) == 1, PATIENCE, "earlier hosts have ended"
    )
    before = gateway.server.children("engines.host")
    gateway.write(BASE, LOCAL.replace("sequences = 2", "sequences = 1"))
    assert gateway.reload().stdout == "added model other\n"
    line, body = both[0], {"model": "other", "prompt": ["Count."] * 2, "max_tokens": 300, "stream": True}
    headers = {"authorization": f"Bearer {gateway.admin}", "content-type": "application/json"}
    line.connection.request("POST", "/v1/completions", json.dumps(body | {"min_tokens": 300}), headers)
    stream = line.connection.getresponse()
    begin = stream.readline()
    (host,) = (each for each in gateway.server.children("engines.host") if each not in before)
    host.suspend()  # it makes nothing until the order to unload has come
    try:
        gateway.write(BASE)
        assert gateway.reload().stdout == "removed model other\n"
        assert gateway.ask(both[1], "other") == 404
        assert len(gateway.server.children("engines.host")) == 2
    finally:
        host.resume()
    rest = (begin + stream.read()).decode()
    assert rest.count('"finish_reason":"length"') == 2 and rest.rstrip().endswith("data: [DONE]")
    wait_until(lambda: len(gateway.server.children("engines.host")) == 1, PATIENCE, "its host has ended")


def test_a_removed_model_keeps_counts_and_ends_streams(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    """A stream that outlives the retire timeout ends then, and not a retire delay later. The counts stay,
    also in processes that start after the reload."""
    (tmp_path / "vendor.key").write_text(KEY)
    retires = f"retire_delay = {10 * RETIRE_S}\nretire_timeout = {RETIRE_S}"
    base = SERVER.replace("retire_delay = 0.05", retires) + VENDOR
    (tmp_path / "antiphon.toml").write_text(fill(base + LOCAL, upstream.url, tmp_path))
    env = {"ANTIPHON_HOME": str(tmp_path), "ANTIPHON_KEYS": "true"}
    with serving("--config", str(tmp_path / "antiphon.toml"), env=env) as server:
        gateway = Gateway(server, tmp_path, upstream.url)
        with lines(server) as both:
            line, hosts = both[0], server.children("engines.host")
            body = {
                "model": "other",
                "prompt": "Count.",
                "max_tokens": 300,
                "min_tokens": 300,
                "stream": True,
            }
            headers = {"authorization": f"Bearer {gateway.admin}", "content-type": "application/json"}
            assert [gateway.ask(each, "other") for each in both] == [200, 200]
            line.connection.request("POST", "/v1/completions", json.dumps(body), headers)
            stream = line.connection.getresponse()
            stream.readline()
            for host in hosts:
                host.suspend()  # it makes nothing more
            try:
                gateway.write(base)
                began = time.monotonic()
                assert gateway.reload().stdout.startswith("removed model other")
                end = stream.read().decode()
                assert RETIRE_S < time.monotonic() - began < 10 * RETIRE_S
            finally:
                for host in hosts:
                    host.resume()
            assert "model_not_found" in end and "a reload removed the model other" in end
            counts = {"ok": 2.0, "model_not_found": 1.0}
            assert read_generations(line, gateway.admin) == counts
            wait_until(
                lambda: read_generations(both[1], gateway.admin) == counts, PATIENCE, "the other has them too"
            )
        workers(server)[0].kill()
        wait_until(lambda: server.records("process_back"), PATIENCE, "another process")
        with lines(server) as both:
            assert [read_generations(each, gateway.admin) for each in both] == [counts, counts]


def read_generations(line: Line, key: str) -> dict[str, float]:
    """The ended generations of the model `other`, by status."""
    status, page = line.ask("GET", "/metrics", key=key)
    assert status == 200
    return {
        sample.labels["status"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "antiphon_generations_total" and sample.labels["model"] == "other"
    }


def test_adapters_follow_their_changed_model(gateway: Gateway, both: list[Line]) -> None:
    gateway.write(BASE.replace('path = "cantor"', 'path = "cantor"\nsequences = 3'))
    assert gateway.reload().stdout.startswith("changed model cantor (")
    for line in both:
        assert [gateway.ask(line, name) for name in ("adapted", "cantor")] == [200, 200]
    wait_until(lambda: len(gateway.server.children("engines.host")) == 1, PATIENCE, "the old host has ended")
    for line in both:
        assert [gateway.ask(line, name) for name in ("adapted", "cantor")] == [200, 200]


def test_a_model_that_cannot_load_refuses_the_reload(gateway: Gateway, both: list[Line]) -> None:
    broken = gateway.home / "broken.gguf"
    broken.write_bytes(CANTOR.read_bytes().replace(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight"))
    gateway.write(BASE, SECOND, LOCAL.replace('"cantor"', f'"{broken}"'))
    done = gateway.reload()
    assert done.returncode == 1 and "the model other cannot be loaded" in done.stderr
    for line in both:
        assert [gateway.ask(line, name) for name in ("other", "second/fake", "one")] == [404, 404, 200]
    wait_until(lambda: len(gateway.server.children("engines.host")) == 1, PATIENCE, "its host has ended")


def test_the_operator_reloads_by_the_admin_api(gateway: Gateway, both: list[Line]) -> None:
    gateway.write(
        "[limits]\nreserve_tokens = 77\n", BASE.replace("retire_delay = 0.05", "retire_delay = 1.5"), SECOND
    )
    status, card = both[0].ask("POST", "/admin/v1/reload", key=gateway.admin)
    assert status == 200
    assert card["providers"] == {"added": ["second"], "changed": [], "removed": [], "settings": {}}
    assert card["new_keys"] == []
    assert card["restart"] == ["server.retire_delay", "limits.reserve_tokens"]
    assert [gateway.ask(line, "second/fake") for line in both] == [200, 200]
    service = both[1].ask("POST", "/admin/v1/keys", {"kind": "service", "project": "default"}, gateway.admin)
    assert both[1].ask("POST", "/admin/v1/reload", key=service[1]["secret"])[0] == 403
    gateway.file.write_text("[providers")
    status, refusal = both[1].ask("POST", "/admin/v1/reload", key=gateway.admin)
    assert status == 409 and "not valid TOML" in refusal["error"]["message"]
    assert [gateway.ask(line, "second/fake") for line in both] == [200, 200]


def test_a_signal_reloads_and_a_new_key_is_used(
    gateway: Gateway, both: list[Line], upstream: ScriptedUpstream
) -> None:
    key_file = gateway.home / "vendor.key"
    key_file.write_text(KEY + "-older\n")
    gateway.reload()  # an earlier test can have left another key
    key_file.write_text(KEY + "-newer\n")
    assert gateway.reload().stdout == "read the new key of provider first\n"
    assert gateway.reload().stdout == "nothing changed\n"
    key_file.write_text(KEY + "-new")
    began = datetime.now(UTC)

    def is_done() -> bool:
        """The record of an earlier reload may be read late."""
        times = (str(line["time"]) for line in gateway.server.records("reloaded"))
        return any(datetime.fromisoformat(time) >= began for time in times)

    gateway.server.process.send_signal(signal.SIGUSR1)
    wait_until(is_done, PATIENCE, "it is done")
    for line in both:
        assert gateway.ask(line, "one") == 200
        assert upstream.requests[-1].headers["authorization"] == f"Bearer {KEY}-new"


PAIR = """
[[models]]
name = "pair"
routes = [{{ provider = "first", model = "fake" }}, {{ provider = "second", model = "other", order = 2 }}]
"""


def test_a_reload_ends_the_rest_after_a_refused_key(
    gateway: Gateway, both: list[Line], upstream: ScriptedUpstream
) -> None:
    gateway.write(BASE, SECOND, PAIR)
    assert gateway.reload().returncode == 0
    upstream.refused_key = upstream_key = (gateway.home / "vendor.key").read_text()

    def ask_twice() -> list[str]:
        """The vendor's models that two requests to one process ask."""
        upstream.requests.clear()
        assert [gateway.ask(both[0], "pair") for _ in range(2)] == [200, 200]
        return [request.body["model"] for request in upstream.requests]

    assert ask_twice() == ["fake", "other", "other"]
    upstream.refused_key = None  # the vendor takes the same key again
    assert ask_twice() == ["other", "other"]
    assert gateway.reload().returncode == 0
    assert ask_twice() == ["fake", "fake"]
    upstream.refused_key = upstream_key
    assert ask_twice() == ["fake", "other", "other"]
    (gateway.home / "vendor.key").write_text(f"{KEY}-newer")
    assert gateway.reload().returncode == 0
    assert ask_twice() == ["fake", "fake"]
    upstream.refused_key = None


def test_a_reload_that_changes_a_resting_provider_logs_the_end_of_the_rest(
    gateway: Gateway, both: list[Line]
) -> None:
    gateway.write(BASE, SECOND)
    assert gateway.reload().returncode == 0
    assert gateway.ask(both[0], "second/fake-503") == 503
    gateway.write(BASE, SECOND.replace("private", "chunk_timeout = 50.0\nprivate"))
    assert gateway.reload().stdout == "changed provider second (chunk_timeout)\n"

    def read_ends() -> list[dict[str, object]]:
        records = gateway.server.records("route_serves_again")
        return [record for record in records if record["model"] == "second/*"]

    wait_until(read_ends, PATIENCE, "the end of the rest is in the log")
    (end,) = read_ends()
    assert (end["level"], end["route"], end["cause"]) == ("info", "second/*", "reload")
    assert float(str(end["seconds"])) >= 0


def test_a_request_on_a_replaced_provider_logs_no_rest(
    gateway: Gateway, both: list[Line], upstream: ScriptedUpstream
) -> None:
    gateway.write(BASE, SECOND)
    assert gateway.reload().returncode == 0
    line, reloaded = both[0], threading.Event()
    body = {
        "model": "second/fake-close-at-between-chunks",
        "messages": [{"role": "user", "content": "Count."}],
        "stream": True,
    }
    headers = {"authorization": f"Bearer {gateway.admin}", "content-type": "application/json"}
    rests = len(gateway.server.records("route_rests"))
    upstream.has_shown = lambda _: reloaded.is_set()
    try:
        line.connection.request("POST", CHAT, json.dumps(body), headers)
        stream = line.connection.getresponse()
        stream.readline()
        gateway.write(BASE, SECOND.replace("private", "chunk_timeout = 50.0\nprivate"))
        assert gateway.reload().returncode == 0
        reloaded.set()
        assert b"provider_stream_broken" in stream.read()
    finally:
        upstream.has_shown = None
    wait_until(lambda: gateway.server.records("stream_failed"), PATIENCE, "the failure is in the log")
    assert len(gateway.server.records("route_rests")) == rests
