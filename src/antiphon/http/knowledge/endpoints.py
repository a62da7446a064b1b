"""Shared code of the endpoints of knowledge tables."""

from collections.abc import Mapping, Sequence
from typing import Any, Required, TypedDict, Unpack

from msgspec import Struct

from antiphon.dialects.base import JSON, Endpoint, Handler, Request, RequestBody, Services
from antiphon.domain.context import Context, Origin
from antiphon.domain.identity import Right
from antiphon.errors import InvalidValue
from antiphon.http.admin.resource import declare_parameter, read_query

ROOT = "/v1/knowledge"
TABLES = f"{ROOT}/tables"
TABLE = f"{TABLES}/{{table}}"

MAX_LIMIT = 1000
"""The most items of one response."""

DEFAULT_LIMIT = 100

MAX_OFFSET = 10**9

PAGING: Sequence[Mapping[str, Any]] = (
    declare_parameter(
        "limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
    ),
    declare_parameter("offset", {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET, "default": 0}),
)


class Removed(Struct, frozen=True, kw_only=True):
    """The response to a removal."""

    id: str
    deleted: bool = True


class KnowledgeOptions(TypedDict, total=False):
    """Optional properties of an endpoint."""

    body: type
    form: RequestBody
    gives: Required[type]
    statuses: tuple[int, ...]
    query: Sequence[Mapping[str, Any]]
    ends_with_caller: bool


def declare_endpoint(
    method: str, path: str, handler: Handler, summary: str, right: Right, **options: Unpack[KnowledgeOptions]
) -> Endpoint:
    """Declares an endpoint. `body` and `gives` are wire types."""
    return Endpoint(
        method=method,
        path=path,
        handler=handler,
        right=right,
        body=options.get("form") or (RequestBody(shape=options["body"]) if "body" in options else None),
        summary=summary,
        tag="knowledge",
        answers={JSON: options["gives"]},
        statuses=options.get("statuses", (200,)),
        parameters=tuple(options.get("query", ())),
        ends_with_caller=right is not Right.WRITE or options.get("ends_with_caller", False),
    )


def build_context(request: Request, services: Services, path: str) -> Context:
    """Builds the context of a call. `path`: the endpoint's declared path, which the ledger stores."""
    return services.build_context(request, Origin("antiphon", path))


def read_page(request: Request, *allowed: str) -> tuple[int, int, dict[str, str]]:
    """Returns the offset, the limit and the whole query. Raises UnknownParameter and InvalidValue."""
    query = read_query(request, "limit", "offset", *allowed)
    limit = _read_number(query, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
    return _read_number(query, "offset", 0, 0, MAX_OFFSET), limit, query


def _read_number(query: Mapping[str, str], name: str, default: int, minimum: int, maximum: int) -> int:
    """Returns a number of the query. Raises InvalidValue."""
    text = query.get(name, str(default))
    if not (
        text.isascii()
        and text.isdigit()
        and len(text) <= len(str(maximum))
        and minimum <= int(text) <= maximum
    ):
        raise InvalidValue(f"{name} must be an integer of {minimum} to {maximum}", param=name)
    return int(text)


def to_seconds(milliseconds: int) -> int:
    """Converts Unix milliseconds, the unit of the index, to Unix seconds."""
    return milliseconds // 1000
