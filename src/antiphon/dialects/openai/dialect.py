"""The dialect as one value: its endpoints, its errors, its description."""

from antiphon.dialects.base import Call, Description, ResponseMeta, StreamEncoder
from antiphon.dialects.common import request_types, response_types
from antiphon.dialects.common.chunks import ChatChunkBuilder, OpenAIStreamEncoder, TextChunkBuilder
from antiphon.dialects.common.encode import choose_spelling, encode_chat, encode_error, encode_text
from antiphon.dialects.common.endpoints import (
    adapter_endpoints,
    declare_generation,
    embedding,
    model_list,
    token_endpoints,
)
from antiphon.dialects.openai.adapters import VLLMAdapters
from antiphon.dialects.openai.decode import decode_chat, decode_text
from antiphon.dialects.openai.describe import describe_endpoints, list_all_fields
from antiphon.dialects.openai.embeddings import OpenAIEmbeddings
from antiphon.dialects.openai.models import OpenAIModels
from antiphon.dialects.openai.tokens import VLLMTokens
from antiphon.domain.collect import Generation
from antiphon.errors import AntiphonError

NAME = "openai"


class OpenAIChatCompletions:
    """Body and answers of POST /v1/chat/completions."""

    shapes = (
        request_types.ChatCompletionRequest,
        response_types.ChatCompletion,
        response_types.ChatCompletionChunk,
    )

    def __init__(self, report: bool, strict: bool = False) -> None:
        self._report = report
        self._strict = strict

    def decode(self, body: bytes) -> Call:
        return decode_chat(body, self._report, self._strict)

    def answer(self, meta: ResponseMeta, call: Call, declare_generation: Generation) -> bytes:
        return encode_chat(meta, call, declare_generation)

    def encoder(self, meta: ResponseMeta, call: Call) -> StreamEncoder:
        return OpenAIStreamEncoder(ChatChunkBuilder(choose_spelling(call)), meta, call)


class OpenAICompletions:
    """Body and answers of POST /v1/completions."""

    shapes = (request_types.CompletionRequest, response_types.Completion, response_types.Completion)

    def __init__(self, report: bool, strict: bool = False) -> None:
        self._report = report
        self._strict = strict

    def decode(self, body: bytes) -> Call:
        return decode_text(body, self._report, self._strict)

    def answer(self, meta: ResponseMeta, call: Call, declare_generation: Generation) -> bytes:
        return encode_text(meta, call, declare_generation)

    def encoder(self, meta: ResponseMeta, call: Call) -> StreamEncoder:
        return OpenAIStreamEncoder(
            TextChunkBuilder(bool(call.request.output.logprobs), choose_spelling(call)), meta, call
        )


class OpenAI:
    """OpenAI's dialect, with vLLM's endpoints of token ids and adapters. Holds no state."""

    name = NAME
    prefix = ""

    def __init__(self, report_unknown: bool = False, strict_schemas: bool = False) -> None:
        """`report_unknown`: whether a generation's unknown fields are named in the answer, not refused;
        `strict_schemas`: whether a schema is refused of which a keyword is not kept."""
        chat = OpenAIChatCompletions(report_unknown, strict_schemas)
        text = OpenAICompletions(report_unknown, strict_schemas)
        vectors = OpenAIEmbeddings(report_unknown)
        self.endpoints = (
            declare_generation(NAME, "/v1/chat/completions", "Answer a conversation", chat),
            declare_generation(NAME, "/v1/completions", "Continue a text", text),
            embedding(NAME, "/v1/embeddings", "Make vectors of texts", vectors),
            *model_list("/v1/models", OpenAIModels(), "Show one model and its profile"),
            *token_endpoints(VLLMTokens()),
            *adapter_endpoints(VLLMAdapters()),
        )

    def status(self, error: AntiphonError) -> int:
        return error.status

    def error(self, error: AntiphonError) -> bytes:
        return encode_error(error)

    def describe(self) -> Description:
        return describe_endpoints(self.endpoints)

    def fields(self) -> frozenset[str]:
        return list_all_fields(self.endpoints)
