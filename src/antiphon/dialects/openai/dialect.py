"""OpenAI's dialect: its endpoints, its list of models, and its part of the OpenAPI document.

It decodes completions, and has vLLM's endpoints that load and unload LoRA adapters. `state` and `profile` of
a model are extensions.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antiphon.dialects.base import CodecOptions, Endpoint, RequestBody
from antiphon.dialects.calls import GenerationCall, LoadCall
from antiphon.dialects.common import request_types, response_types
from antiphon.dialects.common.anthropic_models import (
    VERSION_HEADER,
    list_anthropic_models,
    show_anthropic_model,
)
from antiphon.dialects.common.body_decoder import BodyDecoder
from antiphon.dialects.common.chunks import ChatChunkBuilder, OpenAIStreamEncoder, TextChunkBuilder
from antiphon.dialects.common.decode import build_chat_call, build_text_call
from antiphon.dialects.common.dialect import DescribedDialect
from antiphon.dialects.common.encode import (
    choose_spelling,
    choose_text_logprobs,
    encode_chat,
    encode_error,
    encode_text,
)
from antiphon.dialects.common.endpoints import declare_generation, declare_models
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.fields import (
    FIELD_TABLE,
    FieldScope,
    filter_fields,
    filter_stream_options,
)
from antiphon.dialects.common.messages import filter_messages, has_ignored_parts
from antiphon.dialects.common.request_types import (
    ChatCompletionRequest,
    CompletionRequest,
    LoadAdapterRequest,
    UnloadAdapterRequest,
)
from antiphon.dialects.common.response_types import OWNER
from antiphon.dialects.common.tools import filter_tools
from antiphon.dialects.http_types import PLAIN, Answer, Request, Response, StreamEncoder
from antiphon.dialects.openai.embeddings import OpenAIEmbeddings
from antiphon.dialects.openai.rerank import Rerank
from antiphon.dialects.openai.tokens import declare_tokens
from antiphon.dialects.services import ModelEntry, ResponseMeta, Services
from antiphon.domain.collect import CollectedGeneration
from antiphon.domain.identity import Right
from antiphon.domain.models import ADAPTER_NAME, ADAPTER_NAME_RULE, Profile
from antiphon.domain.values import replace
from antiphon.errors import AntiphonError, InvalidValue

_encode = msgspec.json.Encoder().encode


LOAD_BODY = BodyDecoder(LoadAdapterRequest, FIELD_TABLE, FieldScope.LOAD)

UNLOAD_BODY = BodyDecoder(UnloadAdapterRequest, FIELD_TABLE, FieldScope.UNLOAD)

NAME = "openai"

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


class ModelShape(Struct, frozen=True, kw_only=True):
    """A model in the list."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = OWNER
    root: str
    """The origin of the weights: a base model's own name, or the SHA-256 of an adapter's content."""
    parent: str | None
    """The base model of an adapter; otherwise null."""
    state: str
    """The state of its engine. An adapter that its engine could not load again is failed."""


class AdapterShape(Struct, frozen=True):
    """The content of an adapter."""

    digest: str
    """SHA-256 of its GGUF file, in hexadecimal."""
    rank: int
    alpha: float
    size: int
    """Bytes."""


class ModelCard(ModelShape, frozen=True, kw_only=True):
    """One model with its profile. The profile is null while the engine is unavailable."""

    profile: Profile | None
    """For an adapter, the profile of its base model."""
    adapter: AdapterShape | None
    """Null for a base model."""


class ModelList(Struct, frozen=True, kw_only=True):
    """All models: first the models of the settings in their order, then adapters."""

    object: Literal["list"] = "list"
    data: list[ModelShape]


class OpenAIModels:
    """Encodes models as a `ModelCodec`."""

    shapes = (ModelList, ModelCard)
    has_profiles = False

    def encode_list(self, models: Iterable[ModelEntry]) -> bytes:
        return _encode(ModelList(data=[_build_model(model) for model in models]))

    def encode_model(self, model: ModelEntry) -> bytes:
        model_adapter = model.adapter
        adapter = (
            AdapterShape(model_adapter.digest, model_adapter.rank, model_adapter.alpha, model_adapter.size)
            if model_adapter
            else None
        )
        shape = msgspec.structs.asdict(_build_model(model))
        return _encode(ModelCard(**shape, profile=model.profile, adapter=adapter))


def _build_model(model: ModelEntry) -> ModelShape:
    return ModelShape(
        id=model.alias or model.name,
        created=model.created,
        root=f"sha256:{model.adapter.digest}" if model.adapter else model.name,
        parent=model.parent,
        state=model.state,
    )


def decode_load_request(body: bytes) -> LoadCall:
    """Decodes a body of POST /v1/load_lora_adapter. Raises a RequestError."""
    wire, _ = LOAD_BODY.decode(body)
    if not ADAPTER_NAME.fullmatch(wire.lora_name):
        raise InvalidValue(f"lora_name must be {ADAPTER_NAME_RULE}", param="lora_name")
    return LoadCall(wire.lora_name, wire.lora_path, wire.base_model_name, bool(wire.load_inplace))


