"""Values of keywords: what they must be, and what the compiler gets of them."""

import math
from collections.abc import Iterator

from antiphon.constraints.json_schema.drafts import Json

EXACT = 2**53
"""Largest integer up to which the compiler's numbers hold every one."""

LARGEST = 2**63 - 1024
"""Largest bound that the compiler keeps. A larger one is kept as this one."""

MAX_COUNT = 100_000
"""Largest length or number of items that is counted. A larger most is kept as this one."""

MAX_VALUES = 4096
"""Items of one enum, and values in it."""

TYPES = frozenset("null boolean object array number integer string".split())


def is_number(value: Json) -> bool:
    """Whether a value is a number of JSON."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(_float(value))


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def is_exact(value: Json) -> bool:
    """Whether the compiler holds exactly this number."""
    return is_number(value) and isinstance(value, int | float) and -EXACT <= value <= EXACT


def as_count(value: Json) -> int | None:
    """A length or number of items; 2.0 is 2. None for what is none."""
    if not is_number(value) or not isinstance(value, int | float) or value < 0 or value != value // 1:
        return None
    return int(value)


def inner_bound(value: float, is_upper: bool) -> float:
    """The bound as the compiler holds it: the nearest that allows no more."""
    if is_exact(value):
        return value
    bounded = min(max(value, -LARGEST), LARGEST)
    near = float(bounded)
    if is_upper and near > bounded:
        near = math.nextafter(near, -math.inf)
    if not is_upper and near < bounded:
        near = math.nextafter(near, math.inf)
    return int(near) if near == near // 1 else near


def is_texts(value: Json) -> bool:
    """Whether a value is a list of texts."""
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def all_values(value: Json) -> Iterator[Json]:
    """A value and all that are in it."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        yield each
        if isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def freeze(value: Json) -> object:
    """The value as a key of a dictionary: equal where JSON Schema says that values are equal."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, dict):
        return ("object", frozenset((name, freeze(each)) for name, each in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(freeze, value)))
    return value
