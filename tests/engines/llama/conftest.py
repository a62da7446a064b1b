"""Small models with random weights, written once, and engines that hold them."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.engines.base import LoadSpec
from antiphon.engines.llama import LlamaTokenEngine
from benchmarks.make_model import write_model
from tests.engines.random_models import SIZES


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with tiny models of several weight types, and one whose prompts take a while."""
    folder = tmp_path_factory.mktemp("models")
    for kind in ("q8_0", "f32", "f16"):
        write_model(folder / f"tiny-{kind}.gguf", SIZES["tiny"], kind)
    write_model(folder / "small.gguf", SIZES["small"])
    return folder


@asynccontextmanager
async def loaded(
    path: Path, clock: Callable[[], float] = time.monotonic, **spec: Any
) -> AsyncIterator[LlamaTokenEngine]:
    """An engine with this model, closed afterwards.

    One thread computes unless a test says more: several threads of a small model mostly wait for each other.
    """
    engine = LlamaTokenEngine(clock)
    defaults: dict[str, Any] = {"sequences": 4, "context_length": 512, "threads": 1}
    await engine.load(LoadSpec(str(path), **(defaults | spec)))
    try:
        yield engine
    finally:
        await engine.aclose()
