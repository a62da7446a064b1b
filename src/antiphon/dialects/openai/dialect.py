"""OpenAI's dialect: its endpoints, the decoding of completions, and its part of the OpenAPI document."""

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
from antiphon.dialects.common import request_types, response_types
from antiphon.dialects.common.chunks import ChatChunkBuilder, OpenAIStreamEncoder, TextChunkBuilder
from antiphon.dialects.common.decode import build_chat_call, build_text_call
from antiphon.dialects.common.encode import (
    choose_spelling,
    choose_text_logprobs,
    encode_chat,
    encode_error,
    encode_text,
)
from antiphon.dialects.common.endpoints import (
    declare_generation,
    declare_models,
)
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.fields import TABLES, FieldScope, filter_fields, filter_stream_options
from antiphon.dialects.common.messages import filter_messages
from antiphon.dialects.common.openapi_schemas import (
    build_schemas,
    list_body_shapes,
    list_field_names,
    list_shapes,
)
from antiphon.dialects.common.request_types import ChatCompletionRequest, CompletionRequest
from antiphon.dialects.common.strict_json import convert, read_object
from antiphon.dialects.common.tools import filter_tools
from antiphon.dialects.openai.embeddings import OpenAIEmbeddings
from antiphon.dialects.openai.models import OpenAIModels, declare_adapter_endpoints
from antiphon.dialects.openai.rerank import Rerank
from antiphon.dialects.openai.tokens import declare_tokens
from antiphon.domain.collect import CollectedGeneration
from antiphon.errors import AntiphonError

NAME = "openai"

REQUESTS: Mapping[str, FieldScope] = {
    "ChatCompletionRequest": FieldScope.CHAT,
    "CompletionRequest": FieldScope.TEXT,
    "ChatMessage": FieldScope.MESSAGE,
    "TextPart": FieldScope.PART,
    "RefusalPart": FieldScope.REFUSAL,
    "ImageUrlPart": FieldScope.IMAGE,
    "ImageUrlShape": FieldScope.IMAGE_URL,
    "InputAudioPart": FieldScope.AUDIO,
    "InputAudioShape": FieldScope.INPUT_AUDIO,
    "SpeechReference": FieldScope.SPEECH,
    "ToolShape": FieldScope.TOOL,
    "Function": FieldScope.FUNCTION,
    "MessageToolCall": FieldScope.CALL,
    "CalledFunction": FieldScope.CALLED,
    "StreamOptions": FieldScope.STREAM,
    "EmbeddingsRequest": FieldScope.EMBEDDINGS,
    "RerankBody": FieldScope.RERANK,
    "TokenizeRequest": FieldScope.TOKENIZE,
    "DetokenizeRequest": FieldScope.DETOKENIZE,
    "ApplyRequest": FieldScope.APPLY,
    "LoadAdapterRequest": FieldScope.LOAD,
    "UnloadAdapterRequest": FieldScope.UNLOAD,
}
"""The schemas whose fields are in the table."""

EXAMPLES: Mapping[str, object] = {
    "ChatCompletionRequest": {"model": "cantor", "messages": [{"role": "user", "content": "Hello!"}]},
    "CompletionRequest": {"model": "cantor", "prompt": "Once upon a time", "max_tokens": 32},
    "EmbeddingsRequest": {"model": "all-minilm", "input": ["A text.", "Another one."]},
    "RerankBody": {"model": "bge-reranker", "query": "Who wrote it?", "documents": ["Ada did.", "In 1843."]},
    "TokenizeRequest": {"prompt": "Hello!"},
    "DetokenizeRequest": {"tokens": [1, 2, 3]},
    "ApplyRequest": {"messages": [{"role": "user", "content": "Hello!"}]},
    "LoadAdapterRequest": {"lora_name": "pirate", "lora_path": "pirate.gguf"},
    "UnloadAdapterRequest": {"lora_name": "pirate"},
}

ERROR = response_types.ErrorEnvelope


