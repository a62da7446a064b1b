"""Pages of JamAI Base's lists, and the queries that choose them.

Every query parameter has an effect or is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from antiphon.bodies.strict_json import sanitize_key
from antiphon.dialects.base import Request
from antiphon.dialects.jamai.errors import QUERY
from antiphon.errors import InvalidValue, MissingParameter, UnknownParameter

DEFAULT_LIMIT, LARGEST_LIMIT = 100, 1000
"""The default and the largest number of items of one page."""


LARGEST_OFFSET = 2**31 - 1


TRUE, FALSE = ("true", "1"), ("false", "0")


ORDER_PARAMETERS = ("order_by", "order_ascending")


PAGING = ("offset", "limit", *ORDER_PARAMETERS)


Item = TypeVar("Item", bound=Struct)


class JamaiPage(Struct, frozen=True, kw_only=True):
    """A part of a list."""

    items: list[Any]
    offset: int
    """The number of items before the first one."""
    limit: int
    """The most items of the page."""
    total: int
    """The number of items of the whole list."""
    end_cursor: None = None


Page = TypeVar("Page", bound=JamaiPage)


class ListQuery:
    """The query parameters of one request. An empty parameter counts as absent."""

    def __init__(self, request: Request, *known_names: str, repeated: tuple[str, ...] = ()) -> None:
        """Raises a RequestError for an unknown parameter, and for one that is sent twice unless it is in
        `repeated`."""
        self._values: dict[str, list[str]] = {}
        for name, value in request.query():
            shown_name = sanitize_key(name)
            if name not in (*known_names, *repeated):
                raise UnknownParameter(f"unknown query parameter {shown_name}", param=f"{QUERY}.{shown_name}")
            if name in self._values and name not in repeated:
                raise InvalidValue(
                    f"{shown_name} is in the query twice; send it once", param=f"{QUERY}.{shown_name}"
                )
            self._values.setdefault(name, []).append(value)

    def get_all(self, name: str) -> list[str]:
        """Returns all values of a parameter, without empty ones."""
        return [value for value in self._values.get(name, ()) if value]

    def get(self, name: str) -> str:
        """Returns the value of a parameter; empty if there is none."""
        return next(iter(self.get_all(name)), "")

    def require(self, name: str) -> str:
        """Returns the value of a parameter. Raises MissingParameter if there is none."""
        if not (value := self.get(name)):
            raise MissingParameter(f"{name} is missing in the query", param=f"{QUERY}.{name}")
        return value

    def read_number(self, name: str, default: int, minimum: int, maximum: int) -> int:
        """Returns a whole number. Raises InvalidValue."""
        text = self.get(name) or str(default)
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(maximum))
        if not is_number or not minimum <= int(text) <= maximum:
            raise InvalidValue(
                f"{name} must be a whole number of {minimum} to {maximum}", param=f"{QUERY}.{name}"
            )
        return int(text)

    def read_switch(self, name: str, default: bool) -> bool:
        """Returns the value of a boolean parameter. Raises InvalidValue."""
        text = self.get(name).lower()
        if text and text not in (*TRUE, *FALSE):
            raise InvalidValue(f"{name} must be true or false", param=f"{QUERY}.{name}")
        return text in TRUE if text else default

    def read_word(self, name: str, default: str, words: Sequence[str]) -> str:
        """Returns one of the words. Raises InvalidValue."""
        text = self.get(name) or default
        if text not in words:
            raise InvalidValue(
                f"{name} must be {', '.join(words[:-1])} or {words[-1]}", param=f"{QUERY}.{name}"
            )
        return text


def order_items(
    items: Sequence[Item], query: ListQuery, sort_fields: Sequence[str], default: str
) -> list[Item]:
    """Sorts the items as the query requests. `sort_fields`: the possible sort fields. Raises InvalidValue."""
    field = query.read_word("order_by", default, sort_fields)
    is_ascending = query.read_switch("order_ascending", default=True)
    return sorted(items, key=lambda item: str(getattr(item, field)), reverse=not is_ascending)


def build_page(
    shape: type[Page], items: Sequence[Struct], query: ListQuery, sort_fields: Sequence[str]
) -> Page:
    """Builds the page that the query requests. `sort_fields`: the possible sort fields. Raises
    InvalidValue."""
    ordered_items = order_items(items, query, sort_fields, "updated_at")
    offset = query.read_number("offset", 0, 0, LARGEST_OFFSET)
    limit = query.read_number("limit", DEFAULT_LIMIT, 1, LARGEST_LIMIT)
    return shape(
        items=ordered_items[offset : offset + limit], offset=offset, limit=limit, total=len(ordered_items)
    )


def declare_paging(sort_fields: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
    """Returns the parameters of a list in OpenAPI's form."""
    schemas: dict[str, Mapping[str, Any]] = {
        "offset": {"type": "integer", "minimum": 0, "maximum": LARGEST_OFFSET, "default": 0},
        "limit": {"type": "integer", "minimum": 1, "maximum": LARGEST_LIMIT, "default": DEFAULT_LIMIT},
        "order_by": {"enum": list(sort_fields)},
        "order_ascending": {"type": "boolean", "default": True},
    }
    return tuple(declare_parameter(name, schema) for name, schema in schemas.items())


def declare_parameter(name: str, schema: Mapping[str, Any], **properties: object) -> Mapping[str, Any]:
    """Returns a query parameter in OpenAPI's form."""
    return {"name": name, "in": "query", "schema": schema, **properties}
