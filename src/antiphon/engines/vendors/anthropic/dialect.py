"""`UpstreamDialect` of Anthropic's Messages API."""

from collections.abc import Iterable

import msgspec

from antiphon.domain.events import Event
from antiphon.domain.request import EmbeddingRequest, Embeddings, GenerationRequest, Ranking, RerankRequest
from antiphon.engines.vendors.anthropic.decode import MessagesDecoder, decode_answer, decode_error
from antiphon.engines.vendors.anthropic.encode import encode_request, find_original
from antiphon.engines.vendors.anthropic.wire_types import ModelListWire
from antiphon.engines.vendors.base import Attributes, StreamDecoder, UpstreamCall, VendorError, VendorModel
from antiphon.engines.vendors.parameters import shows_reasoning
from antiphon.engines.vendors.rerank import build_rerank_refusal
from antiphon.errors import UnsupportedParameter

# --- tools --------------------------------------------------------------------------------------------------


# --- reasoning and the output constraint --------------------------------------------------------------------


read_models = msgspec.json.Decoder(ModelListWire).decode


class AnthropicUpstream:
    """Anthropic's chats. This vendor has no raw prompts and no embeddings."""

    credential_header = ("x-api-key", "")
    headers = (("anthropic-version", "2023-06-01"),)

    def encode(self, request: GenerationRequest, model: VendorModel, attributes: Attributes) -> UpstreamCall:
        return encode_request(request, model, attributes)

    def decode_answer(self, request: GenerationRequest, model: VendorModel, body: bytes) -> Iterable[Event]:
        is_native = request.is_buffered and find_original(request) is not None
        return decode_answer(body, shows_reasoning(request), is_native)

    def start_stream(self, request: GenerationRequest, model: VendorModel) -> StreamDecoder:
        is_native = find_original(request) is not None
        return MessagesDecoder(shows_reasoning(request), is_native, is_whole=request.is_buffered)

    def decode_error(self, status: int, body: bytes) -> VendorError:
        return decode_error(body)

    def encode_embedding(self, request: EmbeddingRequest, model: VendorModel) -> UpstreamCall:
        raise UnsupportedParameter(
            f"model: the provider {model.provider} makes no embeddings; choose another model", param="model"
        )

    def decode_embedding(self, request: EmbeddingRequest, body: bytes) -> Embeddings:
        raise ValueError("this vendor makes no embeddings")

    def encode_rerank(self, request: RerankRequest, model: VendorModel) -> UpstreamCall:
        raise build_rerank_refusal(model)

    def decode_rerank(self, request: RerankRequest, body: bytes) -> Ranking:
        raise ValueError("this vendor ranks no documents")

    def build_models_path(self) -> str:
        return "/models?limit=1000"

    def decode_models(self, body: bytes) -> tuple[str, ...]:
        return tuple(model.id for model in read_models(body).data)
