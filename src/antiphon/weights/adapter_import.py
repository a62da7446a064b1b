"""The sandbox's job that imports an adapter: copies it, converts it from PEFT, checks it against its model,
and stores it under the digest of its content.

The files are copied before they are checked, so that the checked file is the file in use, even if the source
changes. A path is resolved and must be in an allowed directory. The copy follows no link. Only regular
files are opened, and only up to a size. Errors reveal nothing about files outside the directories.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from antiphon.domain.models import Adapter
from antiphon.domain.values import Struct
from antiphon.errors import InvalidValue, ModelFileError
from antiphon.weights.adapter_store import GGUF_SUFFIX, PEFT_SUFFIX, build_storage_error, sanitize
from antiphon.weights.gguf import Header, read_gguf, read_header

MATRIX_SUFFIXES = (".lora_a", ".lora_b")


class AdapterFile(Struct, frozen=True):
    """A stored adapter that fits its model."""

    path: Path
    digest: str
    """SHA-256 of the file, in hexadecimal."""
    rank: int
    """The largest rank of its matrices."""
    alpha: float
    size: int
    """Bytes."""


def import_for_model(source: Path, base: Path, directory: Path) -> AdapterFile:
    """Checks an adapter for the model at `base` and copies it to `directory` under its digest. `base`: a GGUF
    file, or a folder of weights for vLLM. Raises the errors of `import_adapter`."""
    if base.is_dir():
        return import_peft_adapter(source, base, directory)
    return import_adapter(source, read_header(base), directory)


def import_peft_adapter(source: Path, base: Path, directory: Path) -> AdapterFile:
    """Checks a PEFT adapter and copies it to `directory` as one safetensors file under its digest. Raises
    ModelFileError, and OSError if `directory` cannot be written."""
    from antiphon.weights.convert.peft import is_peft, write_peft_file

    if not is_peft(source):
        raise ModelFileError(f"{source} has no adapter_config.json; vLLM reads a directory as PEFT saves it")
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


def import_adapter(source: Path, base: Header, directory: Path) -> AdapterFile:
    """Checks an adapter and copies it to `directory` as GGUF under its digest.

    `source`: a GGUF adapter, or a PEFT directory. Raises ModelFileError, and OSError if `directory` cannot be
    written.
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
        adapter = read_adapter(partial, base, shown_name=source.name)
        target = directory / f"{adapter.digest}{GGUF_SUFFIX}"
        partial.replace(target)
    except ModelFileError as error:
        message = error.message.replace(str(partial), str(source)).replace(partial.name, source.name)
        raise ModelFileError(message) from None
    finally:
        partial.unlink(missing_ok=True)
    return AdapterFile(target, adapter.digest, adapter.rank, adapter.alpha, adapter.size)


def import_job(payload: Mapping[str, object]) -> dict[str, object]:
    """Copies the files that a caller named, and stores the adapter in the folder `kept` of the payload's
    directory `into`.

    Raises InvalidValue about `lora_path`, with the path as the caller wrote it, and EngineError if the
    directory cannot be written.
    """
    shown_path, base, staging = str(payload["path"]), str(payload["base"]), Path(str(payload["into"]))
    directories, max_bytes = payload["directories"], payload["most"]
    if not isinstance(directories, list) or not isinstance(max_bytes, int):
        raise TypeError("the job needs directories and a size")
    source = arrived = staging / "arrived"
    try:
        arrived.mkdir()
        source = copy_allowed(
            shown_path, [Path(str(directory)) for directory in directories], arrived, max_bytes
        )
        adapter = import_for_model(source, Path(base), staging / "kept")
    except ModelFileError as error:
        message = error.message.replace(str(source), sanitize(shown_path))
        raise InvalidValue(message, param="lora_path") from None
    except OSError as problem:  # errors of the caller's files are ModelFileErrors
        raise build_storage_error(problem) from None
    details = {"digest": adapter.digest, "rank": adapter.rank, "alpha": adapter.alpha, "size": adapter.size}
    return {**details, "file": adapter.path.name}


def read_adapter(path: Path, base: Header, shown_name: str | None = None) -> AdapterFile:
    """Checks a GGUF adapter against its model. Raises ModelFileError. `shown_name`: the file's name in
    errors."""
    name = shown_name or path.name
    header = read_gguf(path)
    metadata = header.metadata
    if metadata.get("general.type") != "adapter" or metadata.get("adapter.type") != "lora":
        raise ModelFileError(f"{name} is not a LoRA adapter")
    if "adapter.alora.invocation_tokens" in metadata:
        raise ModelFileError(f"{name} is an activated LoRA, which is not supported")
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


