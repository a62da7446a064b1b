"""Translates requests for vectors to Gemini's batchEmbedContents, and reads its answers."""

from array import array
from typing import Any

import msgspec

from antiphon.domain.request import EmbeddingRequest, Embeddings
from antiphon.engines.vendors.base import UpstreamCall, VendorModel
from antiphon.engines.vendors.gemini.encode import JSON, RESOURCES, build_path
from antiphon.engines.vendors.gemini.wire_types import GeminiVectors
from antiphon.engines.vendors.vectors import join_vectors
from antiphon.errors import UnsupportedParameter

read_vectors = msgspec.json.Decoder(GeminiVectors).decode


def encode_embedding(request: EmbeddingRequest, model: VendorModel) -> UpstreamCall:
    """Translates a request. Raises UnsupportedParameter for token ids."""
    name = model.name if model.name.startswith(RESOURCES) else RESOURCES[0] + model.name
    template: dict[str, Any] = {"model": name}
    if request.dimensions is not None:
        template["outputDimensionality"] = request.dimensions
    requests = []
    for prompt in request.inputs:
        if prompt.text is None:
            raise UnsupportedParameter(
                f"input: token ids are not supported by the model {model.name} of the provider "
                f"{model.provider}; send texts",
                param="input",
            )
        requests.append(template | {"content": {"parts": [{"text": prompt.text}]}})
    path = build_path(model.name, "batchEmbedContents")
    return UpstreamCall(path, JSON.encode({"requests": requests}), is_streamed=False)


def decode_embedding(request: EmbeddingRequest, body: bytes) -> Embeddings:
    """Reads the vectors. Raises ValueError if they do not match the inputs."""
    answer = read_vectors(body)
    vectors = [array("f", vector.values) for vector in answer.embeddings]
    prompt_tokens = None if answer.usage_metadata is None else answer.usage_metadata.prompt_token_count
    return join_vectors(vectors, request, prompt_tokens)
