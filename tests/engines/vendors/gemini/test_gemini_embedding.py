"""Texts become vectors by Gemini's batches, and its models are listed by their names."""

import json
from array import array
from typing import Any

import pytest

from antiphon.domain.events import UsageSource
from antiphon.domain.request import EmbeddingRequest, RawPrompt
from antiphon.engines.vendors.base import VendorModel
from antiphon.engines.vendors.gemini.dialect import GeminiUpstream
from antiphon.errors import UnsupportedParameter

UPSTREAM = GeminiUpstream()
TEXTS = EmbeddingRequest("m", (RawPrompt("One text."), RawPrompt("Another")), 2)
VECTORS = {"embeddings": [{"values": [0.5, -1]}, {"values": [1e-3, 2]}]}


def decode(answer: object) -> Any:
    return UPSTREAM.decode_embedding(TEXTS, json.dumps(answer).encode())


def test_texts_are_sent_as_a_batch():
    call = UPSTREAM.encode_embedding(TEXTS, VendorModel("gemini-e", "google"))
    assert (call.path, call.is_streamed) == ("/models/gemini-e:batchEmbedContents", False)
    same = {"model": "models/gemini-e", "outputDimensionality": 2}
    assert json.loads(call.body) == {
        "requests": [same | {"content": {"parts": [{"text": text}]}} for text in ("One text.", "Another")]
    }


def test_token_ids_are_refused_by_name():
    request = EmbeddingRequest("m", (RawPrompt("One"), RawPrompt(tokens=(1, 2))))
    with pytest.raises(UnsupportedParameter) as caught:
        UPSTREAM.encode_embedding(request, VendorModel("gemini-e", "google"))
    assert caught.value.param == "input"


def test_vectors_are_read_in_order_with_their_usage():
    made = decode(VECTORS | {"usageMetadata": {"promptTokenCount": 6}})
    assert made.vectors == array("f", [0.5, -1, 1e-3, 2]).tobytes()
    assert (made.dimensions, made.prompt_tokens, made.source) == (2, 6, UsageSource.REPORTED)


def test_tokens_that_are_not_told_are_an_estimate():
    made = decode(VECTORS)
    assert (made.prompt_tokens, made.source) == (4, UsageSource.ESTIMATED)


@pytest.mark.parametrize("embeddings", [[], [{"values": [1]}], [{"values": [1]}, {"values": [1, 2]}]])
def test_vectors_that_do_not_match_are_an_error(embeddings: object):
    with pytest.raises(ValueError, match="do not match"):
        decode({"embeddings": embeddings})


def test_models_are_listed_by_their_names():
    assert UPSTREAM.build_models_path() == "/models?pageSize=1000"
    body = b'{"models": [{"name": "models/gemini-m", "displayName": "M"}, {"name": "tunedModels/mine"}]}'
    assert UPSTREAM.decode_models(body) == ("gemini-m", "tunedModels/mine")
