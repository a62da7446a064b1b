"""The header of a GGUF file, read and checked before native code sees the file.

The format: magic, version, counts, then metadata (key, type, value), then tensor descriptions (name,
dimensions, type, offset), then the tensors' data. Everything that native code would trust is compared with
the file's real size, and so it is for each part of a model that was split over several files. No weights are
read, and no value of an array is kept.
"""

import math
import mmap
import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from antiphon.errors import ModelFileError
from antiphon.weights.gguf_types import TENSOR_TYPES
from antiphon.weights.parts import other_parts, place_of

MAGIC = b"GGUF"
VERSIONS = (2, 3)
"""Version 1 had 32-bit counts and is long gone."""

MOST_ENTRIES = 1 << 20
"""Metadata keys or tensors; the largest models have some thousands."""

LONGEST_NAME = 1 << 16
"""Bytes of a key or a tensor's name, by the format's own limit."""

MOST_DIMENSIONS = 4
MOST_WEIGHTS = 2**63 - 1
"""Of one tensor: native code counts them in 64 bits with a sign."""

DEFAULT_ALIGNMENT = 32

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""struct's letter for each of the format's value types."""

STRING, ARRAY = 8, 9

NORMS = re.compile(r"\.(?:attention\.\w*epsilon|rope\.freq_base)$")
"""Numbers that are divided by: native code ends its process where they are not above 0."""

Value = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Header:
    """What the header says, and what follows from it."""

    path: Path
    size: int
    """Bytes of the file, or of all parts."""
    architecture: str
    metadata: dict[str, Value]
    """Scalars and strings; arrays are left out."""
    tensors: int
    parameters: int
    """Number of weights."""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False)
    """Of each tensor, as ggml counts: the innermost dimension first, so inputs before outputs."""

    def number(self, key: str) -> int:
        """An integer under the architecture's prefix; 0 when there is none."""
        value = self.metadata.get(f"{self.architecture}.{key}", 0)
        return value if isinstance(value, int) else 0

    @property
    def context_length(self) -> int:
        return self.number("context_length")

    @property
    def layers(self) -> int:
        return self.number("block_count")

    @property
    def heads(self) -> int:
        return self.number("attention.head_count")

    @property
    def key_heads(self) -> int:
        """Heads of keys and values; all of them when the file gives a list or nothing, which is the most it
        can be."""
        return self.number("attention.head_count_kv") or self.heads

    @property
    def key_width(self) -> int:
        """Numbers that the keys of one token take in one layer."""
        return self.key_heads * (self.number("attention.key_length") or self._head_width())

    @property
    def value_width(self) -> int:
        """Numbers that the values of one token take in one layer."""
        return self.key_heads * (self.number("attention.value_length") or self._head_width())

    @property
    def embeds(self) -> bool:
        """Whether it says how it pools a text's rows: then it makes vectors, and no tokens."""
        return self.number("pooling_type") > 0

    def _head_width(self) -> int:
        return self.number("embedding_length") // max(1, self.heads)


@dataclass(frozen=True, slots=True)
class Extent:
    """Where one tensor lies in the data, and what it is."""

    name: str
    shape: tuple[int, ...]
    offset: int
    weights: int
    size: int
    """Bytes."""
    kind: str
    """ggml's name of its type."""


@dataclass(frozen=True, slots=True)
class _File:
    """What one file holds."""

    size: int
    metadata: dict[str, Value]
    extents: list[Extent]
    start: int
    """Where the data begins that the extents lie in."""


def read_header(path: Path) -> Header:
    """Reads and checks a model's. Raises ModelFileError with the file's name and what is wrong."""
    header = read_any(path)
    if header.metadata.get("general.type") == "adapter":
        raise ModelFileError(
            f"{path.name} is a LoRA adapter; serve the model that it was made for, and add it to that"
        )
    if header.metadata.get(f"{header.architecture}.block_count", 1) == 0:
        raise ModelFileError(f"{path.name} has no layers")
    for key, value in header.metadata.items():
        if key.startswith(f"{header.architecture}.") and isinstance(value, float):
            _check_number(path, key, value)
    return header


def read_any(path: Path) -> Header:
    """The same of any GGUF file, an adapter's too, with all its parts if it is the first of several."""
    first = _read(path)
    files = [first, *(_read(part) for part in other_parts(path, first.metadata))]
    for number, file in enumerate(files):
        if place_of(file.metadata) != (number, len(files)):
            raise ModelFileError(f"the parts of {path.name} do not belong together; fetch all of them again")
    architecture = first.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelFileError(f"{path.name} names no architecture, so it is no model")
    extents = [extent for file in files for extent in file.extents]
    shapes = {extent.name: extent.shape for extent in extents}
    parameters = sum(extent.weights for extent in extents)
    size = sum(file.size for file in files)
    return Header(path, size, architecture, first.metadata, len(extents), parameters, shapes)


def read_extents(path: Path) -> list[Extent]:
    """Where the tensors of a file by itself lie, from the file's beginning. Raises ModelFileError."""
    file = _read(path)
    return [replace(extent, offset=file.start + extent.offset) for extent in file.extents]


