"""Server-sent events: splits the bytes of a stream into events. It reads no JSON."""

from antiphon.engines.vendors.connection import MAX_ANSWER

MAX_LINES = 10_000
"""The most lines of one event."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""The byte order mark that may begin a stream."""


class EventSplitter:
    """Collects bytes, and returns each server-sent event as (name, data) when it is complete. Reads each byte
    once, however small the parts are."""

    __slots__ = ("_incomplete", "_max_bytes", "_return")

    def __init__(self, max_bytes: int = MAX_ANSWER) -> None:
        """`max_bytes`: the most bytes of one event."""
        self._max_bytes = max_bytes
        self._incomplete = bytearray()
        """An event whose end has not arrived."""
        self._return = b""
        """A carriage return at the end of the last part, until it is known whether a line feed follows."""

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """Returns the events that these bytes complete. An event that is too large raises ValueError once the
        events before it are returned."""
        self._require_size()
        if self._return or b"\r" in data:
            data = self._return + data
            self._return = b"\r" if data.endswith(b"\r") else b""
            data = data.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._incomplete:
            begin = len(self._incomplete) - 1  # an event's end can begin in the bytes before
            self._incomplete += data
            if self._incomplete.find(b"\n\n", begin) < 0:
                self._require_size()
                return []
            data = bytes(self._incomplete)
            self._incomplete.clear()
        *blocks, rest = data.split(b"\n\n")
        self._incomplete += rest
        events: list[tuple[str, bytes]] = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:  # as almost every vendor writes it
                events.append(("", block[6:]))
            elif block and (event := _parse_event(block)):
                events.append(event)
        if not events:
            self._require_size()
        return events

    def finish(self) -> list[tuple[str, bytes]]:
        """Returns the last event if the stream ended without an empty line after it. Raises ValueError for an
        event that is too large."""
        self._require_size()
        event = _parse_event(bytes(self._incomplete).rstrip(b"\n"))
        self._incomplete.clear()
        return [event] if event else []

    def _require_size(self) -> None:
        """Raises ValueError if the incomplete event is too large."""
        if len(self._incomplete) > self._max_bytes:
            raise ValueError("an event of the stream is too large")


def _parse_event(block: bytes) -> tuple[str, bytes] | None:
    """Returns the name and the data of an event; None if it has no data."""
    if block.count(b"\n") >= MAX_LINES:
        raise ValueError("an event of the stream has too many lines")
    name, lines = "", []
    for line in block.split(b"\n"):
        field, _, value = line.removeprefix(BYTE_ORDER_MARK).partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            lines.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    return (name, b"\n".join(lines)) if lines else None
