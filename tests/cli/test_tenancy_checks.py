"""`antiphon doctor` on what a server with keys needs: broken in one way each, and never changed."""

import os
import shutil
import sqlite3
from collections import namedtuple
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from antiphon.cli.bootstrap import bootstrap_store
from antiphon.cli.doctor.checks import check_tenancy
from antiphon.cli.doctor.findings import Finding, FindingSeverity
from antiphon.errors import StoreRefused
from antiphon.settings.schema import Settings
from antiphon.settings.tenancy import KeysSettings, LedgerSettings
from tests.support.databases import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.server import provide_store

Usage = namedtuple("Usage", "total used free")
FIRST = Path(__file__).parents[1] / "fixtures" / "store" / "0001.db"


class Place:
    """A home, and the settings that lead to it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.settings = Settings(keys=KeysSettings(enabled=True))

    @property
    def environ(self) -> dict[str, str]:
        return {"ANTIPHON_HOME": str(self.home)}

    def start(self) -> None:
        """Makes what the first start does, in a database that was made before unless another is set."""
        if self.settings.keys.store is None:
            provide_store({"ANTIPHON_KEYS": "true", **self.environ})
        bootstrap_store(self.settings, self.environ, self.home)

    def findings(self, **keys: object) -> dict[str, Finding]:
        settings = msgspec.structs.replace(
            self.settings, keys=msgspec.structs.replace(self.settings.keys, **keys)
        )
        before = self.files()
        found = {each.id: each for each in check_tenancy(settings, self.environ, self.home)}
        assert self.files() == before, "it changes nothing"
        return found

    def files(self) -> dict[str, bytes]:
        return {
            str(path): path.read_bytes()
            for path in sorted(self.home.rglob("*"))
            if path.is_file() and not path.name.endswith(("-shm", "-wal"))
        }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "home")


def broken(found: dict[str, Finding]) -> list[str]:
    return [each.id for each in found.values() if each.severity is FindingSeverity.BROKEN]


def test_before_the_first_start_all_is_well_and_nothing_is_made(place: Place) -> None:
    found = place.findings()
    assert broken(found) == [] and "first start creates it" in found["store"].message
    assert not place.home.exists()


def test_after_it_all_is_well(place: Place) -> None:
    place.start()
    found = place.findings()
    assert {each.severity for each in found.values()} == {FindingSeverity.OK}
    assert set(found) == {"store", "pepper", "spool"}
    assert "at revision 0008" in found["store"].message
    assert "may use 67" in found["spool"].message


def test_a_home_may_be_called_as_anything(tmp_path: Path) -> None:
    place = Place(tmp_path / "100% of a?b#c%41")
    place.start()
    assert (place.home / "antiphon.db").exists() and not broken(place.findings())


def test_a_database_of_another_version_is_told(place: Place) -> None:
    place.home.mkdir()
    shutil.copy(FIRST, place.home / "antiphon.db")
    with closing(sqlite3.connect(place.home / "antiphon.db")) as raw:
        raw.execute("PRAGMA journal_mode=WAL")  # as a server leaves it
    found = place.findings()
    assert broken(found) == ["store-outdated"] and "antiphon store upgrade" in found["store-outdated"].remedy
    with closing(sqlite3.connect(place.home / "antiphon.db")) as raw, raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    assert broken(place.findings()) == ["store-newer"]


def test_a_database_that_is_none_is_told(place: Place) -> None:
    place.home.mkdir()
    (place.home / "antiphon.db").write_bytes(b"no database at all, but long enough" * 100)
    assert broken(place.findings()) == ["store-unusable"]
    found = place.findings(store="postgresql://a:canary-hunter2@127.0.0.1:1/none?connect_timeout=1")
    assert broken(found) == ["store-unusable"]
    assert "canary-hunter2" not in found["store-unusable"].message
    found = place.findings(store="sqlite://")
    assert broken(found) == ["store-unusable"] and "in memory" in found["store-unusable"].message


def test_a_postgresql_is_asked(place: Place, postgresql: str) -> None:
    assert "is empty" in place.findings(store=postgresql)["store"].message
    place.settings = Settings(keys=KeysSettings(enabled=True, store=postgresql))
    place.start()
    found = place.findings()
    assert broken(found) == [] and "canary" not in found["store"].message
    assert found["pepper"].severity is FindingSeverity.OK


def test_another_pepper_is_told_and_never_shown(place: Place) -> None:
    place.start()
    said = "ab" * 32
    found = place.findings(pepper=said)
    assert broken(found) == ["pepper-unusable"] and said not in found["pepper-unusable"].message
    (place.home / "pepper").write_text("cd" * 32)
    assert "does not match the keys of this database" in place.findings()["pepper-unusable"].message
    (place.home / "pepper").write_text("short")
    assert broken(place.findings()) == ["pepper-unusable"]
    (place.home / "pepper").unlink()
    assert "missing" in place.findings()["pepper-unusable"].message


@pytest.mark.parametrize("name", ["missing.db", "empty.db", "other.db"])
def test_an_operator_file_of_another_database_is_told(place: Place, tmp_path: Path, name: str) -> None:
    place.start()
    if name == "empty.db":
        (tmp_path / name).touch()
    if name == "other.db":
        shutil.copy(place.home / "antiphon.db", tmp_path / name)
        with closing(sqlite3.connect(tmp_path / name)) as raw, raw:
            raw.execute("DELETE FROM keys")
    store = f"sqlite:///{tmp_path / name}"
    found = place.findings(store=store)
    assert broken(found) == ["operator-key-foreign"]
    assert (
        "admin.key exists already, and its key is not in this database"
        in found["operator-key-foreign"].message
    )
    place.settings = Settings(keys=KeysSettings(enabled=True, store=store))
    with pytest.raises(StoreRefused, match="its key is not in this database"):
        place.start()
    (place.home / "admin.key").rename(tmp_path / "old.key")
    assert broken(place.findings()) == []
    place.start()


def test_an_operator_file_with_an_ended_key_is_fine(place: Place) -> None:
    place.start()
    with closing(sqlite3.connect(place.home / "antiphon.db")) as raw, raw:
        raw.execute("UPDATE keys SET revoked = 1")
    assert broken(place.findings()) == []
    place.start()


def test_a_spool_that_cannot_be_written_is_told(place: Place, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place.settings = Settings(
        keys=KeysSettings(enabled=True), ledger=LedgerSettings(spool=str(tmp_path / "file" / "spool"))
    )
    assert broken(place.findings()) == ["spool-unusable"]


def test_a_disk_that_is_nearly_full_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 1 << 40, 1_000_000))
    found = place.findings()["spool-short"]
    assert found.severity is FindingSeverity.ADVICE and "1 MB free" in found.message


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_home_that_cannot_be_written_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    place.home = place.home / below
    assert broken(place.findings()) == ["store-unusable", "spool-unusable"]
