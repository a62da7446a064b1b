"""Where a llama.cpp library may be, in the designed order, without importing any package.

An explicit path is the only place when given. Else an installed llama-cpp-python comes first, since it was
built for this machine, then the xllamacpp wheel. A discovered library that cannot be used is passed over with
a warning; the last refusal is raised when none is left.
"""

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from antiphon.engines.llama.libllama import Library, open_library
from antiphon.errors import LibraryError

log = logging.getLogger(__name__)

SUFFIXES = (".dylib", ".so") if sys.platform == "darwin" else (".so",)


@dataclass(frozen=True, slots=True)
class Place:
    """A file that should be a library, and what brought it."""

    path: Path
    origin: str
    """`llama-cpp-python 0.3.36`, or `the setting`, for people."""


def find_library(explicit: str | None, places: Iterator[Place] | None = None) -> tuple[Library, Place]:
    """The first library that can be used. Raises LibraryError."""
    if explicit:
        place = Place(library_file(Path(explicit)), "the library setting")
        return open_library(place.path), place
    refusal = LibraryError("No llama.cpp library is installed; `pip install xllamacpp` brings one.")
    for place in discovered() if places is None else places:
        try:
            return open_library(place.path), place
        except LibraryError as error:
            log.warning("passing over the llama.cpp library of %s: %s", place.origin, error.message)
            refusal = error
    raise refusal


def library_file(path: Path) -> Path:
    """The library that a setting means: the file itself, or the libllama of a directory. Raises
    LibraryError.
    """
    if path.is_dir():
        for suffix in SUFFIXES:
            if (path / f"libllama{suffix}").is_file():
                return path / f"libllama{suffix}"
        raise LibraryError(f"There is no libllama{SUFFIXES[0]} in {path}; give the path of the library file.")
    if not path.is_file():
        raise LibraryError(
            f"There is no library at {path}; give the path of a llama.cpp library, or leave the setting out."
        )
    return path


def discovered() -> Iterator[Place]:
    """Installed libraries, best first."""
    yield from list_libraries("llama_cpp", "llama-cpp-python", "lib/libllama")
    yield from list_libraries("xllamacpp", "xllamacpp", "xllamacpp*")


def list_libraries(package: str, distribution: str, pattern: str) -> Iterator[Place]:
    """The libraries of one package."""
    for folder in package_folders(package):
        for suffix in SUFFIXES:
            for path in sorted(folder.glob(pattern + suffix)):
                yield Place(path, f"{distribution} {installed_version(distribution)}")


def package_folders(package: str) -> list[Path]:
    """Folders of an installed top-level package; it is not imported."""
    spec = find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []


def installed_version(distribution: str) -> str:
    """The version that is installed, or a question mark."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "?"
