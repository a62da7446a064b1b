"""The runtime directory: private, short, locked while its supervisor lives, and swept when it does not."""

import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest

from antiphon.engines.host.runtime import (
    DIRECTORY_PREFIX,
    LONGEST_PATH,
    build_socket_path,
    create_runtime_directory,
    find_usable_base,
    remove_unused_directory,
)
from antiphon.errors import SettingsError
from antiphon.locked_directory import remove_stale_directories
from tests.support.host_link import short_directory


def test_it_is_private_and_short_and_gone_afterwards() -> None:
    with create_runtime_directory() as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert len(os.fsencode(build_socket_path(path, 9999))) <= LONGEST_PATH
        (path / "0.sock").write_bytes(b"")
    assert not path.exists()


def test_a_living_supervisors_directory_is_left_alone() -> None:
    with short_directory() as base, create_runtime_directory(base) as path:
        remove_stale_directories(base, DIRECTORY_PREFIX)
        remove_unused_directory(path)
        with create_runtime_directory(base) as second:
            assert second != path
        assert path.is_dir()


def test_the_next_supervisor_removes_what_a_dead_one_left() -> None:
    with short_directory() as base:
        stale = base / "antiphon-0123abcd"
        stale.mkdir()
        (stale / "lock").write_bytes(b"")
        (stale / "0.sock").write_bytes(b"")
        with create_runtime_directory(base):
            assert not stale.exists()


@pytest.mark.parametrize("name", ["antiphon-notes", "antiphon-0123abcd", "0123abcd"])
def test_a_directory_that_is_not_ours_is_not_swept(name: str) -> None:
    with short_directory() as base:
        other = base / name
        other.mkdir()
        (other / ("file" if name == "antiphon-0123abcd" else "lock")).write_bytes(b"")
        remove_stale_directories(base, DIRECTORY_PREFIX)
        assert other.exists()


def test_a_link_to_elsewhere_is_not_followed() -> None:
    with short_directory() as base:
        elsewhere = base / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "lock").write_bytes(b"")
        (base / "antiphon-0123abcd").symlink_to(elsewhere)
        remove_stale_directories(base, DIRECTORY_PREFIX)
        assert (elsewhere / "lock").exists()


def test_only_the_last_child_to_leave_removes_the_directory() -> None:
    with short_directory() as base:
        place = base / "antiphon-0123abcd"
        place.mkdir()
        (place / "lock").write_bytes(b"")
        (place / "1.sock").write_bytes(b"")
        remove_unused_directory(place)
        assert place.exists()
        (place / "1.sock").unlink()
        lock = os.open(place / "lock", os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_unused_directory(place)
        assert place.exists()
        os.close(lock)
        remove_unused_directory(place)
        assert not place.exists()
        remove_unused_directory(place)


def test_a_base_with_long_or_unwritable_paths_is_skipped(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    with short_directory() as short:
        assert find_usable_base(["", str(deep), str(short / "missing"), str(short)]) == short


def test_no_place_at_all_is_a_sentence() -> None:
    with pytest.raises(SettingsError, match=r"none of /missing can be used; set XDG_RUNTIME_DIR"):
        find_usable_base(["", "/missing"])


def test_a_child_waits_for_the_lock_and_removes_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.engines.host.runtime.LOCK_PATIENCE", 50.0)
    with short_directory() as base:
        place = base / "antiphon-0123abcd"
        place.mkdir()
        lock = os.open(place / "lock", os.O_CREAT | os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
        letting_go = threading.Timer(0.1, os.close, [lock])
        letting_go.start()
        remove_unused_directory(place)
        letting_go.join()
        assert not place.exists()
