"""Scale's dialect: its endpoints, its list of models, and its part of the OpenAPI document.

The list of models is in pages. On this server each model has one deployment, and its account is the caller's
project.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from antiphon.bodies.strict_json import sanitize_key
from antiphon.dialects.base import CodecOptions, Endpoint
from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.common import response_types
from antiphon.dialects.common.chunks import ChatChunkBuilder, TextChunkBuilder
from antiphon.dialects.common.dialect import DescribedDialect
from antiphon.dialects.common.encode import choose_chat_logprobs, choose_spelling, encode_chat, encode_text
from antiphon.dialects.common.endpoints import declare_generation, declare_get
from antiphon.dialects.common.list_query import QUERY, ListQuery
from antiphon.dialects.common.response_types import OWNER
from antiphon.dialects.http_types import Answer, Request, Response, StreamEncoder
from antiphon.dialects.services import ModelEntry, ResponseMeta, Services
from antiphon.dialects.sgp import wire_types
from antiphon.dialects.sgp.decode import decode_chat, decode_text
from antiphon.dialects.sgp.encode import SgpStreamEncoder, encode_sgp_error, map_status
from antiphon.dialects.sgp.fields import FIELD_TABLE, TABLES, SgpScope
from antiphon.dialects.sgp.legacy import declare_legacy
from antiphon.dialects.sgp.page import PAGE
from antiphon.domain.collect import CollectedGeneration
from antiphon.domain.identity import Actor
from antiphon.errors import AntiphonError, InvalidValue, UnsupportedParameter

MODELS_PATH = "/sgp/v4/models"
DOCUMENT = "/openapi.json#/components/schemas"

PAGE_SIZE, LARGEST_PAGE = 100, 10_000
"""The default and the largest number of models per page, as in Scale's documentation."""

LAST_PAGE = 2**31 - 1

ModelType = Literal["COMPLETION", "CHAT_COMPLETION", "EMBEDDING", "GENERIC"]

SCHEMAS: Mapping[ModelType, tuple[str, str]] = {
    "COMPLETION": ("SgpLegacyTextRequest", "SgpLegacyTextAnswer"),
    "CHAT_COMPLETION": ("SgpLegacyChatRequest", "SgpLegacyChatAnswer"),
}
"""The schemas of request and answer, by the type of the model. Only these types have an endpoint in this
dialect."""

FILTERS = ("account_id", "model_type", "model_group_id")
SORT_KEYS = ("id", "name", "display_name", "created_at", "model_type", "base_model_id", "supports_multi_turn")
NO_VIEW = "a model has neither deployments of its own nor a group; leave it out"

PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "page": {"type": "integer", "minimum": 1, "maximum": LAST_PAGE, "default": 1},
    "limit": {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE, "default": PAGE_SIZE},
    "account_id": {"type": "string"},
    "model_type": {"type": "string"},
    "model_group_id": {"type": "string"},
    "sort_by": {
        "type": "string",
        "pattern": rf"^((({'|'.join(SORT_KEYS)}):(asc|desc))?,?)*$",
        "description": "FIELD:asc or FIELD:desc, separated by commas.",
    },
}
"""The schemas of the query's parameters."""

_encode = msgspec.json.Encoder().encode


NAME = "sgp"

EXAMPLES: Mapping[str, object] = {
    "SgpChatCompletionRequest": {"model": "cantor", "messages": [{"role": "user", "content": "Hello!"}]},
    "SgpCompletionRequest": {"model": "cantor", "prompt": "Once upon a time"},
    "LegacyChatRequest": {"model": "cantor", "messages": [{"role": "user", "content": "Hello!"}]},
    "LegacyTextRequest": {"model": "cantor", "prompt": "Once upon a time"},
}


class SgpModelShape(Struct, frozen=True, kw_only=True):
    """One model."""

    id: str
    name: str
    display_name: str
    account_id: str
    """The caller's project."""
    created_at: Annotated[datetime, Meta(tz=True)]
    created_by_user_id: str = OWNER
    deployment_count: int = 1
    model_type: ModelType
    """GENERIC while the model's engine is unavailable."""
    supports_multi_turn: bool
    base_model_id: str | None
    """The base model of an adapter; otherwise null."""
    request_schema: dict[str, str]
    """A reference to the schema of the model's requests."""
    response_schema: dict[str, str]
    model_group_id: None = None


class SgpModelPage(Struct, frozen=True, kw_only=True):
    """One page of models: first the models of the settings in their order, then adapters."""

    current_page: int
    """The number of the page, from 1."""
    items: list[SgpModelShape]
    items_per_page: int
    total_item_count: int
    """The number of models in all pages."""


