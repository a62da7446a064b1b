"""Records which parts of messages besides their text a template reads: most read no names, and many no
reasoning.

A template is a program, so its reads are recorded while it runs. A part that it reads and leaves out, as the
reasoning of earlier turns, counts as read.
"""

from collections import Counter
from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar

from antiphon.domain.messages import Message

NAME, REASONING = "name", "reasoning"
PARTS = {"name": NAME, "reasoning": REASONING, "reasoning_content": REASONING, "thinking": REASONING}
"""The part of each key of a message; several keys can mean one part."""


class FieldUsage:
    """The parts that the templates of one request have read."""

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()
        """For each part, in how many messages it was read."""

    def unread(self, messages: Sequence[Message]) -> tuple[str, ...]:
        """Returns the fields, by the caller's names, that some of these messages have and no template has
        read."""
        names = sum(message.name is not None for message in messages)
        thoughts = [message.reasoning_field for message in messages if message.reasoning is not None]
        found = ["name"] if self.read[NAME] < names else []
        if self.read[REASONING] < len(thoughts):
            found += dict.fromkeys(thoughts)
        return tuple(f"messages[].{field}" for field in found)


_current: ContextVar[FieldUsage | None] = ContextVar("watch", default=None)


@contextmanager
def watch_fields() -> Iterator[FieldUsage]:
    """Records the reads of templates that run inside, also in threads."""
    watch = FieldUsage()
    token = _current.set(watch)
    try:
        yield watch
    finally:
        _current.reset(token)


def add_usage(read: Mapping[str, int]) -> None:
    """Adds the reads of a template that ran elsewhere, if they are recorded."""
    watch = _current.get()
    if watch is not None:
        watch.read.update(read)


def watch_messages(messages: list[dict[str, object]], thinks: bool) -> list[dict[str, object]]:
    """Wraps a template's messages to record its reads. `thinks`: whether reasoning is also in their
    content."""
    watch = _current.get()
    if watch is None:
        return messages
    return [WatchedMessage(each, watch, thinks) if each.keys() & PARTS.keys() else each for each in messages]


class WatchedMessage(dict[str, object]):
    """A message that records which of its parts are read, each once."""

    __slots__ = ("_unread", "_watch")

    def __init__(self, message: dict[str, object], watch: FieldUsage, thinks: bool) -> None:
        super().__init__(message)
        self._watch = watch
        self._unread = {PARTS[key] for key in message.keys() & PARTS.keys()}
        if thinks:
            self._note({REASONING})

    def _note(self, parts: set[str]) -> None:
        found = parts & self._unread
        self._watch.read.update(found)
        self._unread -= found

    def __getitem__(self, key: str) -> object:
        value = super().__getitem__(key)
        if key in PARTS:
            self._note({PARTS[key]})
        return value

    def get(self, key: str, default: object = None) -> object:
        try:
            return self[key]
        except KeyError:
            return default

    def __iter__(self) -> Iterator[str]:
        """Yields the keys. Since this is no plain dictionary, `dict(message)` looks up each value."""
        return super().__iter__()

    def items(self) -> ItemsView[str, object]:  # type: ignore[override]
        self._note({*self._unread})
        return super().items()

    def values(self) -> ValuesView[object]:  # type: ignore[override]
        self._note({*self._unread})
        return super().values()

    def copy(self) -> dict[str, object]:
        self._note({*self._unread})
        return super().copy()

    def __repr__(self) -> str:
        self._note({*self._unread})
        return super().__repr__()
