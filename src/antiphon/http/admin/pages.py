"""What every handler of the admin API does: reads the query, cuts lists into pages, answers in JSON."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import msgspec

from antiphon.dialects.base import JSON, Answer, Endpoint, Request, RequestBody, Response, Services
from antiphon.dialects.common.strict_json import sanitize_key
from antiphon.domain.identity import Right
from antiphon.errors import InvalidValue, UnknownParameter
from antiphon.http.admin.shapes import Page

AdminHandler = Callable[[Request], Awaitable[Answer]]

ROOT = "/admin/v1"
MADE = 201
GONE = 204
TEXT: Mapping[str, Any] = {"type": "string"}
MOST = 1_000
USUAL = 100
"""Things of one page."""

MADE_ID = re.compile("([a-z]+_[0-9a-z]{9})[0-9a-z]{10}")
"""An id as the server makes it; its first part begins with what it is of, and orders by when it was made."""


NO_STORE = ((b"cache-control", b"no-store"),)


class Details(TypedDict, total=False):
    """What an endpoint has besides its place, handler and summary."""

    body: type
    gives: type
    status: int
    query: Sequence[Mapping[str, Any]]
    right: Right
    description: str
    files: Mapping[str, object]
    """Other forms of the answer, by media type."""


def endpoint(
    method: str, path: str, handler: AdminHandler, summary: str, **more: Unpack[Details]
) -> Endpoint:
    """An endpoint below the root. `body` and `gives` are wire types."""

    async def handle(request: Request, _services: Services) -> Answer:
        return await handler(request)

    return Endpoint(
        method=method,
        path=ROOT + path,
        handler=handle,
        right=more.get("right", Right.MANAGE),
        body=RequestBody(shape=more["body"]) if "body" in more else None,
        summary=summary,
        tag="admin",
        description=more.get("description", ""),
        answers={JSON: more["gives"], **more.get("files", {})} if "gives" in more else {},
        statuses=(more.get("status", 200),),
        parameters=tuple(more.get("query", ())),
        ends_with_caller=False,
    )


def parameter(name: str, schema: Mapping[str, Any] = TEXT, **more: object) -> dict[str, Any]:
    """A parameter of the query."""
    return {"name": name, "in": "query", "schema": schema, **more}


def page_size(usual: int, most: int) -> dict[str, Any]:
    """The parameter that says how many things a page holds."""
    return parameter("limit", {"type": "integer", "minimum": 1, "maximum": most, "default": usual})


PAGE_SIZE = page_size(USUAL, MOST)


def paging(*more: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The query of a list that comes in pages; `more` are its other parameters."""
    return [PAGE_SIZE, parameter("after"), *more]


def page(
    request: Request,
    cards: Sequence[tuple[str, msgspec.Struct]],
    shape: type[Page],
    *filters: str,
    removable: str | None = None,
) -> Response:
    """Those after the id that the query names. `filters`: what else it may say, by which the cards were
    chosen. `removable`: of what the ids are in whose order the cards come, where some may be gone."""
    query = query_of(request, "limit", "after", *filters)
    limit, after = limit_of(query), query.get("after")
    at = 0 if after is None else _following([id_ for id_, _ in cards], after, removable)
    return listed(cards[at : at + limit], len(cards) > at + limit, shape)


def _following(ids: Sequence[str], after: str, removable: str | None) -> int:
    """The place in a list that follows an id. After one that was removed go those that were made in the same
    millisecond or later: rather one twice than one never. Raises InvalidValue."""
    if after in ids:
        return ids.index(after) + 1
    made = MADE_ID.fullmatch(after)
    if removable is None or made is None or not after.startswith(f"{removable}_"):
        raise InvalidValue("after must be an id of the list", param="after")
    return next((at for at, id_ in enumerate(ids) if id_ >= made[1]), len(ids))


def listed(cards: Sequence[tuple[str, msgspec.Struct]], more: bool, shape: type[Page]) -> Response:
    """One page of a list, each of whose cards has an id; `more`: whether another follows."""
    last = cards[-1][0] if more and cards else None
    return answer(msgspec.convert({"data": [card for _, card in cards], "next": last}, shape))


def query_of(request: Request, *known: str, also: Callable[[str], bool] = lambda _: False) -> dict[str, str]:
    """The query by name; `also` tells what other names are known. Raises UnknownParameter and InvalidValue
    for what would be dropped."""
    said: dict[str, str] = {}
    for name, value in request.query():
        if name not in known and not also(name):
            raise UnknownParameter(
                f"unknown query field {sanitize_key(name)}; known: {', '.join(known)}",
                param=sanitize_key(name),
            )
        if name in said:
            raise InvalidValue(f"{sanitize_key(name)} is said twice", param=sanitize_key(name))
        said[name] = value
    return said


def limit_of(query: Mapping[str, str], usual: int = USUAL, most: int = MOST) -> int:
    """How many things one page holds. Raises InvalidValue."""
    said = query.get("limit", str(usual))
    if not (said.isascii() and said.isdigit() and len(said) < 6 and 1 <= int(said) <= most):
        raise InvalidValue(f"limit must be an integer of 1 to {most}", param="limit")
    return int(said)


def answer(shape: msgspec.Struct, status: int = 200) -> Response:
    """In JSON."""
    # A new key must not lie in anybody's cache.
    return Response(msgspec.json.encode(shape), status, headers=NO_STORE)
