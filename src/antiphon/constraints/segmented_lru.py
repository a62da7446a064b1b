"""A cache of recently used values, bounded in bytes. New values have a part of the bound, and values that
were used again have the rest. A caller who sends a new value each time removes only new values. To remove
values that others use again, the caller must send everything twice."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

KNOWN = 3 / 4
"""The part of the bound that values may take after they were used again."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _Kept(Generic[Value]):
    value: Value
    size: int


class SegmentedLRU(Generic[Key, Value]):
    """Values by key. It is not thread safe."""

    def __init__(self, capacity: int, entries: int) -> None:
        """`capacity`: the largest sum of all sizes, in the callers' unit. `entries`: the most values."""
        self._most = capacity
        self._entries = entries
        self._fresh: OrderedDict[Key, _Kept[Value]] = OrderedDict()
        """Values that were used once. Both dictionaries are in the order of last use, the latest last."""
        self._known: OrderedDict[Key, _Kept[Value]] = OrderedDict()
        self._held = self._held_known = 0

    def __len__(self) -> int:
        return len(self._fresh) + len(self._known)

    @property
    def held_size(self) -> int:
        """The sum of all sizes."""
        return self._held

    def get(self, key: Key) -> Value | None:
        """The value of the key, if it is still there."""
        entry = self._known.get(key)
        if entry is not None:
            self._known.move_to_end(key)
            return entry.value
        entry = self._fresh.pop(key, None)
        if entry is None:
            return None
        self._known[key] = entry
        self._held_known += entry.size
        while self._held_known > KNOWN * self._most or len(self._known) > KNOWN * self._entries:
            oldest, former = self._known.popitem(last=False)
            self._held_known -= former.size
            self._fresh[oldest] = former
        return entry.value

    def put(self, key: Key, value: Value, size: int) -> None:
        """Stores a value, unless the key already has a value. Removes the least recently used values as
        needed."""
        if key in self._fresh or key in self._known:
            return
        self._fresh[key] = _Kept(value, size)
        self._held += size
        while self._fresh and (self._held > self._most or len(self) > self._entries):
            self._held -= self._fresh.popitem(last=False)[1].size
