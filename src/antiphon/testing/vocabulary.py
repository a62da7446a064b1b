"""A small vocabulary and tokenizer for the scripted token engine: bytes, some words, pieces that cut
characters in half, and the control tokens of the common chat templates. It is nobody's real tokenizer; it has
the properties that hurt.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from antiphon.engines.base import TextPiece, TokenKind, Vocabulary

CONTROLS = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "[INST]",
    "[/INST]",
    "<bos>",
    "<start_of_turn>",
    "<end_of_turn>",
)
END_CONTROLS = ("</s>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>")
SPACED = " the a an and cat dog sat on mat once upon time Hello world is of to in"
BARE = "Hello,Once,The,user,assistant,system,model,st,op,END,é,日本,語,ing,er"
HALVES = (
    b"\xf0\x9f",  # the first half of many emoji, as byte-level tokenizers cut them
    b"\x98\x80",  # and the second half of one
    b" \xe6",  # a space and the first byte of a three-byte character
)
WORDS: tuple[bytes, ...] = (
    *(b" " + word for word in SPACED.encode().split()),
    *BARE.encode().split(b","),
    b"  ",
    b"\n\n",
    *HALVES,
)


def build_vocabulary(
    words: Sequence[bytes] = WORDS, bos: str | None = "<s>", add_bos: bool = True, space_prefix: bool = False
) -> Vocabulary:
    """Ids in order: unknown, the control tokens, the 256 bytes, the words, one unused."""
    pieces = [b"", *(b"" for _ in CONTROLS), *(bytes((value,)) for value in range(256)), *words, b""]
    kinds = [TokenKind.UNKNOWN, *(TokenKind.CONTROL for _ in CONTROLS), *(TokenKind.BYTE for _ in range(256))]
    kinds += [TokenKind.NORMAL for _ in words] + [TokenKind.UNUSED]
    ids = {name: index for index, name in enumerate(CONTROLS, start=1)}
    return Vocabulary(
        pieces=tuple(pieces),
        kinds=tuple(kinds),
        names={index: name for name, index in ids.items()},
        end_ids=tuple(ids[name] for name in END_CONTROLS),
        bos_id=None if bos is None else ids[bos],
        eos_id=ids["</s>"],
        add_bos=add_bos,
        space_prefix=space_prefix,
    )


@dataclass(frozen=True)
class Tokenizer:
    """Longest match from the left over the pieces of a vocabulary that has every byte."""

    vocabulary: Vocabulary

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        usable = (TokenKind.BYTE, TokenKind.NORMAL)
        table = zip(self.vocabulary.pieces, self.vocabulary.kinds, strict=True)
        return {piece: index for index, (piece, kind) in enumerate(table) if kind in usable}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids))

    @cached_property
    def controls(self) -> dict[str, int]:
        """Id of each control token, by its text."""
        return {name: index for index, name in self.vocabulary.names.items()}

    @cached_property
    def _control(self) -> re.Pattern[str]:
        return re.compile("(" + "|".join(map(re.escape, sorted(self.controls, key=len, reverse=True))) + ")")

    def plain(self, text: str | bytes) -> tuple[int, ...]:
        """Ids of text that holds no control token, without the prefix space."""
        data = text.encode() if isinstance(text, str) else text
        return tuple(self._longest_matches(data))

    def _longest_matches(self, data: bytes) -> Iterator[int]:
        at = 0
        while at < len(data):
            for size in range(min(self._longest, len(data) - at), 0, -1):
                found = self._ids.get(data[at : at + size])
                if found is not None:
                    yield found
                    at += size
                    break

    def encode(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        """Ids of the pieces joined to one text; plain text on both sides of a piece's edge is one run."""
        ids: list[int] = []
        if add_bos and self.vocabulary.bos_id is not None:
            ids.append(self.vocabulary.bos_id)
        for index, run in enumerate(self._runs(pieces)):
            if isinstance(run, int):
                ids.append(run)
            else:
                prefix = " " if index == 0 and self.vocabulary.space_prefix else ""
                ids.extend(self.plain(prefix + run))
        return tuple(ids)

    def _runs(self, pieces: Sequence[TextPiece]) -> Iterator[str | int]:
        """Alternates between stretches of plain text and ids of control tokens."""
        text = ""
        for piece in pieces:
            for part in self._control.split(piece.text) if piece.control else (piece.text,):
                found = self.controls.get(part) if piece.control else None
                if found is None:
                    text += part
                    continue
                if text:
                    yield text
                text = ""
                yield found
        if text:
            yield text