def _read(path: Path) -> _File:
    try:
        if path.exists() and not path.is_file():
            what = "a directory; name the GGUF file in it" if path.is_dir() else "not a regular file"
            raise ModelFileError(f"{path} is {what}")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < len(MAGIC):
                raise ModelFileError(f"{path.name} is empty or cut short ({size} bytes); fetch it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(data, path).file()
    except FileNotFoundError:
        raise ModelFileError(f"there is no file {path}; check the path given to --model") from None
    except OSError as problem:
        raise ModelFileError(f"cannot read {path}: {os.strerror(problem.errno or 0)}") from None


def _check_number(path: Path, key: str, value: float) -> None:
    divides = NORMS.search(key)
    if math.isnan(value) or (divides and not 0 < value < math.inf):
        wanted = "a finite number above 0" if divides else "a number"
        raise ModelFileError(
            f"{path.name} gives {key} as {value:g}, which must be {wanted}; convert the model again, or "
            "fetch another edition of it"
        )


class _Reader:
    """A place in the file that only moves forward, and never past its end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._size = len(data)
        self._path = path
        self._at = 0

    def file(self) -> _File:
        self._preamble()
        tensors, entries = self._count("tensors"), self._count("metadata keys")
        metadata: dict[str, Value] = {}
        for _ in range(entries):
            key = self._string(LONGEST_NAME)
            value = self._value(self._scalar("I"))
            if value is not None:
                metadata[key] = value
        extents = [self._tensor() for _ in range(tensors)]
        start = self._check_extents(extents, metadata)
        return _File(self._size, metadata, extents, start)

    def _preamble(self) -> None:
        if self._data[: len(MAGIC)] != MAGIC:
            raise ModelFileError(
                f"{self._path.name} is not a GGUF file; convert the model, or fetch a GGUF edition of it"
            )
        self._at = len(MAGIC)
        version = self._scalar("I")
        if version not in VERSIONS:
            raise self._broken(
                f"has GGUF version {version}; this server reads {' and '.join(map(str, VERSIONS))}"
            )

    def _count(self, what: str) -> int:
        count = self._scalar("Q")
        if count > MOST_ENTRIES:
            raise self._broken(f"claims {count} {what}")
        return count

    def _scalar(self, letter: str) -> int:
        (value,) = struct.unpack_from(f"<{letter}", self._data, self._advance(struct.calcsize(f"<{letter}")))
        return int(value)

    def _advance(self, count: int) -> int:
        """Moves on and returns where it was."""
        start = self._at
        if count > self._size - start:
            raise self._broken("ends before its header does; it was cut short, fetch it again")
        self._at = start + count
        return start

    def _string(self, longest: int) -> str:
        length = self._scalar("Q")
        if length > longest:
            raise self._broken(f"holds a name of {length} bytes")
        start = self._advance(length)
        return self._data[start : start + length].decode("utf-8", "replace")

    def _value(self, kind: int) -> Value | None:
        """A scalar or a string; None for an array, which is only walked over."""
        if kind == STRING:
            return self._string(self._size)
        if kind == ARRAY:
            self._skip_array()
            return None
        letter = self._letter(kind)
        (value,) = struct.unpack_from(f"<{letter}", self._data, self._advance(struct.calcsize(f"<{letter}")))
        known: Value = value
        return known

    def _letter(self, kind: int) -> str:
        if kind not in SCALARS:
            raise self._broken(f"holds a value of unknown type {kind}")
        return SCALARS[kind]

    def _skip_array(self) -> None:
        kind, count = self._scalar("I"), self._scalar("Q")
        if kind == ARRAY:
            raise self._broken("holds an array of arrays")
        if kind != STRING:
            self._advance(count * struct.calcsize(f"<{self._letter(kind)}"))
            return
        if count > self._size:
            raise self._broken(f"claims {count} strings")
        length_of: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from
        for _ in range(count):
            self._advance(length_of(self._data, self._advance(8))[0])

    def _tensor(self) -> Extent:
        name = self._string(LONGEST_NAME)
        dimensions = self._scalar("I")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise self._broken(f"gives the tensor {name[:80]!r} {dimensions} dimensions")
        shape = tuple(self._scalar("Q") for _ in range(dimensions))
        kind, offset = self._scalar("I"), self._scalar("Q")
        known = TENSOR_TYPES.get(kind)
        if known is None:
            raise self._broken(f"holds weights of the unknown type {kind}; use another quantization")
        weights = math.prod(shape)
        if not 0 < weights <= MOST_WEIGHTS or shape[0] % known.block:
            raise self._broken(
                f"gives the {known.name} tensor {name[:80]!r} the impossible shape {list(shape)}"
            )
        return Extent(name, shape, offset, weights, weights // known.block * known.size, known.name)

    def _check_extents(self, extents: list[Extent], metadata: dict[str, Value]) -> int:
        """Where the data begins."""
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._broken(f"has the alignment {alignment}, which is no power of two")
        if any(extent.offset % alignment for extent in extents):
            raise self._broken(f"has a tensor that does not lie at a multiple of {alignment}")
        start = -(-self._at // alignment) * alignment
        end = max((start + extent.offset + extent.size for extent in extents), default=0)
        if end > self._size:
            raise self._broken(
                f"ends before its weights do ({self._size} of {end} bytes); it was cut short, fetch it again"
            )
        return start

    def _broken(self, how: str) -> ModelFileError:
        return ModelFileError(f"{self._path.name} {how}")
