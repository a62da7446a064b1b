"""The arguments of calls in a conversation. A model wrote them, so they may be cut, or no JSON at all."""

import json

from antiphon.rendering.toolcalls.objects import SPACE

DEEPEST = 48
"""Lists and objects in each other; templates print no deeper ones."""


def read_arguments(text: str) -> dict[str, object] | None:
    """The arguments as an object; without any text there are none.

    None for a text that is no JSON object, and for an object that does not print as it was written: with a
    key twice, an infinite number, half of a surrogate pair, or nested too deep.
    """
    if not text.strip(SPACE):
        return {}
    try:
        value = json.loads(text, object_pairs_hook=_read_object)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and _is_shallow(value) else None


def _read_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _is_shallow(value: object) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
            if isinstance(inner, dict | list)
        ]
        if not level:
            return True
    return False
