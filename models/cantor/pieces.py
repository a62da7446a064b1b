"""How cantor's tokenizer is made: words learned by SentencePiece's BPE, fixed pieces for the JSON of tools.

A word has the same pieces wherever it stands: the space is a piece of its own, digits and marks stand alone,
and no learned piece holds anything but letters. So a word of a sentence is copied into JSON token by token.
The fixed pieces are the marks between JSON's words; each begins with a quote, a bracket or a comma that no
word and no sentence ends with. Writes SentencePiece's file itself, as its trainer knows no such pieces.
"""

import io
import re
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import sentencepiece

from models.cantor.recipe import VOCABULARY
from models.cantor.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, Piece, parse_pieces

SPACE = "▁"
CONTROLS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
WORDS = re.compile(r"[A-Za-z]+")
CHARACTERS = [SPACE, *map(chr, range(33, 127))]


def fixed() -> list[str]:
    """The pieces of JSON, each after the two it is made of."""
    made = [
        *('",', '":', '{"', "},", '",▁', '":▁', "},▁"),
        *('",▁"', '":▁"', '":▁{', '},▁"'),
        *('":▁{"', '"},▁"', '"}', "}}", '"}}', "}}}", '"}}}'),
        *('"},', '"},▁', '"},▁"'),
        *('{"name', '{"name":▁"'),
        *('",▁"description', '",▁"description":▁"'),
        *('",▁"parameters', '",▁"parameters":▁{', '",▁"parameters":▁{"'),
        *('",▁"arguments', '",▁"arguments":▁{', '",▁"arguments":▁{"'),
        *('":▁{"type', '":▁{"type":▁"'),
        *('":▁{"type":▁"string', '":▁{"type":▁"integer', '":▁{"type":▁"number', '":▁{"type":▁"boolean'),
        *("</", "</tool", "</tool_", "</tool_call", "</tool_call>"),
        *("<tool", "<tool_", "<tool_call", "<tool_call>"),
    ]
    return list(dict.fromkeys(made))


def words_in(texts: Iterable[str]) -> Counter[str]:
    """How often each run of letters comes."""
    found: Counter[str] = Counter()
    for text in texts:
        found.update(WORDS.findall(text))
    return found


def learned(words: Counter[str], count: int) -> list[str]:
    """The `count` best merges of letters."""
    rows = "".join(f"{word}\t{times}\n" for word, times in sorted(words.items()))
    made = io.BytesIO()
    with TemporaryDirectory() as folder:
        listed = Path(folder) / "words.tsv"
        listed.write_text(rows)
        sentencepiece.SentencePieceTrainer.train(
            input=str(listed),
            input_format="tsv",
            model_writer=made,
            model_type="bpe",
            vocab_size=count + 3 + 52,
            character_coverage=1.0,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            required_chars="".join(each for each in CHARACTERS if each.isalpha()),
            max_sentencepiece_length=16,
            minloglevel=1,
        )
    texts = [piece.text for piece in parse_pieces(made.getvalue())]
    return [text for text in texts if len(text) > 1 and WORDS.fullmatch(text)][:count]


def assemble(words: Counter[str]) -> list[Piece]:
    """All pieces in the order of ids, exactly VOCABULARY of them."""
    marks = fixed()
    others = 1 + len(CONTROLS) + 256 + len(marks) + len(CHARACTERS)
    merges = [*learned(words, VOCABULARY - others), *marks]
    head = [Piece("<unk>", 0.0, UNKNOWN), *(Piece(text, 0.0, CONTROL) for text in CONTROLS)]
    head += [Piece(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    normal = [*merges, *CHARACTERS]
    return head + [Piece(text, float(-rank), NORMAL) for rank, text in enumerate(normal)]


def write(pieces: Sequence[Piece], path: Path) -> None:
    """Write SentencePiece's file: pieces, a trainer's part that says BPE, a normalizer that does nothing."""
    trainer = _number(3, 2) + _number(4, len(pieces)) + _number(35, 1)
    trainer += _number(40, 0) + _number(41, 1) + _number(42, 2) + _number(43, (1 << 64) - 1)
    normalizer = _bytes(1, b"identity") + _number(3, 1) + _number(4, 0) + _number(5, 1)
    body = b"".join(
        _bytes(1, _bytes(1, piece.text.encode()) + _float(2, piece.score) + _number(3, piece.type))
        for piece in pieces
    )
    path.write_bytes(body + _bytes(2, trainer) + _bytes(3, normalizer))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
