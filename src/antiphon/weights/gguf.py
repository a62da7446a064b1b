"""Reads and checks the header of a GGUF file before native code reads the file. Checks all parts of a split
model.

The format: magic, version, counts, then metadata (key, type, value), then tensor descriptions (name,
dimensions, type, offset), then the tensors' data. Every number that native code would trust is compared with
the real size of the file. This module reads no weights and skips arrays.
"""

import dataclasses
import math
import mmap
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from antiphon.domain.values import Struct, replace
from antiphon.errors import ModelFileError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
"""Version 1 had 32-bit counts and is obsolete."""

MOST_ENTRIES = 1 << 20
"""The most metadata keys or tensors. The largest models have some thousands."""

LONGEST_NAME = 1 << 16
"""The most bytes of a key or a tensor's name; the format has this limit."""

MOST_DIMENSIONS = 4
MOST_WEIGHTS = 2**63 - 1
"""The most weights of one tensor: native code counts them in signed 64 bits."""

DEFAULT_ALIGNMENT = 32

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""struct's letter for each of the format's value types."""

STRING, ARRAY = 8, 9

DIVISORS = re.compile(r"\.(?:attention\.\w*epsilon|rope\.freq_base)$")
"""Keys of numbers by which native code divides. If such a number is not above 0, native code ends its
process."""

GgufValue = int | float | bool | str

RANKING = 4
"""llama.cpp's number of the pooling type of rerankers."""

HEAD_TENSORS = ("cls.weight", "cls.output.weight")
"""The tensors that compute a score. A reranker has at least one of them."""

PART_NAME = re.compile(r"^(.+)-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)

MOST_PARTS = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """The header's data, and values derived from it."""

    path: Path
    size: int
    """Bytes of the file, or of all parts."""
    architecture: str
    metadata: dict[str, GgufValue]
    """Scalars and strings, without arrays."""
    tensors: int
    """The number of tensors."""
    parameters: int
    """The number of weights."""
    shapes: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict, repr=False)
    """The shape of each tensor in ggml's order: the innermost dimension first, so the inputs before the
    outputs."""

    def get_integer(self, key: str) -> int:
        """Returns the integer under a key of the architecture; 0 if there is none."""
        value = self.metadata.get(f"{self.architecture}.{key}", 0)
        return value if isinstance(value, int) else 0

    @property
    def context_length(self) -> int:
        return self.get_integer("context_length")

    @property
    def layers(self) -> int:
        return self.get_integer("block_count")

    @property
    def heads(self) -> int:
        return self.get_integer("attention.head_count")

    @property
    def key_heads(self) -> int:
        """The number of heads of keys and values. If the file has a list or nothing, this is the number of
        all heads, an upper bound."""
        return self.get_integer("attention.head_count_kv") or self.heads

    @property
    def key_width(self) -> int:
        """The size of one token's keys in one layer."""
        return self.key_heads * (self.get_integer("attention.key_length") or self._compute_head_width())

    @property
    def value_width(self) -> int:
        """The size of one token's values in one layer."""
        return self.key_heads * (self.get_integer("attention.value_length") or self._compute_head_width())

    @property
    def embeds(self) -> bool:
        """Whether the model returns vectors instead of tokens. Such a model has a pooling type."""
        return self.get_integer("pooling_type") > 0

    def _compute_head_width(self) -> int:
        """Returns the width of one head, computed from the model's width."""
        return self.get_integer("embedding_length") // max(1, self.heads)


class TensorExtent(Struct, frozen=True):
    """The position and type of one tensor in the data."""

    name: str
    shape: tuple[int, ...]
    offset: int
    weights: int
    size: int
    """Bytes."""
    kind: str
    """ggml's name of the tensor's type."""


class _FileContent(Struct, frozen=True):
    """The content of one file."""

    size: int
    metadata: dict[str, GgufValue]
    extents: list[TensorExtent]
    start: int
    """The offset of the tensors' data in the file."""


def read_header(path: Path) -> Header:
    """Reads and checks a model's header. Raises ModelFileError."""
    header = read_gguf(path)
    if header.metadata.get("general.type") == "adapter":
        raise ModelFileError(
            f"{path.name} is a LoRA adapter; serve its base model, and add the adapter to it"
        )
    if header.metadata.get(f"{header.architecture}.block_count", 1) == 0:
        raise ModelFileError(f"{path.name} has no layers")
    for key, value in header.metadata.items():
        if key.startswith(f"{header.architecture}.") and isinstance(value, float):
            _require_valid_number(path, key, value)
    if header.get_integer("pooling_type") == RANKING:
        _require_ranking_head(header)
    return header


def _require_ranking_head(header: Header) -> None:
    """Raises ModelFileError for a reranker that llama.cpp would compute incorrectly."""
    if header.shapes.keys().isdisjoint(HEAD_TENSORS):
        raise ModelFileError(
            f"{header.path.name} is a reranker without the tensors that compute scores; convert or download "
            "it again"
        )
    types = header.metadata.get("tokenizer.ggml.token_type_count", 1)
    if isinstance(types, int) and types > 1:
        raise ModelFileError(
            f"{header.path.name} marks the document by a token type, which llama.cpp does not compute, so "
            "its scores would be wrong; choose a reranker with one token type, such as bge-reranker-v2-m3"
        )


