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
PART_OF_KEY = {"name": NAME, "reasoning": REASONING, "reasoning_content": REASONING, "thinking": REASONING}
"""The part of a message that each of its keys contains. Several keys contain the same part."""


class FieldUsage:
    """The parts that the templates of one request have read."""

    def __init__(self) -> None:
        self.read_counts: Counter[str] = Counter()
        """For each part, the number of messages in which a template read it."""

    def list_unread(self, messages: Sequence[Message]) -> tuple[str, ...]:
        """Returns the fields, by the caller's names, that some of these messages have but no template has
        read."""
        name_count = sum(message.name is not None for message in messages)
        reasoning_fields = [message.reasoning_field for message in messages if message.reasoning is not None]
        unread_fields = ["name"] if self.read_counts[NAME] < name_count else []
        if self.read_counts[REASONING] < len(reasoning_fields):
            unread_fields += dict.fromkeys(reasoning_fields)
        return tuple(f"messages[].{field}" for field in unread_fields)


_current_usage: ContextVar[FieldUsage | None] = ContextVar("usage", default=None)


@contextmanager
def watch_fields() -> Iterator[FieldUsage]:
    """Records what templates read inside the block, also in threads."""
    usage = FieldUsage()
    token = _current_usage.set(usage)
    try:
        yield usage
    finally:
        _current_usage.reset(token)


def add_usage(read_counts: Mapping[str, int]) -> None:
    """Adds the reads of a template that ran in another process, if reads are recorded here."""
    usage = _current_usage.get()
    if usage is not None:
        usage.read_counts.update(read_counts)


def watch_messages(messages: list[dict[str, object]], has_reasoning: bool) -> list[dict[str, object]]:
    """Wraps a template's messages so that reads are recorded. `has_reasoning`: whether the messages' content
    contains their reasoning, so that the template reads it in any case."""
    usage = _current_usage.get()
    if usage is None:
        return messages
    return [
        WatchedMessage(each, usage, has_reasoning) if each.keys() & PART_OF_KEY.keys() else each
        for each in messages
    ]


class WatchedMessage(dict[str, object]):
    """A message that records which of its parts a template reads. Each part counts once."""

    __slots__ = ("_unread", "_usage")

    def __init__(self, message: dict[str, object], usage: FieldUsage, has_reasoning: bool) -> None:
        super().__init__(message)
        self._usage = usage
        self._unread = {PART_OF_KEY[key] for key in message.keys() & PART_OF_KEY.keys()}
        if has_reasoning:
            self._record({REASONING})

    def _record(self, parts: set[str]) -> None:
        """Records that the template read these parts."""
        newly_read = parts & self._unread
        self._usage.read_counts.update(newly_read)
        self._unread -= newly_read

    def __getitem__(self, key: str) -> object:
        value = super().__getitem__(key)
        if key in PART_OF_KEY:
            self._record({PART_OF_KEY[key]})
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
