"""Builds cantor's tokenizer: pieces of words from SentencePiece's BPE, and fixed pieces for the JSON of
tools.

A word has the same pieces in every context: spaces, digits and marks are pieces of their own, and learned
pieces contain only letters. The model can therefore copy a word from a sentence into JSON token by token. The
fixed pieces are JSON's punctuation between words. This module writes SentencePiece's file itself, because
SentencePiece's trainer cannot add such pieces.
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
LETTERS = re.compile(r"[A-Za-z]+")
CHARACTERS = [SPACE, *map(chr, range(33, 127))]


def list_json_pieces() -> list[str]:
    """Returns the fixed pieces of JSON; each follows the two pieces that merge into it."""
    pieces = [
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
    return list(dict.fromkeys(pieces))


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Counts each run of letters."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(LETTERS.findall(text))
    return counts


def learn_merges(words: Counter[str], count: int) -> list[str]:
    """Trains BPE on the words and returns its `count` best merges of letters."""
    rows = "".join(f"{word}\t{occurrences}\n" for word, occurrences in sorted(words.items()))
    model_file = io.BytesIO()
    with TemporaryDirectory() as folder:
        word_file = Path(folder) / "words.tsv"
        word_file.write_text(rows)
        sentencepiece.SentencePieceTrainer.train(
            input=str(word_file),
            input_format="tsv",
            model_writer=model_file,
            model_type="bpe",
            vocab_size=count + 3 + 52,
            character_coverage=1.0,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            required_chars="".join(character for character in CHARACTERS if character.isalpha()),
            max_sentencepiece_length=16,
            minloglevel=1,
        )
    texts = [piece.text for piece in parse_pieces(model_file.getvalue())]
    return [text for text in texts if len(text) > 1 and LETTERS.fullmatch(text)][:count]


def assemble_pieces(words: Counter[str]) -> list[Piece]:
    """Returns all VOCABULARY pieces in the order of ids."""
    json_pieces = list_json_pieces()
    other_count = 1 + len(CONTROLS) + 256 + len(json_pieces) + len(CHARACTERS)
    merges = [*learn_merges(words, VOCABULARY - other_count), *json_pieces]
    special_pieces = [Piece("<unk>", 0.0, UNKNOWN), *(Piece(text, 0.0, CONTROL) for text in CONTROLS)]
    special_pieces += [Piece(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    normal_texts = [*merges, *CHARACTERS]
    return special_pieces + [Piece(text, float(-rank), NORMAL) for rank, text in enumerate(normal_texts)]


def write_pieces(pieces: Sequence[Piece], path: Path) -> None:
    """Writes SentencePiece's file: the pieces, a BPE trainer section, and an identity normalizer."""
    trainer = _encode_integer(3, 2) + _encode_integer(4, len(pieces)) + _encode_integer(35, 1)
    trainer += (
        _encode_integer(40, 0)
        + _encode_integer(41, 1)
        + _encode_integer(42, 2)
        + _encode_integer(43, (1 << 64) - 1)
    )
    normalizer = (
        _encode_bytes(1, b"identity") + _encode_integer(3, 1) + _encode_integer(4, 0) + _encode_integer(5, 1)
    )
    encoded_pieces = b"".join(
        _encode_bytes(
            1,
            _encode_bytes(1, piece.text.encode())
            + _encode_float(2, piece.score)
            + _encode_integer(3, piece.type),
        )
        for piece in pieces
    )
    path.write_bytes(encoded_pieces + _encode_bytes(2, trainer) + _encode_bytes(3, normalizer))


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _encode_integer(field: int, value: int) -> bytes:
    return _encode_varint(field << 3) + _encode_varint(value)


def _encode_float(field: int, value: float) -> bytes:
    return _encode_varint(field << 3 | 5) + struct.pack("<f", value)


def _encode_bytes(field: int, value: bytes) -> bytes:
    return _encode_varint(field << 3 | 2) + _encode_varint(len(value)) + value
