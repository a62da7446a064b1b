"""The embedding model minilm beside the demo model, as `make serve EXTRAS=knowledge` serves it, compared with
sentence-transformers. `make install` fetches the model."""

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.server import Server, serving

ROOT = Path(__file__).parents[2]
FETCHED = ROOT / ".venvs" / "minilm" / "models"
ROWS: list[dict[str, Any]] = json.loads((ROOT / "models/encoder/minilm.json").read_text("utf-8"))["rows"]
LONGEST = 256
"""Tokens of the longest text. The reference cuts longer ones; the server refuses them."""

TOO_LONG = "word " * 300
WHOLE = [row for row in ROWS if row["text"] not in ("", TOO_LONG)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Offline: a model that was not fetched ends the start, and says how to fetch it."""
    env = {"ANTIPHON_HUB_CACHE": str(FETCHED), "ANTIPHON_HUB_OFFLINE": "1"}
    with serving("--model", "cantor", "--model", "minilm", env=env) as server:
        yield server


def post(server: Server, given: object) -> tuple[int, dict[str, Any]]:
    with server.client() as client:
        answer = client.post("/v1/embeddings", json={"model": "minilm", "input": given})
        return answer.status_code, answer.json()


def compare(answer: dict[str, Any], rows: list[dict[str, Any]]) -> float:
    """The least cosine of the answer's vectors with the recorded ones, all of length 1."""
    found = np.array([each["embedding"] for each in answer["data"]])
    recorded = np.array([np.frombuffer(b64decode(row["vector"]), "<f4") for row in rows])
    assert found.shape == (len(rows), 384)
    return float((found * recorded).sum(axis=1).min())


def test_vectors_of_texts_are_those_of_the_reference(server: Server) -> None:
    status, answer = post(server, [row["text"] for row in WHOLE])
    assert status == 200, answer
    assert compare(answer, WHOLE) > 0.9999
    assert answer["usage"]["prompt_tokens"] == sum(len(row["ids"]) for row in WHOLE)


def test_a_longer_text_is_refused_and_its_beginning_taken(server: Server) -> None:
    status, answer = post(server, TOO_LONG)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    (row,) = (row for row in ROWS if row["text"] == TOO_LONG)
    assert len(row["ids"]) == LONGEST
    status, answer = post(server, row["ids"])
    assert status == 200 and compare(answer, [row]) > 0.9999


def test_it_is_served_beside_the_demo_model(server: Server) -> None:
    with server.client() as client:
        names = [model["id"] for model in client.get("/v1/models").json()["data"]]
        profile = client.get("/v1/models/minilm").json()["profile"]
    assert names == ["cantor", "minilm"]
    assert profile["embedding"] == {"dimensions": 384, "pooling": "mean"}
    assert profile["context_length"] == LONGEST