def read_stored_adapter(path: Path) -> Adapter:
    """Reads an adapter of the registry. It was checked earlier, and its file name is its digest. Raises
    ModelFileError."""
    if path.suffix == PEFT_SUFFIX:
        from antiphon.weights.convert.peft import read_peft_file

        rank, alpha = read_peft_file(path)
        return Adapter(path.stem, str(path), rank, alpha, path.stat().st_size)
    header = read_gguf(path)
    ranks = [shape[1] for name, shape in header.shapes.items() if name.endswith(MATRIX_SUFFIXES[0])]
    alpha = float(header.metadata.get("adapter.lora.alpha", 0))
    return Adapter(path.stem, str(path), max(ranks, default=0), alpha, header.size)


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_pairs(header: Header, base: Header, name: str) -> int:
    """Checks that the tensors form pairs, and that each pair fits a matrix of the base. Returns the largest
    rank."""
    modules = {tensor.removesuffix(".lora_a").removesuffix(".lora_b") for tensor in header.shapes}
    rank = 0
    for module in modules:
        a, b = (header.shapes.get(module + suffix, ()) for suffix in MATRIX_SUFFIXES)
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
        raise ModelFileError(f"{name} has no matrices")
    return rank


def _convert(source: Path, base: Header, target: Path) -> None:
    """Converts a PEFT adapter. The import is here because HTTP processes never convert."""
    from antiphon.weights.convert.peft import convert_peft, is_peft

    if not is_peft(source):
        raise ModelFileError(
            f"{source} has no adapter_config.json; name a GGUF file, or a directory as PEFT saves it"
        )
    convert_peft(source, base, target)


def _check_matrices(path: Path, name: str) -> None:
    """Checks the numbers of the matrices. The import is here because HTTP processes never check them."""
    from antiphon.weights.convert.tensors import check_matrices

    check_matrices(path, name)


def _require_file(source: Path) -> None:
    """Raises ModelFileError for pipes and devices, because reading them might never end."""
    if source.exists() and not source.is_file():
        raise ModelFileError(f"{source} is not a regular file; name a GGUF file, or a directory of PEFT")


def _copy_file(source: Path, target: Path) -> None:
    """Copies a file. Raises ModelFileError if the source cannot be read."""
    try:
        input_file = source.open("rb")
    except OSError as problem:
        raise ModelFileError(f"cannot read {source}: {os.strerror(problem.errno or 0)}") from None
    with input_file, target.open("wb") as output_file:
        while block := input_file.read(READ_BYTES):
            output_file.write(block)


PEFT_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""The files that are copied from a directory."""

READ_BYTES = 1 << 20
"""The most bytes of one read."""


def copy_allowed(
    shown_path: str, directories: Sequence[Path], target_directory: Path, max_bytes: int
) -> Path:
    """Copies a caller's file or directory into the target directory, under the same name.

    `shown_path`: the caller's path, absolute or relative to one of the directories. `max_bytes`: the most
    bytes of each file. Raises ModelFileError, and OSError if the target directory cannot be written.
    """
    root, steps = _locate(shown_path, directories)
    target = target_directory / (steps[-1] if steps else root.name or "adapter")
    with _enter_directory(root, steps[:-1], shown_path) as parent:
        if _get_file_kind(steps[-1] if steps else ".", parent, shown_path) == stat.S_IFREG:
            _copy_checked(steps[-1], parent, target, max_bytes, shown_path)
            return target
    target.mkdir()
    for name in PEFT_FILES:
        file = root.joinpath(*steps, name)
        if os.path.lexists(file):
            file_root, file_steps = _locate(str(file), directories, f"{shown_path}/{name}")
            with _enter_directory(file_root, file_steps[:-1], shown_path) as parent:
                _copy_checked(file_steps[-1], parent, target / name, max_bytes, f"{shown_path}/{name}")
    return target


def _locate(
    shown_path: str, directories: Sequence[Path], error_path: str | None = None
) -> tuple[Path, list[str]]:
    """Returns the allowed directory that contains the path, and the path's parts below it. Resolves links.
    Raises ModelFileError. `error_path`: the path in the error, if it differs from `shown_path`."""
    roots = [root for directory in directories if (root := _resolve_path(directory)) is not None]
    paths = [Path(shown_path)] if shown_path.startswith("/") else [root / shown_path for root in roots]
    if "\0" in shown_path:
        raise ModelFileError("the path contains a NUL, which file names cannot contain")
    resolved_paths = [resolved for path in paths if (resolved := _resolve_path(path)) is not None]
    allowed_paths = [(root, path) for path in resolved_paths for root in roots if path.is_relative_to(root)]
    if not allowed_paths or len(shown_path) > os.pathconf("/", "PC_PATH_MAX"):
        raise ModelFileError(
            f"{sanitize(error_path or shown_path)} is in none of the directories from which adapters can be "
            "loaded; move it into one of them, or add its directory to lora.directories "
            "(ANTIPHON_LORA_DIRECTORIES)"
        )
    root, path = next((pair for pair in allowed_paths if os.path.lexists(pair[1])), allowed_paths[0])
    return root, list(path.relative_to(root).parts)


def _resolve_path(path: Path) -> Path | None:
    """Returns the path with its links resolved; None if this process cannot resolve it."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError):
        return None


