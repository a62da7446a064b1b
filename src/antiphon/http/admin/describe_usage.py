"""What the query of /admin/v1/usage takes, and its files, as parts of the OpenAPI document."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from antiphon.domain.reports import Bucket, Field
from antiphon.http.admin.exports import MEDIA, Format
from antiphon.http.admin.pages import MOST, USUAL
from antiphon.http.admin.usage import LATEST, MOST_DIMENSIONS, MOST_GROUPS

BY = (
    f"At most {MOST_DIMENSIONS} of {', '.join([*Field, *Bucket])} and tag:NAME, with commas between them; "
    "hours, days, weeks and months are UTC's"
)
TAGS = " Also `tag:NAME=VALUE` chooses by one of the caller's tags."
FILES = " `format=csv` and `format=jsonl` give a file."
DESCRIPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "/usage": "Sums over the generations that the caller may see, in a time." + TAGS + FILES,
        "/usage/entries": "The generations that the caller may see, in a time, the earliest first."
        + TAGS
        + FILES,
    }
)
"""What the operations say more, by path."""


def queries(path: str) -> Iterator[dict[str, Any]]:
    """The query of a path."""
    second = {"type": "integer", "minimum": 0, "maximum": LATEST}
    yield _named("since", second, "Unix seconds; 30 days before `until` where it is left out")
    yield _named("until", second, "Unix seconds; what began then is no more in it. Left out: until now")
    for field in Field:
        yield _named(field, {"type": "string"}, f"Only of this {field.replace('_', ' ')}; empty: of none")
    if path == "/usage":
        yield _named("by", {"type": "string"}, BY)
    most = MOST_GROUPS if path == "/usage" else MOST
    usual = MOST_GROUPS if path == "/usage" else USUAL
    limit = {"type": "integer", "minimum": 1, "maximum": most, "default": usual}
    yield _named("limit", limit, "Groups, or entries of a page; a file of entries takes none")
    if path != "/usage":
        yield _named("after", {"type": "string"}, "The `next` of the page before")
    yield _named("format", {"type": "string", "enum": [*Format], "default": Format.JSON}, "As what")


def files() -> dict[str, Any]:
    """The other contents of an answer."""
    return {MEDIA[each].partition(";")[0]: {"schema": {"type": "string"}} for each in MEDIA}


def _named(name: str, schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}
