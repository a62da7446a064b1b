"""Keeps keys apart where no grammar can: no key of a constrained text is repeated or misspelled.

A guard follows the JSON of one text token by token, and takes out of each mask the tokens that `json_text`
would refuse. It reads few of them to know which: see `key_tables`.
"""

from collections.abc import Iterable, Iterator
from copy import copy
from typing import NamedTuple

from antiphon.constraints.grammar import JsonPlaces
from antiphon.constraints.json_finder import Found, JsonFinder
from antiphon.constraints.json_text import JsonText, Mode
from antiphon.constraints.key_tables import Bit, KeyTables, Suspects
from antiphon.errors import EngineError


class Rivals(NamedTuple):
    """Keys of an object that begin as its open key does."""

    keys: frozenset[bytes]
    begun: bytes
    rivals: list[bytes]


class KeyGuard:
    """One text's keys. Not for two threads at once."""

    def __init__(self, places: JsonPlaces, tables: KeyTables) -> None:
        self._tables = tables
        self._finder = JsonFinder(places, tables.spelled.__getitem__)
        self._found = self._finder.start
        self._last_rivals = Rivals(frozenset(), b"", [])
        self.run_out = places.keys_run_out
        """Whether there may be no key left that is new."""
        self.known: dict[Found, bool] = {}
        """Whether any key is left where the text may stand soon; of the same open objects and their keys."""

    def copy(self) -> "KeyGuard":
        """One that stands where this one does, and goes its own way."""
        return copy(self)

    def consume(self, tokens: Iterable[int]) -> None:
        """Takes tokens. Raises EngineError for one that repeats or misspells a key."""
        for token in tokens:
            found = self._read(self._found, token)
            if found is None:
                raise EngineError("a token came that repeats or misspells a key")
            if not _are_alike(found, self._found):
                self.known = {}
            self._found = found

    def after(self, token: int) -> Found | None:
        """Where the text stands after a token; None where that is refused."""
        return self._read(self._found, token)

    def allowed_part(self, tokens: list[int]) -> list[int]:
        """Tokens up to the first that repeats or misspells a key."""
        found: Found | None = self._found
        for at, token in enumerate(tokens):
            if found is None or (found := self._read(found, token)) is None:
                return tokens[:at]
        return tokens

    def restrict(self, mask: bytes) -> bytes:
        """The mask without tokens that repeat or misspell a key."""
        bits, refused = list[Bit](), list[int]()
        suspected = [] if self._finder.is_whole else [*self._tables.with_value]
        for value in self._found.values:
            suspects = self._tables.suspects(value)
            bits += suspects.refused
            suspected += suspects.others
            if keys := value.levels and value.levels[-1]:
                refused += self._completing(value, keys, suspects)
        refused += [token for token in suspected if _has(mask, token) and self.after(token) is None]
        return without(mask, refused, bits) if bits or refused else mask

    def narrowing(self, mask: bytes) -> list[int]:
        """Allowed tokens after which the open key begins like one that is there, or another key is needed."""
        tokens = list[int]()
        for value in self._found.values:
            if value.mode is not Mode.KEY:
                tokens += self._tables.key_openers(value)
            elif keys := value.levels[-1]:
                begun = value.key + value.escape
                for key in self._rivals(keys, begun):
                    tokens += self._tables.beginning(key[len(begun) :])
        return [token for token in {*tokens} if _has(mask, token) and self._narrows(token)]

    def _narrows(self, token: int) -> bool:
        found = self.after(token)
        return found is not None and any(map(_is_narrow, found.values))

    def _completing(self, value: JsonText, keys: frozenset[bytes], suspects: Suspects) -> Iterator[int]:
        """Tokens that complete one of the keys."""
        begun = value.key + value.escape
        if value.mode is not Mode.KEY or not begun:
            for key in keys & suspects.keys:
                yield from suspects.by_key[key]
        else:
            for key in self._rivals(keys, begun):
                yield from self._tables.completing(key[len(begun) :])

    def _rivals(self, keys: frozenset[bytes], begun: bytes) -> list[bytes]:
        """Keys that begin like the open one: of those that did so a token ago, as long as it is the same."""
        last = self._last_rivals
        within = last.rivals if last.keys is keys and begun.startswith(last.begun) else keys
        rivals = [key for key in within if key.startswith(begun)]
        self._last_rivals = Rivals(keys, begun, rivals)
        return rivals

    def _read(self, found: Found, token: int) -> Found | None:
        return self._finder.read(found, self._tables.spelled[token])


def _has(mask: bytes, token: int) -> bool:
    return bool(mask[token >> 3] >> (token & 7) & 1)


def _is_narrow(value: JsonText) -> bool:
    """Whether a key is needed that may have to be one that is there."""
    keys = value.levels[-1] if value.levels else None
    if not keys or value.mode is Mode.NEXT_KEY:
        return bool(keys)
    begun = value.key + value.escape
    return value.mode is Mode.KEY and any(key.startswith(begun) for key in keys)


def _are_alike(one: Found, other: Found) -> bool:
    """Whether the same objects are open, with the same keys."""
    pairs = zip(one.values, other.values, strict=False)
    return len(one.values) == len(other.values) and all(a.levels is b.levels for a, b in pairs)


def without(mask: bytes, tokens: Iterable[int], bits: Iterable[Bit] = ()) -> bytes:
    """The mask less some tokens."""
    allowed = bytearray(mask)
    for index, others in bits:
        allowed[index] &= others
    for token in tokens:
        allowed[token >> 3] &= ~(1 << (token & 7))
    return bytes(allowed)
