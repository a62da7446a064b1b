"""Server-sent events from bytes, by the WHATWG's rules, as far as a completions stream uses them.

It holds what is not a whole event yet and knows nothing of the connection or of what the data means.
"""

import re

LINE_END = re.compile(rb"\r\n|\n|\r(?!$)")
"""A carriage return at the end of what has arrived may be half of a pair: it waits for the next bytes."""

LONGEST = 16 * 1024 * 1024
"""Bytes of one event; more is no completions stream, and would fill the memory."""


class TooLong(ValueError):
    """An event passes LONGEST."""


class Events:
    """Collects bytes and gives whole events."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, received: bytes) -> list[str]:
        """The data of each event that is complete with these bytes. Raises TooLong."""
        *lines, self._rest = LINE_END.split(self._rest + received)
        if len(self._rest) > LONGEST:
            raise TooLong
        return [data for line in lines if (data := self._line(line)) is not None]

    def _line(self, line: bytes) -> str | None:
        """The event's data when the line is the empty one that ends it; comments and other fields are
        left out."""
        if not line:
            data, self._data = self._data, []
            return "\n".join(data) if data else None
        field, _, value = line.decode("utf-8", "replace").partition(":")
        if field == "data":
            self._data.append(value.removeprefix(" "))
        return None
