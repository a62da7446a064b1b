"""`hf:OWNER/REPO[@REVISION]:FILE.gguf`: the name of a model file on the hub. This module sends no request.

A parsed reference is safe in the path of a file and of an address.
"""

import re
from pathlib import PurePosixPath

from antiphon.domain.values import Struct
from antiphon.errors import SettingsError

PREFIX = "hf:"

FORM = "hf:OWNER/REPO:FILE.gguf or hf:OWNER/REPO@REVISION:FILE.gguf"

DEFAULT_REVISION = "main"

WORD = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
"""An owner or a repository; the hub allows 96 characters."""

REPOSITORY = re.compile(rf"{WORD}/{WORD}")

REVISION = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*")

COMMIT = re.compile(r"[0-9a-f]{40}")

PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$", re.IGNORECASE)
"""The ending of one part of a split model."""

ENDING = ".gguf"

LONGEST_PART = 120
"""The most characters between two slashes, so that a file system can store the name with an added ending."""


class Reference(Struct, frozen=True):
    """A file of a repository, at a revision."""

    repository: str
    """`OWNER/REPO`."""
    file: str
    """The file's name in the repository, with its folders."""
    revision: str = DEFAULT_REVISION
    """A branch, a tag or a commit."""

    def __str__(self) -> str:
        revision = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{PREFIX}{self.repository}{revision}:{self.file}"

    @property
    def name(self) -> str:
        """The model's default name: the file without folders and ending."""
        return PurePosixPath(self.file).stem

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which never changes."""
        return COMMIT.fullmatch(self.revision) is not None


def is_reference(text: str) -> bool:
    """Whether the text starts like a reference, valid or not."""
    return text.startswith(PREFIX)


def parse(text: str) -> Reference:
    """Parses a reference. Raises SettingsError with the problem."""
    location, colon, file = text.removeprefix(PREFIX).partition(":")
    repository, at_sign, revision = location.partition("@")
    if (
        not is_reference(text)
        or not REPOSITORY.fullmatch(repository)
        or ".." in repository
        or "--" in repository
    ):
        raise SettingsError(f"{text!r} has no valid repository; write {FORM}")
    if at_sign and (not REVISION.fullmatch(revision) or not _is_inside(revision)):
        raise SettingsError(f"{text!r} has no valid revision after the @; give a branch, a tag or a commit")
    if not colon or not file:
        page = f"https://huggingface.co/{repository}/tree/{revision or DEFAULT_REVISION}"
        raise SettingsError(f"{text!r} has no file; write {FORM} ({page} lists the files)")
    _check_file(text, file)
    return Reference(repository, file, revision or DEFAULT_REVISION)


def _check_file(text: str, file: str) -> None:
    """Raises SettingsError for a file name that cannot be fetched as a model."""
    if not _is_inside(file) or "\\" in file or not file.isprintable():
        raise SettingsError(
            f"{text!r}: {file!r} is not a file inside a repository; give its name as the hub shows it"
        )
    if not file.lower().endswith(ENDING):
        raise SettingsError(f"{text!r}: {file} is not a GGUF file; choose one that ends in {ENDING}")
    part = PART.search(file)
    if part and int(part[1]) > 1:
        location = text.removeprefix(PREFIX).partition(":")[0].replace("@", " --revision ")
        beginning = file[: part.start()]
        raise SettingsError(
            f"{text!r} is one of {int(part[1])} parts of a split model, which are not downloaded separately; "
            f"choose a model in one file, or download all parts (hf download {location} --include "
            f"'{beginning}-*' --local-dir models) and name the first "
            f"(--model models/{beginning}-00001-of-{part[1]}.gguf)"
        )


def _is_inside(path: str) -> bool:
    """Whether a relative path has no empty part, no `.` and no `..`."""
    return all(part not in ("", ".", "..") and len(part) <= LONGEST_PART for part in path.split("/"))
