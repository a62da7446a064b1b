"""The OpenAPI document.

The document lists every endpoint and the schemas of its dialect. It also describes what the application adds
to every endpoint: errors in the dialect's format, headers, and the framing of streams. The document uses
version 3.2, the first version that describes one event of a stream.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from antiphon import __version__
from antiphon.dialects.base import Dialect, Endpoint
from antiphon.dialects.common.openapi_schemas import BRACES, build_operation, build_schemas, list_shapes
from antiphon.dialects.http_types import EVENT_STREAM, Request, Response
from antiphon.dialects.services import Services
from antiphon.domain.identity import Right
from antiphon.errors import (
    AntiphonError,
    AuthenticationFailed,
    BodyTooLarge,
    BudgetExceeded,
    Conflict,
    DeadlineExceeded,
    EngineUnavailable,
    HeadersTooLarge,
    InternalError,
    InvalidValue,
    ModelNotFound,
    NotFound,
    Overloaded,
    PermissionDenied,
    RequestError,
    RequestTimedOut,
    ServerBusy,
    StoreUnavailable,
    UnsupportedMediaType,
)
from antiphon.http.errors import CLIENT_RETRY_STATUSES, SERVER_ERROR, TOO_MANY, UNAUTHORIZED, UNAVAILABLE
from antiphon.http.knowledge import list_knowledge_endpoints
from antiphon.http.limit_headers import RATE_LIMIT_HEADERS
from antiphon.http.server_status import HEALTH, HEALTH_SCHEMA
from antiphon.http.state import AppState

OPENAPI_VERSION = "3.2.0"

STATUS_DESCRIPTIONS: Mapping[int, str] = {
    400: "A field, the body, a header or the prompt's length is at fault; the sentence names it",
    401: "No valid key",
    402: "A budget is spent; the sentence says which one and when it resets",
    403: "Refused by origin, host or a setting",
    404: "No such model, adapter or path",
    408: "The request did not arrive, or its answer was not ready, in time",
    409: "The name is already taken, or the object is in use",
    413: "The body is too large",
    415: "The body is not JSON",
    422: "A field or the body is at fault; the sentence names it",
    429: "Too many requests are waiting, or a limit or budget is exhausted; see Retry-After",
    431: "The headers are too large",
    500: "A defect; quote the request id",
    503: "The engine, or memory for the body, is not available; see Retry-After",
    504: "The answer was not ready in time",
}
"""The description of each error status."""

COMMON_ERRORS = (RequestError, PermissionDenied, RequestTimedOut, HeadersTooLarge, InternalError)
BODY_ERRORS = (BodyTooLarge, UnsupportedMediaType, ServerBusy)
MODEL_ERRORS = (ModelNotFound, EngineUnavailable, DeadlineExceeded)
STORE_ERRORS = (NotFound, StoreUnavailable)
QUEUED_TAGS = {"completions", "embeddings", "rerank", "tokens", "knowledge"}
"""Tags of operations that can wait for an engine, or for the rendering of a custom template."""
BUDGET_SPENT = 402
"""The status that some dialects use for a spent budget."""
METERED_TAGS = {"completions", "embeddings", "rerank", "knowledge"}
"""Tags of operations that limits and budgets count."""
CHANGING_TAGS = {"adapters", "loras", "admin", "pats", "knowledge"}
"""Tags of operations that can conflict with the current state."""
STORED_TAGS = {"admin", "pats"}
"""Tags of operations that need the database."""

ADMIN_PREFIX = "Admin"
"""The prefix of the schema names of the admin API."""

KNOWLEDGE_PREFIX = "Knowledge"
"""The prefix of the schema names of knowledge tables."""

TEXT_SCHEMA = {"type": "string"}
RESPONSE_HEADERS: Mapping[str, Mapping[str, Any]] = {
    "x-request-id": {
        "description": "The id of the request in the server's logs: the caller's, or one of the server",
        "required": True,
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"},
    },
    "x-antiphon-ignored": {
        "description": "Fields of the request that are accepted but have no effect, separated by commas",
        "schema": TEXT_SCHEMA,
    },
    "x-antiphon-relaxed": {
        "description": "Keywords of tools' schemas that the output may not follow, each with its place",
        "schema": TEXT_SCHEMA,
    },
    "retry-after": {
        "description": "Seconds after which to try again",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
    "x-should-retry": {
        "description": "Whether the client can safely send the same request again",
        "required": True,
        "schema": {"enum": ["true", "false"]},
    },
    "www-authenticate": {
        "description": "The scheme in which to send the key",
        "required": True,
        "schema": TEXT_SCHEMA,
    },
    **{
        name: {
            "description": "About the tightest limit per minute that applies to the request, if there is one",
            "schema": TEXT_SCHEMA if "reset" in name else {"type": "integer", "minimum": 0},
        }
        for name in RATE_LIMIT_HEADERS
    },
}
"""Headers of responses, besides those of the body."""

REQUEST_ID_PARAMETER: Mapping[str, Any] = {
    "name": "x-request-id",
    "in": "header",
    "description": "The id of the request: 1 to 128 of A-Z a-z 0-9 . _ : -. The server replaces any other",
    "schema": TEXT_SCHEMA,
}

KEY_SCHEMES: Mapping[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
"""The two headers that can carry a key. A request needs one of them."""


def build_document(
    dialects: Sequence[Dialect],
    server_endpoints: Sequence[Endpoint],
    admin_endpoints: Sequence[Endpoint],
    needs_key: bool,
    knowledge_endpoints: Sequence[Endpoint] = (),
) -> bytes:
    """Builds the OpenAPI document. The first dialect is the one without a prefix.

    `server_endpoints`: the endpoints that belong to no dialect. `admin_endpoints`: the endpoints of the admin
    API. `needs_key`: whether requests need a key. `knowledge_endpoints`: the endpoints of knowledge tables.
    """
    descriptions = [(dialect, dialect.describe()) for dialect in dialects]
    default_dialect, default_description = descriptions[0]
    groups = [
        (dialect.endpoints, dialect, description, description.prefix) for dialect, description in descriptions
    ]
    groups += [
        (tuple(server_endpoints), default_dialect, default_description, ""),
        (tuple(admin_endpoints), default_dialect, default_description, ADMIN_PREFIX),
        (tuple(knowledge_endpoints), default_dialect, default_description, KNOWLEDGE_PREFIX),
    ]
    paths: dict[str, dict[str, Any]] = {}
    for endpoints, dialect, description, prefix in groups:
        error_schema = {"$ref": f"#/components/schemas/{description.error_schema}"}
        for endpoint in [endpoint for endpoint in endpoints if endpoint.summary]:
            operation = _build_operation(build_operation(endpoint, prefix), dialect, error_schema, needs_key)
            for path in endpoint.paths:
                paths.setdefault(BRACES.sub(r"{\1}", path), {})[endpoint.method.lower()] = operation
    schemas = {
        name: schema for _, description in descriptions for name, schema in description.schemas.items()
    }
    schemas |= build_schemas(list_shapes(admin_endpoints), {}, {}, ADMIN_PREFIX) if admin_endpoints else {}
    schemas |= (
        build_schemas(list_shapes(knowledge_endpoints), {}, {}, KNOWLEDGE_PREFIX)
        if knowledge_endpoints
        else {}
    )
    document: dict[str, Any] = {
        "openapi": OPENAPI_VERSION,
        "info": {
            "title": "Antiphon",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas | {HEALTH: HEALTH_SCHEMA},
            "headers": RESPONSE_HEADERS,
            "parameters": {"RequestId": REQUEST_ID_PARAMETER},
        },
    }
    if needs_key:
        document["components"]["securitySchemes"] = KEY_SCHEMES
        document["security"] = [{name: []} for name in KEY_SCHEMES]
    return json.dumps(document).encode()


def _build_operation(
    operation: Mapping[str, Any], dialect: Dialect, error_schema: Mapping[str, str], needs_key: bool
) -> dict[str, Any]:
    """Adds the errors and headers to an operation of the OpenAPI document. `error_schema`: the schema of
    error bodies."""
    requires_key = needs_key and "security" not in operation
    added_headers = ["x-antiphon-ignored", "x-antiphon-relaxed"] if "requestBody" in operation else []
    if requires_key and METERED_TAGS & set(operation.get("tags", ())):
        added_headers += RATE_LIMIT_HEADERS
    responses = {
        status: _build_response(int(status), response, error_schema, added_headers)
        for status, response in operation["responses"].items()
    }
    for status in sorted({dialect.get_status(error) for error in _list_failures(operation, requires_key)}):
        response = {
            "description": STATUS_DESCRIPTIONS[status],
            "content": {"application/json": {"schema": error_schema}},
        }
        responses.setdefault(str(status), _build_response(status, response, error_schema))
    parameters = [*operation.get("parameters", ()), {"$ref": "#/components/parameters/RequestId"}]
    return {**operation, "parameters": parameters, "responses": responses}


def _list_failures(operation: Mapping[str, Any], needs_key: bool) -> Iterator[AntiphonError]:
    """Yields an example of each error that an operation can end with. One example names a field, because some
    dialects use another status for such errors."""
    tags, has_body = set(operation.get("tags", ())), "requestBody" in operation
    kinds: list[type[AntiphonError]] = [*COMMON_ERRORS]
    if needs_key:
        kinds.append(AuthenticationFailed)
    if has_body:
        kinds += BODY_ERRORS
    if has_body or "parameters" in operation:
        kinds += STORE_ERRORS if tags & STORED_TAGS else MODEL_ERRORS
        yield InvalidValue("", param="field")
    if tags & QUEUED_TAGS or (needs_key and has_body):
        kinds.append(Overloaded)
    if needs_key and tags & METERED_TAGS:
        kinds.append(BudgetExceeded)
    if tags & CHANGING_TAGS:
        kinds.append(Conflict)
    yield from (kind("") for kind in kinds)


def _build_response(
    status: int,
    response: Mapping[str, Any],
    error_schema: Mapping[str, str],
    extra_headers: Sequence[str] = (),
) -> dict[str, Any]:
    """Builds a response with the headers of its status and `extra_headers`. The schema of a stream describes
    one event with its framing."""
    content = {
        media: _build_event_schema(shape["schema"], error_schema) if media == EVENT_STREAM else shape
        for media, shape in response["content"].items()
    }
    names = ["x-request-id"]
    if status in (TOO_MANY, UNAVAILABLE):
        names.append("retry-after")
    if status in CLIENT_RETRY_STATUSES or status >= SERVER_ERROR or status == BUDGET_SPENT:
        names.append("x-should-retry")
    if status == UNAUTHORIZED:
        names.append("www-authenticate")
    headers = {name: {"$ref": f"#/components/headers/{name}"} for name in (*names, *extra_headers)}
    return {**response, "headers": headers, "content": content}


def _build_event_schema(chunk_schema: Mapping[str, Any], error_schema: Mapping[str, str]) -> dict[str, Any]:
    """Builds the schema of a stream's events. The stream ends with `[DONE]` or with an error. Comments
    between the events keep the connection open."""
    schema = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [chunk_schema, error_schema]},
    }
    data = {"anyOf": [schema, {"const": "[DONE]"}]}
    return {"itemSchema": {"type": "object", "properties": {"data": data}, "required": ["data"]}}


def declare_document(app_state: AppState, server_endpoints: Sequence[Endpoint]) -> Endpoint:
    """Declares the endpoint of the OpenAPI document. `server_endpoints`: the endpoints that belong to no
    dialect."""

    @cache
    def build() -> bytes:
        return build_document(
            app_state.dialects,
            server_endpoints,
            app_state.admin_endpoints,
            needs_key=bool(app_state.verifiers),
            knowledge_endpoints=list_knowledge_endpoints(app_state),
        )

    async def show(_request: Request, _services: Services) -> Response:
        # It takes a tenth of a second: in a thread and once, so that no other request waits for it.
        return Response(await asyncio.to_thread(build))

    return Endpoint(method="GET", path="/openapi.json", handler=show, right=Right.READ)
