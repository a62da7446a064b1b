"""Shared code of the admin API's resources: endpoints, queries, pages of lists, bodies and JSON answers."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict, TypeVar, Unpack

import msgspec
from msgspec import Meta, Struct

from antiphon.bodies.strict_json import EXPECTED, sanitize_key
from antiphon.dialects.base import Endpoint, RequestBody
from antiphon.dialects.http_types import JSON, Answer, Request, Response
from antiphon.dialects.services import Services
from antiphon.domain.identity import Right
from antiphon.domain.tenancy import (
    EMAIL_PATTERN,
    NAME_PATTERN,
    NOTE_PATTERN,
    PLAIN_PATTERN,
)
from antiphon.errors import InvalidValue, UnknownParameter

Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=200,
        pattern=NAME_PATTERN,
        extra={EXPECTED: "a text without control characters, not of blanks alone"},
    ),
]

Note = Annotated[str, Meta(max_length=2_000, pattern=NOTE_PATTERN, extra={EXPECTED: "a text without NUL"})]

Email = Annotated[
    str, Meta(min_length=3, max_length=320, pattern=EMAIL_PATTERN, extra={EXPECTED: "an email address"})
]

Id = Annotated[str, Meta(min_length=1, max_length=64)]

Pattern = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=300,
        pattern=PLAIN_PATTERN,
        extra={EXPECTED: "a text without control characters"},
    ),
]

Moment = Annotated[int, Meta(ge=0, le=2**53)]

Shape = TypeVar("Shape", bound=Struct)


ROOT = "/admin/v1"

CREATED = 201

NO_CONTENT = 204

TEXT_SCHEMA: Mapping[str, Any] = {"type": "string"}

MAX_SECOND = 10**14
"""The last Unix second that a query can name. In milliseconds it fits every integer type."""

SECOND_SCHEMA: Mapping[str, Any] = {"type": "integer", "minimum": 0, "maximum": MAX_SECOND}

MAX_PAGE = 1_000

DEFAULT_PAGE = 100
"""The default number of items on a page."""

GENERATED_ID = re.compile("([a-z]+_[0-9a-z]{9})[0-9a-z]{10}")
"""An id that the server generates. Its group 1 begins with the kind of object and contains the millisecond of
creation, so ids of one kind sort by time."""

NO_STORE = ((b"cache-control", b"no-store"),)

AdminHandler = Callable[[Request], Awaitable[Answer]]


class ListPage(Struct, frozen=True, kw_only=True):
    """One page of a list, in order. `next` is the value of `after` (of the audit: `before`) for the next
    page, or null on the last page."""

    object: Literal["list"] = "list"
    next: str | None


class EndpointOptions(TypedDict, total=False):
    """Optional properties of an endpoint."""

    body: type
    gives: type
    status: int
    query: Sequence[Mapping[str, Any]]
    right: Right
    description: str
    files: Mapping[str, object]
    """Further forms of the answer, by media type."""


def declare_endpoint(
    method: str, path: str, handler: AdminHandler, summary: str, **options: Unpack[EndpointOptions]
) -> Endpoint:
    """Declares an endpoint below the root. `body` and `gives` are wire types. Without `query`, a request with
    a query field is refused."""

    async def handle(request: Request, _services: Services) -> Answer:
        if "query" not in options:
            require_no_query(request)
        return await handler(request)

    return Endpoint(
        method=method,
        path=ROOT + path,
        handler=handle,
        right=options.get("right", Right.MANAGE),
        body=RequestBody(shape=options["body"]) if "body" in options else None,
        summary=summary,
        tag="admin",
        description=options.get("description", ""),
        answers={JSON: options["gives"], **options.get("files", {})} if "gives" in options else {},
        statuses=(options.get("status", 200),),
        parameters=tuple(options.get("query", ())),
        ends_with_caller=False,
    )


def declare_parameter(
    name: str, schema: Mapping[str, Any] = TEXT_SCHEMA, **properties: object
) -> dict[str, Any]:
    """Declares a parameter of the query."""
    return {"name": name, "in": "query", "schema": schema, **properties}


def declare_page_size(default: int, maximum: int, **properties: object) -> dict[str, Any]:
    """Declares the parameter of the page size."""
    schema = {"type": "integer", "minimum": 1, "maximum": maximum, "default": default}
    return declare_parameter("limit", schema, **properties)


PAGE_SIZE = declare_page_size(DEFAULT_PAGE, MAX_PAGE)


def declare_paging(*parameters: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Declares the query of a list with pages. `parameters`: its other parameters."""
    return [PAGE_SIZE, declare_parameter("after"), *parameters]


