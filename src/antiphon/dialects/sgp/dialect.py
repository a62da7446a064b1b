"""Scale's dialect: its endpoints and its part of the OpenAPI document."""

from collections.abc import Mapping
from functools import cache
from typing import Any

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
from antiphon.dialects.common import response_types
from antiphon.dialects.common.chunks import ChatChunkBuilder, TextChunkBuilder
from antiphon.dialects.common.encode import choose_chat_logprobs, choose_spelling, encode_chat, encode_text
from antiphon.dialects.common.endpoints import declare_generation
from antiphon.dialects.common.field_table import Table
from antiphon.dialects.common.fields import TABLES as OPENAI_TABLES
from antiphon.dialects.common.fields import FieldScope as OpenAIScope
from antiphon.dialects.common.openapi_schemas import (
    build_schemas,
    list_body_shapes,
    list_field_names,
    list_shapes,
)
from antiphon.dialects.sgp import wire_types
from antiphon.dialects.sgp.decode import decode_chat, decode_text
from antiphon.dialects.sgp.encode import (
    SgpStreamEncoder,
    encode_sgp_error,
    map_status,
)
from antiphon.dialects.sgp.fields import TABLES, SgpScope
from antiphon.dialects.sgp.legacy.endpoints import declare_legacy
from antiphon.dialects.sgp.legacy.fields import LegacyScope
from antiphon.dialects.sgp.models import declare_pages
from antiphon.domain.collect import CollectedGeneration
from antiphon.errors import AntiphonError

NAME = "sgp"

SCHEMA_PREFIX = "Sgp"
"""The prefix of the dialect's schema names."""

REQUESTS: Mapping[str, Table] = {
    "SgpChatCompletionRequest": TABLES[SgpScope.CHAT],
    "SgpCompletionRequest": TABLES[SgpScope.TEXT],
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
    "StreamOptions": OPENAI_TABLES[OpenAIScope.STREAM],
    "LegacyChatRequest": TABLES[LegacyScope.CHAT],
    "LegacyTextRequest": TABLES[LegacyScope.TEXT],
    "LegacyModelParameters": TABLES[LegacyScope.PARAMETERS],
    "LegacyMessage": TABLES[LegacyScope.MESSAGE],
    "LegacyPart": TABLES[LegacyScope.PART],
    "LegacyImageUrl": TABLES[LegacyScope.IMAGE_URL],
    "LegacyImageData": TABLES[LegacyScope.IMAGE_DATA],
    "LegacyPromptImage": TABLES[LegacyScope.PROMPT_IMAGE],
}
"""The schemas whose fields are in a table."""

EXAMPLES: Mapping[str, object] = {
    "SgpChatCompletionRequest": {"model": "cantor", "messages": [{"role": "user", "content": "Hello!"}]},
    "SgpCompletionRequest": {"model": "cantor", "prompt": "Once upon a time"},
    "LegacyChatRequest": {"model": "cantor", "messages": [{"role": "user", "content": "Hello!"}]},
    "LegacyTextRequest": {"model": "cantor", "prompt": "Once upon a time"},
}

ERROR = wire_types.SgpError


class SgpChatCompletions(CodecOptions):
    """Decodes and encodes POST /sgp/v4/beta/chat/completions."""

    shapes = (
        wire_types.SgpChatCompletionRequest,
        response_types.ChatCompletion,
        response_types.ChatCompletionChunk,
    )

    def decode(self, body: bytes) -> GenerationCall:
        return decode_chat(body, self._reports_unknown, self._strict)

    def encode_answer(
        self, meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration
    ) -> bytes:
        return encode_chat(meta, call, generation)

    def create_encoder(self, meta: ResponseMeta, call: GenerationCall) -> StreamEncoder:
        return SgpStreamEncoder(ChatChunkBuilder(choose_spelling(call)), meta, call)


class SgpCompletions(CodecOptions):
    """Decodes and encodes POST /sgp/v4/beta/completions."""

    shapes = (wire_types.SgpCompletionRequest, wire_types.SgpCompletion, wire_types.SgpCompletion)

    def decode(self, body: bytes) -> GenerationCall:
        return decode_text(body, self._reports_unknown, self._strict)

    def encode_answer(
        self, meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration
    ) -> bytes:
        return encode_text(meta, call, generation, choose_chat_logprobs(call))

    def create_encoder(self, meta: ResponseMeta, call: GenerationCall) -> StreamEncoder:
        return SgpStreamEncoder(TextChunkBuilder(choose_chat_logprobs(call)), meta, call)


class Sgp(DialectDefaults):
    """Scale's dialect. It has no state, so one value serves every request."""

    name = NAME
    prefix = "/sgp"

    def __init__(self, report_unknown: bool = False, strict_schemas: bool = False) -> None:
        """`report_unknown`: the answer names unknown fields, which are not refused. `strict_schemas`: a
        schema with a keyword that is not enforced is refused."""
        chat = SgpChatCompletions(report_unknown, strict_schemas)
        text = SgpCompletions(report_unknown, strict_schemas)
        self.endpoints = (
            declare_generation(NAME, SgpScope.CHAT, "Answer a conversation, as Scale does", chat),
            declare_generation(NAME, SgpScope.TEXT, "Continue a text, as Scale does", text),
            *declare_legacy(NAME, report_unknown),
            *declare_pages(),
        )

    def get_status(self, error: AntiphonError) -> int:
        return map_status(error)

    def encode_error(self, error: AntiphonError, request: Request | None = None) -> bytes:
        return encode_sgp_error(error)

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
    _describe_messages(schemas)
    return Description(schemas, SCHEMA_PREFIX, ERROR.__name__)


def _describe_messages(schemas: dict[str, dict[str, Any]]) -> None:
    """Adapts the schemas of OpenAI's messages and images to the forms that this dialect also accepts."""
    message, image = schemas["SgpChatMessage"], schemas["SgpImageUrlShape"]
    properties, content = message["properties"], message["properties"]["content"]
    message.pop("required", None)
    properties["role"] = {"enum": [*properties["role"]["enum"], "function"]}
    part = next(schema["items"] for schema in content["anyOf"] if schema.get("type") == "array")
    content["anyOf"].append(part)
    properties["function_call"] = {"type": ["object", "null"]}
    del message["x-antiphon-refused"]["function_call"]
    image["properties"]["media_type"] = {"type": ["string", "null"]}
    for schema, scope in ((message, SgpScope.MESSAGE), (image, SgpScope.IMAGE_URL)):
        for name, field in TABLES[scope].items():
            schema["properties"][name]["description"] = field.description
