"""Values as msgspec structs. A frozen dataclass takes ten times as long to define, which each start of a
process pays for, and three to ten times as long to create."""

import dataclasses
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import astuple, fields
from msgspec.structs import replace as replace_struct

__all__ = ("Struct", "Value", "asdict", "astuple", "field", "fields", "replace")


class Value(Struct, frozen=True, gc=False):
    """An immutable value that every request creates several times. Subclasses repeat `frozen=True` for the
    type checker. A field must not refer back to its own value: no garbage collector frees such a cycle."""


if TYPE_CHECKING:
    from dataclasses import asdict, replace  # so that arguments are compared with the fields of a struct, too
else:

    def replace(value, /, **changes):
        """Returns a copy of a struct or dataclass with other values in some fields."""
        if isinstance(value, Struct):
            return replace_struct(value, **changes)
        return dataclasses.replace(value, **changes)

    def asdict(value):
        """Returns the fields of a struct or dataclass by name. Structs in a struct become dicts too, also in
        its lists and tuples, but not in its dicts."""
        if not isinstance(value, Struct):
            return dataclasses.asdict(value)
        return {name: _to_plain(getattr(value, name)) for name in value.__struct_fields__}

    def _to_plain(value):
        if isinstance(value, Struct):
            return asdict(value)
        if isinstance(value, list | tuple):
            return type(value)(_to_plain(each) for each in value)
        return value
