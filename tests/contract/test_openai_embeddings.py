"""The openai client asks for embeddings: packed, as it does by itself, and as numbers."""

from collections.abc import Iterator

import numpy as np
import openai
import pytest

from tests.support.model_files import FITTING
from tests.support.server import Server


@pytest.fixture(scope="module")
def embedder(equipped: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{equipped.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def vectors(answer: openai.types.CreateEmbeddingResponse) -> np.ndarray:
    assert [each.index for each in answer.data] == list(range(len(answer.data)))
    return np.array([each.embedding for each in answer.data])


def test_the_clients_own_way_gives_what_transformers_computes(embedder: openai.OpenAI) -> None:
    """It asks for base64 when nothing is said, and unpacks it."""
    texts = [row["text"] for row in FITTING]
    answer = embedder.embeddings.create(model="encoder", input=texts)
    recorded = np.array([row["vectors"]["MEAN"] for row in FITTING])
    assert (vectors(answer) * recorded).sum(axis=1).min() > 0.999
    tokens = sum(len(row["ids"]) for row in FITTING)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)
    assert (answer.model, answer.object) == ("encoder", "list")


def test_numbers_and_packed_ones_are_the_same(embedder: openai.OpenAI) -> None:
    for given in ("the first people", ["a", "water"], FITTING[0]["ids"], [[2, 9, 3], [2, 3]]):
        packed = vectors(embedder.embeddings.create(model="encoder", input=given))
        plain = vectors(embedder.embeddings.create(model="encoder", input=given, encoding_format="float"))
        assert (packed == plain).all()


def test_a_text_and_its_token_ids_have_one_vector(embedder: openai.OpenAI) -> None:
    row = FITTING[1]
    (text,) = vectors(embedder.embeddings.create(model="encoder", input=row["text"]))
    (ids,) = vectors(embedder.embeddings.create(model="encoder", input=row["ids"]))
    assert (text == ids).all()


@pytest.mark.parametrize(
    ("asked", "param", "code"),
    [
        ({"model": "cantor", "input": "a"}, "model", "unsupported_parameter"),
        ({"model": "encoder", "input": "a", "dimensions": 8}, "dimensions", "unsupported_parameter"),
        ({"model": "encoder", "input": ["a", "word " * 96]}, "input[1]", "context_length_exceeded"),
        ({"model": "encoder", "input": ""}, "input", "invalid_value"),
    ],
)
def test_refusals_are_the_clients_own_error(
    embedder: openai.OpenAI, asked: dict[str, object], param: str, code: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        embedder.embeddings.create(**asked)  # type: ignore[arg-type]
    assert (caught.value.param, caught.value.code) == (param, code)


def test_models_of_both_kinds_stand_beside_each_other(embedder: openai.OpenAI) -> None:
    said = embedder.completions.create(model="cantor", prompt="Hello", max_tokens=4)
    assert said.usage is not None and said.usage.completion_tokens
    with pytest.raises(openai.BadRequestError, match="encoder is an embedding model"):
        embedder.chat.completions.create(model="encoder", messages=[{"role": "user", "content": "hi"}])
    assert {"cantor", "encoder"} <= {model.id for model in embedder.models.list()}
