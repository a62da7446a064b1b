"""The keywords of JSON Schema: their drafts, checks of their values, and the enforced formats."""

import math
from collections.abc import Iterator, Mapping
from enum import IntEnum

Json = object


class Draft(IntEnum):
    """The drafts, the oldest first."""

    DRAFT_3 = 3
    DRAFT_4 = 4
    DRAFT_6 = 6
    DRAFT_7 = 7
    DRAFT_2019_09 = 8
    DRAFT_2020_12 = 9


SCHEMES = ("http://json-schema.org/", "https://json-schema.org/")

URIS = {
    "draft-03/schema": Draft.DRAFT_3,
    "draft-04/schema": Draft.DRAFT_4,
    "draft-06/schema": Draft.DRAFT_6,
    "draft-07/schema": Draft.DRAFT_7,
    "draft/2019-09/schema": Draft.DRAFT_2019_09,
    "draft/2020-12/schema": Draft.DRAFT_2020_12,
}
"""Addresses of the meta-schemas, without their common beginning."""

OLDEST, NEWEST = Draft.DRAFT_3, Draft.DRAFT_2020_12


def find_draft(name: str) -> Draft | None:
    """Returns the draft that `$schema` names; None for another meta-schema."""
    uri = name.strip().rstrip("#")
    return next((URIS.get(uri.removeprefix(each)) for each in SCHEMES if uri.startswith(each)), None)


def _map_to_drafts(first: Draft, names: str, last: Draft = NEWEST) -> dict[str, tuple[Draft, Draft]]:
    """Maps each of the names to the first and the last draft that define it."""
    return dict.fromkeys(names.split(), (first, last))


KEYWORDS: Mapping[str, tuple[Draft, Draft]] = {
    **_map_to_drafts(
        OLDEST,
        "$ref type enum properties patternProperties additionalProperties required items minItems maxItems "
        "uniqueItems minLength maxLength pattern format minimum maximum exclusiveMinimum exclusiveMaximum",
    ),
    **_map_to_drafts(OLDEST, "divisibleBy extends disallow", Draft.DRAFT_3),
    **_map_to_drafts(OLDEST, "dependencies", Draft.DRAFT_7),
    **_map_to_drafts(OLDEST, "additionalItems", Draft.DRAFT_2019_09),
    **_map_to_drafts(Draft.DRAFT_4, "allOf anyOf oneOf not multipleOf minProperties maxProperties"),
    **_map_to_drafts(Draft.DRAFT_6, "const contains propertyNames"),
    **_map_to_drafts(Draft.DRAFT_7, "if then else"),
    **_map_to_drafts(
        Draft.DRAFT_2019_09,
        "dependentRequired dependentSchemas unevaluatedItems unevaluatedProperties minContains maxContains",
    ),
    **_map_to_drafts(Draft.DRAFT_2019_09, "$recursiveRef", Draft.DRAFT_2019_09),
    **_map_to_drafts(Draft.DRAFT_2020_12, "prefixItems $dynamicRef"),
}
"""Keywords that restrict values, with the first and the last draft that define them."""

ANNOTATIONS = frozenset(
    "title description default examples $comment deprecated readOnly writeOnly contentMediaType "
    "contentEncoding contentSchema $schema $id $anchor $defs definitions $vocabulary $dynamicAnchor "
    "$recursiveAnchor".split()
)
"""Keywords that do not restrict values. They are not passed to the compiler."""

EXTENSION = "x-"
"""The prefix of extension names: annotations by convention."""

GUIDANCE = "x-guidance"
"""The only extension that would change the compiler's behaviour. It is not applied but reported."""


def is_annotation(name: str, draft: Draft | None) -> bool:
    """Whether a keyword is known not to restrict values."""
    if name == "id":
        return draft is None or draft <= Draft.DRAFT_4
    return name in ANNOTATIONS or (name.startswith(EXTENSION) and name != GUIDANCE)


def has_keyword(draft: Draft | None, name: str) -> bool:
    """Whether a keyword restricts values in a draft. A schema without a draft (None) has the keywords of all
    drafts."""
    if name not in KEYWORDS:
        return False
    first, last = KEYWORDS[name]
    return draft is None or first <= draft <= last


def ignores_siblings(draft: Draft | None) -> bool:
    """Whether a reference disables the keywords beside it."""
    return draft is not None and draft <= Draft.DRAFT_7


EXACT = 2**53
"""The largest integer up to which the compiler represents each integer exactly."""

LARGEST = 2**63 - 1024
"""The largest bound that the compiler supports. It replaces larger bounds."""

MAX_COUNT = 100_000
"""The largest length or number of items that the compiler counts. It replaces larger maxima."""

MAX_VALUES = 4096
"""The most items of one enum, and values in it."""

TYPES = frozenset("null boolean object array number integer string".split())


def is_number(value: Json) -> bool:
    """Whether a value is a number of JSON."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(_to_float(value))


def _to_float(value: int | float) -> float:
    """Converts a number to a float. An integer that is too large becomes infinity."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def is_exact(value: Json) -> bool:
    """Whether the compiler represents this number exactly."""
    return is_number(value) and isinstance(value, int | float) and -EXACT <= value <= EXACT


def parse_count(value: Json) -> int | None:
    """Returns a length or number of items; 2.0 becomes 2. Returns None for any other value."""
    if not is_number(value) or not isinstance(value, int | float) or value < 0 or value != value // 1:
        return None
    return int(value)


def round_inward(value: float, is_upper: bool) -> float:
    """Returns the nearest bound that the compiler can represent and that is not less strict."""
    if is_exact(value):
        return value
    clamped = min(max(value, -LARGEST), LARGEST)
    nearest = float(clamped)
    if is_upper and nearest > clamped:
        nearest = math.nextafter(nearest, -math.inf)
    if not is_upper and nearest < clamped:
        nearest = math.nextafter(nearest, math.inf)
    return int(nearest) if nearest == nearest // 1 else nearest


def is_text_list(value: Json) -> bool:
    """Whether a value is a list of texts."""
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def walk_values(value: Json) -> Iterator[Json]:
    """Yields a value and all values in it."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        yield each
        if isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def freeze(value: Json) -> object:
    """Converts a value to a hashable value. Two results are equal if JSON Schema considers the values
    equal."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, dict):
        return ("object", frozenset((name, freeze(each)) for name, each in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(freeze, value)))
    return value


YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
"""The years 0001 to 9999."""

LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
"""Years divisible by 4 and not by 100, or by 400."""

DATE = (
    f"(?:{YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{LEAP_YEAR}-02-29)"
)

CLOCK = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)

OWN_FORMATS = {"date": DATE, "time": CLOCK, "date-time": f"{DATE}T{CLOCK}"}
"""Formats that are compiled from these patterns of the whole string."""

COMPILER_FORMATS = {
    "duration": None,
    "email": None,
    "hostname": 253,
    "ipv4": None,
    "ipv6": None,
    "uuid": None,
    "uri": None,
}
"""Formats that the compiler implements correctly, with their most characters."""
