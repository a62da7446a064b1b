"""Model files of tests: cantor, an encoder, a reranker and a model that reasons."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np

import antiphon
from antiphon.domain.request import Pooling
from antiphon.weights.convert.bert import convert_bert

BUNDLED = Path(antiphon.__file__).parent / "bundled"
CANTOR = BUNDLED / "cantor.gguf"
SAVED = Path(__file__).parents[1] / "fixtures" / "encoder"
ROWS: list[dict[str, Any]] = json.loads((SAVED / "vectors.json").read_text("utf-8"))["rows"]
FITTING = [row for row in ROWS if len(row["ids"]) < 96]
"""Rows whose text was not cut when it was recorded. The engine does not cut texts."""


def write_encoder(path: Path, kind: str = "F16") -> Path:
    """Converts the recorded encoder, with mean pooling."""
    convert_bert(SAVED, path, kind)
    return path


def write_reranker(path: Path, template: str | None = None, types: int = 1) -> Path:
    """Converts the recorded encoder to a reranker with a random one-class head over the first token.
    `template`: the model's template of a pair. `types`: the number of token types."""
    source = write_encoder(path.with_suffix(".encoder"), "F32")
    return copy_with_pooling(source, path, Pooling.RANK, make_head(), template, types)


def copy_with_pooling(
    source: Path,
    path: Path,
    pooling: Pooling,
    head: Mapping[str, np.ndarray] = MappingProxyType({}),
    template: str | None = None,
    types: int = 1,
) -> Path:
    """Copies an encoder with another pooling and the first `types` of its two token types."""
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(path, "bert")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", POOLING, TYPES):
            item_type = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=item_type)
    writer.add_uint32(POOLING, gguf.PoolingType[pooling.upper()])
    writer.add_uint32(TYPES, types)
    if template is not None:
        writer.add_string("tokenizer.chat_template.rerank", template)
        writer.add_array("tokenizer.chat_templates", ["rerank"])
    for tensor in reader.tensors:
        data = tensor.data[:types] if tensor.name == "token_types.weight" else tensor.data
        if head or not tensor.name.startswith("cls."):
            writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    for name, values in head.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


POOLING, TYPES = "bert.pooling_type", "tokenizer.ggml.token_type_count"
WIDTH = 64
"""Dimensions of the recorded encoder's vectors."""


def make_head() -> dict[str, np.ndarray]:
    """Returns random tensors of a reranker's head by llama.cpp's names."""
    random = np.random.default_rng(3)
    sizes = {"cls.weight": (WIDTH, WIDTH), "cls.bias": (WIDTH,), "cls.output.weight": (1, WIDTH)}
    tensors = {name: random.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    return tensors | {"cls.output.bias": np.array([0.25], np.float32)}


MARKS = ("<think>", "</think>")

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n"
    "{% if enable_thinking is defined and not enable_thinking %}\n</think>\n\n{% endif %}{% endif %}"
)

STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a number by GGUF type."""

ALIGNMENT = 32
USER_DEFINED = 4
"""GGUF's type of a token that text always encodes to as a whole."""


class MetadataReader:
    """Reads the metadata of a GGUF file from `offset` on."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 8

    def read_number(self, form: str) -> int:
        (value,) = struct.unpack_from("<" + form, self.data, self.offset)
        self.offset += struct.calcsize(form)
        return int(value)

    def read_text_bytes(self) -> bytes:
        size = self.read_number("Q")
        self.offset += size
        return self.data[self.offset - size : self.offset]

    def skip(self, kind: int) -> None:
        if kind == STRING:
            self.read_text_bytes()
        elif kind == ARRAY:
            item_kind, count = self.read_number("I"), self.read_number("Q")
            for _ in range(count):
                self.skip(item_kind)
        else:
            self.offset += SIZES[kind]


def write_thinker(path: Path, source: Path = CANTOR) -> Path:
    """Converts cantor to a model that reasons. Two rare tokens become the marks of reasoning, and the chat
    template ends with the opening mark. The weights are unchanged, so the reasoning is babble without an
    end."""
    reader = MetadataReader(source.read_bytes())
    tensor_count, value_count = reader.read_number("Q"), reader.read_number("Q")
    entries: list[tuple[bytes, bytes]] = []
    for _ in range(value_count):
        start, key = reader.offset, reader.read_text_bytes()
        reader.skip(reader.read_number("I"))
        entries.append((key, reader.data[start : reader.offset]))
    start = reader.offset
    for _ in range(tensor_count):
        reader.read_text_bytes()
        for _ in range(reader.read_number("I")):
            reader.read_number("Q")
        reader.offset += 4 + 8
    tensor_infos, weights = reader.data[start : reader.offset], reader.data[_align(reader.offset) :]
    changed_entries = [_change_entry(key, entry, dict(entries)) for key, entry in entries]
    header = (
        reader.data[:8]
        + struct.pack("<QQ", tensor_count, value_count)
        + b"".join(changed_entries)
        + tensor_infos
    )
    path.write_bytes(header.ljust(_align(len(header)), b"\0") + weights)
    return path


def _change_entry(key: bytes, entry: bytes, entries: dict[bytes, bytes]) -> bytes:
    key_bytes = struct.pack("<Q", len(key)) + key
    if key == b"tokenizer.chat_template":
        return key_bytes + struct.pack("<I", STRING) + _encode_text(TEMPLATE.encode())
    if key == b"tokenizer.ggml.tokens":
        pieces = _read_pieces(entry)
        for mark, token in zip(MARKS, _find_rare_tokens(pieces), strict=True):
            pieces[token] = mark.encode()
        return (
            key_bytes + struct.pack("<IIQ", ARRAY, STRING, len(pieces)) + b"".join(map(_encode_text, pieces))
        )
    if key == b"tokenizer.ggml.token_type":
        kinds = bytearray(entry)
        for token in _find_rare_tokens(_read_pieces(entries[b"tokenizer.ggml.tokens"])):
            struct.pack_into("<i", kinds, len(key_bytes) + 16 + 4 * token, USER_DEFINED)
        return bytes(kinds)
    return entry


def _read_pieces(entry: bytes) -> list[bytes]:
    reader = MetadataReader(entry)
    reader.offset = 0
    reader.read_text_bytes()
    reader.offset += 8
    return [reader.read_text_bytes() for _ in range(reader.read_number("Q"))]


def _find_rare_tokens(pieces: list[bytes]) -> list[int]:
    """Returns the last tokens of several letters; texts with these words still encode to shorter tokens."""
    return [token for token, piece in enumerate(pieces) if piece.isalpha() and len(piece) > 3][-len(MARKS) :]


def _encode_text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _align(size: int) -> int:
    return -size % ALIGNMENT + size
