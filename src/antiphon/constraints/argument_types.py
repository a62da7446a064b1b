"""The JSON types that a tool's schema allows for each argument, and the conversion of raw texts to them.

Some families write texts raw, without quotes. Then only the schema can tell the text `5` from the number 5.
"""

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NoReturn

Types = frozenset[str]
"""Names of JSON Schema's types. A set with `number` also has `integer`."""

ALL_TYPES: Types = frozenset("string number integer boolean null array object".split())

MOST_STEPS = 32
"""The most levels of references and alternatives that are followed."""

LITERALS = MappingProxyType({"True": True, "False": False, "None": None})
"""Python's spellings, which models write too."""

FIRST_CHARACTERS = MappingProxyType(
    {
        "number": "-0123456789",
        "integer": "-0123456789",
        "boolean": "tfTF",
        "null": "nN",
        "array": "[",
        "object": "{",
    }
)
"""The characters with which a value of each type can begin, if it is no text."""


def list_argument_types(schema: Mapping[str, object]) -> dict[str, Types]:
    """Returns the types of each argument that the schema declares."""
    properties: dict[str, Types] = {}
    known: dict[int, Types] = {}
    for part in _list_objects(schema):
        declared = part.get("properties")
        for name, each in declared.items() if isinstance(declared, Mapping) else ():
            properties[name] = properties.get(name, ALL_TYPES) & _find_types(each, schema, 0, known)
    return {name: types & ALL_TYPES or ALL_TYPES for name, types in properties.items()}


def _list_objects(root: Mapping[str, object]) -> Iterable[Mapping[str, object]]:
    """Returns the schema, and the schemas that apply to the same object. Each is listed once, however many
    references lead to it."""
    found = {id(root): root}
    waiting = [root]
    while waiting:
        schema = waiting.pop()
        all_of = schema.get("allOf")
        for each in (_resolve(schema.get("$ref"), root), *(all_of if isinstance(all_of, list) else ())):
            if isinstance(each, Mapping) and id(each) not in found:
                found[id(each)] = each
                waiting.append(each)
    return found.values()


def list_types(schema: object, root: Mapping[str, object]) -> Types:
    """Returns the types of the values that a schema allows. `root`: the schema to which references refer."""
    return _find_types(schema, root, 0, {})


def _find_types(schema: object, root: Mapping[str, object], steps: int, known: dict[int, Types]) -> Types:
    """Returns the types of the values that a schema allows. `known`: by the identities of schemas, the types
    that were found before, since alternatives can refer to one schema millions of times."""
    if not isinstance(schema, Mapping) or steps > MOST_STEPS:
        return ALL_TYPES
    if (found := known.get(id(schema))) is not None:
        return found
    known[id(schema)] = types = ALL_TYPES  # while a schema refers to itself
    if (target := _resolve(schema.get("$ref"), root)) is not None:
        types &= _find_types(target, root, steps + 1, known)
    declared = schema.get("type")
    if isinstance(declared, str | list):
        names = {declared} if isinstance(declared, str) else {*map(str, declared)}
        types &= names | {"integer"} if "number" in names else names
    values = schema.get("enum")
    if isinstance(values, list):
        types &= frozenset().union(*map(_list_value_types, values))
    if "const" in schema:
        types &= _list_value_types(schema["const"])
    for keyword in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(keyword), list):
            types &= frozenset().union(*(_find_types(each, root, steps + 1, known) for each in branches))
    if isinstance(branches := schema.get("allOf"), list):
        for each in branches:
            types &= _find_types(each, root, steps + 1, known)
    known[id(schema)] = types
    return types


def _resolve(reference: object, root: Mapping[str, object]) -> object:
    """Returns the schema to which a reference refers; None if it refers to none in `root`."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    target: object = root
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, Mapping) or name not in target:
            return None
        target = target[name]
    return target


def _list_value_types(value: object) -> Types:
    """Returns the types of one value."""
    match value:
        case str():
            return frozenset({"string"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"integer", "number"}) if value.is_integer() else frozenset({"number"})
        case None:
            return frozenset({"null"})
        case list():
            return frozenset({"array"})
        case _:
            return frozenset({"object"})


def is_surely_text(beginning: str, types: Types) -> bool:
    """Whether a value that begins like this is a text, whatever follows."""
    if types == {"string"}:
        return True
    first = beginning.lstrip()[:1]
    return (
        "string" in types
        and bool(first)
        and not any(first in FIRST_CHARACTERS[each] for each in types - {"string"})
    )


def convert_text(text: str, types: Types) -> str:
    """Converts a raw value to JSON: to a value of one of the types if it is one, and to a text otherwise. If
    no text is allowed, any JSON stays what it is."""
    if types == {"string"}:
        return json.dumps(text, ensure_ascii=False)
    stripped = text.strip()
    try:
        value = json.loads(stripped, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        if stripped not in LITERALS:
            return json.dumps(text, ensure_ascii=False)
        value = LITERALS[stripped]
        stripped = json.dumps(value)
    found = _list_value_types(value)
    if "string" in types and (found == {"string"} or not found & types):
        return json.dumps(text, ensure_ascii=False)
    if not isinstance(value, dict | list):
        return stripped
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)  # drops repeated keys
    except ValueError:
        return stripped  # a number is too large for Python, but valid


def _refuse_constant(name: str) -> NoReturn:
    """Refuses NaN and Infinity, which are no JSON."""
    raise ValueError(name)
