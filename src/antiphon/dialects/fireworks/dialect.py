"""Fireworks' dialect: its endpoints, its list of models, and its part of the OpenAPI document."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon.dialects.base import CodecOptions
from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.common.dialect import DescribedDialect
from antiphon.dialects.common.endpoints import declare_generation, declare_models
from antiphon.dialects.common.response_types import OWNER
from antiphon.dialects.fireworks import wire_types
from antiphon.dialects.fireworks.decode import decode_chat, decode_text
from antiphon.dialects.fireworks.encode import (
    FireworksChatChunkBuilder,
    FireworksStreamEncoder,
    FireworksTextChunkBuilder,
    encode_chat,
    encode_fireworks_error,
    encode_text,
    map_status,
)
from antiphon.dialects.fireworks.fields import FIELD_TABLE, PREFIX, FireworksScope
from antiphon.dialects.fireworks.page import PAGE
from antiphon.dialects.http_types import Request, StreamEncoder
from antiphon.dialects.services import ModelEntry, ResponseMeta
from antiphon.domain.collect import CollectedGeneration
from antiphon.errors import AntiphonError

NAME = "fireworks"


MODEL = "accounts/fireworks/models/cantor"

EXAMPLES: Mapping[str, object] = {
    "FireworksCompletionRequest": {"model": MODEL, "prompt": "Once upon a time"},
    "FireworksChatCompletionRequest": {"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}]},
}


_encode = msgspec.json.Encoder().encode


class FireworksModelShape(Struct, frozen=True, kw_only=True):
    """One model. Its capabilities are absent while its engine is unavailable."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = OWNER
    kind: Literal["HF_BASE_MODEL", "HF_PEFT_ADDON", "EMBEDDING_MODEL"]
    """A base model, a LoRA adapter, or an embedding model."""
    supports_chat: bool | UnsetType = UNSET
    supports_image_input: bool | UnsetType = UNSET
    supports_tools: bool | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class FireworksModelList(Struct, frozen=True, kw_only=True):
    """All models: first the models of the settings in their order, then adapters."""

    object: Literal["list"] = "list"
    data: list[FireworksModelShape]


class FireworksModels:
    """Encodes models as a `ModelCodec`."""

    shapes = (FireworksModelList, FireworksModelShape)
    has_profiles = True

    def encode_list(self, models: Iterable[ModelEntry]) -> bytes:
        return _encode(FireworksModelList(data=[_build_model(model) for model in models]))

    def encode_model(self, model: ModelEntry) -> bytes:
        return _encode(_build_model(model))


def _build_model(model: ModelEntry) -> FireworksModelShape:
    """Builds the entry of one model. An unavailable model has no profile."""
    base_kind: Literal["HF_BASE_MODEL", "HF_PEFT_ADDON"] = (
        "HF_PEFT_ADDON" if model.parent else "HF_BASE_MODEL"
    )
    profile = model.profile
    if profile is None:
        return FireworksModelShape(id=model.alias or model.name, created=model.created, kind=base_kind)
    return FireworksModelShape(
        id=model.alias or model.name,
        created=model.created,
        kind=base_kind if profile.embedding is None else "EMBEDDING_MODEL",
        supports_chat=profile.chat,
        supports_image_input="image" in profile.modalities,
        # Every chat model supports tools. If a template does not, the server adds them to the prompt.
        supports_tools=profile.chat,
        context_length=UNSET if profile.context_length is None else profile.context_length,
    )


class FireworksCompletions(CodecOptions):
    """Decodes and encodes POST /fireworks/inference/v1/completions."""

    shapes = (
        wire_types.FireworksCompletionRequest,
        wire_types.FireworksCompletion,
        wire_types.FireworksCompletion,
    )

    def decode(self, body: bytes) -> GenerationCall:
        return decode_text(body, self._reports_unknown, self._strict)

    def encode_answer(
        self, meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration
    ) -> bytes:
        return encode_text(meta, call, generation)

    def create_encoder(self, meta: ResponseMeta, call: GenerationCall) -> StreamEncoder:
        return FireworksStreamEncoder(FireworksTextChunkBuilder(call), meta, call)


class FireworksChatCompletions(CodecOptions):
    """Decodes and encodes POST /fireworks/inference/v1/chat/completions."""

    shapes = (
        wire_types.FireworksChatCompletionRequest,
        wire_types.FireworksChatCompletion,
        wire_types.FireworksChatCompletionChunk,
    )

    def decode(self, body: bytes) -> GenerationCall:
        return decode_chat(body, self._reports_unknown, self._strict)

    def encode_answer(
        self, meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration
    ) -> bytes:
        return encode_chat(meta, call, generation)

    def create_encoder(self, meta: ResponseMeta, call: GenerationCall) -> StreamEncoder:
        return FireworksStreamEncoder(FireworksChatChunkBuilder(call), meta, call)


class Fireworks(DescribedDialect):
    """Fireworks' dialect. It has no state, so one value serves every request."""

    name = NAME
    prefix = "/fireworks"
    field_table = FIELD_TABLE
    error_type = wire_types.FireworksErrorEnvelope
    examples = EXAMPLES
    schema_prefix = "Fireworks"
    page = PAGE
    aliases: Mapping[str, str] = MappingProxyType({"accounts/fireworks/models/*": "*"})
    """Aliases of this dialect: callers use these names for models. Aliases of the settings override them."""

    def __init__(self, report_unknown: bool = False, strict_schemas: bool = False) -> None:
        text = FireworksCompletions(report_unknown, strict_schemas)
        chat = FireworksChatCompletions(report_unknown, strict_schemas)
        self.endpoints = (
            declare_generation(NAME, FireworksScope.TEXT, "Continue a text", text),
            declare_generation(NAME, FireworksScope.CHAT, "Answer a conversation", chat),
            *declare_models(f"{PREFIX}/models", FireworksModels()),
        )

    def get_status(self, error: AntiphonError) -> int:
        return map_status(error)

    def encode_error(self, error: AntiphonError, request: Request | None = None) -> bytes:
        return encode_fireworks_error(error)
