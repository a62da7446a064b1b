"""To whom a caller ascribes a request, for the records of usage: OpenAI's `user`, `safety_identifier` and
`metadata`, which other dialects took over."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from antiphon.dialects.base import UNASCRIBED, Attribution
from antiphon.errors import InvalidValue

LONGEST_USER = 512
"""Characters of an end user's name: any address, and little enough to keep with each request."""

MOST_TAGS, LONGEST_TAG, LONGEST_TEXT = 16, 64, 512
"""Pairs of `metadata`, characters of a key and of a value; OpenAI's own bounds."""

EndUser = Annotated[str, Meta(max_length=LONGEST_USER)]
Tags = Annotated[dict[str, Annotated[str, Meta(max_length=LONGEST_TEXT)]], Meta(max_length=MOST_TAGS)]

NUL = "\0"
"""The one character that no record holds."""


def read_attribution(
    user: str | None, tags: Mapping[str, str] | None = None, safety_identifier: str | None = None
) -> Attribution:
    """What a caller says of itself. Raises InvalidValue, which names the field at fault."""
    if user is None and not tags and safety_identifier is None:
        return UNASCRIBED
    if None is not safety_identifier != user is not None:
        raise InvalidValue("user and safety_identifier differ; send one of them", param="safety_identifier")
    names = {"user": user, "safety_identifier": safety_identifier}
    users = tuple(name for name, value in names.items() if value is not None)
    for name in users:
        _require_text(name, names[name] or "")
    for name, value in (tags or {}).items():
        if not 0 < len(name) <= LONGEST_TAG:
            raise InvalidValue(
                f"metadata must have keys of 1 to {LONGEST_TAG} characters; got {len(name)}", param="metadata"
            )
        _require_text("metadata", name + value)
    fields = (*users, "metadata") if tags else users
    return Attribution((safety_identifier if user is None else user) or None, tags or {}, fields)


def _require_text(name: str, text: str) -> None:
    if NUL in text:
        raise InvalidValue(f"{name} must hold no NUL character", param=name)
