"""From token ids to text, as they come: whole characters only, whatever the tokens cut in half.

Knows pieces of bytes and UTF-8. Stop strings, spaces at the beginning and end tokens are decided elsewhere.
"""

import codecs
from collections.abc import Iterable

from antiphon.engines.base import Vocabulary

REPLACEMENT = "\ufffd"
"""Stands for bytes that are no character."""

_utf8 = codecs.getincrementaldecoder("utf-8")


class Pieces:
    """The vocabulary as text and bytes; made once for a model."""

    __slots__ = ("bytes", "texts")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.bytes = vocabulary.pieces
        self.texts = tuple(map(_whole, vocabulary.pieces))
        """The piece as text where it holds whole characters, else None."""

    def text(self, tokens: Iterable[int]) -> str:
        """All of a text at once."""
        return b"".join(self.bytes[token] for token in tokens).decode(errors="replace")


def _whole(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


class Detokenizer:
    """One text, token by token. Joining what `add` and `end` give is what `Pieces.text` gives at once."""

    __slots__ = ("_bytes", "_decoder", "_pending", "_texts")

    def __init__(self, pieces: Pieces) -> None:
        self._texts = pieces.texts
        self._bytes = pieces.bytes
        self._decoder = _utf8(errors="replace")
        self._pending = False
        """Whether the decoder holds the beginning of a character."""

    def add(self, token: int) -> str:
        """The text that is certain now; empty while a character is not complete."""
        whole = self._texts[token]
        if whole is not None and not (self._pending and whole):
            return whole
        text = self._decoder.decode(self._bytes[token])
        self._pending = bool(self._decoder.getstate()[0])
        return text

    def end(self) -> str:
        """What is left at the end: one U+FFFD for a character that was cut."""
        self._pending = False
        return self._decoder.decode(b"", final=True)
