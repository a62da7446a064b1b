"""One server for the tests that do not break it; those that do start their own."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.make_model import SIZES, write_model
from tests.support.databases import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.server import Server, serving

NOISE = replace(SIZES["middle"], layers=6, vocabulary=4096)
"""22 million weights: a token takes a millisecond or more, and a long prompt seconds."""


@pytest.fixture(scope="session")
def server(demo_server: Server) -> Server:
    """`antiphon serve` with the demo model."""
    return demo_server


@pytest.fixture(scope="session")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server with keys, which takes chat templates from callers, and its home. Each test has projects and
    keys of its own."""
    home = tmp_path_factory.mktemp("keyed") / "home"
    env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home), "ANTIPHON_REQUEST_TEMPLATES": "true"}
    with serving(env=env) as running:
        yield running, home


@pytest.fixture(scope="session")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights: it hardly ever ends by itself, and a long prompt takes it seconds."""
    return write_model(tmp_path_factory.mktemp("noise") / "noise.gguf", NOISE)


@pytest.fixture(scope="session")
def busy(noise: Path) -> Iterator[Server]:
    """A server of the random model with two sequences, so that a third request waits."""
    with serving("--model", str(noise), "--sequences", "2") as running:
        yield running
