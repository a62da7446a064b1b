"""Keywords of schemas that are not kept, as the header x-antiphon-relaxed names them."""

from collections.abc import Sequence

from antiphon.dialects.common.strict_json import shown_key

MOST_RELAXED = 32
"""Keywords that an answer names."""


def header_names(field: str, keywords: Sequence[str]) -> tuple[str, ...]:
    """The names of one schema's keywords, each after the field of the schema."""
    return tuple(f"{field}: {shown_key(name)}" for name in keywords)


def shorten(names: Sequence[str]) -> tuple[str, ...]:
    """As many names as an answer holds, and how many more there are."""
    if len(names) <= MOST_RELAXED:
        return tuple(names)
    return (*names[:MOST_RELAXED], f"and {len(names) - MOST_RELAXED} more")
