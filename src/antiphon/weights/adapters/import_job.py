"""The sandbox's job that imports an adapter: copies it, converts it from PEFT, checks it against its model,
and keeps it under the digest of its content.

Files are copied first, so that the checked file is the file in use, whoever writes to its directory. A path
is resolved and must be in an allowed directory; the copy then follows no link. Only regular files are opened,
and only up to a size. No answer reveals files outside the directories.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from antiphon.domain.models import Adapter
from antiphon.errors import InvalidValue, ModelFileError
from antiphon.weights.adapters.registry import GGUF_SUFFIX, PEFT_SUFFIX, sanitize, storage_error
from antiphon.weights.gguf import Header, read_gguf, read_header

PAIR = (".lora_a", ".lora_b")


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An adapter that fits its model."""

    path: Path
    digest: str
    """SHA-256 of the file, in hexadecimal."""
    rank: int
    """The largest rank of its matrices."""
    alpha: float
    size: int
    """Bytes."""


def keep_for_model(source: Path, base: Path, directory: Path) -> AdapterFile:
    """Copies an adapter to `directory` under its digest, after checking it for the model at `base`: a GGUF
    file, or a folder of weights that vLLM serves. Raises as `keep_adapter` does."""
    if base.is_dir():
        return keep_peft_file(source, base, directory)
    return keep_adapter(source, read_header(base), directory)


def keep_peft_file(source: Path, base: Path, directory: Path) -> AdapterFile:
    """Copies a PEFT adapter to `directory` as one file of safetensors under its digest, after checking it.

    Raises ModelFileError, and OSError if `directory` cannot be written.
    """
    from antiphon.weights.convert.peft import is_peft
    from antiphon.weights.convert.peft_file import write_peft_file

    if not is_peft(source):
        raise ModelFileError(
            f"{source} holds no adapter_config.json; vLLM takes a directory as PEFT saves it"
        )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=directory, prefix=".adapter-", suffix=PEFT_SUFFIX)
    os.close(handle)
    partial = Path(name)
    try:
        rank, alpha = write_peft_file(source, base, partial)
        content = digest(partial)
        target = directory / f"{content}{PEFT_SUFFIX}"
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return AdapterFile(target, content, rank, alpha, target.stat().st_size)


def keep_adapter(source: Path, base: Header, directory: Path) -> AdapterFile:
    """Copies the adapter to `directory` as GGUF under its digest, after checking it.

    `source`: a GGUF adapter, or a PEFT directory. Raises ModelFileError, and OSError when `directory` cannot
    be written.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=directory, prefix=".adapter-", suffix=GGUF_SUFFIX)
    os.close(handle)
    partial = Path(name)
    try:
        if source.is_dir():
            _convert(source, base, partial)
        else:
            _require_file(source)
            _copy_file(source, partial)
        adapter = read_adapter(partial, base, named=source.name)
        target = directory / f"{adapter.digest}{GGUF_SUFFIX}"
        partial.replace(target)
    except ModelFileError as refused:
        message = refused.message.replace(str(partial), str(source)).replace(partial.name, source.name)
        raise ModelFileError(message) from None
    finally:
        partial.unlink(missing_ok=True)
    return AdapterFile(target, adapter.digest, adapter.rank, adapter.alpha, adapter.size)


def keep_job(payload: Mapping[str, object]) -> dict[str, object]:
    """The job: copies the files that a caller named, and keeps the adapter in `into`/kept.

    Raises InvalidValue, which names `lora_path` and the path as the caller wrote it, and EngineError when
    `into` cannot be written.
    """
    shown_path, base, into = str(payload["path"]), str(payload["base"]), Path(str(payload["into"]))
    directories, max_bytes = payload["directories"], payload["most"]
    if not isinstance(directories, list) or not isinstance(max_bytes, int):
        raise TypeError("the job needs directories and a size")
    source = arrived = into / "arrived"
    try:
        arrived.mkdir()
        source = copy_allowed(shown_path, [Path(str(each)) for each in directories], arrived, max_bytes)
        adapter = keep_for_model(source, Path(base), into / "kept")
    except ModelFileError as refused:
        message = refused.message.replace(str(source), sanitize(shown_path))
        raise InvalidValue(message, param="lora_path") from None
    except OSError as problem:  # what comes from the caller's files is a ModelFileError
        raise storage_error(problem) from None
    facts = {"digest": adapter.digest, "rank": adapter.rank, "alpha": adapter.alpha, "size": adapter.size}
    return {**facts, "file": adapter.path.name}


def read_adapter(path: Path, base: Header, named: str | None = None) -> AdapterFile:
    """Checks a GGUF adapter against its model and returns its facts. Raises ModelFileError. `named`: the
    file's name in the error."""
    name = named or path.name
    header = read_gguf(path)
    metadata = header.metadata
    if metadata.get("general.type") != "adapter" or metadata.get("adapter.type") != "lora":
        raise ModelFileError(f"{name} is not a LoRA adapter")
    if "adapter.alora.invocation_tokens" in metadata:
        raise ModelFileError(f"{name} is an activated LoRA, which is not served")
    if header.architecture != base.architecture:
        raise ModelFileError(
            f"{name} was made for the architecture {header.architecture}; {base.path.name} is "
            f"{base.architecture}"
        )
    alpha = metadata.get("adapter.lora.alpha")
    if not isinstance(alpha, float) or not 0 < alpha < float("inf"):
        raise ModelFileError(f"{name} has the alpha {alpha!r}; it must be a positive number")
    rank = _check_pairs(header, base, name)
    _check_matrices(path, name)
    return AdapterFile(path, digest(path), rank, alpha, header.size)


