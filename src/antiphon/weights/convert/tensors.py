"""Reads tensors as float32, and JSON, from directories of weights. Checks an adapter's matrices.

Both formats contain only values; nothing in them is executed.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import ModelFileError
from antiphon.weights.gguf import TensorExtent, read_extents

Tensor = NDArray[np.float32]

FORMATS = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}
"""numpy's format for each format of safetensors. BF16 is read separately: it is the upper half of a
float32."""

MOST_JSON = 64 << 20
"""The most bytes of one JSON file. A tokenizer.json with 120,000 pieces has eight million."""


ADAPTER_TYPES = ("F32", "F16", "BF16", "Q8_0")
"""Types in which llama.cpp's converters write adapters."""

WINDOW = 1 << 22
"""The most bytes of one read."""

Q8_0_BLOCK = 34
"""Bytes of a Q8_0 block: an F16 scale, then 32 numbers of one byte."""


def read_json(path: Path) -> dict[str, Any]:
    """Reads the object in a file. Raises ModelFileError."""
    value = _read_value(path)
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} is not a JSON object")
    return value


def read_list(path: Path) -> list[Any]:
    """Reads the list in a file. Raises ModelFileError."""
    value = _read_value(path)
    if not isinstance(value, list):
        raise ModelFileError(f"{path} is not a JSON list")
    return value


def read_text(path: Path) -> str:
    """Reads the text of a file. Raises ModelFileError."""
    require_file(path)
    try:
        if path.stat().st_size > MOST_JSON:
            raise ModelFileError(f"{path} is too large to be read")
        return path.read_text("utf-8")
    except (OSError, ValueError) as problem:
        raise ModelFileError(f"{path} cannot be read: {problem}") from None


def require_file(path: Path) -> None:
    """Raises ModelFileError for a pipe or a device, because reading it might never end. A missing file
    passes."""
    if path.exists() and not path.is_file():
        raise ModelFileError(f"{path} is not a file")


def _read_value(path: Path) -> object:
    """Reads the JSON value in a file. Raises ModelFileError."""
    try:
        value: object = json.loads(read_text(path))
    except RecursionError:
        raise ModelFileError(f"{path} cannot be read: it is nested too deep") from None
    except ValueError as problem:
        raise ModelFileError(f"{path} cannot be read: {problem}") from None
    return value


def read_tensors(path: Path, unused: re.Pattern[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Yields the names and values of the tensors, without names that match `unused`. Raises
    ModelFileError."""
    from safetensors import SafetensorError, deserialize

    require_file(path)
    try:
        tensors = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        raise ModelFileError(
            f"there is no {path}; PyTorch's .bin files are never read, because they can contain code: "
            "save the weights as safetensors"
        ) from None
    except (SafetensorError, OSError) as problem:
        raise ModelFileError(f"{path} cannot be read: {problem}") from None
    for name, tensor in tensors:
        if unused is not None and unused.fullmatch(name):
            continue
        values = _to_float32(tensor["dtype"], bytes(tensor["data"]))
        if values is None:
            raise ModelFileError(
                f"{path} has {name[:120]} as {tensor['dtype']}, which is not supported; "
                "save it as F32, F16 or BF16"
            )
        if not np.isfinite(values).all():
            raise ModelFileError(f"{path} has numbers in {name[:120]} that are not finite")
        yield name, values.reshape(tensor["shape"])


def _to_float32(number_format: str, data: bytes) -> Tensor | None:
    """Returns the numbers as float32; None for an unknown format."""
    if number_format == "BF16":
        return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    return (
        np.frombuffer(data, dtype=FORMATS[number_format]).astype(np.float32)
        if number_format in FORMATS
        else None
    )


def check_matrices(path: Path, name: str) -> None:
    """Checks that the matrices have a known type and only finite numbers. An infinite number would corrupt
    the engine's cache. Raises ModelFileError. `name`: the file's name in errors."""
    extents = read_extents(path)
    if unsupported := next((extent for extent in extents if extent.kind not in ADAPTER_TYPES), None):
        raise ModelFileError(
            f"{name} has {unsupported.name[:120]} as {unsupported.kind}; "
            f"an adapter's matrices must be {', '.join(ADAPTER_TYPES)}"
        )
    for extent in extents:
        if not _is_finite(path, extent):
            raise ModelFileError(f"{name} has numbers in {extent.name[:120]} that are not finite")


def _is_finite(path: Path, extent: TensorExtent) -> bool:
    """Whether all numbers of a tensor in a file are finite."""
    with path.open("rb") as file:
        file.seek(extent.offset)
        bytes_left = extent.size
        step = WINDOW - WINDOW % Q8_0_BLOCK if extent.kind == "Q8_0" else WINDOW
        while bytes_left:
            data = file.read(min(bytes_left, step))
            bytes_left -= len(data)
            if extent.kind == "BF16":  # the upper half of a float32, which contains the exponent
                is_finite = (np.frombuffer(data, "<u2") & 0x7F80 != 0x7F80).all()
            elif extent.kind == "Q8_0":
                is_finite = np.isfinite(
                    np.frombuffer(data, np.uint8).reshape(-1, Q8_0_BLOCK)[:, :2].copy().view("<f2")
                ).all()
            else:
                is_finite = np.isfinite(np.frombuffer(data, "<f4" if extent.kind == "F32" else "<f2")).all()
            if not is_finite:
                return False
    return True
