"""Files that a caller names, out of directories that the operator names: copied, so that what is checked is
what is used, whoever writes to those directories meanwhile.

A path is resolved first and must lie in a directory then; the copy walks what was resolved and follows no
link any more. Only regular files are opened, and no more than so many bytes are taken. Whether anything lies
outside the directories is never told.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from antiphon.errors import ModelFileError

PEFT_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What is taken of a directory."""

BLOCK = 1 << 20
LONGEST_SHOWN = 200
"""Characters of a caller's path that an error repeats."""


def copy_allowed(said: str, directories: Sequence[Path], into: Path, most: int) -> Path:
    """The file or directory that a caller named, copied into a directory of ours under its own name.

    `said`: absolute, or relative to one of the directories. `most`: bytes of each file. Raises
    ModelFileError, and OSError when `into` cannot be written.
    """
    root, steps = _locate(said, directories)
    target = into / (steps[-1] if steps else root.name or "adapter")
    with _enter_directory(root, steps[:-1], said) as parent:
        if _kind(steps[-1] if steps else ".", parent, said) == stat.S_IFREG:
            _copy(steps[-1], parent, target, most, said)
            return target
    target.mkdir()
    for name in PEFT_FILES:
        place = root.joinpath(*steps, name)
        if os.path.lexists(place):
            inner, path = _locate(str(place), directories, f"{said}/{name}")
            with _enter_directory(inner, path[:-1], said) as parent:
                _copy(path[-1], parent, target / name, most, f"{said}/{name}")
    return target


def sanitize(said: str) -> str:
    """A caller's path as an error may repeat it: printable and short."""
    plain = "".join(character if character.isprintable() else "?" for character in said[:LONGEST_SHOWN])
    return plain if len(said) <= LONGEST_SHOWN else plain + "..."


def _locate(said: str, directories: Sequence[Path], named: str | None = None) -> tuple[Path, list[str]]:
    """The directory that holds the path, resolved, and the steps from there. Raises ModelFileError, which
    calls it `named`."""
    roots = [root for directory in directories if (root := _resolve(directory)) is not None]
    places = [Path(said)] if said.startswith("/") else [root / said for root in roots]
    if "\0" in said:
        raise ModelFileError("the path holds a NUL, which no file's name can")
    found = [found for place in places if (found := _resolve(place)) is not None]
    inside = [(root, place) for place in found for root in roots if place.is_relative_to(root)]
    if not inside or len(said) > os.pathconf("/", "PC_PATH_MAX"):
        raise ModelFileError(
            f"{sanitize(named or said)} lies in none of the directories that adapters may be loaded from; "
            "put it into one of them, or add its own to lora.directories (ANTIPHON_LORA_DIRECTORIES)"
        )
    root, place = next((pair for pair in inside if os.path.lexists(pair[1])), inside[0])
    return root, list(place.relative_to(root).parts)


def _resolve(place: Path) -> Path | None:
    """Where the path leads; None where that is not for this process to know: such a path lies in none of the
    directories, like one that is not there."""
    try:
        return Path(os.path.realpath(place))
    except (OSError, ValueError):
        return None


@contextmanager
def _enter_directory(root: Path, steps: Sequence[str], said: str) -> Iterator[int]:
    """A descriptor of the directory that the steps lead to from the root, none of them a link."""
    here = _open_directory(root, steps, said)
    try:
        yield here
    finally:
        os.close(here)


def _open_directory(root: Path, steps: Sequence[str], said: str) -> int:
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
        raise _to_read_error(said, problem) from None


def _kind(name: str, directory: int, said: str) -> int:
    """Whether it is a regular file or a directory. Raises ModelFileError for anything else, unopened: merely
    opening a device may do something, and a pipe has no end."""
    try:
        kind = stat.S_IFMT(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError as problem:
        raise _to_read_error(said, problem) from None
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        raise ModelFileError(f"{sanitize(said)} is no regular file; name a GGUF file, or a directory of PEFT")
    return kind


def _copy(name: str, directory: int, target: Path, most: int, said: str) -> None:
    """Raises ModelFileError for what is wrong with the source, OSError for what is wrong with the target."""
    if _kind(name, directory, said) != stat.S_IFREG:
        raise ModelFileError(f"{sanitize(said)} is a directory where a file must be")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        source = os.open(name, flags, dir_fd=directory)
    except OSError as problem:
        raise _to_read_error(said, problem) from None
    with os.fdopen(source, "rb") as reading, target.open("xb") as writing:
        facts = os.fstat(reading.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise ModelFileError(f"{sanitize(said)} is no regular file")
        if facts.st_size > most:
            raise _too_large(said, most)
        left = most
        while block := _block(reading, said):
            left -= len(block)
            if left < 0:  # it grew meanwhile
                raise _too_large(said, most)
            writing.write(block)


def _block(reading: BinaryIO, said: str) -> bytes:
    try:
        return reading.read(BLOCK)
    except OSError as problem:
        raise _to_read_error(said, problem) from None


def _too_large(said: str, most: int) -> ModelFileError:
    return ModelFileError(
        f"{sanitize(said)} is larger than {most:,} bytes; raise lora.max_bytes (ANTIPHON_LORA_MAX_BYTES) if "
        "it is meant to be"
    )


def _to_read_error(said: str, problem: OSError) -> ModelFileError:
    return ModelFileError(f"cannot read {sanitize(said)}: {os.strerror(problem.errno or 0)}")