class PageQuery(NamedTuple):
    """The requested page."""

    page: int
    limit: int
    filters: Mapping[str, str]
    """The required values, by field."""
    order: tuple[tuple[str, bool], ...]
    """The sort fields in order, and whether each is descending."""


def declare_pages() -> tuple[Endpoint, Endpoint]:
    """Declares the endpoints for the list of models and for one model."""
    parameters = [{"name": name, "in": "query", "schema": schema} for name, schema in PARAMETERS.items()]
    return (
        declare_get(MODELS_PATH, list_models, "List the models", "models", SgpModelPage, *parameters),
        declare_get(f"{MODELS_PATH}/{{model:path}}", show_model, "Show one model", "models", SgpModelShape),
    )


async def list_models(request: Request, services: Services) -> Answer:
    query = read_query(request.query())
    entries = await services.list_profiled_models(request.actor)
    return Response(
        _encode(build_model_page([build_model(entry, request.actor) for entry in entries], query))
    )


async def show_model(request: Request, services: Services) -> Answer:
    require_no_view(ListQuery(request.query(), "view"))
    entry = await services.load_model(request.path_params["model"], request)
    return Response(_encode(build_model(entry, request.actor)))


def read_query(parameters: Iterable[tuple[str, str]]) -> PageQuery:
    """Reads the query. Raises a RequestError about the parameter."""
    query = ListQuery(parameters, "page", "limit", "sort_by", "view", *FILTERS)
    require_no_view(query)
    order: list[tuple[str, bool]] = []
    for word in filter(None, query.get("sort_by").split(",")):
        name, _, direction = word.partition(":")
        if name not in SORT_KEYS or direction not in ("asc", "desc"):
            raise InvalidValue(
                f"sort_by must have FIELD:asc or FIELD:desc, separated by commas, with the fields "
                f"{', '.join(SORT_KEYS)}; got {sanitize_key(word)}",
                param=f"{QUERY}.sort_by",
            )
        order.append((name, direction == "desc"))
    return PageQuery(
        query.read_number("page", 1, 1, LAST_PAGE),
        query.read_number("limit", PAGE_SIZE, 1, LARGEST_PAGE),
        {name: value for name in FILTERS if (value := query.get(name))},
        tuple(order),
    )


def require_no_view(query: ListQuery) -> None:
    """Raises UnsupportedParameter for the parameter `view`."""
    if query.get("view"):
        raise UnsupportedParameter(f"view is not supported: {NO_VIEW}", param=f"{QUERY}.view")


def build_model_page(models: list[SgpModelShape], query: PageQuery) -> SgpModelPage:
    """Builds the requested page of models."""
    matching_models = [
        model
        for model in models
        if all(getattr(model, name) == value for name, value in query.filters.items())
    ]
    for name, is_descending in reversed(query.order):
        # Missing values are first.
        matching_models.sort(key=lambda model: str(getattr(model, name) or ""), reverse=is_descending)
    start = (query.page - 1) * query.limit
    return SgpModelPage(
        current_page=query.page,
        items=matching_models[start : start + query.limit],
        items_per_page=query.limit,
        total_item_count=len(matching_models),
    )


def build_model(entry: ModelEntry, actor: Actor) -> SgpModelShape:
    kind = _get_type(entry)
    name = entry.alias or entry.name
    request, response = SCHEMAS.get(kind, ("", ""))
    return SgpModelShape(
        id=name,
        name=name,
        display_name=name,
        account_id=actor.project,
        created_at=datetime.fromtimestamp(entry.created, UTC),
        model_type=kind,
        supports_multi_turn=kind == "CHAT_COMPLETION",
        base_model_id=entry.parent,
        request_schema={"$ref": f"{DOCUMENT}/{request}"} if request else {},
        response_schema={"$ref": f"{DOCUMENT}/{response}"} if response else {},
    )


def _get_type(entry: ModelEntry) -> ModelType:
    """Returns the type of a model; GENERIC for a reranker, or if its profile is unknown."""
    if entry.profile is None:
        return "GENERIC"
    if entry.profile.embedding is not None:
        return "GENERIC" if entry.profile.embedding.ranks else "EMBEDDING"
    return "CHAT_COMPLETION" if entry.profile.chat else "COMPLETION"


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


class Sgp(DescribedDialect):
    """Scale's dialect. It has no state, so one value serves every request."""

    name = NAME
    prefix = "/sgp"
    field_table = FIELD_TABLE
    error_type = wire_types.SgpError
    examples = EXAMPLES
    schema_prefix = "Sgp"
    page = PAGE

    def __init__(self, report_unknown: bool = False, strict_schemas: bool = False) -> None:
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

    def adapt_schemas(self, schemas: dict[str, dict[str, Any]]) -> None:
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
