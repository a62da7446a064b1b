"""What is wrong with a setting, in one sentence: the key as its user spelt it, what is taken, what came.

A key's value is never repeated where it may be a secret. Knows the shape of the settings by their types only.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, get_args, get_origin, get_type_hints

from antiphon import validation_messages
from antiphon.settings_said import LISTED

LONGEST_SHOWN = 60
"""Characters of a value that are repeated."""


def explain(problem: str, tree: Mapping[str, object], shape: type, spelled: Callable[[str], str]) -> str:
    """The sentence for msgspec's error about a tree of settings. `spelled` tells from its path how a key was
    written."""
    complaint = validation_messages.read(problem)
    if name := complaint.unknown:
        key = name.rpartition(".")[2]
        return (
            f"there is no setting {spelled(name)}{suggest_nearest(key, _names(_hint(shape, complaint.path)))}"
        )
    if name := complaint.missing:
        return f"{spelled(name)} is missing"
    taken = _describe_expected(complaint, _hint(shape, complaint.path))
    return f"{spelled(complaint.path)} must be {taken}, not {_describe_value(tree, complaint.path)}"


def suggest_nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about a word that nobody knows."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _describe_expected(complaint: validation_messages.Complaint, hint: object) -> str:
    for part in _parts(hint):
        if get_origin(part) is Literal:
            *others, last = get_args(part)
            return f"{', '.join(others)} or {last}" if others else str(last)
        if examples := getattr(part, "examples", None):
            return f"like {examples[0]}"
    listed = f" of tables, each below [[{complaint.path}]]" if complaint.path in LISTED else ""
    return complaint.taken.replace("an object", "a table") + listed


def _describe_value(tree: Mapping[str, object], path: str) -> str:
    """What came: numbers and words as they are, short; of a key only its kind."""
    value = validation_messages.came(tree, path)
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if "api_key" in path:
        return "a number" if isinstance(value, int | float) else "what it is"
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    return shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}..."


def _hint(shape: object, path: str) -> object:
    """The type of what a path leads to."""
    for name, _ in validation_messages.STEP.findall(path):
        if name:  # a place in a list needs no step: its type is among the parts
            shape = _fields(shape).get(name)
    return shape


def _names(hint: object) -> list[str]:
    return list(_fields(hint))


def _fields(hint: object) -> dict[str, object]:
    """The types of a structure's fields, by name; none of anything else."""
    found = next((part for part in _parts(hint) if hasattr(part, "__struct_fields__")), None)
    return get_type_hints(found, include_extras=True) if found else {}


def _parts(hint: object) -> Iterator[object]:
    """A type and all that it is made of."""
    yield hint
    for part in get_args(hint):
        yield from _parts(part)
