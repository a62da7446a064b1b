"""`patternProperties`: which patterns are names, and whether it is plain that no name matches two of them."""

import re
from collections.abc import Iterator

from antiphon.constraints.json_schema.drafts import Json

FIRST = re.compile(
    r"\^(?:([A-Za-z0-9_:@ /-])|\\([.$/_-])|\\(d)|\[((?:[A-Za-z0-9_.:@$ -]|\\[.$/_])+)\])(?![*?{])"
)
"""How a pattern begins that says of which characters the first is: one, an escaped one, a digit, a class."""

LITERAL = re.compile(r"(?:[A-Za-z0-9_:@ /-]|\\[.$/_-])+")
"""A text that stands for itself."""

NAMES = re.compile(r"\^(?:\((?:\?:)?([^()]*)\)|([^()|]*))\$")
"""A whole pattern of one or several texts."""

RANGE = re.compile(r"(.)-(.)|(.)")


def write_patterns(schema: dict[str, Json]) -> bool:
    """Writes patterns of names as properties. Whether the others can be kept: no name may match two of them.
    If not, all names are allowed that are not declared. Changes the schema."""
    patterns = schema.get("patternProperties")
    if not isinstance(patterns, dict):
        return True
    kept = _without_names(schema, dict(patterns)) if len(patterns) > 1 else patterns
    is_kept = are_apart(list(kept))
    if kept == {"": True} or not is_kept:
        schema.pop("additionalProperties", None)
        kept = {}
    schema["patternProperties"] = kept
    if not kept:
        del schema["patternProperties"]
    return is_kept


def are_apart(patterns: list[str]) -> bool:
    """Whether it is plain that no name matches two of these: each begins with other characters."""
    if len(patterns) < 2:
        return True
    seen: set[str] = set()
    for pattern in patterns:
        first = find_first(pattern)
        if first is None or first & seen:
            return False
        seen |= first
    return True


def find_first(pattern: str) -> frozenset[str] | None:
    """The characters of which a name that matches begins with one; None where that is not plain."""
    found = FIRST.match(pattern)
    if found is None or _has_alternatives(pattern):
        return None
    literal, escaped, digit, inner = found.groups()
    if inner is None:
        return frozenset("0123456789" if digit else literal or escaped)
    return frozenset(_members(inner.replace("\\", "")))


def _members(inner: str) -> Iterator[str]:
    """The characters of a class."""
    for low, high, single in RANGE.findall(inner):
        yield from (single,) if single else map(chr, range(ord(low), ord(high) + 1))


def _has_alternatives(pattern: str) -> bool:
    """Whether a pattern is several, of which only the first begins as it does."""
    depth, at = 0, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "[":
            closed = re.compile(r"(?:\\.|[^\]\\])*\]").match(pattern, at + 1)
            at = closed.end() - 1 if closed else at
        elif char == "|" and not depth:
            return True
        depth += (char == "(") - (char == ")")
        at += 1 + (char == "\\")
    return False


def find_names(pattern: str) -> list[str] | None:
    """The names that a pattern of a few texts matches: `^(a|b)$`. None for other patterns."""
    whole = NAMES.fullmatch(pattern)
    if whole is None:
        return None
    branches = whole[1].split("|") if whole[1] is not None else [whole[2]]
    return (
        [re.sub(r"\\(.)", r"\1", each) for each in branches]
        if all(map(LITERAL.fullmatch, branches))
        else None
    )


def _without_names(schema: dict[str, Json], patterns: dict[str, Json]) -> dict[str, Json]:
    """The patterns less those that are names, which become properties where no other may match them."""
    properties = schema.get("properties")
    held = dict(properties) if isinstance(properties, dict) else {}
    named = {pattern: names for pattern in patterns if (names := find_names(pattern))}
    others = [first for pattern in patterns if pattern not in named for first in [find_first(pattern)]]
    for pattern, names in named.items():
        if any(first is None or name[0] in first for name in names for first in others):
            continue
        for name in names:
            each = patterns[pattern]
            held[name] = {"allOf": [held[name], each]} if name in held else each
        del patterns[pattern]
    if held:
        schema["properties"] = held
    return patterns