class OpenAIChatCompletions(CodecOptions):
    """Decodes and encodes POST /v1/chat/completions."""

    shapes = (
        request_types.ChatCompletionRequest,
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
        return OpenAIStreamEncoder(ChatChunkBuilder(choose_spelling(call)), meta, call)


class OpenAICompletions(CodecOptions):
    """Decodes and encodes POST /v1/completions."""

    shapes = (request_types.CompletionRequest, response_types.Completion, response_types.Completion)

    def decode(self, body: bytes) -> GenerationCall:
        return decode_text(body, self._reports_unknown, self._strict)

    def encode_answer(
        self, meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration
    ) -> bytes:
        return encode_text(meta, call, generation)

    def create_encoder(self, meta: ResponseMeta, call: GenerationCall) -> StreamEncoder:
        return OpenAIStreamEncoder(TextChunkBuilder(choose_text_logprobs(call)), meta, call)


class OpenAI(DialectDefaults):
    """OpenAI's dialect, with vLLM's endpoints for token ids and adapters. It has no state."""

    name = NAME
    prefix = ""

    def __init__(self, report_unknown: bool = False, strict_schemas: bool = False) -> None:
        """`report_unknown`: the answer names unknown fields, which are not refused. `strict_schemas`: a
        schema with a keyword that is not enforced is refused."""
        chat = OpenAIChatCompletions(report_unknown, strict_schemas)
        text = OpenAICompletions(report_unknown, strict_schemas)
        self.endpoints = (
            declare_generation(NAME, "/v1/chat/completions", "Answer a conversation", chat),
            declare_generation(NAME, "/v1/completions", "Continue a text", text),
            OpenAIEmbeddings(report_unknown).declare(),
            Rerank(report_unknown).declare(),
            *declare_models("/v1/models", OpenAIModels(), "Show one model and its profile"),
            *declare_tokens(),
            *declare_adapter_endpoints(),
        )

    def encode_error(self, error: AntiphonError, request: Request | None = None) -> bytes:
        return encode_error(error)

    def describe(self) -> Description:
        return describe_endpoints(self.endpoints)

    def list_fields(self) -> frozenset[str]:
        return list_all_fields(self.endpoints)


@cache
def list_all_fields(endpoints: tuple[Endpoint, ...]) -> frozenset[str]:
    """Returns the names of the fields of requests."""
    return list_field_names(list_body_shapes(endpoints), TABLES.values())


def describe_endpoints(endpoints: tuple[Endpoint, ...]) -> Description:
    """Returns the dialect's part of the OpenAPI document, with its schemas."""
    tables = {name: TABLES[scope] for name, scope in REQUESTS.items()}
    schemas = build_schemas((*list_shapes(endpoints), ERROR), tables, EXAMPLES)
    return Description(schemas, error_schema=ERROR.__name__)


def decode_chat(body: bytes, report_unknown: bool = False, strict: bool = False) -> GenerationCall:
    """Decodes a body of POST /v1/chat/completions. `report_unknown`: unknown fields are ignored and named
    instead of refused. `strict`: a schema with a keyword that is not enforced is refused. Raises a
    RequestError."""
    field_report = FieldReport(report_unknown)
    accepted_fields = filter_fields(read_object(body), FieldScope.CHAT, report=field_report)
    filter_stream_options(accepted_fields, field_report)
    accepted_fields = filter_tools(filter_messages(accepted_fields, field_report), field_report)
    return build_chat_call(convert(accepted_fields, ChatCompletionRequest), field_report.names, strict)


def decode_text(body: bytes, report_unknown: bool = False, strict: bool = False) -> GenerationCall:
    """Decodes a body of POST /v1/completions. The parameters are those of `decode_chat`."""
    field_report = FieldReport(report_unknown)
    accepted_fields = filter_fields(read_object(body), FieldScope.TEXT, report=field_report)
    filter_stream_options(accepted_fields, field_report)
    return build_text_call(convert(accepted_fields, CompletionRequest), field_report.names, strict)
