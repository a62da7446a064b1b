"""Files that callers name: what tests/http/test_adapters.py cannot show over the wire."""

import os
import stat
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from antiphon.errors import ModelFileError
from antiphon.weights.adapter_import import (
    PEFT_FILES,
    READ_BYTES,
    _copy_checked,
    _enter_directory,
    copy_allowed,
)


def test_a_link_made_after_resolving_is_not_followed(tmp_path: Path) -> None:
    """As when somebody who may write to the directory swaps it in meanwhile."""
    secret, shelf, ours = (tmp_path / name for name in ("secret", "shelf", "ours"))
    for directory in (secret, shelf, ours):
        directory.mkdir()
    (secret / "a.gguf").write_bytes(b"secret")
    (shelf / "directory").symlink_to(secret)
    with pytest.raises(ModelFileError), _enter_directory(shelf, ["directory"], "directory"):
        pass
    (shelf / "a.gguf").symlink_to(secret / "a.gguf")
    with (
        _enter_directory(shelf, [], "a.gguf") as here,
        pytest.raises(ModelFileError, match="not a regular file"),
    ):
        _copy_checked("a.gguf", here, ours / "a.gguf", 100, "a.gguf")
    assert list(ours.iterdir()) == []


def list_open_files() -> Counter[tuple[int, int]]:
    """How often each file and directory is open. Other threads may open and close connections meanwhile."""
    found: Counter[tuple[int, int]] = Counter()
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # the one of the listing, or one that another thread closes
            status = os.fstat(int(name))
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                found[status.st_dev, status.st_ino] += 1
    return found


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "shelf" / "deep" / "down").mkdir(parents=True)
    (tmp_path / "shelf" / "deep" / "down" / "a.gguf").write_bytes(b"abc")
    before = list_open_files()
    for number, said in enumerate(("deep/down/a.gguf", "deep/absent/a.gguf", "deep/down/a.gguf/b", "deep")):
        into = tmp_path / str(number)
        into.mkdir()
        with suppress(ModelFileError):
            copy_allowed(said, [tmp_path / "shelf"], into, 100)
    assert not list_open_files() - before
    assert (tmp_path / "0" / "a.gguf").read_bytes() == b"abc"


def test_of_a_directory_only_what_is_needed_is_copied(tmp_path: Path) -> None:
    source, ours = tmp_path / "shelf" / "adapter", tmp_path / "ours"
    source.mkdir(parents=True)
    ours.mkdir()
    for name in (*PEFT_FILES, "adapter_model.bin", "README.md"):
        (source / name).write_text(name)
    found = copy_allowed(str(source), [tmp_path / "shelf"], ours, 100)
    assert sorted(path.name for path in found.iterdir()) == sorted(PEFT_FILES)


def test_the_size_is_counted_as_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "a.gguf").write_bytes(bytes(100))
    assert copy_allowed("a.gguf", [tmp_path], tmp_path / "ours", 100).stat().st_size == 100
    (tmp_path / "b.gguf").write_bytes(bytes(101))
    with pytest.raises(ModelFileError, match="larger than 100 bytes"):
        copy_allowed("b.gguf", [tmp_path], tmp_path / "ours", 100)


def test_a_file_that_is_too_large_is_not_copied_at_all(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    with (tmp_path / "a.gguf").open("wb") as file:
        file.truncate(3 * READ_BYTES)
    with pytest.raises(ModelFileError, match="larger than"):
        copy_allowed("a.gguf", [tmp_path], tmp_path / "ours", 2 * READ_BYTES)
    assert sum(path.stat().st_size for path in (tmp_path / "ours").iterdir()) == 0


def test_a_forbidden_path_looks_like_a_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /proc/1/cwd, a link that another user's process may not read."""
    follow = os.path.realpath

    def realpath(path: Path) -> str:
        if str(path).startswith("/closed/"):
            raise PermissionError(13, "Permission denied", str(path))
        return follow(path)

    monkeypatch.setattr(os.path, "realpath", realpath)
    said = []
    for path in ("/closed/x", "/absent/x"):
        with pytest.raises(ModelFileError, match="is in none of the directories") as refused:
            copy_allowed(path, [tmp_path], tmp_path, 100)
        said.append(refused.value.message.replace(path, ""))
    assert said[0] == said[1]


def test_a_place_that_cannot_be_written_is_no_fault_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(bytes(100))
    with pytest.raises(FileNotFoundError):
        copy_allowed("a.gguf", [tmp_path], tmp_path / "absent", 100)


def test_a_linked_directory_is_the_one_it_leads_to(tmp_path: Path) -> None:
    """The operator's own links are the operator's choice."""
    real, ours = tmp_path / "real", tmp_path / "ours"
    real.mkdir()
    ours.mkdir()
    (real / "a.gguf").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(real)
    assert (
        copy_allowed(str(tmp_path / "link" / "a.gguf"), [tmp_path / "link"], ours, 9).read_bytes() == b"abc"
    )