def read_gguf(path: Path) -> Header:
    """Reads the header of any GGUF file, also of an adapter. Reads all parts of a split model."""
    first_file = _read_file(path)
    files = [first_file, *(_read_file(part) for part in find_other_parts(path, first_file.metadata))]
    for part_number, file in enumerate(files):
        if read_part_number(file.metadata) != (part_number, len(files)):
            raise ModelFileError(f"the parts of {path.name} do not belong together; fetch all of them again")
    architecture = first_file.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelFileError(f"{path.name} has no architecture, so it is not a model")
    extents = [extent for file in files for extent in file.extents]
    shapes = {extent.name: extent.shape for extent in extents}
    parameters = sum(extent.weights for extent in extents)
    size = sum(file.size for file in files)
    return Header(path, size, architecture, first_file.metadata, len(extents), parameters, shapes)


def read_extents(path: Path) -> list[TensorExtent]:
    """Returns the tensors of a single file. Their offsets are counted from the start of the file. Raises
    ModelFileError."""
    file = _read_file(path)
    return [replace(extent, offset=file.start + extent.offset) for extent in file.extents]


def _read_file(path: Path) -> _FileContent:
    """Reads and checks the header of one file. Raises ModelFileError."""
    try:
        if path.exists() and not path.is_file():
            kind = "a directory; name the GGUF file in it" if path.is_dir() else "not a regular file"
            raise ModelFileError(f"{path} is {kind}")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < len(MAGIC):
                raise ModelFileError(f"{path.name} is empty or cut short ({size} bytes); fetch it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _HeaderReader(data, path).read()
    except FileNotFoundError:
        raise ModelFileError(f"there is no file {path}; check the path given to --model") from None
    except OSError as problem:
        raise ModelFileError(f"cannot read {path}: {os.strerror(problem.errno or 0)}") from None


def _require_valid_number(path: Path, key: str, value: float) -> None:
    """Raises ModelFileError for NaN. If native code divides by the number, also raises ModelFileError for a
    number that is infinite or not above 0."""
    divides = DIVISORS.search(key)
    if math.isnan(value) or (divides and not 0 < value < math.inf):
        expected = "a finite number above 0" if divides else "a number"
        raise ModelFileError(
            f"{path.name} gives {key} as {value:g}, which must be {expected}; convert the model again, or "
            "fetch another edition of it"
        )


class _HeaderReader:
    """Reads a header. Methods raise ModelFileError if the file ends too early."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._size = len(data)
        self._path = path
        self._position = 0

    def read(self) -> _FileContent:
        """Reads the whole header and checks it."""
        self._read_preamble()
        tensors, entries = self._read_count("tensors"), self._read_count("metadata keys")
        metadata: dict[str, GgufValue] = {}
        for _ in range(entries):
            key = self._read_string(LONGEST_NAME)
            value = self._read_value(self._read_scalar("I"))
            if value is not None:
                metadata[key] = value
        extents = [self._read_tensor() for _ in range(tensors)]
        start = self._check_extents(extents, metadata)
        return _FileContent(self._size, metadata, extents, start)

    def _read_preamble(self) -> None:
        """Reads the magic and the version. Raises ModelFileError for another format or version."""
        if self._data[: len(MAGIC)] != MAGIC:
            raise ModelFileError(
                f"{self._path.name} is not a GGUF file; convert the model, or fetch a GGUF edition of it"
            )
        self._position = len(MAGIC)
        version = self._read_scalar("I")
        if version not in VERSIONS:
            raise self._build_error(
                f"has GGUF version {version}; this server reads {' and '.join(map(str, VERSIONS))}"
            )

    def _read_count(self, noun: str) -> int:
        """Reads the number of tensors or metadata keys. Raises ModelFileError if it is too large."""
        count = self._read_scalar("Q")
        if count > MOST_ENTRIES:
            raise self._build_error(f"claims {count} {noun}, more than {MOST_ENTRIES}")
        return count

    def _read_scalar(self, letter: str) -> int:
        """Reads an integer. `letter`: the type in `struct`'s notation."""
        (value,) = struct.unpack_from(f"<{letter}", self._data, self._advance(struct.calcsize(f"<{letter}")))
        return int(value)

    def _advance(self, count: int) -> int:
        """Moves forward by `count` bytes and returns the earlier position. Raises ModelFileError at the end
        of the file."""
        start = self._position
        if count > self._size - start:
            raise self._build_error("ends before its header does; it was cut short, fetch it again")
        self._position = start + count
        return start

    def _read_string(self, max_bytes: int) -> str:
        """Reads a text of at most `max_bytes` bytes."""
        length = self._read_scalar("Q")
        if length > max_bytes:
            raise self._build_error(f"has a name of {length} bytes, more than {max_bytes}")
        start = self._advance(length)
        return self._data[start : start + length].decode("utf-8", "replace")

    def _read_value(self, kind: int) -> GgufValue | None:
        """Reads a scalar or a string. Skips an array and returns None."""
        if kind == STRING:
            return self._read_string(self._size)
        if kind == ARRAY:
            self._skip_array()
            return None
        letter = self._find_format(kind)
        (value,) = struct.unpack_from(f"<{letter}", self._data, self._advance(struct.calcsize(f"<{letter}")))
        checked: GgufValue = value
        return checked

    def _find_format(self, kind: int) -> str:
        """Returns `struct`'s letter for a value type. Raises ModelFileError for an unknown type."""
        if kind not in SCALARS:
            raise self._build_error(f"holds a value of unknown type {kind}")
        return SCALARS[kind]

    def _skip_array(self) -> None:
        """Moves past an array. Raises ModelFileError for an array of arrays, or of too many strings."""
        kind, count = self._read_scalar("I"), self._read_scalar("Q")
        if kind == ARRAY:
            raise self._build_error("holds an array of arrays")
        if kind != STRING:
            self._advance(count * struct.calcsize(f"<{self._find_format(kind)}"))
            return
        if count > self._size:
            raise self._build_error(f"claims {count} strings")
        length_of: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from
        for _ in range(count):
            self._advance(length_of(self._data, self._advance(8))[0])

    def _read_tensor(self) -> TensorExtent:
        """Reads the description of one tensor. Raises ModelFileError for an impossible shape."""
        name = self._read_string(LONGEST_NAME)
        dimensions = self._read_scalar("I")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise self._build_error(f"gives the tensor {name[:80]!r} {dimensions} dimensions")
        shape = tuple(self._read_scalar("Q") for _ in range(dimensions))
        kind, offset = self._read_scalar("I"), self._read_scalar("Q")
        tensor_type = TENSOR_TYPES.get(kind)
        if tensor_type is None:
            raise self._build_error(f"holds weights of the unknown type {kind}; use another quantization")
        weights = math.prod(shape)
        if not 0 < weights <= MOST_WEIGHTS or shape[0] % tensor_type.block:
            raise self._build_error(
                f"gives the {tensor_type.name} tensor {name[:80]!r} the impossible shape {list(shape)}"
            )
        return TensorExtent(
            name, shape, offset, weights, weights // tensor_type.block * tensor_type.size, tensor_type.name
        )

    def _check_extents(self, extents: list[TensorExtent], metadata: dict[str, GgufValue]) -> int:
        """Checks that all tensors are inside the file. Returns the offset of the tensors' data."""
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._build_error(f"has the alignment {alignment}, which is not a power of two")
        if any(extent.offset % alignment for extent in extents):
            raise self._build_error(f"has a tensor whose offset is not a multiple of {alignment}")
        start = -(-self._position // alignment) * alignment
        end = max((start + extent.offset + extent.size for extent in extents), default=0)
        if end > self._size:
            raise self._build_error(
                f"ends before its weights do ({self._size} of {end} bytes); it was cut short, fetch it again"
            )
        return start

    def _build_error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self._path.name} {problem}")


class TensorType(Struct, frozen=True):
    """A tensor type of ggml."""

    name: str
    block: int
    """Elements of one block. The first dimension is a multiple of it."""
    size: int
    """Bytes of one block."""


TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 36),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18),
    42: TensorType("Q2_0", 64, 18),
}


