"""From plain JSON to a wire type, and the parser's complaints in sentences: which field, what is taken, what
came."""

from typing import Any, TypeVar

import msgspec

from antiphon import complaints
from antiphon.dialects.openai.fields import TABLES, Place
from antiphon.dialects.strict_json import kind
from antiphon.errors import AntiphonError, InvalidValue, MissingParameter, UnknownParameter

Wire = TypeVar("Wire", bound=msgspec.Struct)


def shaped(value: dict[str, Any], shape: type[Wire]) -> Wire:
    """The value as `shape`. Raises InvalidValue, MissingParameter or UnknownParameter."""
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as problem:
        raise _explained(complaints.read(str(problem)), value) from None


def _explained(complaint: complaints.Complaint, value: dict[str, Any]) -> AntiphonError:
    path = complaint.path
    if name := complaint.missing:
        return MissingParameter(f"{name} is missing", param=name)
    if name := complaint.unknown:
        return UnknownParameter(f"unknown field {name}", param=name)
    if path.endswith("role"):
        return InvalidValue(f"{path} must be {TABLES[Place.MESSAGE]['role'].says.rstrip('.')}", param=path)
    if "[...]" in path:
        # msgspec does not say which of an object's values it was.
        name = path.partition("[...]")[0]
        return InvalidValue(f"{name} must have {complaint.taken} at each key", param=name)
    got = kind(complaints.came(value, path))
    return InvalidValue(f"{path} must be {complaint.taken}; got {got}", param=path or None)
