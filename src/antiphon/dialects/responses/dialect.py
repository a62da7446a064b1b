"""The dialect of OpenAI's Responses API: its endpoints, and its part of the OpenAPI document."""

from collections.abc import Mapping
from functools import partial
from typing import Self

import msgspec

from antiphon.bodies.strict_json import sanitize_key
from antiphon.dialects.base import DialectOptions, Endpoint, RequestBody
from antiphon.dialects.calls import TokenizeCall
from antiphon.dialects.common.dialect import DescribedDialect
from antiphon.dialects.common.encode import encode_error
from antiphon.dialects.common.endpoints import add_attribution, build_report_headers, decode_body
from antiphon.dialects.common.response_types import ErrorEnvelope
from antiphon.dialects.common.seals import SealReader
from antiphon.dialects.http_types import EVENT_STREAM, JSON, Answer, EventStream, Request, Response
from antiphon.dialects.responses import wire_types
from antiphon.dialects.responses.decode import (
    OPTIONAL,
    BodyDecoders,
    ResponsesCall,
    build_call,
    build_conversation,
)
from antiphon.dialects.responses.encode import ResponseBuilder, ResponsesStreamEncoder, encode_response
from antiphon.dialects.responses.fields import FIELD_TABLE, PREFIX
from antiphon.dialects.responses.items import LoadedInput
from antiphon.dialects.responses.state import act_at_end, load_stored, read_input, save_response
from antiphon.dialects.services import Services
from antiphon.domain.context import Origin
from antiphon.domain.identity import Right
from antiphon.domain.request import Conversation, Reasoning
from antiphon.domain.stored_responses import list_item_ids
from antiphon.domain.values import replace
from antiphon.errors import AntiphonError, InvalidValue, RouteNotFound, UnsupportedParameter

NAME = "responses"

SCHEMA_PREFIX = "Responses"

TALK = {"model": "cantor", "input": "Hello!"}

EXAMPLES: Mapping[str, object] = {"ResponsesRequest": TALK, "InputTokensRequest": TALK}

ORIGIN = Origin(NAME, PREFIX)

LARGEST_PAGE = 100
"""The most items in one page. OpenAI has the same limit."""

ITEM_PARAMETERS: Mapping[str, object] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE, "default": 20},
    "order": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    "after": {"type": "string"},
}
"""The query parameters of a list of items."""

_encode = msgspec.json.Encoder().encode


class Responses(DescribedDialect):
    """The dialect of the Responses API."""

    name = NAME
    prefix = PREFIX
    field_table = FIELD_TABLE
    shared_table = None
    error_type = ErrorEnvelope
    examples = EXAMPLES
    schema_prefix = SCHEMA_PREFIX
    page = None

    def __init__(
        self, report_unknown: bool = True, strict_schemas: bool = False, refuses_hosted: bool = False
    ) -> None:
        """Unknown fields are reported and never refused, whatever `report_unknown` says. `refuses_hosted`:
        tools that OpenAI runs are refused, not left out."""
        decoders = BodyDecoders(refuses_hosted)
        self.endpoints = (
            declare_responses(decoders, strict_schemas),
            declare_input_tokens(decoders),
            declare_compact(),
            *declare_stored_responses(),
        )

    @classmethod
    def create(cls, options: DialectOptions) -> Self:
        return cls(options.report_unknown, options.strict_schemas, options.refuses_hosted)

    def encode_error(self, error: AntiphonError, request: Request | None = None) -> bytes:
        return encode_error(error)


def declare_responses(decoders: BodyDecoders, strict: bool) -> Endpoint:
    """Declares POST /v1/responses."""

    async def answer(request: Request, services: Services) -> Answer:
        wire, report = await decode_body(decoders.decode_responses, request, services)
        stored = await load_stored(wire, request, services)
        unseal = SealReader("input", request, services).open

        def build() -> tuple[LoadedInput, ResponsesCall]:
            loaded, stores = read_input(wire, stored), services.responses.is_on
            return loaded, build_call(wire, report, loaded, unseal, strict=strict, stores=stores)

        loaded, call = await services.offload(build) if stored.is_large else build()
        services.count_unused(NAME, call.ignored)
        context = services.build_context(request, add_attribution(ORIGIN, call.attribution))
        meta = services.create_meta(call.request.model)
        seal = partial(services.seal, actor=request.actor)
        builder = ResponseBuilder(meta, call, context.clock, seal, request.progress)
        generation = services.generate(call.request, context)
        if call.template.store:
            save = partial(save_response, builder, loaded, request, services, is_large=stored.is_large)
            generation = act_at_end(generation, save)
        build_headers = partial(build_report_headers, call, request, services)
        if call.stream:
            return EventStream(generation, ResponsesStreamEncoder(builder), build_headers)
        async with generation as groups:
            async for group in groups:
                for event in group:
                    for _ in builder.add(event):
                        pass  # the builder adds them up to the response; only a stream sends them
        return Response(encode_response(builder.response), headers=build_headers())

    return Endpoint(
        method="POST",
        path=PREFIX,
        handler=answer,
        right=Right.GENERATE,
        body=RequestBody(shape=wire_types.ResponsesRequest),
        summary="Answer items, as OpenAI's Responses API does",
        tag="completions",
        answers={JSON: wire_types.ResponseAnswer, EVENT_STREAM: wire_types.StreamEvent},
    )


