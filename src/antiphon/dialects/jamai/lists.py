"""Pages of JamAI Base's lists."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from antiphon.dialects.common.list_query import ListQuery

DEFAULT_LIMIT, LARGEST_LIMIT = 100, 1000
"""The default and the largest number of items of one page."""


LARGEST_OFFSET = 2**31 - 1


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
