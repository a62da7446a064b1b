"""An embedding model alone on a real server: its panel, a host that is killed, a caller that leaves, and what
is refused before it starts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest

from antiphon.cli.commands.serve import build_example, describe_embedding
from antiphon.domain.request import EmbeddingFacts, Pooling
from antiphon.domain.values import replace
from antiphon_testing import scripted_info
from tests.e2e.refused_starts import refused
from tests.support.model_files import FITTING, write_encoder
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

BACK = 50.0
REQUESTS = 4
"""Of a caller that leaves."""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder") / "encoder.gguf")


@pytest.fixture(scope="module")
def running(encoder: Path) -> Iterator[Server]:
    with serving("--model", str(encoder), env={"ANTIPHON_ENGINE_RESTART_PATIENCE": str(BACK)}) as server:
        yield server


def vectors(server: Server, texts: list[str]) -> np.ndarray:
    with server.client() as client:
        answer = client.post("/v1/embeddings", json={"model": "encoder", "input": texts})
    assert answer.status_code == 200, answer.text
    return np.array([each["embedding"] for each in answer.json()["data"]])


def test_the_request_that_the_panel_shows_works(running: Server) -> None:
    facts = EmbeddingFacts(64, Pooling.MEAN)
    assert describe_embedding(facts) == "vectors of 64 dimensions (mean pooling)"
    path, body = build_example("encoder", replace(scripted_info(), embedding=facts))
    with running.client() as client:
        assert client.post(path, json=body).status_code == 200


def test_the_model_says_what_it_makes_and_how_busy_it_is(running: Server) -> None:
    vectors(running, ["a"])
    with running.client() as client:
        profile = client.get("/v1/models/encoder").json()["profile"]
        assert (profile["embedding"], profile["context_length"]) == (
            {"dimensions": 64, "pooling": "mean"},
            96,
        )
        metrics = client.get("/metrics").text
    assert 'antiphon_embeddings_total{model="encoder",status="ok"}' in metrics
    assert 'antiphon_tokens_total{model="encoder",type="input"}' in metrics


def test_a_killed_host_comes_back_and_makes_the_same_vectors(running: Server) -> None:
    texts = [row["text"] for row in FITTING]
    before = vectors(running, texts)
    running.host().kill()
    assert np.abs(vectors(running, texts) - before).max() < 1e-3, "the request waited for the new host"


def test_a_caller_that_leaves_frees_the_engine(running: Server) -> None:
    asked = {"model": "encoder", "input": [[2, *[9] * 90, 3]] * 2048}
    before = running.load().prefill_tokens

    async def leave() -> None:
        """All leave at once, long before so many could be computed."""
        async with (
            httpx2.AsyncClient(base_url=running.url, timeout=BACK) as client,
            asyncio.TaskGroup() as group,
        ):
            tasks = [group.create_task(client.post("/v1/embeddings", json=asked)) for _ in range(REQUESTS)]
            began = lambda: running.load().queued > 0  # noqa: E731
            await asyncio.to_thread(wait_until, began, BACK, "they are being computed")
            for task in tasks:
                task.cancel()

    asyncio.run(leave())
    running.wait_until_idle()
    assert running.load().prefill_tokens - before < REQUESTS * 2048 * 92, "they were computed to the end"


def test_what_cannot_be_served_is_refused_at_start(encoder: Path) -> None:
    assert "more than the 96" in refused("--model", str(encoder), "--context-length", "97")
