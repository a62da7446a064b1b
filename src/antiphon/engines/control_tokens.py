"""The control tokens of a vocabulary, and where they are in a text. Tokenizers know what they mean."""

import re
from collections.abc import Iterator, Mapping, Sequence

from antiphon.engines.base import TextPiece


class ControlTokens:
    """The control tokens by their texts."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """`ids`: by text, without an empty one."""
        self._ids = ids
        longest_first = sorted(ids, key=len, reverse=True)
        self._texts = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def split(self, pieces: Sequence[TextPiece]) -> Iterator[str | int]:
        """Yields text and the ids of control tokens, in order. Only pieces that may have control tokens are
        searched for them; of two that begin together the longer one counts."""
        for piece in pieces:
            if not piece.control or self._texts is None:
                yield piece.text
                continue
            at = 0
            for match in self._texts.finditer(piece.text):
                yield piece.text[at : match.start()]
                yield self._ids[match[0]]
                at = match.end()
            yield piece.text[at:]
