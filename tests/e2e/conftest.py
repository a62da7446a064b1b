"""One server for the tests that do not break it; those that do start their own."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.server import Server, serving

MAKE_MODEL = Path(__file__).parents[2] / "benchmarks" / "make_model.py"


@pytest.fixture(scope="session")
def server(demo_server: Server) -> Server:
    """`antiphon serve` with the demo model."""
    return demo_server


@pytest.fixture(scope="session")
def trusting() -> Iterator[Server]:
    """The same, which takes chat templates from callers."""
    with serving(env={"ANTIPHON_REQUEST_TEMPLATES": "true"}) as running:
        yield running


@pytest.fixture(scope="session")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights: it hardly ever ends by itself, and a long prompt takes it seconds."""
    path = tmp_path_factory.mktemp("noise") / "noise.gguf"
    subprocess.run([sys.executable, str(MAKE_MODEL), "--size", "middle", str(path)], check=True)
    return path


@pytest.fixture(scope="session")
def busy(noise: Path) -> Iterator[Server]:
    """A server of the random model with two sequences, so that a third request waits."""
    with serving("--model", str(noise), "--sequences", "2") as running:
        yield running
