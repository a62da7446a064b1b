"""The dialect of OpenAI's Responses API: its endpoints, and its part of the OpenAPI document."""

from collections.abc import Mapping
from functools import cache, partial

import msgspec

from antiphon.dialects.base import (
    EVENT_STREAM,
    JSON,
    Answer,
    Description,
    DialectDefaults,
    Endpoint,
    EventStream,
    Request,
    RequestBody,
    Response,
    Services,
    TokenizeCall,
)
from antiphon.dialects.common.encode import encode_error
from antiphon.dialects.common.endpoints import add_attribution, build_report_headers, decode_body
from antiphon.dialects.common.openapi_schemas import (
    build_schemas,
    list_body_shapes,
    list_field_names,
    list_shapes,
)
from antiphon.dialects.common.response_types import ErrorEnvelope
from antiphon.dialects.responses import wire_types
from antiphon.dialects.responses.decode import OPTIONAL, decode_input_tokens, decode_responses
from antiphon.dialects.responses.encode import ResponseBuilder, ResponsesStreamEncoder, encode_response
from antiphon.dialects.responses.fields import FIELD_TABLE, PREFIX, TABLES
from antiphon.domain.context import Origin
from antiphon.domain.identity import Right
from antiphon.domain.request import Reasoning
from antiphon.domain.values import replace
from antiphon.errors import AntiphonError, UnsupportedParameter

NAME = "responses"

SCHEMA_PREFIX = "Responses"

TALK = {"model": "cantor", "input": "Hello!"}

EXAMPLES: Mapping[str, object] = {"ResponsesRequest": TALK, "InputTokensRequest": TALK}

ORIGIN = Origin(NAME, PREFIX)

_encode = msgspec.json.Encoder().encode


class Responses(DialectDefaults):
    """The dialect of the Responses API."""

    name = NAME
    prefix = PREFIX
    field_table = FIELD_TABLE
    page = None

    def __init__(self, report_unknown: bool = True, strict_schemas: bool = False) -> None:
        """Unknown fields are reported and never refused, whatever `report_unknown` says."""
        self.endpoints = (declare_responses(strict_schemas), declare_input_tokens())

    def encode_error(self, error: AntiphonError, request: Request | None = None) -> bytes:
        return encode_error(error)

    def describe(self) -> Description:
        return describe_endpoints(self.endpoints)

    def list_fields(self) -> frozenset[str]:
        return list_all_fields(self.endpoints)


def declare_responses(strict: bool) -> Endpoint:
    """Declares POST /v1/responses."""

    async def answer(request: Request, services: Services) -> Answer:
        call = await decode_body(lambda body: decode_responses(body, strict), request, services)
        context = services.build_context(request, add_attribution(ORIGIN, call.attribution))
        builder = ResponseBuilder(services.create_meta(call.request.model), call, context.clock)
        build_headers = partial(build_report_headers, call, request, services)
        generation = services.generate(call.request, context)
        if call.stream:
            return EventStream(generation, ResponsesStreamEncoder(builder), build_headers)
        async with generation as groups:
            async for group in groups:
                for event in group:
                    for _ in builder.add(event):
                        """The response is built from the events, which only a stream sends."""
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


def declare_input_tokens() -> Endpoint:
    """Declares POST /v1/responses/input_tokens."""
    return Endpoint(
        method="POST",
        path=f"{PREFIX}/input_tokens",
        handler=count_input_tokens,
        right=Right.GENERATE,
        body=RequestBody(shape=wire_types.InputTokensRequest),
        summary="Count the tokens of items",
        tag="tokens",
        answers={JSON: wire_types.InputTokenCount},
    )


async def count_input_tokens(request: Request, services: Services) -> Answer:
    """Counts the tokens of items with the model's own template and tokenizer."""
    model, conversation, ignored = await decode_body(decode_input_tokens, request, services)
    try:
        prompt = await services.tokenize(TokenizeCall(model, conversation), request)
    except UnsupportedParameter as error:  # left out and named, as POST /v1/responses does
        if error.param not in OPTIONAL:
            raise
        ignored += (error.param,)
        conversation = replace(conversation, reasoning=Reasoning())
        prompt = await services.tokenize(TokenizeCall(model, conversation), request)
    headers = ((b"x-antiphon-ignored", ", ".join(ignored).encode()),) if ignored else ()
    return Response(_encode(wire_types.InputTokenCount(len(prompt.ids))), headers=headers)


@cache
def list_all_fields(endpoints: tuple[Endpoint, ...]) -> frozenset[str]:
    """Returns the names of the fields of requests."""
    return list_field_names(list_body_shapes(endpoints), TABLES.values())


def describe_endpoints(endpoints: tuple[Endpoint, ...]) -> Description:
    """Returns the dialect's part of the OpenAPI document, with its schemas."""
    shapes = (*list_shapes(endpoints), ErrorEnvelope)
    schemas = build_schemas(shapes, FIELD_TABLE.schemas, EXAMPLES, SCHEMA_PREFIX)
    return Description(schemas, SCHEMA_PREFIX, SCHEMA_PREFIX + ErrorEnvelope.__name__)
