"""A cache of recently used values with a limited size. New values and reused values have separate shares of
the size.

A caller who sends a new value each time pushes out only new values. To push out the reused values of other
callers, the caller would have to send every value twice.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from antiphon.domain.values import Struct

REUSED_SHARE = 3 / 4
"""The share of the size for values that were used again."""

Key = TypeVar("Key", bound=Hashable)

Value = TypeVar("Value")


class _Entry(Struct, Generic[Value], frozen=True):
    value: Value
    size: int


class SegmentedLRU(Generic[Key, Value]):
    """A cache of values by key. It is not thread safe."""

    def __init__(self, capacity: int, max_entries: int) -> None:
        """`capacity`: the largest sum of all sizes, in the callers' unit. `max_entries`: the most values."""
        self._capacity = capacity
        self._max_entries = max_entries
        self._new: OrderedDict[Key, _Entry[Value]] = OrderedDict()
        """Values that were used once. Both dictionaries are in the order of last use, the latest last."""
        self._reused: OrderedDict[Key, _Entry[Value]] = OrderedDict()
        self._size = self._reused_size = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._reused)

    @property
    def held_size(self) -> int:
        """The sum of all sizes."""
        return self._size

    def get(self, key: Key) -> Value | None:
        """Returns the value of a key; None if the cache does not have it."""
        entry = self._reused.get(key)
        if entry is not None:
            self._reused.move_to_end(key)
            return entry.value
        entry = self._new.pop(key, None)
        if entry is None:
            return None
        self._reused[key] = entry
        self._reused_size += entry.size
        while (
            self._reused_size > REUSED_SHARE * self._capacity
            or len(self._reused) > REUSED_SHARE * self._max_entries
        ):
            oldest_key, oldest = self._reused.popitem(last=False)
            self._reused_size -= oldest.size
            self._new[oldest_key] = oldest
        return entry.value

    def put(self, key: Key, value: Value, size: int) -> None:
        """Stores a value, unless the key already has a value. Removes the least recently used values as
        needed."""
        if key in self._new or key in self._reused:
            return
        self._new[key] = _Entry(value, size)
        self._size += size
        while self._new and (self._size > self._capacity or len(self) > self._max_entries):
            self._size -= self._new.popitem(last=False)[1].size