def read_kept(path: Path) -> Adapter:
    """Reads an adapter that `keep_adapter` kept: its name is its digest, and it is checked already. Raises
    ModelFileError."""
    if path.suffix == PEFT_SUFFIX:
        from antiphon.weights.convert.peft_file import read_peft_file

        rank, alpha = read_peft_file(path)
        return Adapter(path.stem, str(path), rank, alpha, path.stat().st_size)
    header = read_gguf(path)
    ranks = [shape[1] for name, shape in header.shapes.items() if name.endswith(PAIR[0])]
    alpha = float(header.metadata.get("adapter.lora.alpha", 0))
    return Adapter(path.stem, str(path), max(ranks, default=0), alpha, header.size)


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_pairs(header: Header, base: Header, name: str) -> int:
    """Checks that every tensor is half of a pair that fits a matrix of the base. Returns the largest rank."""
    modules = {tensor.removesuffix(".lora_a").removesuffix(".lora_b") for tensor in header.shapes}
    rank = 0
    for module in modules:
        a, b = (header.shapes.get(module + part, ()) for part in PAIR)
        base_shape = base.shapes.get(module, ())
        if len(a) != 2 or len(b) != 2 or len(base_shape) != 2:
            raise ModelFileError(f"{name} adapts {module[:120]}, which cannot be in {base.path.name}")
        if a[0] != base_shape[0] or b[1] != base_shape[1] or a[1] != b[0]:
            raise ModelFileError(
                f"{name} adapts {module} with the shapes {list(a)} and {list(b)}, but in {base.path.name} "
                f"it is {list(base_shape)}; it was made for another model"
            )
        rank = max(rank, a[1])
    if not rank:
        raise ModelFileError(f"{name} holds no matrices")
    return rank


def _convert(source: Path, base: Header, target: Path) -> None:
    """Converts a PEFT adapter. It imports late, since a serving process never converts."""
    from antiphon.weights.convert.peft import convert_peft, is_peft

    if not is_peft(source):
        raise ModelFileError(
            f"{source} holds no adapter_config.json; name a GGUF file, or a directory as PEFT saves it"
        )
    convert_peft(source, base, target)


def _check_matrices(path: Path, name: str) -> None:
    """Checks the matrices' numbers. It imports late, too."""
    from antiphon.weights.convert.tensors import check_matrices

    check_matrices(path, name)


def _require_file(source: Path) -> None:
    """Raises ModelFileError for pipes and devices, whose content may never end."""
    if source.exists() and not source.is_file():
        raise ModelFileError(f"{source} is no regular file; name a GGUF file, or a directory of PEFT")


def _copy_file(source: Path, target: Path) -> None:
    """Copies a file. Raises ModelFileError if the source cannot be read."""
    try:
        reading = source.open("rb")
    except OSError as problem:
        raise ModelFileError(f"cannot read {source}: {os.strerror(problem.errno or 0)}") from None
    with reading, target.open("wb") as writing:
        while block := reading.read(BLOCK):
            writing.write(block)


