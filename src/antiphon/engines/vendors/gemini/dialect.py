"""`UpstreamDialect` of the Gemini API: generateContent and batchEmbedContents.

It translates requests for vectors, and reads their answers. `encode` translates all other requests, and
`decode` reads all other answers.
"""

from array import array
from collections.abc import Iterable
from typing import Any

import msgspec

from antiphon.domain.events import Event
from antiphon.domain.request import EmbeddingRequest, Embeddings, GenerationRequest, Ranking, RerankRequest
from antiphon.engines.vendors.base import (
    Attributes,
    StreamDecoder,
    UpstreamCall,
    VendorError,
    VendorModel,
    join_vectors,
    require_vector_size,
)
from antiphon.engines.vendors.gemini.decode import GeminiDecoder, decode_error
from antiphon.engines.vendors.gemini.encode import JSON, RESOURCES, build_path, encode_request
from antiphon.engines.vendors.gemini.wire_types import GeminiModels, GeminiVectors
from antiphon.engines.vendors.rerank import build_rerank_refusal
from antiphon.errors import UnsupportedParameter

read_vectors = msgspec.json.Decoder(GeminiVectors).decode
read_vector = msgspec.json.Decoder(list[float]).decode


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
    for vector in answer.embeddings:
        require_vector_size(vector.values)
    vectors = [array("f", read_vector(vector.values)) for vector in answer.embeddings]
    prompt_tokens = None if answer.usage_metadata is None else answer.usage_metadata.prompt_token_count
    return join_vectors(vectors, request, prompt_tokens)


read_models = msgspec.json.Decoder(GeminiModels).decode


class GeminiUpstream:
    """Gemini's generateContent, streamGenerateContent and batchEmbedContents."""

    credential_header = ("x-goog-api-key", "")
    headers = ()

    def encode(self, request: GenerationRequest, model: VendorModel, attributes: Attributes) -> UpstreamCall:
        return encode_request(request, model)

    def decode_answer(self, request: GenerationRequest, model: VendorModel, body: bytes) -> Iterable[Event]:
        decoder = GeminiDecoder(request)
        return [*decoder.feed("", body), *decoder.close()]

    def start_stream(self, request: GenerationRequest, model: VendorModel) -> StreamDecoder:
        return GeminiDecoder(request)

    def decode_error(self, status: int, body: bytes) -> VendorError:
        return decode_error(body)

    def encode_embedding(self, request: EmbeddingRequest, model: VendorModel) -> UpstreamCall:
        return encode_embedding(request, model)

    def decode_embedding(self, request: EmbeddingRequest, body: bytes) -> Embeddings:
        return decode_embedding(request, body)

    def encode_rerank(self, request: RerankRequest, model: VendorModel) -> UpstreamCall:
        raise build_rerank_refusal(model)

    def decode_rerank(self, request: RerankRequest, body: bytes) -> Ranking:
        raise ValueError("this vendor ranks no documents")

    def build_models_path(self) -> str:
        return "/models?pageSize=1000"

    def decode_models(self, body: bytes) -> tuple[str, ...]:
        return tuple(model.name.removeprefix("models/") for model in read_models(body).models)
