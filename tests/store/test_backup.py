"""Backups of a server's files: consistent while it writes, and put back whole or not at all."""

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from antiphon.domain.values import replace
from antiphon.errors import StoreRefused
from antiphon.store.backup import (
    BackupSources,
    copy_database,
    copy_file,
    read_manifest,
    remove_old_backups,
    restore_backup,
    write_backup,
)
from antiphon.store.base import LAST_BACKUP
from tests.support.waiting import wait_until


@pytest.fixture
def sources(tmp_path: Path) -> BackupSources:
    """A home with a file of each kind."""
    home = tmp_path / "home"
    for name in (
        "spool/one",
        "adapters/a.gguf",
        "knowledge/p/uploads/x",
        "pepper",
        "knowledge/lock",
        "server-1.json",
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    (home / "adapters" / ".loading-1").mkdir()
    (home / "adapters" / ".loading-1" / "half").touch()
    (home / "adapters" / "a.gguf").chmod(0o644)
    (home / "pepper").chmod(0o600)
    for name in ("antiphon.db", "knowledge/p/t.db"):
        with closing(sqlite3.connect(home / name)) as made:
            made.execute("CREATE TABLE rows (number INTEGER)")
            made.commit()
    parts = {name: home / name for name in ("spool", "knowledge", "adapters")}
    return BackupSources(home / "antiphon.db", "0001", home, parts)


def move(sources: BackupSources, home: Path) -> BackupSources:
    """The same of another home."""
    return replace(
        sources,
        database=home / "antiphon.db",
        home=home,
        directories={name: home / name for name in sources.directories},
    )


def count(path: Path) -> int:
    with closing(sqlite3.connect(path)) as opened:
        number: int = opened.execute("SELECT count(*) FROM rows").fetchone()[0]
    return number


def test_databases_are_copied_while_others_write(sources: BackupSources, tmp_path: Path) -> None:
    table = sources.directories["knowledge"] / "p" / "t.db"
    with closing(sqlite3.connect(table)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("INSERT INTO rows VALUES (1)")
        writer.commit()
        writer.execute("INSERT INTO rows VALUES (2)")  # not committed: not in the copy
        write_backup(sources, tmp_path / "backup")
        assert (table.with_name("t.db-wal")).stat().st_size > 0
    copy = tmp_path / "backup" / "knowledge" / "p" / "t.db"
    assert count(copy) == 1 and not copy.with_name("t.db-wal").exists()


def test_a_backup_goes_to_another_home(sources: BackupSources, tmp_path: Path) -> None:
    written = write_backup(sources, tmp_path / "backup")
    manifest = read_manifest(tmp_path / "backup")
    assert manifest == written and manifest.has_database
    other = move(sources, tmp_path / "other")
    restore_backup(tmp_path / "backup", manifest, other)
    names = {str(path.relative_to(other.home)) for path in other.home.rglob("*") if path.is_file()}
    assert names == {
        "adapters/a.gguf",
        "antiphon.db",
        "knowledge/p/t.db",
        "knowledge/p/uploads/x",
        "pepper",
        "spool/one",
    }
    modes = {name: (other.home / name).stat().st_mode & 0o777 for name in ("pepper", "adapters/a.gguf")}
    assert modes == {"pepper": 0o600, "adapters/a.gguf": 0o644}
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o700


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A mask that takes no right away."""
    before = os.umask(0)
    yield
    os.umask(before)


def read_mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.usefixtures("open_umask")
def test_a_copy_is_private_until_it_is_whole(tmp_path: Path) -> None:
    source, target = tmp_path / "pipe", tmp_path / "copy"
    os.mkfifo(source, 0o644)
    source.chmod(0o644)
    with ThreadPoolExecutor(1) as threads:
        copying = threads.submit(copy_file, source, target)
        with source.open("wb") as pipe:  # the copy cannot end before this is closed
            wait_until(target.exists)
            mode = read_mode(target)
            pipe.write(b"secret")
        copying.result()
    assert (mode, read_mode(target), target.read_bytes()) == (0o600, 0o644, b"secret")


@pytest.mark.usefixtures("open_umask")
def test_a_copied_database_is_private_until_whole(sources: BackupSources, tmp_path: Path) -> None:
    source, target = sources.home / "antiphon.db", tmp_path / "copy"
    source.chmod(0o640)
    with ThreadPoolExecutor(1) as threads, closing(sqlite3.connect(source)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        copying = threads.submit(copy_database, source, target)
        try:
            wait_until(target.exists)
            mode = read_mode(target)
        finally:
            writer.rollback()
        copying.result()
    assert (mode, read_mode(target), count(target)) == (0o600, 0o640, 0)


@pytest.mark.usefixtures("open_umask")
def test_files_keep_their_modes_under_an_open_umask(sources: BackupSources, tmp_path: Path) -> None:
    manifest = write_backup(sources, tmp_path / "backup")
    other = move(sources, tmp_path / "other")
    restore_backup(tmp_path / "backup", manifest, other)
    modes = {name: read_mode(other.home / name) for name in ("pepper", "adapters/a.gguf")}
    assert modes == {"pepper": 0o600, "adapters/a.gguf": 0o644}
    assert read_mode(other.home / "adapters") == read_mode(tmp_path / "backup") == 0o700


def test_a_link_at_a_place_is_not_followed(sources: BackupSources, tmp_path: Path) -> None:
    manifest = write_backup(sources, tmp_path / "backup")
    other = move(sources, tmp_path / "other")
    other.home.mkdir()
    (other.home / "pepper").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreRefused, match="is only partly restored"):
        restore_backup(tmp_path / "backup", manifest, other)
    assert not (tmp_path / "elsewhere").exists()


def test_a_partial_restore_names_the_files_that_it_wrote(sources: BackupSources, tmp_path: Path) -> None:
    manifest = write_backup(sources, tmp_path / "backup")
    other = move(sources, tmp_path / "other")
    last = list(manifest.files)[-1]
    (tmp_path / "backup" / last).unlink()
    with pytest.raises(StoreRefused, match="restore it again, remove what was written: ") as refused:
        restore_backup(tmp_path / "backup", manifest, other)
    written = [str(path) for path in other.home.rglob("*") if path.is_file()]
    assert sorted(refused.value.message.partition("written: ")[2].split(", ")) == sorted(written)
    assert len(written) == len(manifest.files) - 1


def test_a_folder_that_cannot_be_created_is_told(sources: BackupSources, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreRefused, match="backup cannot be created: Not a directory"):
        write_backup(sources, tmp_path / "file" / "backup")


def test_old_backups_are_removed_and_nothing_else(sources: BackupSources, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    for number in range(4):
        write_backup(sources, folder / str(number))
        manifest = folder / str(number) / "manifest.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"made": 100 - number}))
    (folder / "notes").mkdir()
    (folder / "notes" / "manifest.json").write_text('{"made": 1}')  # of another program
    (folder / "half").mkdir()
    assert remove_old_backups(folder, 2) == [folder / "3", folder / "2"]
    assert sorted(path.name for path in folder.iterdir()) == ["0", "1", "half", "notes"]
    assert remove_old_backups(folder, 2) == []


def test_a_dump_is_part_of_the_backup_and_not_restored(sources: BackupSources, tmp_path: Path) -> None:
    def dump(target: Path) -> None:
        assert (target.parent / "spool" / "one").exists(), "what is drained meanwhile is in both"
        target.write_text("rows")

    served = replace(sources, database=None, dump=dump)
    manifest = write_backup(served, tmp_path / "backup")
    assert "antiphon.dump" in read_manifest(tmp_path / "backup").files
    other = move(served, tmp_path / "other")
    restore_backup(tmp_path / "backup", manifest, other)
    assert not list(other.home.rglob("*.dump"))


def test_a_backup_without_its_dump_is_not_the_latest(sources: BackupSources, tmp_path: Path) -> None:
    def fail(_target: Path) -> None:
        raise StoreRefused("pg_dump failed: no space")

    with pytest.raises(StoreRefused, match="no space"):
        write_backup(replace(sources, database=None, dump=fail), tmp_path / "backup")
    assert not (tmp_path / "backup" / "manifest.json").exists()
    assert not (sources.home / LAST_BACKUP).exists()
    write_backup(sources, tmp_path / "second")
    assert (sources.home / LAST_BACKUP).exists()


def test_nothing_is_overwritten(sources: BackupSources, tmp_path: Path) -> None:
    manifest = write_backup(sources, tmp_path / "backup")
    with pytest.raises(StoreRefused, match="exists already"):
        write_backup(sources, tmp_path / "backup")
    other = move(sources, tmp_path / "other")
    other.home.mkdir()
    (other.home / "pepper").write_text("mine")
    with pytest.raises(StoreRefused, match=r"nothing was restored: .*pepper exists already"):
        restore_backup(tmp_path / "backup", manifest, other)
    assert os.listdir(other.home) == ["pepper"]


def test_a_backup_that_is_not_whole_is_refused(sources: BackupSources, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    write_backup(sources, backup)
    (backup / "home" / "pepper").write_text("other")
    with pytest.raises(StoreRefused, match="is damaged: home/pepper"):
        read_manifest(backup)
    (backup / "home" / "pepper").unlink()
    with pytest.raises(StoreRefused, match="not a complete backup"):
        read_manifest(backup)
    (backup / "manifest.json").unlink()
    with pytest.raises(StoreRefused, match="not a complete backup"):
        read_manifest(backup)


def test_a_file_cannot_leave_its_part(sources: BackupSources, tmp_path: Path) -> None:
    manifest = write_backup(sources, tmp_path / "backup")
    names = ("knowledge/../../x", "home/bin/x", "home/server-1.json", "elsewhere/x", "knowledge")
    for name in (*names, "../x", "home/../x", "/etc/x", "", "home/", "home//x", "home/.."):
        bad = replace(manifest, files={name: ""})
        with pytest.raises(StoreRefused, match="belongs to no directory"):
            restore_backup(tmp_path / "backup", bad, move(sources, tmp_path / "other"))


def test_a_later_format_is_refused(sources: BackupSources, tmp_path: Path) -> None:
    write_backup(sources, tmp_path / "backup")
    file = tmp_path / "backup" / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2}))
    with pytest.raises(StoreRefused, match="another version"):
        read_manifest(tmp_path / "backup")


def test_a_home_without_a_database_is_copied(sources: BackupSources, tmp_path: Path) -> None:
    shutil.rmtree(sources.directories["adapters"])
    manifest = write_backup(replace(sources, database=None, revision=None), tmp_path / "backup")
    assert not manifest.has_database and "database.db" not in manifest.files
