"""One cluster for all tests of a session: its head, and a driver in the test process."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.engines.base import LoadSpec
from antiphon.engines.host.ray.config import (
    ClusterAddress,
    DeploymentSpec,
    DriverConfig,
    NodeConfig,
    Placement,
)
from antiphon.engines.host.ray.engine import RayTokenEngine
from antiphon.engines.host.ray.node import SLOW_START, find_free_port
from antiphon.processes.cluster import filter_ray_environment
from antiphon.processes.ipc import to_line
from tests.support.docs import ROOT

CPUS = 16
"""More than the machine has: replicas of these tests compute little."""


STARTS = 4
"""Ray gives itself 30 s to start and cannot be told otherwise; the node process tries three times. A machine
with much other work needs more."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterAddress]:
    """A cluster of one machine, started by the node process. A short path: it holds sockets."""
    directory = Path(tempfile.mkdtemp(prefix="ar-", dir="/tmp"))
    for _ in range(STARTS):
        address = ClusterAddress(f"127.0.0.1:{find_free_port()}", secrets.token_hex(32))
        with start_node(address, directory) as report:
            if SLOW_START in str(report["error"]):
                continue
            assert report["state"] == "ready", report
            yield address
            break
    else:
        pytest.fail(f"Ray was too slow {STARTS} times")
    shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def start_node(address: ClusterAddress, directory: Path) -> Iterator[dict[str, Any]]:
    """Runs the node process. Gives what it reports when it is ready, or has failed."""
    reading, writing = os.pipe()
    config = NodeConfig(address, writing, str(directory), {}, is_local=True, cpus=CPUS)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "antiphon.engines.host.ray.node"],
        stdin=subprocess.PIPE,
        pass_fds=(writing,),
        env=filter_ray_environment(os.environ) | {"PYTHONPATH": str(ROOT)},
    )
    os.close(writing)
    assert process.stdin is not None
    process.stdin.write(to_line(config))
    process.stdin.flush()
    try:
        with os.fdopen(reading) as reports:
            yield next(each for each in map(json.loads, reports) if each["state"] in ("ready", "failed"))
    finally:
        process.terminate()
        process.wait(60)
        process.stdin.close()


@pytest.fixture
def driver(cluster: ClusterAddress):
    """Opens a driver in this process. Each test has an event loop of its own, to which Ray binds the handle
    of a deployment: so each test needs another name."""

    @asynccontextmanager
    async def open_driver(
        name: str, factory: str, model: str = "no file", sequences: int = 4, replicas: int = 1
    ) -> AsyncIterator[RayTokenEngine]:
        load = LoadSpec(model, sequences=sequences, threads=1)
        spec = DeploymentSpec(name, factory, load, Placement(1.0), replicas)
        engine = RayTokenEngine(DriverConfig(cluster, spec))
        await engine.load(load)
        try:
            yield engine
        finally:
            await engine.aclose()

    return open_driver
