"""The shelf of adapters: hundreds are known, the hottest are in memory, one is on."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from antiphon.engines.llama.adapter_cache import AdapterCache, LoadedAdapter
from antiphon.errors import EngineError, LoadError


@dataclass(slots=True)
class Adapter:
    """Counts how often it is closed."""

    path: Path
    closed: int = 0

    def close(self) -> None:
        self.closed += 1


@dataclass(slots=True)
class Library:
    """Stands for the native side."""

    read: list[Adapter] = field(default_factory=list)
    on: LoadedAdapter | None = None

    def load(self, path: Path) -> Adapter:
        if not path.exists():
            raise LoadError("it is gone")
        self.read.append(Adapter(path))
        return self.read[-1]

    def use(self, adapter: LoadedAdapter | None) -> None:
        self.on = adapter


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def shelf(library: Library, tmp_path: Path) -> AdapterCache:
    """Room for two adapters of ten bytes; four are known: a, b, c, d."""
    shelf = AdapterCache(library.load, library.use, 20)
    for name in "abcd":
        path = tmp_path / name
        path.write_bytes(b"0123456789")
        shelf.add(name, path)
    return shelf


def test_only_the_ones_used_last_are_in_memory(shelf: AdapterCache, library: Library) -> None:
    assert (len(shelf), shelf.loaded_count) == (4, 2)
    assert [adapter.path.name for adapter in library.read if not adapter.closed] == ["c", "d"]


def test_an_adapter_is_read_again_when_its_turn_comes(shelf: AdapterCache, library: Library) -> None:
    shelf.use("a")
    assert isinstance(library.on, Adapter)
    assert library.on.path.name == "a"
    assert [adapter.path.name for adapter in library.read if not adapter.closed] == ["d", "a"]


def test_the_one_that_is_on_is_never_freed(library: Library, tmp_path: Path) -> None:
    shelf = AdapterCache(library.load, library.use, 0)
    for name in "ab":
        (tmp_path / name).write_bytes(b"x")
        shelf.add(name, tmp_path / name)
        shelf.use(name)
    assert library.on is library.read[-1]
    assert [adapter.closed for adapter in library.read] == [1, 0]


def test_removing_the_one_that_is_on_turns_it_off_first(shelf: AdapterCache, library: Library) -> None:
    shelf.use("d")
    shelf.remove("d")
    assert library.on is None
    assert library.read[3].closed == 1
    with pytest.raises(EngineError, match="unloaded"):
        shelf.use("d")


def test_an_adapter_whose_file_is_gone_fails_by_itself(shelf: AdapterCache, tmp_path: Path) -> None:
    (tmp_path / "a").unlink()
    with pytest.raises(EngineError, match="cannot be read"):
        shelf.use("a")
    shelf.use("d")


def test_each_is_closed_once_at_the_end(shelf: AdapterCache, library: Library) -> None:
    shelf.use("b")
    shelf.close()
    assert {adapter.closed for adapter in library.read} == {1}
    assert (len(shelf), library.on) == (0, None)


def test_a_changed_file_is_not_read_under_its_old_digest(shelf: AdapterCache, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"others")
    with pytest.raises(EngineError, match="was changed"):
        shelf.use("a")
    shelf.add("a", tmp_path / "a")
    shelf.use("a")


def test_a_banned_adapter_stays_off_until_it_was_removed(
    shelf: AdapterCache, library: Library, tmp_path: Path
) -> None:
    shelf.use("d")
    shelf.ban("d", "it does not compute")
    assert library.on is None
    for _ in range(2):
        with pytest.raises(EngineError, match="does not compute"):
            shelf.use("d")
        shelf.add("d", tmp_path / "d")
    shelf.remove("d")
    shelf.add("d", tmp_path / "d")
    shelf.use("d")


def test_when_the_library_does_not_take_one_none_is_on(library: Library, tmp_path: Path) -> None:
    def refuse(adapter: LoadedAdapter | None) -> None:
        library.use(adapter)
        if isinstance(adapter, Adapter) and adapter.path.name == "b":
            raise EngineError("it is not taken")

    shelf = AdapterCache(library.load, refuse, 100)
    for name in "ab":
        (tmp_path / name).write_bytes(b"x")
        shelf.add(name, tmp_path / name)
    shelf.use("a")
    with pytest.raises(EngineError):
        shelf.use("b")
    assert library.on is None
    shelf.use("a")
    assert library.on is library.read[0]


def test_what_rests_on_disk_is_known_with_its_file(shelf: AdapterCache, tmp_path: Path) -> None:
    assert shelf.find_unloaded("a") == tmp_path / "a"
    assert shelf.find_unloaded("d") is None and shelf.find_unloaded("unknown") is None
