"""Explains a wrong setting in one sentence: its name as the user wrote it, the expected and the given value.

Never repeats a value that may be a secret.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, get_args, get_origin, get_type_hints

from antiphon import validation_messages
from antiphon.settings.schema import TABLE_LISTS

LONGEST_SHOWN = 60
"""Most characters of a value that a message repeats."""


def explain(problem: str, tree: Mapping[str, object], cls: type, speller: Callable[[str], str]) -> str:
    """Turns msgspec's error about a tree of settings into a sentence.

    `speller` returns how the user wrote the key at a path.
    """
    error = validation_messages.parse_message(problem)
    if name := error.unknown_field:
        nearest = suggest_nearest(name.rpartition(".")[2], _list_fields(_find_type(cls, error.path)))
        return f"there is no setting {speller(name)}{nearest}"
    if name := error.missing_field:
        return f"{speller(name)} is missing"
    expected = _describe_expected(error, _find_type(cls, error.path))
    return f"{speller(error.path)} must be {expected}, not {_describe_value(tree, error.path)}"


def suggest_nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown word: the nearest known one, if any."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _describe_expected(error: validation_messages.ValidationProblem, hint: object) -> str:
    for part in _iterate_types(hint):
        if get_origin(part) is Literal:
            *others, last = get_args(part)
            return f"{', '.join(others)} or {last}" if others else str(last)
        if examples := getattr(part, "examples", None):
            return f"like {examples[0]}"
    listed = f" of tables, each below [[{error.path}]]" if error.path in TABLE_LISTS else ""
    return error.expected.replace("an object", "a table") + listed


def _describe_value(tree: Mapping[str, object], path: str) -> str:
    """Shows the value at a path: short numbers and words as they are, of a key only its type."""
    value = validation_messages.find_value(tree, path)
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if "api_key" in path:
        return "a number" if isinstance(value, int | float) else "what it is"
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    return shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}..."


def _find_type(cls: object, path: str) -> object:
    """The type at a path."""
    for name, _ in validation_messages.STEP.findall(path):
        if name:  # an index needs no step: its type is among the parts
            cls = _field_types(cls).get(name)
    return cls


def _list_fields(hint: object) -> list[str]:
    return list(_field_types(hint))


def _field_types(hint: object) -> dict[str, object]:
    """The types of a structure's fields by name; empty for any other type."""
    found = next((part for part in _iterate_types(hint) if hasattr(part, "__struct_fields__")), None)
    return get_type_hints(found, include_extras=True) if found else {}


def _iterate_types(hint: object) -> Iterator[object]:
    """Yields a type and all types that it is made of."""
    yield hint
    for part in get_args(hint):
        yield from _iterate_types(part)