def declare_input_tokens(decoders: BodyDecoders) -> Endpoint:
    """Declares POST /v1/responses/input_tokens."""
    return Endpoint(
        method="POST",
        path=f"{PREFIX}/input_tokens",
        handler=partial(count_input_tokens, decoders),
        right=Right.GENERATE,
        body=RequestBody(shape=wire_types.InputTokensRequest),
        summary="Count the tokens of items",
        tag="tokens",
        answers={JSON: wire_types.InputTokenCount},
    )


async def count_input_tokens(decoders: BodyDecoders, request: Request, services: Services) -> Answer:
    """Counts the tokens of items with the model's own template and tokenizer."""
    wire, report = await decode_body(decoders.decode_input_tokens, request, services)
    stored = await load_stored(wire, request, services)
    unseal = SealReader("input", request, services).open

    def build() -> Conversation:
        return build_conversation(wire, report, read_input(wire, stored), unseal)[0]

    conversation = await services.offload(build) if stored.is_large else build()
    ignored = report.names
    try:
        prompt = await services.tokenize(TokenizeCall(wire.model, conversation), request)
    except UnsupportedParameter as error:  # left out and named, as POST /v1/responses does
        if error.param not in OPTIONAL:
            raise
        ignored += (error.param,)
        conversation = replace(conversation, reasoning=Reasoning())
        prompt = await services.tokenize(TokenizeCall(wire.model, conversation), request)
    headers = ((b"x-antiphon-ignored", ", ".join(ignored).encode()),) if ignored else ()
    return Response(_encode(wire_types.InputTokenCount(len(prompt.ids))), headers=headers)


# --- stored responses ---------------------------------------------------------------------------------------


def declare_stored_responses() -> tuple[Endpoint, ...]:
    """Declares the endpoints of stored responses."""
    path = f"{PREFIX}/{{id}}"
    show = Endpoint(
        method="GET",
        path=path,
        handler=show_response,
        right=Right.GENERATE,
        summary="Show a stored response",
        tag="responses",
        answers={JSON: wire_types.ResponseAnswer},
        is_suggested=False,  # any word would be an id
    )
    return (
        show,
        replace(
            show,
            method="DELETE",
            handler=delete_response,
            summary="Remove a stored response",
            answers={JSON: wire_types.DeletedResponse},
        ),
        replace(
            show,
            path=f"{path}/input_items",
            handler=list_input_items,
            summary="List the items of a stored request",
            answers={JSON: wire_types.InputItemList},
            parameters=tuple(
                {"name": name, "in": "query", "required": False, "schema": schema}
                for name, schema in ITEM_PARAMETERS.items()
            ),
        ),
        replace(
            show,
            method="POST",
            path=f"{path}/cancel",
            handler=refuse_cancel,
            summary="Refuse to cancel a response: none runs in the background",
        ),
    )


async def show_response(request: Request, services: Services) -> Answer:
    """Shows one stored response."""
    if dict(request.query()).get("stream") == "true":
        raise UnsupportedParameter(
            "stream is not supported: only a response in the background can be streamed again", param="stream"
        )
    stored = await services.responses.load(request.path_params["id"], request.actor)
    return Response(b'%b,"output":%b}' % (stored.body[:-1], stored.output))


async def delete_response(request: Request, services: Services) -> Answer:
    """Removes one stored response."""
    id_ = request.path_params["id"]
    await services.responses.delete(id_, request.actor)
    return Response(_encode(wire_types.DeletedResponse(id=id_)))


async def refuse_cancel(request: Request, services: Services) -> Answer:
    """Refuses to cancel a stored response, which is complete."""
    await services.responses.load(request.path_params["id"], request.actor)
    raise InvalidValue("Cannot cancel a synchronous response.", param="id")


async def list_input_items(request: Request, services: Services) -> Answer:
    """Lists the items of a stored request, the newest first by default."""
    query = dict(request.query())
    limit, order = query.get("limit", "20"), query.get("order", "desc")
    is_short = len(limit) <= len(str(LARGEST_PAGE))  # Python reads no numbers of thousands of digits
    if not limit.isdecimal() or not is_short or not 1 <= int(limit) <= LARGEST_PAGE:
        raise InvalidValue(f"limit must be a number of 1 to {LARGEST_PAGE}", param="limit")
    if order not in ("asc", "desc"):
        raise InvalidValue("order must be asc or desc", param="order")
    stored = await services.responses.load(request.path_params["id"], request.actor)
    items: list[msgspec.Raw] = msgspec.json.decode(stored.input, type=list[msgspec.Raw])
    ids = list_item_ids(stored.input)
    if order == "desc":
        items.reverse()
        ids.reverse()
    start = 0
    if (after := query.get("after")) is not None:
        if after not in ids:
            raise InvalidValue(f"after: there is no item {sanitize_key(after)} here", param="after")
        start = ids.index(after) + 1
    end = start + int(limit)
    page = wire_types.InputItemList(
        data=items[start:end],
        first_id=ids[start] if items[start:end] else None,
        last_id=ids[start:end][-1] if items[start:end] else None,
        has_more=end < len(items),
    )
    return Response(_encode(page))


def declare_compact() -> Endpoint:
    """Declares POST /v1/responses/compact, which is not served. Clients expect a 404, and the path is one of
    a stored response, which does not take POST."""

    async def refuse(_request: Request, _services: Services) -> Answer:
        raise RouteNotFound("this server compacts no conversations; let the client do it")

    return Endpoint(
        method="POST",
        path=f"{PREFIX}/compact",
        handler=refuse,
        right=Right.GENERATE,
        is_suggested=False,
    )
