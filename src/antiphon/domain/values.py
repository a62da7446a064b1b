"""The base of values of which every request makes several: a frozen dataclass takes three to five times as
long, and the garbage collector scans each."""

from msgspec import Struct, field
from msgspec.structs import fields
from msgspec.structs import replace as changed

__all__ = ("Value", "changed", "field", "fields")


class Value(Struct, frozen=True, gc=False):
    """An immutable value. Subclasses repeat `frozen=True` for the type checker. Its fields must not refer
    back to it."""
