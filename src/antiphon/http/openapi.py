"""The OpenAPI document: every dialect's paths and schemas with its errors, and the edge's own paths."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon import __version__
from antiphon.dialects.base import Description, Dialect
from antiphon.errors import StartupError, classes_by_code
from antiphon.http.health import HEALTH_SCHEMA

ERRORS: Mapping[str, str] = {
    "400": "A field, the body or the prompt's length is at fault; `param` names the field",
    "401": "No valid key",
    "403": "Refused by origin, host or a setting",
    "404": "No such model or path",
    "408": "The request did not arrive in time",
    "413": "The body is too large",
    "415": "The body is not JSON",
    "429": "Too much is waiting; see Retry-After",
    "500": "A defect; quote the request id",
    "503": "The engine is not there; see Retry-After",
    "504": "The answer took too long",
}
"""What an error status means."""

HEALTH = "Health"

METRICS: Mapping[str, Any] = {
    "get": {
        "summary": "Numbers of this server and its engines, for Prometheus",
        "tags": ["metrics"],
        "responses": {
            "200": {
                "description": "The text format, version 0.0.4; docs/metrics.md lists every name",
                "content": {"text/plain": {"schema": {"type": "string"}}},
            }
        },
    }
}


def document(dialects: Sequence[Dialect], keyed: bool) -> bytes:
    """The document of a server that does or does not ask for a key; its own dialect comes first."""
    described = [(dialect, dialect.describe()) for dialect in dialects]
    paths = {
        path: _completed(item, dialect, description)
        for dialect, description in described
        for path, item in description.paths.items()
    }
    schemas = {name: schema for _, description in described for name, schema in description.schemas.items()}
    own = {
        "/metrics": _completed(METRICS, *described[0]),
        "/health": _health("Whether the process lives"),
        "/health/ready": _health("Whether every engine is ready", 503),
    }
    licence = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
    whole: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Antiphon", "version": __version__, "license": licence},
        "paths": paths | own,
        "components": {"schemas": schemas | {HEALTH: HEALTH_SCHEMA}},
    }
    if keyed:
        whole["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        whole["security"] = [{"key": []}]
    return json.dumps(whole).encode()


def _completed(item: Mapping[str, Any], dialect: Dialect, described: Description) -> dict[str, Any]:
    """The same path with its error responses."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{described.error_schema}"}}}
    answered = {
        str(dialect.status(error("")))
        for error in classes_by_code().values()
        if not issubclass(error, StartupError)
    }
    errors = {
        status: {"description": says, "content": content}
        for status, says in ERRORS.items()
        if status in answered
    }
    return {
        method: {**operation, "responses": operation["responses"] | errors}
        for method, operation in item.items()
    }


def _health(summary: str, *more: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{HEALTH}"}}}
    statuses = sorted({200, *more})
    responses = {str(status): {"description": summary, "content": content} for status in statuses}
    return {"get": {"summary": summary, "tags": ["health"], "security": [], "responses": responses}}
