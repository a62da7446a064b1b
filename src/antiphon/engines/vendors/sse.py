"""Splits the bytes of a vendor's stream into server-sent events. It reads no JSON."""

MAX_EVENT = 16 << 20
"""The most bytes of one event. A larger one is no token's."""


MARK = b"\xef\xbb\xbf"
"""The byte order mark that may begin a stream."""


class EventSplitter:
    """Collects bytes, and returns each server-sent event as (name, data) when it is complete."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """Returns the events that these bytes complete. Raises ValueError for an event that is too large."""
        text = self._rest + data if self._rest else data
        if b"\r" in text:
            held = text.endswith(b"\r")  # its line feed may follow
            text = (text[:-1] if held else text).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            text += b"\r" if held else b""
        *blocks, self._rest = text.split(b"\n\n")
        if len(self._rest) > MAX_EVENT:
            raise ValueError("an event of the stream is too large")
        return [event for block in blocks if (event := _parse_event(block))]

    def finish(self) -> list[tuple[str, bytes]]:
        """Returns the last event if the stream ended with it, without an empty line."""
        event = _parse_event(self._rest.rstrip(b"\r\n"))
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