@contextmanager
def _enter_directory(root: Path, steps: Sequence[str], shown_path: str) -> Iterator[int]:
    """Opens the directory `root`/`steps` and yields its file descriptor. None of the steps can be a link."""
    descriptor = _open_directory(root, steps, shown_path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_directory(root: Path, steps: Sequence[str], shown_path: str) -> int:
    """Opens the directory `root`/`steps` without following a link, and returns its file descriptor. Raises
    ModelFileError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        descriptor = os.open(root, flags)
        for step in steps:
            parent = descriptor
            try:
                descriptor = os.open(step, flags | os.O_NOFOLLOW, dir_fd=parent)
            finally:
                os.close(parent)
        return descriptor
    except OSError as problem:
        raise _build_read_error(shown_path, problem) from None


def _get_file_kind(name: str, directory: int, shown_path: str) -> int:
    """Returns whether the name is a regular file or a directory (S_IFREG or S_IFDIR). Raises ModelFileError
    for anything else. Does not open the file: opening a device can have effects, and reading a pipe might
    never end."""
    try:
        kind = stat.S_IFMT(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError as problem:
        raise _build_read_error(shown_path, problem) from None
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        raise ModelFileError(
            f"{sanitize(shown_path)} is not a regular file; name a GGUF file, or a directory of PEFT"
        )
    return kind


def _copy_checked(name: str, directory: int, target: Path, max_bytes: int, shown_path: str) -> None:
    """Copies one regular file of at most `max_bytes` bytes. Raises ModelFileError for errors of the source,
    and OSError for errors of the target."""
    if _get_file_kind(name, directory, shown_path) != stat.S_IFREG:
        raise ModelFileError(f"{sanitize(shown_path)} is a directory, but must be a file")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        source = os.open(name, flags, dir_fd=directory)
    except OSError as problem:
        raise _build_read_error(shown_path, problem) from None
    with os.fdopen(source, "rb") as input_file, target.open("xb") as output_file:
        file_status = os.fstat(input_file.fileno())
        if not stat.S_ISREG(file_status.st_mode):
            raise ModelFileError(f"{sanitize(shown_path)} is not a regular file")
        if file_status.st_size > max_bytes:
            raise _build_size_error(shown_path, max_bytes)
        bytes_left = max_bytes
        while block := _read_block(input_file, shown_path):
            bytes_left -= len(block)
            if bytes_left < 0:  # the file grew while it was copied
                raise _build_size_error(shown_path, max_bytes)
            output_file.write(block)


def _read_block(file: BinaryIO, shown_path: str) -> bytes:
    """Reads the next bytes, at most READ_BYTES. Raises ModelFileError."""
    try:
        return file.read(READ_BYTES)
    except OSError as problem:
        raise _build_read_error(shown_path, problem) from None


def _build_size_error(shown_path: str, max_bytes: int) -> ModelFileError:
    return ModelFileError(
        f"{sanitize(shown_path)} is larger than {max_bytes:,} bytes; raise lora.max_bytes "
        "(ANTIPHON_LORA_MAX_BYTES) to allow it"
    )


def _build_read_error(shown_path: str, problem: OSError) -> ModelFileError:
    return ModelFileError(f"cannot read {sanitize(shown_path)}: {os.strerror(problem.errno or 0)}")
