"""How much one rendering may do: units of work, time, and size of a single value. Knows nothing of templates'
syntax."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from jinja2.runtime import Undefined

from antiphon.errors import TemplateRefused

WORK = 2_000_000
"""Units that a rendering may take besides what its input grants; the largest real template takes a few
thousand."""

WORK_PER_CHARACTER = 2
"""Units for each character of the messages: a template touches each text some ten times, at 1/16 unit a
character."""

SIZE = 4_000_000
"""Characters that a value, or the whole prompt, may have besides four times those of the messages."""

SECONDS = 5.0
"""Time for one rendering in this process. A template was proved in two seconds before; this is for a slow
machine."""

CHARACTERS_PER_UNIT = 16
"""Characters that are copied in the time of one step of the interpreter."""

LARGEST_INTEGER = 4096
"""Bits; printing larger ones is slow."""

DEEPEST = 50
"""Lists in lists; deeper ones exhaust the stack when they are compared or printed."""

CHECK_TIME = 64
"""Spendings between two looks at the clock."""

Scalar = (bool, int, float, type(None), Undefined)
Nested = (list, tuple, dict, set, frozenset)


class Allowance:
    """What is left for the rendering that runs now."""

    __slots__ = ("_checks", "_units", "_until", "size")

    def __init__(self, characters: int = 0) -> None:
        self._units = WORK + WORK_PER_CHARACTER * characters
        self._until = time.monotonic() + SECONDS
        self._checks = 0
        self.size = SIZE + 4 * characters

    def spend(self, units: int) -> None:
        """Raises TemplateRefused when nothing is left."""
        self._units -= units
        self._checks += 1
        if self._units < 0 or (self._checks % CHECK_TIME == 0 and time.monotonic() > self._until):
            raise TemplateRefused("the chat template takes too much work; send fewer or shorter messages")

    def copy(self, characters: int) -> None:
        """Pays for a text of this size before it is made."""
        if characters > self.size:
            raise TemplateRefused("the chat template makes too long a text; send fewer or shorter messages")
        self.spend(1 + characters // CHARACTERS_PER_UNIT)


_current: ContextVar[Allowance] = ContextVar("allowance")


@contextmanager
def allow(characters: int) -> Iterator[Allowance]:
    """Grants an allowance to what runs inside, for messages of this size."""
    granted = Allowance(characters)
    token = _current.set(granted)
    try:
        yield granted
    finally:
        _current.reset(token)


def allowance() -> Allowance:
    """What this rendering may still do."""
    return _current.get()


def held(value: object) -> object:
    """The value, paid for. Raises TemplateRefused when it is too large, or nests so that printing it would
    be."""
    if type(value) is str:
        allowance().copy(len(value))
    elif isinstance(value, Nested):
        weigh(value)
    elif isinstance(value, int):
        require_small(value.bit_length())
    else:
        allowance().spend(1)
    return value


def require_small(bits: int) -> None:
    if bits > LARGEST_INTEGER:
        raise TemplateRefused("the chat template computes with too large a number")


def weigh(value: object) -> int:
    """Characters that printing a value may take, with each shared part counted as often as it is shown."""
    meter = allowance()
    weight = _weight(value, {}, 0, meter)
    if weight > meter.size:
        raise TemplateRefused("the chat template makes too large a value; send fewer or shorter messages")
    return weight


def _weight(value: object, known: dict[int, int], depth: int, meter: Allowance) -> int:
    """A part that is shared is looked at once, so that weighing is cheap where printing is not."""
    meter.spend(1)
    if isinstance(value, str):
        return len(value) + 2
    if isinstance(value, Scalar):
        return 24
    if not isinstance(value, Nested):
        raise TemplateRefused(f"the chat template keeps a {type(value).__name__} in a list or prints one")
    if depth > DEEPEST:
        raise TemplateRefused("the chat template nests lists too deeply")
    if id(value) not in known:
        # A dictionary's own methods: looking at a message here is not reading it (`watching`).
        parts = [*dict.keys(value), *dict.values(value)] if isinstance(value, dict) else value
        known[id(value)] = 2 + sum(_weight(part, known, depth + 1, meter) for part in parts)
    return known[id(value)]
