"""`UpstreamDialect` of OpenAI's API."""

import base64
from array import array
from collections.abc import Iterable, Sequence
from sys import byteorder

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
from antiphon.engines.vendors.openai.decode import AnswerReader
from antiphon.engines.vendors.openai.encode import JSON, encode_request
from antiphon.engines.vendors.openai.wire_types import ModelsWire, VectorsWire, VectorWire, decode_error
from antiphon.engines.vendors.rerank import decode_rerank, encode_rerank

read_vectors = msgspec.json.Decoder(VectorsWire).decode
read_vector = msgspec.json.Decoder(list[float] | str).decode
read_models = msgspec.json.Decoder(ModelsWire).decode


class OpenAIUpstream:
    """OpenAI's chats, completions and embeddings."""

    credential_header = ("Authorization", "Bearer ")
    headers = ()

    def encode(self, request: GenerationRequest, model: VendorModel, attributes: Attributes) -> UpstreamCall:
        return encode_request(request, model, attributes)

    def decode_answer(self, request: GenerationRequest, model: VendorModel, body: bytes) -> Iterable[Event]:
        reader = AnswerReader(request)
        return (*reader.read(body), *reader.close())

    def start_stream(self, request: GenerationRequest, model: VendorModel) -> StreamDecoder:
        return AnswerReader(request)

    def decode_error(self, status: int, body: bytes) -> VendorError:
        return decode_error(body)

    def encode_embedding(self, request: EmbeddingRequest, model: VendorModel) -> UpstreamCall:
        texts = [each.text if each.tokens is None else list(each.tokens) for each in request.inputs]
        body: dict[str, object] = {"model": model.name, "input": texts, "encoding_format": "float"}
        if request.dimensions is not None:
            body["dimensions"] = request.dimensions
        return UpstreamCall("/embeddings", JSON.encode(body), is_streamed=False)

    def decode_embedding(self, request: EmbeddingRequest, body: bytes) -> Embeddings:
        answer = read_vectors(body)
        vectors = [_read_vector(each.embedding) for each in _sort_vectors(answer.data)]
        return join_vectors(vectors, request, None if answer.usage is None else answer.usage.prompt_tokens)

    def encode_rerank(self, request: RerankRequest, model: VendorModel) -> UpstreamCall:
        return encode_rerank(request, model)

    def decode_rerank(self, request: RerankRequest, body: bytes) -> Ranking:
        return decode_rerank(request, body)

    def build_models_path(self) -> str:
        return "/models"

    def decode_models(self, body: bytes) -> tuple[str, ...]:
        return tuple(model.id for model in read_models(body).data)


def _sort_vectors(vectors: Sequence[VectorWire]) -> Sequence[VectorWire]:
    """Returns the vectors in the order of the inputs. Raises ValueError if an input has no vector or
    several."""
    if all(vector.index is None for vector in vectors):
        return vectors
    vectors_by_index = {vector.index: vector for vector in vectors}
    if vectors_by_index.keys() != set(range(len(vectors))):
        raise ValueError("the numbers of the vectors do not match the inputs")
    return [vectors_by_index[number] for number in range(len(vectors))]


def _read_vector(part: msgspec.Raw) -> "array[float]":
    """Returns a vector's numbers, float32 in the machine's order."""
    require_vector_size(part)
    values = read_vector(part)
    if isinstance(values, list):
        return array("f", values)
    vector = array("f", base64.b64decode(values, validate=True))
    if byteorder == "big":
        vector.byteswap()
    return vector
