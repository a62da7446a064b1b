"""A reranker on a real server, and a second server that has the first one as its vendor."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from antiphon.cli.commands.serve import build_example, describe_embedding
from antiphon.domain.request import EmbeddingFacts, Pooling
from antiphon.domain.values import replace
from antiphon_testing import scripted_info
from tests.e2e.refused_starts import refused_process
from tests.support.model_files import copy_with_pooling, write_reranker
from tests.support.server import Server, serving

BODY = {
    "query": "who wrote the first book",
    "documents": [
        "a man and a woman",
        "the people in the book of fire",
        "water",
        "the first book of the king",
    ],
}
CONFIG = """
[providers.other]
kind = "openai"
preset = "antiphon"
base_url = "{url}/v1"
private = true

[[models]]
name = "far"
routes = [{{ provider = "other", model = "reranker" }}]
"""


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reranker(tmp_path_factory.mktemp("reranker") / "reranker.gguf")


@pytest.fixture(scope="module")
def running(reranker: Path) -> Iterator[Server]:
    with serving("--model", str(reranker)) as server:
        yield server


def rank(server: Server, model: str = "reranker", **body: Any) -> httpx2.Response:
    with server.client() as client:
        return client.post("/v1/rerank", json={"model": model} | BODY | body)


def test_the_request_that_the_panel_shows_works(running: Server) -> None:
    facts = EmbeddingFacts(1, Pooling.RANK)
    assert describe_embedding(facts) == "ranks documents"
    path, body = build_example("reranker", replace(scripted_info(), embedding=facts))
    with running.client() as client:
        assert client.post(path, json=body).status_code == 200


def test_a_document_has_one_score_alone_and_among_others(running: Server) -> None:
    answer = rank(running).json()
    scores = {each["index"]: each["relevance_score"] for each in answer["results"]}
    ordered = [each["relevance_score"] for each in answer["results"]]
    assert ordered == sorted(ordered, reverse=True) and 0 < min(ordered) <= max(ordered) < 1
    for index, document in enumerate(BODY["documents"]):
        (alone,) = rank(running, documents=[document]).json()["results"]
        assert alone["relevance_score"] == pytest.approx(scores[index], abs=0.01)


def test_a_shorter_part_of_the_documents_scores_otherwise(running: Server) -> None:
    whole, cut = rank(running).json(), rank(running, max_tokens_per_doc=1).json()
    assert cut["usage"]["prompt_tokens"] < whole["usage"]["prompt_tokens"]
    assert cut["results"] != whole["results"]


def test_the_model_says_what_it_does_and_is_counted(running: Server) -> None:
    rank(running)
    with running.client() as client:
        profile = client.get("/v1/models/reranker").json()["profile"]
        metrics = client.get("/metrics").text
    assert profile["embedding"] == {"dimensions": 1, "pooling": "rank"}
    assert 'antiphon_reranks_total{model="reranker",status="ok"}' in metrics


def test_another_antiphon_ranks_as_a_vendor(running: Server, tmp_path: Path) -> None:
    config = tmp_path / "antiphon.toml"
    config.write_text(CONFIG.format(url=running.url))
    with serving("--config", str(config)) as gateway:
        near, far = rank(running), rank(gateway, "far")
        assert far.status_code == 200, far.text
        assert far.json()["results"] == near.json()["results"]
        assert far.json()["usage"] == near.json()["usage"]
        assert far.headers["x-antiphon-route"] == "other/reranker"
        assert rank(gateway, "far", max_tokens_per_doc=1).json()["usage"] != far.json()["usage"]


def test_a_reranker_without_a_head_is_refused_at_start(reranker: Path, tmp_path: Path) -> None:
    headless = copy_with_pooling(reranker, tmp_path / "headless.gguf", Pooling.RANK)
    assert "without the tensors that compute scores" in refused_process("--model", str(headless))
