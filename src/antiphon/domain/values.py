"""The base of values of which every request makes several: a frozen dataclass takes three to five times as
long to make, and the garbage collector looks at each."""

from msgspec import Struct, field
from msgspec.structs import fields
from msgspec.structs import replace as changed

__all__ = ("Value", "changed", "field", "fields")


class Value(Struct, frozen=True, gc=False):
    """Never changes. Subclasses say `frozen=True` too, for the type checker; what they hold points at no
    other value that could point back."""
