"""From plain JSON to a wire type, and the parser's complaints in sentences: which field, what is taken, what
came."""

from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from antiphon import validation_messages
from antiphon.dialects.common.field_scopes import FieldScope
from antiphon.dialects.common.fields import TABLES
from antiphon.dialects.common.strict_json import kind
from antiphon.errors import AntiphonError, InvalidValue, MissingParameter, UnknownParameter

COUNTED = (" items", " characters")
"""What a bound counts; how many came is then said."""

Wire = TypeVar("Wire", bound=msgspec.Struct)


def convert(value: dict[str, Any], shape: type[Wire]) -> Wire:
    """The value as `shape`. Raises InvalidValue, MissingParameter or UnknownParameter."""
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as problem:
        raise _explained(validation_messages.parse_message(str(problem)), value, shape) from None


def _explained(
    complaint: validation_messages.ValidationProblem, value: dict[str, Any], shape: type[msgspec.Struct]
) -> AntiphonError:
    path = complaint.path
    if name := complaint.missing_field:
        return MissingParameter(f"{name} is missing", param=name)
    if name := complaint.unknown_field:
        return UnknownParameter(f"unknown field {name}", param=name)
    if path.endswith("role"):
        return InvalidValue(
            f"{path} must be {TABLES[FieldScope.MESSAGE]['role'].says.rstrip('.')}", param=path
        )
    if "[...]" in path:
        # msgspec does not say which of an object's values it was.
        name = path.partition("[...]")[0]
        return InvalidValue(f"{name} must have {complaint.expected} at each key", param=name)
    taken, came = complaint.expected, validation_messages.find_value(value, path)
    if complaint.is_choice and (words := _choices(shape, path)):
        taken = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    got = str(len(came)) if isinstance(came, list | str | dict) and taken.endswith(COUNTED) else kind(came)
    return InvalidValue(f"{path} must be {taken}; got {got}", param=path or None)


def _choices(shape: type[msgspec.Struct], path: str) -> tuple[str, ...]:
    """The words that a wire type takes at a path; none where it takes more than words."""
    found = _alternatives(inspect.type_info(shape))
    for name, _ in validation_messages.STEP.findall(path):
        found = [inner for each in found for inner in _within(each, name)]
    return tuple(
        word
        for each in found
        if isinstance(each, inspect.LiteralType)
        for word in each.values
        if isinstance(word, str)
    )


def _alternatives(given: inspect.Type) -> list[inspect.Type]:
    return list(given.types) if isinstance(given, inspect.UnionType) else [given]


def _within(given: inspect.Type, name: str) -> list[inspect.Type]:
    """What stands in a type under a name; in a list under any index."""
    if isinstance(given, inspect.ListType):
        return _alternatives(given.item_type)
    fields = given.fields if isinstance(given, inspect.StructType) else ()
    return [inner for field in fields if field.encode_name == name for inner in _alternatives(field.type)]