def decode_unload_request(body: bytes) -> str:
    """Returns the adapter's name in a body of POST /v1/unload_lora_adapter. Raises a RequestError."""
    wire, _ = UNLOAD_BODY.decode(body)
    return wire.lora_name


async def load_adapter(request: Request, services: Services) -> Answer:
    call = decode_load_request(request.body)
    await services.load_adapter(call, request.actor)
    return _confirm(call.name, "added")


async def unload_adapter(request: Request, services: Services) -> Answer:
    name = decode_unload_request(request.body)
    await services.unload_adapter(name, request.actor)
    return _confirm(name, "removed")


def _confirm(name: str, verb: str) -> Response:
    """Returns vLLM's answer, in plain text."""
    return Response(f"Success: LoRA adapter '{name}' {verb} successfully.".encode(), media_type=PLAIN)


def declare_adapter_endpoints() -> tuple[Endpoint, Endpoint]:
    """Declares the endpoints that load and unload adapters from the server's disk."""
    load = Endpoint(
        method="POST",
        path="/v1/load_lora_adapter",
        handler=load_adapter,
        right=Right.ADAPT,
        body=RequestBody(shape=LoadAdapterRequest),
        summary="Load a LoRA adapter as a model",
        tag="adapters",
        answers={PLAIN: str},
    )
    unload = replace(
        load,
        path="/v1/unload_lora_adapter",
        handler=unload_adapter,
        body=RequestBody(shape=UnloadAdapterRequest),
        summary="Unload a LoRA adapter",
        ends_with_caller=False,
    )
    return load, unload


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


def declare_model_endpoints() -> tuple[Endpoint, Endpoint]:
    """Declares the endpoints of models. Anthropic's clients use the same paths, and get Anthropic's form."""
    models, model = declare_models("/v1/models", OpenAIModels(), "Show one model and its profile")

    async def list_models(request: Request, services: Services) -> Answer:
        if VERSION_HEADER in request.headers:
            return await list_anthropic_models(request, services)
        return await models.handler(request, services)

    async def show_model(request: Request, services: Services) -> Answer:
        if VERSION_HEADER not in request.headers:
            return await model.handler(request, services)
        if not request.path_params["model"]:  # the path of the list with a slash at its end
            return await list_anthropic_models(request, services)
        return await show_anthropic_model(request, services)

    return replace(models, handler=list_models), replace(model, handler=show_model)


class OpenAI(DescribedDialect):
    """OpenAI's dialect, with vLLM's endpoints for token ids and adapters. It has no state."""

    name = NAME
    prefix = ""
    field_table = FIELD_TABLE
    error_type = response_types.ErrorEnvelope
    examples = EXAMPLES
    page = None
    """Other products have a page, which docs/parameters.md compares with this server."""

    def __init__(self, report_unknown: bool = False, strict_schemas: bool = False) -> None:
        chat = OpenAIChatCompletions(report_unknown, strict_schemas)
        text = OpenAICompletions(report_unknown, strict_schemas)
        self.endpoints = (
            declare_generation(NAME, "/v1/chat/completions", "Answer a conversation", chat),
            declare_generation(NAME, "/v1/completions", "Continue a text", text),
            OpenAIEmbeddings(report_unknown).declare(),
            Rerank(report_unknown).declare(),
            *declare_model_endpoints(),
            *declare_tokens(),
            *declare_adapter_endpoints(),
        )

    def encode_error(self, error: AntiphonError, request: Request | None = None) -> bytes:
        return encode_error(error)


def filter_chat(fields: dict[str, Any], report: FieldReport) -> dict[str, Any]:
    """Filters the body of a chat."""
    accepted_fields = filter_fields(fields, FieldScope.CHAT, report=report)
    filter_stream_options(accepted_fields, report)
    return filter_tools(filter_messages(accepted_fields, report), report)


def filter_text(fields: dict[str, Any], report: FieldReport) -> dict[str, Any]:
    """Filters the body of a text completion."""
    accepted_fields = filter_fields(fields, FieldScope.TEXT, report=report)
    filter_stream_options(accepted_fields, report)
    return accepted_fields


CHAT_BODY = BodyDecoder(
    ChatCompletionRequest,
    FIELD_TABLE,
    FieldScope.CHAT,
    filter_chat,
    has_ignored_parts,
)
TEXT_BODY = BodyDecoder(CompletionRequest, FIELD_TABLE, FieldScope.TEXT, filter_text)


def decode_chat(body: bytes, report_unknown: bool = False, strict: bool = False) -> GenerationCall:
    """Decodes a body of POST /v1/chat/completions. `report_unknown`: unknown fields are ignored and named
    instead of refused. `strict`: a schema with a keyword that is not enforced is refused. Raises a
    RequestError."""
    wire, report = CHAT_BODY.decode(body, report_unknown)
    return build_chat_call(wire, report.names, strict)


def decode_text(body: bytes, report_unknown: bool = False, strict: bool = False) -> GenerationCall:
    """Decodes a body of POST /v1/completions. The parameters are those of `decode_chat`."""
    wire, report = TEXT_BODY.decode(body, report_unknown)
    return build_text_call(wire, report.names, strict)
