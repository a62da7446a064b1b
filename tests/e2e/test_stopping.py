"""A server that stops cuts no answer that ends in time. tests/e2e/test_nodes.py asks this of an upgrade."""

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.support.held_vendor import HeldVendor, serve_held_vendor
from tests.support.server import serving
from tests.support.stop_streams import (
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
