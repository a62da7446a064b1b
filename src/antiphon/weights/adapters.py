"""Adapter files: checked against the model that they are for, converted when they come from PEFT, kept under
the digest of their content.

An adapter is known below by that digest alone; names are given to it above.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from antiphon.domain.adapter import Adapter
from antiphon.errors import InvalidValue, ModelFileError
from antiphon.weights.adapter_store import storage_error
from antiphon.weights.allowed import copy_allowed, sanitize
from antiphon.weights.gguf import Header, read_any, read_header

PAIR = (".lora_a", ".lora_b")
BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An adapter that fits its model."""

    path: Path
    digest: str
    """SHA-256 of the GGUF file, in hexadecimal."""
    rank: int
    """The largest of its matrices'."""
    alpha: float
    size: int
    """Bytes."""


def keep_adapter(source: Path, base: Header, directory: Path) -> AdapterFile:
    """A copy of the adapter in `directory`, as GGUF, under its digest; checked before it is there.

    `source`: a GGUF adapter, or a directory as PEFT saves it. Raises ModelFileError, and OSError when
    `directory` cannot be written.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=directory, prefix=".adapter-", suffix=".gguf")
    os.close(handle)
    partial = Path(name)
    try:
        if source.is_dir():
            _convert(source, base, partial)
        else:
            _require_file(source)
            _copy(source, partial)
        found = read_adapter(partial, base, named=source.name)
        target = directory / f"{found.digest}.gguf"
        partial.replace(target)
    except ModelFileError as refused:
        message = refused.message.replace(str(partial), str(source)).replace(partial.name, source.name)
        raise ModelFileError(message) from None
    finally:
        partial.unlink(missing_ok=True)
    return AdapterFile(target, found.digest, found.rank, found.alpha, found.size)


def keep_job(payload: Mapping[str, object]) -> dict[str, object]:
    """The sandbox's job: what a caller named is copied from where it may lie, and kept in `into`/kept.

    Raises InvalidValue, which names `lora_path` and the path as the caller wrote it, and EngineError when
    `into` cannot be written.
    """
    said, base, into = str(payload["path"]), str(payload["base"]), Path(str(payload["into"]))
    directories, most = payload["directories"], payload["most"]
    if not isinstance(directories, list) or not isinstance(most, int):
        raise TypeError("the job needs directories and a size")
    source = arrived = into / "arrived"
    try:
        arrived.mkdir()
        source = copy_allowed(said, [Path(str(each)) for each in directories], arrived, most)
        found = keep_adapter(source, read_header(Path(base)), into / "kept")
    except ModelFileError as refused:
        message = refused.message.replace(str(source), sanitize(said))
        raise InvalidValue(message, param="lora_path") from None
    except OSError as problem:  # what comes from the caller's files is a ModelFileError
        raise storage_error(problem) from None
    return {"digest": found.digest, "rank": found.rank, "alpha": found.alpha, "size": found.size}


def read_adapter(path: Path, base: Header, named: str | None = None) -> AdapterFile:
    """Checks a GGUF adapter against its model. Raises ModelFileError, which calls the file `named`."""
    name = named or path.name
    header = read_any(path)
    said = header.metadata
    if said.get("general.type") != "adapter" or said.get("adapter.type") != "lora":
        raise ModelFileError(f"{name} is not a LoRA adapter")
    if "adapter.alora.invocation_tokens" in said:
        raise ModelFileError(f"{name} is an activated LoRA, which is not served")
    if header.architecture != base.architecture:
        raise ModelFileError(
            f"{name} was made for the architecture {header.architecture}; {base.path.name} is "
            f"{base.architecture}"
        )
    alpha = said.get("adapter.lora.alpha")
    if not isinstance(alpha, float) or not 0 < alpha < float("inf"):
        raise ModelFileError(f"{name} has the alpha {alpha!r}; it must be a positive number")
    rank = _check_pairs(header, base, name)
    _check_matrices(path, name)
    return AdapterFile(path, digest(path), rank, alpha, header.size)


def read_kept(path: Path) -> Adapter:
    """An adapter that `keep_adapter` kept: its name is its digest, and it was checked. Raises
    ModelFileError."""
    header = read_any(path)
    ranks = [shape[1] for name, shape in header.shapes.items() if name.endswith(PAIR[0])]
    alpha = float(header.metadata.get("adapter.lora.alpha", 0))
    return Adapter(path.stem, str(path), max(ranks, default=0), alpha, header.size)


def digest(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_pairs(header: Header, base: Header, name: str) -> int:
    """Every tensor is half of a pair that fits a matrix of the base; the largest rank."""
    modules = {tensor.removesuffix(".lora_a").removesuffix(".lora_b") for tensor in header.shapes}
    rank = 0
    for module in modules:
        a, b = (header.shapes.get(module + part, ()) for part in PAIR)
        whole = base.shapes.get(module, ())
        if len(a) != 2 or len(b) != 2 or len(whole) != 2:
            raise ModelFileError(f"{name} adapts {module[:120]}, which cannot be in {base.path.name}")
        if a[0] != whole[0] or b[1] != whole[1] or a[1] != b[0]:
            raise ModelFileError(
                f"{name} adapts {module} with the shapes {list(a)} and {list(b)}, but in {base.path.name} "
                f"it is {list(whole)}; it was made for another model"
            )
        rank = max(rank, a[1])
    if not rank:
        raise ModelFileError(f"{name} holds no matrices")
    return rank


def _convert(source: Path, base: Header, target: Path) -> None:
    """Imports what it needs only now: a process that serves never converts."""
    from antiphon.weights.convert.peft import convert_peft, is_peft

    if not is_peft(source):
        raise ModelFileError(
            f"{source} holds no adapter_config.json; name a GGUF file, or a directory as PEFT saves it"
        )
    convert_peft(source, base, target)


def _check_matrices(path: Path, name: str) -> None:
    """Imports what it needs only now, too."""
    from antiphon.weights.convert.matrices import check_matrices

    check_matrices(path, name)


def _require_file(source: Path) -> None:
    """A pipe would never end, and a device is no adapter."""
    if source.exists() and not source.is_file():
        raise ModelFileError(f"{source} is no regular file; name a GGUF file, or a directory of PEFT")


def _copy(source: Path, target: Path) -> None:
    try:
        reading = source.open("rb")
    except OSError as problem:
        raise ModelFileError(f"cannot read {source}: {os.strerror(problem.errno or 0)}") from None
    with reading, target.open("wb") as writing:
        while block := reading.read(BLOCK):
            writing.write(block)
