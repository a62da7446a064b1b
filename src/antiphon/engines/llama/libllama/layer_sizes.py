"""The sizes of a model's layers, read from the header of its file before the weights are loaded.

The library itself reads the header, and only if there is a device for layers.
"""

import ctypes
import os
import re
from pathlib import Path

from antiphon.domain.values import Struct
from antiphon.engines.llama.libllama.library import GgufParams, Library
from antiphon.errors import LoadError

SPLIT_PART = re.compile(r"-00001-of-(\d{5})\.gguf$")

LAYER = re.compile(r"blk\.(\d+)\.")

OUTPUTS = ("output.", "output_norm.", "cls.")
"""The beginnings of the names of tensors behind the last layer. Other tensors without a layer belong to the
input, which stays on the processor."""

TOKEN_EMBEDDING = "token_embd.weight"

U32, I32, ARRAY = 4, 5, 9
"""gguf_type numbers."""


class LayerSizes(Struct, frozen=True):
    """The sizes of a model's layers, the output last."""

    weights: tuple[int, ...]
    """Bytes of each layer's tensors."""
    values_per_token: tuple[int, ...]
    """The number of values in the keys and values of one token, for each layer."""
    widest_cell: int
    """The largest number of values of one token in one tensor of the KV cache, which has the keys or the
    values of one layer."""
    trained_context: int
    embeds: bool
    """Whether the model makes vectors of texts, and keeps one text at a time."""

    def add_cells(self, cells: int, number_bytes: int) -> tuple[int, ...]:
        """Returns the number of bytes of each layer's weights together with its part of a KV cache.
        `number_bytes`: the size in bytes of one value in the cache."""
        return tuple(
            weights + value_count * cells * number_bytes
            for weights, value_count in zip(self.weights, self.values_per_token, strict=True)
        )


def read_layer_sizes(library: Library, path: Path) -> LayerSizes:
    """Reads the sizes from the header of a model's file, or of all its parts. The file was checked before."""
    files = [_GgufFile(library, part) for part in list_parts(path)]
    try:
        layers = files[0].read_number("block_count")
        weights = [0] * (layers + 1)
        sizes = {name: size for file in files for name, size in file.list_tensors()}
        for name, size in sizes.items():
            if (match := LAYER.match(name)) and int(match[1]) < layers:
                weights[int(match[1])] += size
            elif name.startswith(OUTPUTS):
                weights[layers] += size
        if "output.weight" not in sizes:
            weights[layers] += sizes.get(TOKEN_EMBEDDING, 0)  # the output uses a copy of the input's table
        kv_heads = files[0].read_numbers("attention.head_count_kv", layers)
        all_heads = files[0].read_numbers("attention.head_count", layers)
        width = files[0].read_number("embedding_length") // max(1, *all_heads)
        lengths = [files[0].read_number(f"attention.{part}_length") or width for part in ("key", "value")]
        head_counts = [
            own_count or all_count for own_count, all_count in zip(kv_heads, all_heads, strict=True)
        ]
        return LayerSizes(
            weights=tuple(weights),
            values_per_token=(*(count * sum(lengths) for count in head_counts), 0),
            widest_cell=max(head_counts, default=0) * max(lengths),
            trained_context=files[0].read_number("context_length"),
            embeds=files[0].read_number("pooling_type") > 0,
        )
    finally:
        for file in files:
            file.close()


def list_parts(path: Path) -> list[Path]:
    """All files of a model, whose first part is `path`."""
    match = SPLIT_PART.search(path.name)
    if match is None:
        return [path]
    stem, count = path.name[: match.start()], int(match[1])
    return [path.with_name(f"{stem}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]


class _GgufFile:
    """The header of one file, as the library reads it."""

    def __init__(self, library: Library, path: Path) -> None:
        self._call = library.call
        self._pointer = self._call.gguf_init_from_file(os.fsencode(path), GgufParams(True, None))
        if not self._pointer:
            raise LoadError(f"llama.cpp cannot read the header of {path.name}")
        self._architecture = self._read_text("general.architecture")

    def close(self) -> None:
        """Frees the header."""
        self._call.gguf_free(self._pointer)

    def list_tensors(self) -> list[tuple[str, int]]:
        """The name and the bytes of each tensor."""
        call, pointer = self._call, self._pointer
        return [
            (
                call.gguf_get_tensor_name(pointer, index).decode("utf-8", "replace"),
                call.gguf_get_tensor_size(pointer, index),
            )
            for index in range(call.gguf_get_n_tensors(pointer))
        ]

    def read_number(self, key: str) -> int:
        """Reads a value of the architecture; 0 if there is none."""
        index = self._find_index(key)
        if index < 0 or self._call.gguf_get_kv_type(self._pointer, index) != U32:
            return 0
        return int(self._call.gguf_get_val_u32(self._pointer, index))

    def read_numbers(self, key: str, layers: int) -> list[int]:
        """Reads a number for each layer. The file has one number for all layers, or a list."""
        index = self._find_index(key)
        if index < 0 or self._call.gguf_get_kv_type(self._pointer, index) != ARRAY:
            return [self.read_number(key)] * layers
        if self._call.gguf_get_arr_type(self._pointer, index) not in (U32, I32):
            return [0] * layers
        count = min(layers, self._call.gguf_get_arr_n(self._pointer, index))
        address = self._call.gguf_get_arr_data(self._pointer, index)
        values = [max(0, value) for value in (ctypes.c_int32 * count).from_address(address)]
        return values + [max(values, default=0)] * (layers - count)

    def _find_index(self, key: str) -> int:
        """The index of a key of the architecture; negative if there is none."""
        return int(self._call.gguf_find_key(self._pointer, f"{self._architecture}.{key}".encode()))

    def _read_text(self, key: str) -> str:
        """Reads the text of a key; empty if there is none."""
        index = self._call.gguf_find_key(self._pointer, key.encode())
        return (
            self._call.gguf_get_val_str(self._pointer, index).decode("utf-8", "replace") if index >= 0 else ""
        )
