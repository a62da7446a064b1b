"""Empower's dialect: its endpoints and its part of the OpenAPI document."""

from collections.abc import Mapping
from functools import cache

from antiphon.dialects.base import (
    CodecOptions,
    Description,
    DialectDefaults,
    Endpoint,
    GenerationCall,
    Request,
    ResponseMeta,
    StreamEncoder,
)
from antiphon.dialects.common.endpoints import declare_generation
from antiphon.dialects.common.field_table import FieldSupport
from antiphon.dialects.common.fields import TABLES as OPENAI_TABLES
from antiphon.dialects.common.fields import FieldScope as OpenAIScope
from antiphon.dialects.common.openapi_schemas import (
    build_schemas,
    list_body_shapes,
    list_field_names,
    list_shapes,
)
from antiphon.dialects.empower import wire_types
from antiphon.dialects.empower.decode import decode_chat
from antiphon.dialects.empower.encode import EmpowerStreamEncoder, encode_chat, encode_flat_error
from antiphon.dialects.empower.fields import PREFIX, TABLES, EmpowerScope
from antiphon.dialects.empower.loras import declare_loras
from antiphon.domain.collect import CollectedGeneration
from antiphon.errors import AntiphonError

NAME = "empower"

SCHEMA_PREFIX = "Empower"
"""The prefix of the dialect's schema names."""

REQUESTS = {
    "ChatRequest": TABLES[EmpowerScope.CHAT],
    "DeployRequest": TABLES[EmpowerScope.DEPLOY],
    "ChatMessage": OPENAI_TABLES[OpenAIScope.MESSAGE],
    "TextPart": OPENAI_TABLES[OpenAIScope.PART],
    "RefusalPart": OPENAI_TABLES[OpenAIScope.REFUSAL],
    "ImageUrlPart": OPENAI_TABLES[OpenAIScope.IMAGE],
    "ImageUrlShape": OPENAI_TABLES[OpenAIScope.IMAGE_URL],
    "InputAudioPart": OPENAI_TABLES[OpenAIScope.AUDIO],
    "InputAudioShape": OPENAI_TABLES[OpenAIScope.INPUT_AUDIO],
    "ToolShape": OPENAI_TABLES[OpenAIScope.TOOL],
    "Function": OPENAI_TABLES[OpenAIScope.FUNCTION],
    "MessageToolCall": OPENAI_TABLES[OpenAIScope.CALL],
    "CalledFunction": OPENAI_TABLES[OpenAIScope.CALLED],
}

EXAMPLES: Mapping[str, object] = {
    "ChatRequest": {"model": "cantor", "messages": [{"role": "user", "content": "Hello!"}]},
    "DeployRequest": {"model_name": "IlyaGusev/saiga_mistral_7b_lora", "model_source": "HF_HUB"},
}

ERROR = wire_types.FlatError


class EmpowerChatCompletions(CodecOptions):
    """Decodes and encodes POST /empower/api/v1/chat/completions."""

    shapes = (wire_types.ChatRequest, wire_types.ChatAnswer, wire_types.ChatChunk)

    def decode(self, body: bytes) -> GenerationCall:
        return decode_chat(body, self._reports_unknown, self._strict)

    def encode_answer(
        self, meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration
    ) -> bytes:
        return encode_chat(meta, generation)

    def create_encoder(self, meta: ResponseMeta, call: GenerationCall) -> StreamEncoder:
        return EmpowerStreamEncoder(meta, call)


class Empower(DialectDefaults):
    """Empower's dialect. It has no state, so one value serves every request."""

    name = NAME
    prefix = "/empower"

    def __init__(self, report_unknown: bool = False, strict_schemas: bool = False) -> None:
        """`report_unknown`: the answer names unknown fields, which are not refused. `strict_schemas`: a
        schema with a keyword that is not enforced is refused."""
        chat = EmpowerChatCompletions(report_unknown, strict_schemas)
        self.endpoints = (
            declare_generation(NAME, EmpowerScope.CHAT, "Answer a conversation, as Empower does", chat),
            *declare_loras(EmpowerScope.DEPLOY, f"{PREFIX}/base-model"),
        )

    def encode_error(self, error: AntiphonError, request: Request | None = None) -> bytes:
        return encode_flat_error(error)

    def describe(self) -> Description:
        return describe_endpoints(self.endpoints)

    def list_fields(self) -> frozenset[str]:
        return list_all_fields(self.endpoints)


@cache
def list_all_fields(endpoints: tuple[Endpoint, ...]) -> frozenset[str]:
    """Returns the names of the fields of requests."""
    return list_field_names(list_body_shapes(endpoints), (*TABLES.values(), *OPENAI_TABLES.values()))


def describe_endpoints(endpoints: tuple[Endpoint, ...]) -> Description:
    """Returns the dialect's part of the OpenAPI document, with its schemas."""
    schemas = build_schemas((*list_shapes(endpoints), ERROR), REQUESTS, EXAMPLES, SCHEMA_PREFIX)
    table = TABLES[EmpowerScope.CHAT]
    properties = schemas[f"{SCHEMA_PREFIX}ChatRequest"]["properties"]
    for name in tuple(properties):
        if name not in table or table[name].support is FieldSupport.REFUSED:
            del properties[name]
    return Description(schemas, SCHEMA_PREFIX, SCHEMA_PREFIX + ERROR.__name__)
