"""What lies in a directory of saved weights: tensors out of safetensors, as float32, and JSON objects.

Both formats hold values only: nothing of them is executed.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import ModelFileError

Tensor = NDArray[np.float32]

FORMATS = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}
"""safetensors' names of formats that numpy has too. BF16 is the upper half of a float32."""


MOST_JSON = 64 << 20
"""Bytes of one JSON file; a tokenizer.json of 120 thousand pieces has eight million."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises ModelFileError."""
    said = _read(path)
    if not isinstance(said, dict):
        raise ModelFileError(f"{path} is not a JSON object")
    return said


def read_list(path: Path) -> list[Any]:
    """The list in a file. Raises ModelFileError."""
    said = _read(path)
    if not isinstance(said, list):
        raise ModelFileError(f"{path} is not a JSON list")
    return said


def read_text(path: Path) -> str:
    """The text of a file. Raises ModelFileError."""
    require_file(path)
    try:
        if path.stat().st_size > MOST_JSON:
            raise ModelFileError(f"{path} is too large to be read")
        return path.read_text("utf-8")
    except (OSError, ValueError) as problem:
        raise ModelFileError(f"{path} cannot be read: {problem}") from None


def require_file(path: Path) -> None:
    """Raises ModelFileError for a pipe or a device, which might never end; not for what is not there."""
    if path.exists() and not path.is_file():
        raise ModelFileError(f"{path} is not a file")


def _read(path: Path) -> object:
    try:
        said: object = json.loads(read_text(path))
    except RecursionError:
        raise ModelFileError(f"{path} cannot be read: it is nested too deep") from None
    except ValueError as problem:
        raise ModelFileError(f"{path} cannot be read: {problem}") from None
    return said


def read_tensors(path: Path, unused: re.Pattern[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Names and values, one by one, less those whose whole name `unused` matches. Raises ModelFileError."""
    from safetensors import SafetensorError, deserialize

    require_file(path)
    try:
        tensors = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        raise ModelFileError(
            f"there is no {path}; PyTorch's .bin files are never read, since they may hold code: save the "
            "weights as safetensors"
        ) from None
    except (SafetensorError, OSError) as problem:
        raise ModelFileError(f"{path} cannot be read: {problem}") from None
    for name, tensor in tensors:
        if unused is not None and unused.fullmatch(name):
            continue
        values = _values(tensor["dtype"], bytes(tensor["data"]))
        if values is None:
            raise ModelFileError(
                f"{path} holds {name[:120]} as {tensor['dtype']}, which is not read; "
                "save it as F32, F16 or BF16"
            )
        if not np.isfinite(values).all():
            raise ModelFileError(f"{path} holds numbers in {name[:120]} that are not finite")
        yield name, values.reshape(tensor["shape"])


def _values(form: str, data: bytes) -> Tensor | None:
    if form == "BF16":
        return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, dtype=FORMATS[form]).astype(np.float32) if form in FORMATS else None
