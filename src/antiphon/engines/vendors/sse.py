"""Splits the bytes of a vendor's stream into server-sent events. It reads no JSON."""

MAX_EVENT = 16 << 20
"""The most bytes of one event. A larger one is no token's."""


LARGE = 65_536
"""Bytes of an incomplete event above which its parts are kept apart. Usual events are far smaller."""

MARK = b"\xef\xbb\xbf"
"""The byte order mark that may begin a stream."""


class EventSplitter:
    """Collects bytes, and returns each server-sent event as (name, data) when it is complete."""

    __slots__ = ("_held", "_rest", "_size")

    def __init__(self) -> None:
        self._rest = b""
        self._held: list[bytes] = []
        """The next parts of a large event, which are joined once."""
        self._size = 0

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """Returns the events that these bytes complete. Raises ValueError for an event that is too large."""
        if len(self._rest) > LARGE and b"\n" not in data and b"\r" not in data:
            return self._hold(data)
        if self._held:
            data = b"".join((*self._held, data))
            self._held.clear()
        text = self._rest + data if self._rest else data
        if b"\r" in text:
            held = text.endswith(b"\r")  # its line feed may follow
            text = (text[:-1] if held else text).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            text += b"\r" if held else b""
        *blocks, self._rest = text.split(b"\n\n")
        if len(self._rest) > MAX_EVENT:
            raise ValueError("an event of the stream is too large")
        return [event for block in blocks if (event := _parse_event(block))]

    def _hold(self, data: bytes) -> list[tuple[str, bytes]]:
        """Keeps more of a large event, which no byte of it ends. Raises ValueError if it is too large."""
        self._size = len(data) + (self._size if self._held else len(self._rest))
        self._held.append(data)
        if self._size > MAX_EVENT:
            raise ValueError("an event of the stream is too large")
        return []

    def finish(self) -> list[tuple[str, bytes]]:
        """Returns the last event if the stream ended with it, without an empty line."""
        event = _parse_event(b"".join((self._rest, *self._held)).rstrip(b"\r\n"))
        self._rest = b""
        return [event] if event else []


def _parse_event(block: bytes) -> tuple[str, bytes] | None:
    """Returns the name and the data of an event; None if it has no data."""
    if block.startswith(b"data:") and b"\n" not in block:
        return "", block[6:] if block[5:6] == b" " else block[5:]
    name, lines = "", []
    for line in block.split(b"\n"):
        field, _, value = line.removeprefix(MARK).partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            lines.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    return (name, b"\n".join(lines)) if lines else None
