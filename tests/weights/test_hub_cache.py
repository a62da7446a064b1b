"""The cache of fetched files: where it lies, what it finds, lists and removes; it follows no links."""

from pathlib import Path

import pytest

from antiphon.domain.values import replace
from antiphon.errors import ModelFetchError
from antiphon.weights.hub.cache import CachedFile, HubCache, get_default_directory
from antiphon.weights.hub.reference import Reference

MODEL = Reference("ada/tiny", "Q4/tiny.gguf")
COMMIT, NEXT = "a" * 40, "b" * 40
DIGEST, OTHER = "1" * 64, "2" * 64


@pytest.fixture
def cache(tmp_path: Path) -> HubCache:
    return HubCache(tmp_path / "models")


def kept(cache: HubCache, reference: Reference, commit: str = COMMIT, digest: str = DIGEST) -> CachedFile:
    with cache.lock(reference, digest):
        cache.build_file_path(reference, digest).write_bytes(b"weights")
        return cache.add_reference(reference, commit, digest)


def test_the_cache_is_in_the_given_home_or_the_platforms():
    home = Path("/ada")
    assert get_default_directory({"ANTIPHON_HOME": "/srv"}, home, "linux") == Path("/srv/models")
    assert get_default_directory({"XDG_CACHE_HOME": "/cache"}, home, "linux") == Path(
        "/cache/antiphon/models"
    )
    assert (
        get_default_directory({"XDG_CACHE_HOME": "relative"}, home, "linux")
        == home / ".cache/antiphon/models"
    )
    assert get_default_directory({}, home, "darwin") == home / "Library/Caches/antiphon/models"


def test_what_is_kept_is_found_by_branch_and_by_commit(cache: HubCache):
    fetched = kept(cache, MODEL)
    assert cache.find(MODEL) == fetched
    pinned = cache.find(replace(MODEL, revision=COMMIT))
    assert pinned and pinned.path == fetched.path
    assert cache.find(replace(MODEL, revision="other")) is None
    assert cache.find(replace(MODEL, file="tiny.gguf")) is None


def test_a_record_that_is_damaged_or_names_nothing_is_no_find(cache: HubCache):
    fetched = kept(cache, MODEL)
    (record,) = cache.root.glob("*/*/refs/main/Q4/*")
    record.write_bytes(b"\xff\xfe")
    assert cache.find(MODEL) is None
    record.write_text(f"{COMMIT} ../../../../{DIGEST}\n")
    assert cache.find(MODEL) is None
    kept(cache, MODEL)
    fetched.path.unlink()
    assert cache.find(MODEL) is None


def test_the_list_shows_a_commit_only_without_another_name(cache: HubCache):
    kept(cache, MODEL)
    kept(cache, MODEL, NEXT, OTHER)
    assert [(entry.reference.revision, entry.digest) for entry in cache.list_files()] == [
        (COMMIT, DIGEST),
        ("main", OTHER),
    ]


def test_a_file_goes_with_its_last_reference(cache: HubCache):
    first = kept(cache, MODEL)
    tagged = kept(cache, replace(MODEL, revision="v1"), NEXT)
    cache.remove(first)
    assert cache.find(MODEL) is None and tagged.path.exists()
    cache.remove(tagged)
    assert list(cache.root.iterdir()) == []


def test_what_is_being_fetched_is_not_cleared(cache: HubCache):
    partial = cache.build_partial_path(MODEL, DIGEST)
    with cache.lock(MODEL, DIGEST):
        partial.write_bytes(b"some")
        assert cache.clear("ada/tiny") == 0 and partial.exists()
    assert cache.clear("ada/tiny") == 4
    assert list(cache.root.iterdir()) == []


@pytest.mark.parametrize("place", ["ada", "ada/tiny/files", f"ada/tiny/files/{DIGEST}", "ada/tiny/refs/main"])
def test_a_link_out_of_the_cache_is_refused_wherever_it_is(cache: HubCache, tmp_path: Path, place: str):
    outside = tmp_path / "outside"
    link = cache.root / place
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    outside.mkdir()
    with pytest.raises(ModelFetchError, match="symbolic link"):
        kept(cache, MODEL)
    assert list(outside.iterdir()) == []


def test_a_link_instead_of_a_file_is_not_followed(cache: HubCache, tmp_path: Path):
    fetched = kept(cache, MODEL)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    fetched.path.unlink()
    fetched.path.symlink_to(precious)
    for use in (cache.list_files, cache.list_leftovers, lambda: cache.find(MODEL)):
        with pytest.raises(ModelFetchError, match="symbolic link"):
            use()
    assert precious.read_text() == "mine"


def test_a_cache_that_cannot_be_read_is_named(cache: HubCache):
    kept(cache, MODEL)
    (record,) = cache.root.glob("*/*/refs/main/Q4/*")
    folder = record.parent
    record.unlink()
    folder.rmdir()
    folder.write_text("a file in the place of a folder")
    assert cache.find(MODEL) is None
    endless = Reference("ada/tiny", "x" * 300 + ".gguf")
    with pytest.raises(ModelFetchError, match="ANTIPHON_HUB_CACHE"):
        cache.find(endless)
