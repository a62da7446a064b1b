"""Finds the control tokens of a vocabulary in a text."""

import re
from collections.abc import Iterator, Mapping, Sequence

from antiphon.engines.base import TextPiece


class ControlTokens:
    """The control tokens of one vocabulary."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """`ids`: the id of each control token by its text. No text may be empty."""
        self._ids = ids
        longest_first = sorted(ids, key=len, reverse=True)
        self._texts = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def split(self, pieces: Sequence[TextPiece]) -> Iterator[str | int]:
        """Yields text and the ids of control tokens, in order. Only pieces with `control` are searched.
        If two control tokens begin at the same character, the longer one is taken."""
        for piece in pieces:
            if not piece.control or self._texts is None:
                yield piece.text
                continue
            index = 0
            for match in self._texts.finditer(piece.text):
                yield piece.text[index : match.start()]
                yield self._ids[match[0]]
                index = match.end()
            yield piece.text[index:]
