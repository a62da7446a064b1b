"""A server that stops cuts no answer that ends in time, and neither does an upgrade."""

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.support.held_vendor import HeldVendor, serve_held_vendor
from tests.support.server import Server, serving
from tests.support.stop_streams import (
    CHAT,
    count_words,
    is_refusing,
    list_cut,
    open_streams,
    read_readiness,
    write_settings,
)
from tests.support.waiting import PATIENCE, wait_until

TWO_PROCESSES = """
[server]
workers = 2
drain_timeout = 600
drain_delay = 600

[[models]]
name = "cantor"
path = "cantor"
load = "request"
"""


@pytest.fixture
def vendor() -> Iterator[HeldVendor]:
    with serve_held_vendor() as vendor:
        yield vendor


def test_streams_that_end_in_time_end_whole(vendor: HeldVendor, tmp_path: Path) -> None:
    """First the server is not ready and answers, and even loads a model. Then it refuses new connections; its
    other processes outlive the streams. The test ends the delay, instead of waiting for it."""
    (tmp_path / "antiphon.toml").write_text(write_settings(vendor, TWO_PROCESSES))
    with serving(cwd=tmp_path) as server, server.client() as idle:
        assert idle.get("/health").status_code == 200
        with open_streams(server.client(), 4) as streams:
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: read_readiness(server) == (503, "stopping"), PATIENCE, "it is not ready")
            with server.client() as late:
                body = {"model": "cantor", "prompt": "Hi", "max_tokens": 2}
                assert late.post("/v1/completions", json=body).status_code == 200
            for process in server.children("antiphon.assembly"):
                process.terminate()
            wait_until(lambda: is_refusing(server), PATIENCE, "new connections are refused")
            with pytest.raises(httpx2.TransportError):
                idle.get("/health")
            helpers = [server.host(), *server.children("coordinator")]
            assert len(helpers) == 2
            before = sum(map(count_words, streams))
            vendor.words.release()
            wait_until(lambda: sum(map(count_words, streams)) == before + 1, PATIENCE, "they go on")
            assert all(process.is_running() for process in helpers)
            vendor.finish.set()
        assert list_cut(streams) == []
        assert server.process.wait(PATIENCE) == 0
        assert psutil.wait_procs(helpers, timeout=PATIENCE)[1] == []


def test_an_upgrade_starts_the_new_server_before_it_stops_the_old_one(
    vendor: HeldVendor, tmp_path: Path
) -> None:
    """As docs/operations.md tells it, for two servers of one home: no stream of the old one is cut, and both
    write into one ledger."""
    (tmp_path / "antiphon.toml").write_text(write_settings(vendor))
    env = {"ANTIPHON_HOME": str(tmp_path / "home"), "ANTIPHON_KEYS": "true"}
    with serving(env=env, cwd=tmp_path) as old:
        key = {"authorization": f"Bearer {(tmp_path / 'home' / 'admin.key').read_text().strip()}"}
        with open_streams(old.client(headers=key), 4) as streams, serving(env=env, cwd=tmp_path) as new:
            assert read_readiness(new) == read_readiness(old) == (200, "ok")
            old.process.terminate()
            wait_until(lambda: is_refusing(old), PATIENCE, "the old one takes no more")
            vendor.finish.set()
            with new.client(headers=key) as client:
                assert client.post("/v1/chat/completions", json=CHAT).text.count("[DONE]") == 1
            assert old.process.wait(PATIENCE) == 0
            wait_until(lambda: count_requests(new, key) == 5, PATIENCE, "one ledger has all of them")
        assert list_cut(streams) == []


def count_requests(server: Server, key: dict[str, str]) -> int:
    with server.client(headers=key) as client:
        rows = client.get("/admin/v1/usage", params={"by": "model"}).json()["data"]
    return sum(int(row["requests"]) for row in rows)
