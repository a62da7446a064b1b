"""Which part of a field's path a log may hold: a caller's own words are no names of fields."""

import re
from collections.abc import Iterable, Set

STEP = re.compile(r"([\w-]+)(?:\[\d{1,5}\])*", re.ASCII)
"""A name with the indices behind it."""

UNKNOWN = "(unknown)"


def known_path(path: str | None, names: Iterable[Set[str]]) -> str | None:
    """As much of a path as consists of known names, from its beginning; None of none."""
    if path is None:
        return None
    known, found = tuple(names), []
    for step in path.split("."):
        match = STEP.fullmatch(step)
        if match is None or not any(match[1] in each for each in known):
            break
        found.append(step)
    return ".".join(found) or UNKNOWN
