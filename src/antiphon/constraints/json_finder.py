"""Finds the values of JSON in a text as it grows, by what stands before them, and reads them.

What looks like the beginning of a value is read as one until it proves to be none, beside any other that is
still open. So a mark that stands in free text hides no value behind it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from antiphon.constraints.grammar import WHOLE_TEXT, JsonPlaces
from antiphon.constraints.groups import Marks
from antiphon.constraints.json_text import JsonText, Mode


class Lead(NamedTuple):
    """What may come right before a value, of which a part has come."""

    texts: tuple[bytes, ...]
    size: int = 0
    """Bytes that have come of each."""


class Found(NamedTuple):
    """A text as far as it is read."""

    values: tuple[JsonText, ...] = ()
    """Those that are open."""
    leads: tuple[Lead, ...] = ()
    tail: bytes = b""
    """The end of the text, in which marks may have begun."""


class JsonFinder:
    """Reads the texts of one grammar. From any thread."""

    def __init__(self, places: JsonPlaces, spelling: Callable[[int], bytes]) -> None:
        """`spelling`: what a token adds to a text, or a name that no text holds."""

        def spell(marks: Marks) -> bytes:
            return b"".join(spelling(mark) if isinstance(mark, int) else mark.encode() for mark in marks)

        self._anywhere = tuple(map(spell, places.anywhere))
        self._last_bytes = frozenset(mark[-1] for mark in self._anywhere)
        self._longest = max(map(len, self._anywhere), default=0)
        self._after_json = tuple(map(spell, places.after_json))
        self.is_whole = replace(places, keys_run_out=False) == WHOLE_TEXT
        """Whether the text is one value and nothing else."""
        at_start = Lead(tuple(map(spell, places.at_start)))
        self.start = Found((JsonText(),)) if self.is_whole else self._read(Found(leads=(at_start,)), b"")
        """A text that is still empty."""

    def read(self, found: Found, data: bytes) -> Found | None:
        """The text after more bytes; None where they repeat or misspell a key."""
        if self.is_whole:
            value, _ = found.values[0].read(data)
            return None if value.mode is Mode.REFUSED else Found((value,))
        found = self._read(found, data)
        return None if any(value.mode is Mode.REFUSED for value in found.values) else found

    def _read(self, found: Found, data: bytes) -> Found:
        parts: list[JsonText | Lead] = [*found.values, *found.leads]
        open_now = [each for part in parts for each in self._follow(part, data, 0)]
        tail = b""
        if self._anywhere:
            text = found.tail + data
            begun = self._ends_of_marks(text, len(found.tail))
            open_now += [each for at in begun for each in self._follow(JsonText(), data, at)]
            tail = text[-self._longest :]
        values = tuple(each for each in open_now if isinstance(each, JsonText))
        return Found(values, tuple(each for each in open_now if isinstance(each, Lead)), tail)

    def _follow(self, part: JsonText | Lead, data: bytes, at: int) -> Iterator[JsonText | Lead]:
        """What is open after the bytes of what was open before."""
        if isinstance(part, Lead):
            yield from self._follow_lead(part, data, at)
            return
        value, at = part.read(data, at)
        if value.mode is Mode.DONE:
            yield from self._follow_lead(Lead(self._after_json), data, at)
        elif value.mode is not Mode.BROKEN:
            yield value

    def _follow_lead(self, lead: Lead, data: bytes, at: int) -> Iterator[JsonText | Lead]:
        more = data[at:]
        going_on = []
        for text in lead.texts:
            rest = text[lead.size :]
            if more.startswith(rest):
                yield from self._follow(JsonText(), data, at + len(rest))
            elif rest.startswith(more):
                going_on.append(text)
        if going_on:
            yield Lead(tuple(going_on), lead.size + len(more))

    def _ends_of_marks(self, text: bytes, start: int) -> Iterator[int]:
        """Where after the start marks end, counted from there."""
        for at in range(start, len(text)):
            if text[at] in self._last_bytes and text.endswith(self._anywhere, 0, at + 1):
                yield at + 1 - start