PEFT_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""The files that are copied from a directory."""

BLOCK = 1 << 20


def copy_allowed(shown_path: str, directories: Sequence[Path], into: Path, max_bytes: int) -> Path:
    """Copies the file or directory that a caller named into the directory `into`, under the same name.

    `shown_path`: the caller's path, absolute or relative to one of the directories. `max_bytes`: the
    most bytes of each file. Raises ModelFileError, and OSError if `into` cannot be written.
    """
    root, steps = _locate(shown_path, directories)
    target = into / (steps[-1] if steps else root.name or "adapter")
    with _enter_directory(root, steps[:-1], shown_path) as parent:
        if _file_kind(steps[-1] if steps else ".", parent, shown_path) == stat.S_IFREG:
            _copy_checked(steps[-1], parent, target, max_bytes, shown_path)
            return target
    target.mkdir()
    for name in PEFT_FILES:
        place = root.joinpath(*steps, name)
        if os.path.lexists(place):
            inner, path = _locate(str(place), directories, f"{shown_path}/{name}")
            with _enter_directory(inner, path[:-1], shown_path) as parent:
                _copy_checked(path[-1], parent, target / name, max_bytes, f"{shown_path}/{name}")
    return target


def _locate(shown_path: str, directories: Sequence[Path], named: str | None = None) -> tuple[Path, list[str]]:
    """Returns the allowed directory that contains the path, and the path's steps from there. Links are
    resolved. Raises ModelFileError, with the path under the name `named`."""
    roots = [root for directory in directories if (root := _resolve_path(directory)) is not None]
    places = [Path(shown_path)] if shown_path.startswith("/") else [root / shown_path for root in roots]
    if "\0" in shown_path:
        raise ModelFileError("the path holds a NUL, which no file's name can")
    resolved = [resolved for place in places if (resolved := _resolve_path(place)) is not None]
    inside = [(root, place) for place in resolved for root in roots if place.is_relative_to(root)]
    if not inside or len(shown_path) > os.pathconf("/", "PC_PATH_MAX"):
        raise ModelFileError(
            f"{sanitize(named or shown_path)} lies in none of the directories that adapters may be loaded "
            "from; put it into one of them, or add its own to lora.directories (ANTIPHON_LORA_DIRECTORIES)"
        )
    root, place = next((pair for pair in inside if os.path.lexists(pair[1])), inside[0])
    return root, list(place.relative_to(root).parts)


def _resolve_path(place: Path) -> Path | None:
    """Returns the path with its links resolved; None if this process may not look. A path that cannot be
    resolved counts as missing."""
    try:
        return Path(os.path.realpath(place))
    except (OSError, ValueError):
        return None


@contextmanager
def _enter_directory(root: Path, steps: Sequence[str], shown_path: str) -> Iterator[int]:
    """Opens the directory that the steps lead to from the root; none of them may be a link."""
    here = _open_directory(root, steps, shown_path)
    try:
        yield here
    finally:
        os.close(here)


def _open_directory(root: Path, steps: Sequence[str], shown_path: str) -> int:
    """Opens the directory at the end of the steps without following a link. Raises ModelFileError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        here = os.open(root, flags)
        for step in steps:
            above = here
            try:
                here = os.open(step, flags | os.O_NOFOLLOW, dir_fd=above)
            finally:
                os.close(above)
        return here
    except OSError as problem:
        raise _read_error(shown_path, problem) from None


def _file_kind(name: str, directory: int, shown_path: str) -> int:
    """Returns whether the name is a regular file or a directory. Raises ModelFileError for anything else. It
    does not open the file: a device may act when it is opened, and a pipe has no end."""
    try:
        kind = stat.S_IFMT(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError as problem:
        raise _read_error(shown_path, problem) from None
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        raise ModelFileError(
            f"{sanitize(shown_path)} is no regular file; name a GGUF file, or a directory of PEFT"
        )
    return kind


def _copy_checked(name: str, directory: int, target: Path, max_bytes: int, shown_path: str) -> None:
    """Copies one regular file of at most `max_bytes` bytes. Raises ModelFileError for faults of the source,
    OSError for faults of the target."""
    if _file_kind(name, directory, shown_path) != stat.S_IFREG:
        raise ModelFileError(f"{sanitize(shown_path)} is a directory where a file must be")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        source = os.open(name, flags, dir_fd=directory)
    except OSError as problem:
        raise _read_error(shown_path, problem) from None
    with os.fdopen(source, "rb") as reading, target.open("xb") as writing:
        file_status = os.fstat(reading.fileno())
        if not stat.S_ISREG(file_status.st_mode):
            raise ModelFileError(f"{sanitize(shown_path)} is no regular file")
        if file_status.st_size > max_bytes:
            raise _size_error(shown_path, max_bytes)
        bytes_left = max_bytes
        while block := _read_block(reading, shown_path):
            bytes_left -= len(block)
            if bytes_left < 0:  # the file grew while it was copied
                raise _size_error(shown_path, max_bytes)
            writing.write(block)


def _read_block(reading: BinaryIO, shown_path: str) -> bytes:
    """Reads the next bytes. Raises ModelFileError."""
    try:
        return reading.read(BLOCK)
    except OSError as problem:
        raise _read_error(shown_path, problem) from None


def _size_error(shown_path: str, max_bytes: int) -> ModelFileError:
    return ModelFileError(
        f"{sanitize(shown_path)} is larger than {max_bytes:,} bytes; raise lora.max_bytes "
        "(ANTIPHON_LORA_MAX_BYTES) if it is meant to be"
    )


def _read_error(shown_path: str, problem: OSError) -> ModelFileError:
    return ModelFileError(f"cannot read {sanitize(shown_path)}: {os.strerror(problem.errno or 0)}")
