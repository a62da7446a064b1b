"""Splits the bytes of a vendor's stream into server-sent events. It reads no JSON."""

MAX_EVENT = 16 << 20
"""The most bytes of one event. An event with tokens is never larger."""


LARGE_EVENT = 65_536
"""Bytes of an incomplete event above which its further parts are collected in a list, and joined only
once."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""The byte order mark that may begin a stream."""


class EventSplitter:
    """Collects bytes, and returns each server-sent event as (name, data) when it is complete."""

    __slots__ = ("_byte_count", "_incomplete", "_parts")

    def __init__(self) -> None:
        self._incomplete = b""
        self._parts: list[bytes] = []
        """The next parts of a large event, which are joined once."""
        self._byte_count = 0

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """Returns the events that these bytes complete. An event that is too large raises ValueError once the
        events before it are returned."""
        self._require_size(len(self._incomplete))
        if len(self._incomplete) > LARGE_EVENT and b"\n" not in data and b"\r" not in data:
            return self._collect_part(data)
        if self._parts:
            data = b"".join((*self._parts, data))
            self._parts.clear()
        text = self._incomplete + data if self._incomplete else data
        if b"\r" in text:
            ends_in_return = text.endswith(b"\r")  # its line feed may follow
            text = (text[:-1] if ends_in_return else text).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            text += b"\r" if ends_in_return else b""
        *blocks, self._incomplete = text.split(b"\n\n")
        events = [event for block in blocks if (event := _parse_event(block))]
        if not events:
            self._require_size(len(self._incomplete))
        return events

    def _require_size(self, size: int) -> None:
        """Raises ValueError if an incomplete event of `size` bytes is too large."""
        if size > MAX_EVENT:
            raise ValueError("an event of the stream is too large")

    def _collect_part(self, data: bytes) -> list[tuple[str, bytes]]:
        """Collects a part of a large event that does not end it. Raises ValueError if the event is too
        large."""
        self._byte_count = len(data) + (self._byte_count if self._parts else len(self._incomplete))
        self._parts.append(data)
        self._require_size(self._byte_count)
        return []

    def finish(self) -> list[tuple[str, bytes]]:
        """Returns the last event if the stream ended without an empty line after it. Raises ValueError for an
        event that is too large."""
        self._require_size(len(self._incomplete))
        event = _parse_event(b"".join((self._incomplete, *self._parts)).rstrip(b"\r\n"))
        self._incomplete = b""
        return [event] if event else []


def _parse_event(block: bytes) -> tuple[str, bytes] | None:
    """Returns the name and the data of an event; None if it has no data."""
    if block.startswith(b"data:") and b"\n" not in block:
        return "", block[6:] if block[5:6] == b" " else block[5:]
    name, lines = "", []
    for line in block.split(b"\n"):
        field, _, value = line.removeprefix(BYTE_ORDER_MARK).partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            lines.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    return (name, b"\n".join(lines)) if lines else None
