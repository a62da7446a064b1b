"""Vectors of OpenAI's format: their order, their usage, and the answers that no caller can use."""

import base64
import json
from array import array

import pytest

from antiphon.domain.events import UsageSource
from antiphon.domain.request import EmbeddingRequest, Embeddings, RawPrompt
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream

TWO = EmbeddingRequest("m", (RawPrompt("One"), RawPrompt("Two")))


def decode(*vectors: dict[str, object], usage: object = None) -> Embeddings:
    body = json.dumps({"data": vectors, "usage": usage})
    return OpenAIUpstream().decode_embedding(TWO, body.encode())


@pytest.mark.parametrize("numbers", [(1, 0), (None, None)])
def test_vectors_come_in_the_order_of_their_numbers(numbers: tuple[int | None, ...]):
    vectors: list[dict[str, object]] = [{"embedding": [1.0, 2.0]}, {"embedding": [3.0, 4.0]}]
    for vector, number in zip(vectors, numbers, strict=True):
        vector["index"] = number
    made = decode(*vectors, usage={"prompt_tokens": 6})
    expected = [3, 4, 1, 2] if numbers[0] else [1, 2, 3, 4]
    assert made.vectors == array("f", expected).tobytes()
    assert (made.dimensions, made.prompt_tokens, made.source) == (2, 6, UsageSource.REPORTED)


def test_base64_is_read():
    text = base64.b64encode(array("f", [1.0, 2.0]).tobytes()).decode()
    made = decode({"embedding": text, "index": 0}, {"embedding": text, "index": 1})
    assert made.vectors == array("f", [1, 2, 1, 2]).tobytes()


@pytest.mark.parametrize("told", [None, {}, {"prompt_tokens": -4}, {"prompt_tokens": 10**20}])
def test_usage_that_cannot_be_true_is_an_estimate(told: object):
    made = decode({"embedding": [1.0], "index": 0}, {"embedding": [1.0], "index": 1}, usage=told)
    assert (made.prompt_tokens, made.source) == (2, UsageSource.ESTIMATED)


@pytest.mark.parametrize("numbers", [(0, 0), (1, 2), (-1, 0), (0, None)])
def test_numbers_that_tell_no_order_are_an_error(numbers: tuple[int | None, ...]):
    vectors: list[dict[str, object]] = [{"embedding": [1.0], "index": number} for number in numbers]
    with pytest.raises(ValueError, match="numbers"):
        decode(*vectors)


@pytest.mark.parametrize("embedding", [[], "", "!!!", "AAAA", [1e300], "AADAfw==", "AACAfw=="])
def test_vectors_that_nobody_can_use_are_an_error(embedding: object):
    with pytest.raises(ValueError):  # noqa: PT011 - base64 and array have words of their own
        decode({"embedding": embedding, "index": 0}, {"embedding": embedding, "index": 1})
