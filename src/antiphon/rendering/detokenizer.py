"""Converts token ids to text as they arrive. It returns only whole characters, also if tokens split a
character.

This module handles bytes and UTF-8. Other modules handle stop strings, leading spaces and end tokens.
"""

import codecs
from collections.abc import Iterable, Mapping

REPLACEMENT = "\ufffd"
"""The character that replaces invalid bytes."""

_utf8 = codecs.getincrementaldecoder("utf-8")


class Pieces:
    """A model's vocabulary as bytes and texts."""

    __slots__ = ("bytes", "texts")

    def __init__(self, pieces: tuple[bytes, ...], texts: tuple[str | None, ...] | None = None) -> None:
        self.bytes = pieces
        self.texts = tuple(map(_decode_whole, pieces)) if texts is None else texts
        """The text of each token; None if the token cuts a character."""

    def with_names(self, names: Mapping[int, str]) -> "Pieces":
        """Returns the same pieces, but with names as the texts of these tokens."""
        pieces, texts = list(self.bytes), list(self.texts)
        for token, name in names.items():
            pieces[token], texts[token] = name.encode(), name
        return Pieces(tuple(pieces), tuple(texts))

    def text(self, tokens: Iterable[int]) -> str:
        """Decodes a whole text at once."""
        return b"".join(self.bytes[token] for token in tokens).decode(errors="replace")


def _decode_whole(piece: bytes) -> str | None:
    """Returns the piece as text, or None if the piece cuts a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


class Detokenizer:
    """Decodes one text token by token. The joined results of `add` and `end` equal `Pieces.text`."""

    __slots__ = ("_bytes", "_decoder", "_has_pending_bytes", "_texts")

    def __init__(self, pieces: Pieces) -> None:
        self._texts = pieces.texts
        self._bytes = pieces.bytes
        self._decoder = _utf8(errors="replace")
        self._has_pending_bytes = False
        """Whether the decoder has the first bytes of an incomplete character."""

    def add(self, token: int) -> str:
        """Returns the whole characters after a token; empty while a character is incomplete."""
        token_text = self._texts[token]
        if token_text is not None and not (self._has_pending_bytes and token_text):
            return token_text
        text = self._decoder.decode(self._bytes[token])
        self._has_pending_bytes = bool(self._decoder.getstate()[0])
        return text

    def resume(self, held_bytes: bytes) -> None:
        """Starts with the first bytes of a character that is incomplete at the end of the prompt."""
        self._decoder.decode(held_bytes)
        self._has_pending_bytes = bool(held_bytes)

    def breaks_character(self, token: int) -> bool:
        """Whether an incomplete character precedes this token and the token does not continue it. One U+FFFD
        then replaces that character before the token's text."""
        piece = self._bytes[token]
        if not (self._has_pending_bytes and piece):
            return False
        try:
            _utf8("strict").decode(self.get_pending() + piece[:1])
        except UnicodeDecodeError:
            return True
        return False

    def get_pending(self) -> bytes:
        """Returns the bytes of the incomplete character."""
        return self._decoder.getstate()[0] if self._has_pending_bytes else b""

    def end(self) -> str:
        """Ends the text. Returns U+FFFD if its last character is incomplete, otherwise an empty text."""
        self._has_pending_bytes = False
        return self._decoder.decode(b"", final=True)
