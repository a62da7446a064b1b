"""Records whether a template reads the names and the reasoning of messages. Most templates read no names, and
many read no reasoning.

Reads are recorded while the template runs, because a template is a program. A part counts as read even if the
template does not write it, for example the reasoning of earlier turns.
"""

from collections import Counter
from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar

from antiphon.domain.messages import Message

NAME, REASONING = "name", "reasoning"
PARTS = {"name": NAME, "reasoning": REASONING, "reasoning_content": REASONING, "thinking": REASONING}
"""The recorded part for each key of a message. Several keys mean the same part."""


class FieldUsage:
    """The parts that the templates of one request have read."""

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()
        """For each part, the number of messages in which a template read it."""

    def list_unread(self, messages: Sequence[Message]) -> tuple[str, ...]:
        """Returns the fields, by the caller's names, that some of these messages have but no template has
        read."""
        names = sum(message.name is not None for message in messages)
        thoughts = [message.reasoning_field for message in messages if message.reasoning is not None]
        unread = ["name"] if self.read[NAME] < names else []
        if self.read[REASONING] < len(thoughts):
            unread += dict.fromkeys(thoughts)
        return tuple(f"messages[].{field}" for field in unread)


_current: ContextVar[FieldUsage | None] = ContextVar("watch", default=None)


@contextmanager
def watch_fields() -> Iterator[FieldUsage]:
    """Records what templates read inside the block, also in threads."""
    watch = FieldUsage()
    token = _current.set(watch)
    try:
        yield watch
    finally:
        _current.reset(token)


def add_usage(read: Mapping[str, int]) -> None:
    """Adds the reads of a template that ran in another process, if reads are recorded here."""
    watch = _current.get()
    if watch is not None:
        watch.read.update(read)


def watch_messages(messages: list[dict[str, object]], thinks: bool) -> list[dict[str, object]]:
    """Wraps a template's messages so that reads are recorded. `thinks`: whether the messages' content
    contains their reasoning."""
    watch = _current.get()
    if watch is None:
        return messages
    return [WatchedMessage(each, watch, thinks) if each.keys() & PARTS.keys() else each for each in messages]


class WatchedMessage(dict[str, object]):
    """A message that records which of its parts a template reads. Each part counts once."""

    __slots__ = ("_unread", "_watch")

    def __init__(self, message: dict[str, object], watch: FieldUsage, thinks: bool) -> None:
        super().__init__(message)
        self._watch = watch
        self._unread = {PARTS[key] for key in message.keys() & PARTS.keys()}
        if thinks:
            self._record({REASONING})

    def _record(self, parts: set[str]) -> None:
        """Records that the template read these parts."""
        newly_read = parts & self._unread
        self._watch.read.update(newly_read)
        self._unread -= newly_read

    def __getitem__(self, key: str) -> object:
        value = super().__getitem__(key)
        if key in PARTS:
            self._record({PARTS[key]})
        return value

    def get(self, key: str, default: object = None) -> object:
        try:
            return self[key]
        except KeyError:
            return default

    def __iter__(self) -> Iterator[str]:
        """Yields the keys. Because this class overrides `__iter__`, `dict(message)` looks up each value, and
        each look-up is recorded."""
        return super().__iter__()

    def items(self) -> ItemsView[str, object]:  # type: ignore[override]
        self._record({*self._unread})
        return super().items()

    def values(self) -> ValuesView[object]:  # type: ignore[override]
        self._record({*self._unread})
        return super().values()

    def copy(self) -> dict[str, object]:
        self._record({*self._unread})
        return super().copy()

    def __repr__(self) -> str:
        self._record({*self._unread})
        return super().__repr__()