def strip_part_number(name: str) -> str:
    """Returns a file's name without its ending and without the part number of a split model."""
    match = PART_NAME.match(name)
    return match[1] if match else Path(name).stem


def read_part_number(metadata: Mapping[str, object]) -> tuple[int, int]:
    """Returns the part number of a split model's file, counted from 0, and the number of parts."""
    part_number, part_count = metadata.get("split.no", 0), metadata.get("split.count", 1)
    if not isinstance(part_number, int) or not isinstance(part_count, int):
        return 0, 1
    return part_number, max(1, part_count)


def find_other_parts(path: Path, metadata: Mapping[str, object]) -> Iterator[Path]:
    """Yields the other files of a split model; `path` is its first part. Yields nothing for a model in one
    file. llama.cpp finds the files by the same names. Raises ModelFileError if `path` is another part, or if
    a part is missing."""
    part_number, part_count = read_part_number(metadata)
    if part_count == 1:
        return
    subject = f"{path.name} is part {part_number + 1} of {part_count} of a split model"
    match = PART_NAME.match(path.name)
    if (
        part_count > MOST_PARTS
        or match is None
        or (int(match[2]), int(match[3])) != (part_number + 1, part_count)
    ):
        raise ModelFileError(
            f"{subject}, but its name does not contain this; give all parts their original names"
        )
    if part_number:
        raise ModelFileError(f"{subject}; name the first part, {match[1]}-00001-of-{part_count:05}.gguf")
    for other_number in range(2, part_count + 1):
        part = path.with_name(f"{match[1]}-{other_number:05}-of-{part_count:05}.gguf")
        if not part.exists():
            raise ModelFileError(
                f"{subject}, and {part.name} is missing; download all parts into one directory"
            )
        yield part
