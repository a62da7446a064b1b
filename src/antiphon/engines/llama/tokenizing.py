"""Text to token ids, and the table of ids: what a loaded model's vocabulary says, in the seam's terms.

Only a piece that says so may turn the text of a control token into that token. The rest of the text, over all
pieces, is tokenized as one: a word that begins in one piece and ends in the next is one word. Native calls
are left to `libllama_model`.
"""

import re
from collections.abc import Iterator, Sequence
from enum import IntFlag

from antiphon.engines.base import TextPiece, TokenKind, Vocabulary
from antiphon.engines.llama.libllama_model import NativeModel


class Attribute(IntFlag):
    """llama_token_attr."""

    UNKNOWN = 1
    UNUSED = 2
    NORMAL = 4
    CONTROL = 8
    USER_DEFINED = 16
    BYTE = 32
    NORMALIZED = 64
    LSTRIP = 128
    RSTRIP = 256
    SINGLE_WORD = 512


KINDS = {
    Attribute.CONTROL: TokenKind.CONTROL,
    Attribute.BYTE: TokenKind.BYTE,
    Attribute.UNKNOWN: TokenKind.UNKNOWN,
    Attribute.UNUSED: TokenKind.UNUSED,
}
"""Kinds by the first attribute that a token has; others are normal."""

SENTENCE_PIECE = 1
"""llama_vocab_type of tokenizers that may put a space before a text."""

SPACE_PREFIX = "tokenizer.ggml.add_space_prefix"


def kind_of(attributes: int) -> TokenKind:
    """The seam's kind of a token with these attributes."""
    return next((kind for bit, kind in KINDS.items() if attributes & bit), TokenKind.NORMAL)


def read_vocabulary(model: NativeModel) -> Vocabulary:
    """The whole table. Takes a fifth of a second for 128,000 ids."""
    ids = range(model.size)
    attributes = [model.attributes(token) for token in ids]
    kinds = tuple(kind_of(bits) for bits in attributes)
    named = [token for token in ids if kinds[token] is TokenKind.CONTROL]
    return Vocabulary(
        pieces=tuple(model.piece(token) for token in ids),
        kinds=kinds,
        names={token: model.text(token) for token in named},
        end_ids=tuple(token for token in ids if model.ends(token)),
        bos_id=model.bos(),
        eos_id=model.eos(),
        add_bos=model.adds_bos(),
        space_prefix=model.vocabulary_type() == SENTENCE_PIECE and model.metadata(SPACE_PREFIX) != "false",
        around=model.around(),
    )


class Tokenizer:
    """Splits text at control tokens where that is allowed, and has the rest tokenized natively."""

    def __init__(self, model: NativeModel) -> None:
        self._model = model
        special = Attribute.CONTROL | Attribute.USER_DEFINED | Attribute.UNKNOWN
        self._attributes = {token: model.attributes(token) for token in range(model.size)}
        self._ids = {model.text(token): token for token, bits in self._attributes.items() if bits & special}
        self._ids.pop("", None)
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        """Token ids of the pieces joined to one text."""
        bos = self._model.bos()
        found = [bos] if add_bos and bos is not None else []
        text = ""
        strip = False
        for part in self._parts(pieces):
            if isinstance(part, str):
                text += part
                continue
            bits = self._attributes[part]
            found += self._plain(text, strip, bool(bits & Attribute.LSTRIP))
            found.append(part)
            text, strip = "", bool(bits & Attribute.RSTRIP)
        return (*found, *self._plain(text, strip, False))

    def _plain(self, text: str, left: bool, right: bool) -> list[int]:
        """Ids of text without control tokens, less the space at an end that the token beside it swallows."""
        text = text.lstrip() if left else text
        text = text.rstrip() if right else text
        return self._model.tokenize(text.encode("utf-8", "surrogatepass"))

    def _parts(self, pieces: Sequence[TextPiece]) -> Iterator[str | int]:
        """Text and the ids of control tokens, in order."""
        for piece in pieces:
            if not piece.control or self._special is None:
                yield piece.text
                continue
            at = 0
            for match in self._special.finditer(piece.text):
                yield piece.text[at : match.start()]
                yield self._ids[match[0]]
                at = match.end()
            yield piece.text[at:]
