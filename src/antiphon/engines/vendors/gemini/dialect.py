"""`UpstreamDialect` of the Gemini API."""

from collections.abc import Iterable

import msgspec

from antiphon.domain.events import Event
from antiphon.domain.request import EmbeddingRequest, Embeddings, GenerationRequest
from antiphon.domain.rerank import Ranking, RerankRequest
from antiphon.engines.vendors.base import (
    Attributes,
    StreamDecoder,
    UpstreamCall,
    VendorError,
    VendorModel,
)
from antiphon.engines.vendors.gemini.decode import GeminiDecoder, decode_error
from antiphon.engines.vendors.gemini.embedding import decode_embedding, encode_embedding
from antiphon.engines.vendors.gemini.encode import encode_request
from antiphon.engines.vendors.gemini.wire_types import GeminiModels
from antiphon.engines.vendors.rerank import build_rerank_refusal

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
