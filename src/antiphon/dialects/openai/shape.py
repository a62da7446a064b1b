"""From plain JSON to a wire type, and the parser's complaints in sentences: which field, what is taken, what
came."""

import re
from typing import Any, TypeVar

import msgspec

from antiphon.dialects.openai.fields import TABLES, Place
from antiphon.dialects.strict_json import kind
from antiphon.errors import AntiphonError, InvalidValue, MissingParameter, UnknownParameter

Wire = TypeVar("Wire", bound=msgspec.Struct)

COMPLAINT = re.compile(r"^(?P<said>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
EXPECTED = re.compile(
    r"^Expected `(?P<types>[^`]*)`(?P<bound> of length)?(?: (?P<sign>[<>]=) (?P<limit>\S+))?"
)
STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")

WORDS = {
    "str": "a text",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
SIGNS = {">=": "at least", "<=": "at most"}


def shaped(value: dict[str, Any], shape: type[Wire]) -> Wire:
    """The value as `shape`. Raises InvalidValue, MissingParameter or UnknownParameter."""
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as problem:
        raise _explained(str(problem), value) from None


def _explained(complaint: str, value: dict[str, Any]) -> AntiphonError:
    match = COMPLAINT.match(complaint)
    said, path = (match["said"], match["path"] or "") if match else (complaint, "")
    if said.startswith("Object missing required field"):
        name = _joined(path, said.split("`")[1])
        return MissingParameter(f"{name} is missing", param=name)
    if said.startswith("Object contains unknown field"):
        name = _joined(path, said.split("`")[1])
        return UnknownParameter(f"unknown field {name}", param=name)
    if path.endswith("role"):
        return InvalidValue(f"{path} must be {TABLES[Place.MESSAGE]['role'].says.rstrip('.')}", param=path)
    return InvalidValue(f"{path} must be {_taken(said)}; got {kind(_found(value, path))}", param=path or None)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _taken(said: str) -> str:
    """What would have been taken: `a number at most 2`."""
    match = EXPECTED.match(said)
    if match is None:
        return "a number within its range" if "out of range" in said else "one of the values that are taken"
    words = [WORDS.get(name, name) for name in match["types"].split(" | ") if name != "null"]
    taken = " or ".join(words)
    if match["sign"] is None:
        return taken
    limit = match["limit"].removesuffix(".0")
    if match["bound"] is None:
        return f"{taken} of {SIGNS[match['sign']]} {limit}"
    if match["sign"] == ">=" and limit == "1":
        return f"{taken} that is not empty"
    return f"{taken} of {SIGNS[match['sign']]} {limit} {'characters' if 'str' in match['types'] else 'items'}"


def _found(value: object, path: str) -> object:
    for name, index in STEP.findall(path):
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list):
            value = value[int(index)]
    return value