def answer_page(
    request: Request,
    cards: Sequence[tuple[str, msgspec.Struct]],
    shape: type[ListPage],
    *filters: str,
    removable: str | None = None,
) -> Response:
    """Answers with the page after the id in the query.

    `filters`: names of further query fields, which have already chosen the cards;
    `removable`: the kind of object in the ids, if objects can be removed from the list.
    """
    query = read_query(request, "limit", "after", *filters)
    limit, after = read_page_size(query), query.get("after")
    start = 0 if after is None else _find_page_start([id_ for id_, _ in cards], after, removable)
    return answer_list(cards[start : start + limit], len(cards) > start + limit, shape)


def _find_page_start(ids: Sequence[str], after: str, removable: str | None) -> int:
    """Returns the index of the first item after an id. An object of the kind `removable` may have been
    removed since the previous page. The page then starts at the millisecond in the object's id, and can
    repeat items of the previous page. Raises InvalidValue for any other id that is not in the list."""
    if after in ids:
        return ids.index(after) + 1
    generated = GENERATED_ID.fullmatch(after)
    if removable is None or generated is None or not after.startswith(f"{removable}_"):
        raise InvalidValue("after must be an id of the list", param="after")
    return next((index for index, id_ in enumerate(ids) if id_ >= generated[1]), len(ids))


def answer_list(
    cards: Sequence[tuple[str, msgspec.Struct]], has_more: bool, shape: type[ListPage]
) -> Response:
    """Answers with one page of a list of ids and cards. `has_more`: whether another page follows."""
    next_after = cards[-1][0] if has_more and cards else None
    return answer_json(msgspec.convert({"data": [card for _, card in cards], "next": next_after}, shape))


def read_query(
    request: Request, *allowed: str, accepts: Callable[[str], bool] = lambda _: False
) -> dict[str, str]:
    """Returns the query's values by name. `accepts` returns whether a further name is allowed. Raises
    UnknownParameter for any other name, and InvalidValue for a name that occurs twice."""
    values: dict[str, str] = {}
    for name, value in request.query():
        if name not in allowed and not accepts(name):
            known = f"known: {', '.join(allowed)}" if allowed else "this path takes none"
            raise UnknownParameter(
                f"unknown query field {sanitize_key(name)}; {known}",
                param=sanitize_key(name),
            )
        if name in values:
            raise InvalidValue(f"{sanitize_key(name)} occurs twice in the query", param=sanitize_key(name))
        values[name] = value
    return values


def read_second(query: Mapping[str, str], name: str, default: int) -> int:
    """Returns a Unix second of the query, or `default` if the query lacks it. Raises InvalidValue."""
    text = query.get(name, str(default))
    if not (
        text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SECOND)) and int(text) <= MAX_SECOND
    ):
        raise InvalidValue(f"{name} must be a time in Unix seconds, at most {MAX_SECOND}", param=name)
    return int(text)


def require_no_query(request: Request) -> None:
    """Raises UnknownParameter if the request has a query field."""
    read_query(request)


def read_page_size(query: Mapping[str, str], default: int = DEFAULT_PAGE, maximum: int = MAX_PAGE) -> int:
    """Returns the page size. Raises InvalidValue."""
    text = query.get("limit", str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= maximum):
        raise InvalidValue(f"limit must be an integer of 1 to {maximum}", param="limit")
    return int(text)


def answer_json(shape: msgspec.Struct, status: int = 200) -> Response:
    # No cache must store a new key.
    return Response(msgspec.json.encode(shape), status, headers=NO_STORE)
