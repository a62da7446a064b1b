"""Models that are loaded by their first request and unloaded when idle, in a budget for one of them."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse

import psutil
import pytest

from antiphon.settings.models import ModelSettings
from antiphon.weights.kv_cache_size import estimate_memory
from tests.e2e.workers import CHAT, PATIENCE, Line, lines
from tests.support.model_files import CANTOR
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

SIZE = estimate_memory(ModelSettings(name="x", path=str(CANTOR), sequences=1, context_length=512))
SETTINGS = """
[server]
workers = 2
keep_alive_interval = 0.2

[engine]
memory_budget = {budget}

[[models]]
name = "brief"
path = "cantor"
sequences = 1
context_length = 512
load = "request"
keep_alive = 1.0

[[models]]
name = "lasting"
path = "cantor"
sequences = 1
context_length = 512
load = "request"
"""
QUESTION = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("loads") / "antiphon.toml"
    file.write_text(SETTINGS.format(budget=SIZE * 3 // 2))
    with serving("--config", str(file)) as server:
        yield server


@pytest.fixture
def both(server: Server) -> Iterator[list[Line]]:
    """A connection to each process."""
    with lines(server) as both:
        yield both


def ask(line: Line, model: str) -> int:
    """The status of a short chat in the process of a line."""
    return line.ask("POST", CHAT, {"model": model, "messages": QUESTION, "max_tokens": 2})[0]


def find_states(line: Line) -> dict[str, str]:
    """The state of each model, as the process of a line lists it."""
    return {each["id"]: each["state"] for each in line.ask("GET", "/v1/models")[1]["data"]}


@contextmanager
def open_stream(server: Server, model: str) -> Iterator[HTTPResponse]:
    """A stream whose headers have come."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = HTTPConnection(host, int(port), timeout=PATIENCE)
    body = {"model": model, "messages": QUESTION, "max_tokens": 2, "stream": True}
    with closing(connection):
        connection.request("POST", CHAT, json.dumps(body), {"content-type": "application/json"})
        with connection.getresponse() as reply:
            yield reply


def wait_for_host(server: Server) -> psutil.Process:
    wait_until(lambda: len(server.children("engines.host")) == 1, PATIENCE, "an engine host")
    return server.host()


def wait_for_none(server: Server) -> None:
    wait_until(lambda: not server.children("engines.host"), PATIENCE, "the end of the host")


def wait_for_load(line: Line, model: str) -> None:
    """Asks until the model answers: a refusal of an earlier test holds for a moment."""
    wait_until(lambda: ask(line, model) == 200, PATIENCE, f"the model {model}")


def park_all(server: Server, line: Line) -> None:
    """Leaves no model loaded: the brief one takes the memory, and is idle then."""
    if server.children("engines.host"):
        wait_for_load(line, "brief")
        wait_for_none(server)


def test_requests_load_once_a_full_budget_swaps_and_idleness_unloads(
    server: Server, both: list[Line]
) -> None:
    park_all(server, both[0])
    before = count_loads(server, "lasting")
    # The lasting one is not unloaded between two requests that come one after the other.
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda line: ask(line, "lasting"), both)) == [200, 200]
    wait_until(lambda: count_loads(server, "lasting") > before, PATIENCE, "the load is logged")
    assert count_loads(server, "lasting") == before + 1

    host = wait_for_host(server)
    host.suspend()
    try:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(ask, both[0], "lasting")
            status, error = both[1].ask("POST", CHAT, {"model": "brief", "messages": QUESTION})
            assert status == 503
            assert error["error"]["code"] == "model_not_loaded"
            assert "models that are idle would not free enough" in error["error"]["message"]
            assert both[1].ask("GET", "/health/ready")[0] == 200
            host.resume()
            assert running.result(PATIENCE) == 200
    finally:
        host.resume()

    wait_for_load(both[1], "brief")
    assert not host.is_running()

    wait_for_none(server)
    wait_until(lambda: {find_states(line)["brief"] for line in both} == {"parked"}, PATIENCE, "the news")
    assert [line.ask("GET", "/health/ready")[0] for line in both] == [200, 200]
    assert 'antiphon_engine_parked{model="brief"} 1' in both[0].ask("GET", "/metrics")[1]
    assert not server.children("engines.host")  # looking loads nothing


def count_loads(server: Server, model: str) -> int:
    return sum(line["model"] == model for line in server.records("model_loading"))


def test_a_stream_is_kept_alive_during_a_load(server: Server, both: list[Line]) -> None:
    """The supervisor, which loads it, stands still until a comment has come."""
    park_all(server, both[0])
    wait_until(lambda: {find_states(line)["brief"] for line in both} == {"parked"}, PATIENCE, "the news")
    supervisor = server.supervisor
    supervisor.suspend()
    try:
        with open_stream(server, "brief") as reply:
            assert reply.status == 200
            assert reply.readline().startswith(b":")
            supervisor.resume()
            assert b"[DONE]" in reply.read()
    finally:
        supervisor.resume()
