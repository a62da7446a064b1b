"""The base class of values that every request creates several times. It is a msgspec struct: a frozen
dataclass takes three to five times as long to create, and the garbage collector scans it."""

from msgspec import Struct, field
from msgspec.structs import fields
from msgspec.structs import replace as changed

__all__ = ("Value", "changed", "field", "fields")


class Value(Struct, frozen=True, gc=False):
    """An immutable value. Subclasses repeat `frozen=True` for the type checker. A field must not refer back
    to its own value, since no garbage collector frees such a cycle."""
