"""What each token of a vocabulary may do to the keys of JSON, worked out once for each state of a text.

A state is what comes next in the text, and whether an object is open. Nearly all tokens do nothing to a key
there. The others are sorted by what decides over them: nothing, the keys of the open object, or all of the
text.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from antiphon.constraints.json_text import BACKSLASH, ESCAPES, ESCAPES_BEGUN, QUOTE, JsonText, Mode

Bit = tuple[int, int]
"""Some ids in a mask: the index of a byte, and those of its bits that are of other ids."""

UNKNOWN = b"\xff"
"""What is written of an open key: bytes that no text holds."""


class Suspects(NamedTuple):
    """Tokens that may repeat or misspell a key in one state of a text."""

    refused: Sequence[Bit]
    """Those that are refused whatever came before."""
    by_key: Mapping[bytes, Sequence[int]]
    """Tokens that complete a key of the open object, of which nothing is written so far."""
    keys: frozenset[bytes]
    """Those keys."""
    others: Sequence[int]
    """Tokens that have to be read to know it."""


class KeyTables:
    """The tokens of one vocabulary. From any thread."""

    def __init__(self, spelled: Sequence[bytes]) -> None:
        """`spelled`: what each id adds to a text, or a name that no text holds."""
        self.spelled = spelled
        closing = sorted((piece, token) for token, piece in enumerate(spelled) if QUOTE in piece)
        self._closing = [piece for piece, _ in closing]
        self._closing_ids = [token for _, token in closing]
        self._several = [token for piece, token in closing if piece.count(QUOTE) > 1 or BACKSLASH in piece]
        """Tokens that may begin a string and complete or misspell it."""
        self.with_value = [token for token in self._several if self._holds_refused_value(token)]
        """Tokens that hold the beginning of a value which is refused by itself."""
        self._key_openers: dict[tuple[Mode, bool], Sequence[int]] = {}
        self._suspects: dict[tuple[Mode, bool, bytes], Suspects] = {}

    def completing(self, rest: bytes) -> Sequence[int]:
        """Tokens that begin with the rest of a key and its quote."""
        rest += QUOTE
        first = last = bisect_left(self._closing, rest)
        while last < len(self._closing) and self._closing[last].startswith(rest):
            last += 1
        return self._closing_ids[first:last]

    @cached_property
    def _ids(self) -> Mapping[bytes, Sequence[int]]:
        found: dict[bytes, tuple[int, ...]] = {}
        for token, piece in enumerate(self.spelled):
            found[piece] = (*found.get(piece, ()), token)
        return found

    def beginning(self, rest: bytes) -> Iterator[int]:
        """Tokens that are the rest of a key, without its quote, or the beginning of it."""
        for size in range(1, len(rest) + 1):
            yield from self._ids.get(rest[:size], ())

    def key_openers(self, text: JsonText) -> Sequence[int]:
        """Tokens that may come outside of a key and after which an object needs another."""
        in_object = bool(text.levels) and text.levels[-1] is not None
        state = (text.mode, in_object)
        if state not in self._key_openers:
            empty = JsonText(text.mode, (frozenset() if in_object else None,))
            self._key_openers[state] = [
                token for token, piece in enumerate(self.spelled) if _opens_key(empty, piece)
            ]
        return self._key_openers[state]

    def suspects(self, text: JsonText) -> Suspects:
        """Tokens that may repeat or misspell a key where a text stands."""
        in_object = bool(text.levels) and text.levels[-1] is not None
        state = (text.mode, in_object, text.escape)
        found = self._suspects.get(state)
        if found is None:
            found = self._suspects[state] = self._find_suspects(*state)
        return found

    def _find_suspects(self, mode: Mode, in_object: bool, escape: bytes) -> Suspects:
        begun = UNKNOWN if mode is Mode.KEY else b""
        empty = JsonText(mode, (frozenset() if in_object else None,), begun, escape)
        refused, tokens = self._in_key(escape) if mode is Mode.KEY else ([], self._several)
        others = list[int]()
        by_key: dict[bytes, list[int]] = defaultdict(list)
        for token in tokens:
            piece = self.spelled[token]
            text, end = empty.read(piece)
            keys = (text.levels and text.levels[0]) or ()
            if text.mode is Mode.REFUSED:
                refused.append(token)
            elif (QUOTE in piece[end:] and text.mode is Mode.DONE) or (mode is Mode.KEY and len(keys) > 1):
                others.append(token)
            for key in keys:
                by_key[key.removeprefix(UNKNOWN)].append(token)
        return Suspects(_bits(refused), by_key, frozenset(by_key), others)

    def _in_key(self, escape: bytes) -> tuple[list[int], list[int]]:
        """Tokens that misspell a key in which this escape has begun, by their first byte; and others that may
        complete or misspell it."""
        refused, tokens = list[int](), list[int]()
        for token, piece in enumerate(self.spelled):
            begun = escape + piece[:1]
            ends = not escape or begun in ESCAPES
            if not ends and begun not in ESCAPES_BEGUN:
                refused.append(token)
            elif not ends or QUOTE in piece or BACKSLASH in piece:
                tokens.append(token)
        return refused, tokens

    def _holds_refused_value(self, token: int) -> bool:
        piece = self.spelled[token]
        starts = (at for at, sign in enumerate(piece) if sign in b"{[")
        return any(JsonText().read(piece, at)[0].mode is Mode.REFUSED for at in starts)


def _opens_key(text: JsonText, piece: bytes) -> bool:
    """Whether a key is needed or open after a token, or may be after the end of what is open now."""
    if QUOTE not in piece and b"," not in piece and not piece.isspace():
        return False
    after, end = text.read(piece)
    return after.mode in (Mode.KEY, Mode.NEXT_KEY) or b"," in piece[end:]


def _bits(tokens: Iterable[int]) -> Sequence[Bit]:
    found: dict[int, int] = defaultdict(lambda: 0xFF)
    for token in tokens:
        found[token >> 3] &= ~(1 << (token & 7))
    return tuple(found.items())
