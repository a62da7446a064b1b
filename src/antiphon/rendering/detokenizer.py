"""From token ids to text, as they come: whole characters only, whatever the tokens cut in half.

Knows pieces of bytes and UTF-8. Stop strings, spaces at the beginning and end tokens are decided elsewhere.
"""

import codecs
from collections.abc import Iterable, Mapping

REPLACEMENT = "\ufffd"
"""Stands for bytes that are no character."""

_utf8 = codecs.getincrementaldecoder("utf-8")


class Pieces:
    """The vocabulary as text and bytes; made once for a model."""

    __slots__ = ("bytes", "texts")

    def __init__(self, pieces: tuple[bytes, ...], texts: tuple[str | None, ...] | None = None) -> None:
        self.bytes = pieces
        self.texts = tuple(map(_decode_whole, pieces)) if texts is None else texts
        """The piece as text where it holds whole characters, else None."""

    def with_names(self, names: Mapping[int, str]) -> "Pieces":
        """The same, with each of these tokens shown by its name."""
        pieces, texts = list(self.bytes), list(self.texts)
        for token, name in names.items():
            pieces[token], texts[token] = name.encode(), name
        return Pieces(tuple(pieces), tuple(texts))

    def text(self, tokens: Iterable[int]) -> str:
        """All of a text at once."""
        return b"".join(self.bytes[token] for token in tokens).decode(errors="replace")


def _decode_whole(piece: bytes) -> str | None:
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

    def go_on(self, held: bytes) -> None:
        """Begins with the beginning of a character that was held elsewhere."""
        self._decoder.decode(held)
        self._pending = bool(held)

    def breaks(self, token: int) -> bool:
        """Whether a token does not go on with the beginning of a character that is held, so that this becomes
        one U+FFFD before the token's own text."""
        piece = self._bytes[token]
        if not (self._pending and piece):
            return False
        try:
            _utf8("strict").decode(self.get_pending() + piece[:1])
        except UnicodeDecodeError:
            return True
        return False

    def get_pending(self) -> bytes:
        """The beginning of a character that is not complete."""
        return self._decoder.getstate()[0] if self._pending else b""

    def end(self) -> str:
        """What is left at the end: one U+FFFD for a character that was cut."""
        self._pending = False
        return self._decoder.decode(b"", final=True)
