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
"""Those that were not cut when they were recorded: here nothing is."""


def write_encoder(path: Path, kind: str = "F16") -> Path:
    """Converts the recorded encoder, with mean pooling."""
    convert_bert(SAVED, path, kind)
    return path


def write_reranker(path: Path, template: str | None = None, types: int = 1) -> Path:
    """Makes the recorded encoder a reranker, with a random head of one class over its first token.
    `template`: the text of a pair. `types`: its token types."""
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
    """Copies an encoder, with another pooling, and with `types` of its two token types."""
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(path, "bert")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", POOLING, TYPES):
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
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
"""Numbers of the recorded encoder's rows."""


def make_head() -> dict[str, np.ndarray]:
    """The tensors of the reranker's head, by llama.cpp's names."""
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
"""Bytes of GGUF's numbers, by type."""

ALIGNMENT = 32
USER_DEFINED = 4
"""The type of a token that is text and always one token."""


class Reader:
    """The metadata of a GGUF file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 8

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def text(self) -> bytes:
        size = self.number("Q")
        self.at += size
        return self.data[self.at - size : self.at]

    def skip(self, kind: int) -> None:
        if kind == STRING:
            self.text()
        elif kind == ARRAY:
            inner, count = self.number("I"), self.number("Q")
            for _ in range(count):
                self.skip(inner)
        else:
            self.at += SIZES[kind]


def write_thinker(path: Path, source: Path = CANTOR) -> Path:
    """Makes cantor a model that reasons. Two rare tokens become the marks around reasoning, and the chat
    template opens the first. The weights stay, so its reasoning is babble and never ends by itself."""
    reader = Reader(source.read_bytes())
    tensors, values = reader.number("Q"), reader.number("Q")
    entries: list[tuple[bytes, bytes]] = []
    for _ in range(values):
        begin, key = reader.at, reader.text()
        reader.skip(reader.number("I"))
        entries.append((key, reader.data[begin : reader.at]))
    begin = reader.at
    for _ in range(tensors):
        reader.text()
        for _ in range(reader.number("I")):
            reader.number("Q")
        reader.at += 4 + 8
    infos, weights = reader.data[begin : reader.at], reader.data[_aligned(reader.at) :]
    made = [_changed(key, entry, dict(entries)) for key, entry in entries]
    head = reader.data[:8] + struct.pack("<QQ", tensors, values) + b"".join(made) + infos
    path.write_bytes(head.ljust(_aligned(len(head)), b"\0") + weights)
    return path


def _changed(key: bytes, entry: bytes, entries: dict[bytes, bytes]) -> bytes:
    head = struct.pack("<Q", len(key)) + key
    if key == b"tokenizer.chat_template":
        return head + struct.pack("<I", STRING) + _text(TEMPLATE.encode())
    if key == b"tokenizer.ggml.tokens":
        pieces = _pieces(entry)
        for mark, token in zip(MARKS, _rare(pieces), strict=True):
            pieces[token] = mark.encode()
        return head + struct.pack("<IIQ", ARRAY, STRING, len(pieces)) + b"".join(map(_text, pieces))
    if key == b"tokenizer.ggml.token_type":
        kinds = bytearray(entry)
        for token in _rare(_pieces(entries[b"tokenizer.ggml.tokens"])):
            struct.pack_into("<i", kinds, len(head) + 16 + 4 * token, USER_DEFINED)
        return bytes(kinds)
    return entry


def _pieces(entry: bytes) -> list[bytes]:
    reader = Reader(entry)
    reader.at = 0
    reader.text()
    reader.at += 8
    return [reader.text() for _ in range(reader.number("Q"))]


def _rare(pieces: list[bytes]) -> list[int]:
    """The last tokens of several letters: shorter ones can spell them."""
    return [token for token, piece in enumerate(pieces) if piece.isalpha() and len(piece) > 3][-len(MARKS) :]


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _aligned(size: int) -> int:
    return -size % ALIGNMENT + size
