"""Keys and the pepper: shaped as said, kept by their owner alone, refused where they are the wrong ones."""

import stat

import pytest

from antiphon.auth.secrets import KEY, Pepper, extract_prefix, generate_key, load_pepper, parse_pepper
from antiphon.errors import StoreRefused


def test_every_key_is_another_and_of_the_form():
    keys = {generate_key() for _ in range(200)}
    assert len(keys) == 200
    assert all(KEY.fullmatch(key) for key in keys)
    assert len({extract_prefix(key) for key in keys}) == 200


def test_a_digest_depends_on_the_whole_key_and_on_the_pepper():
    key, pepper = generate_key(), Pepper(b"p" * 32)
    assert pepper.digest(key) == pepper.digest(key)
    assert pepper.digest(key) != pepper.digest(key[:-1] + ("a" if key[-1] != "a" else "b"))
    assert pepper.digest(key) != Pepper(b"q" * 32).digest(key)
    assert pepper.mark != Pepper(b"q" * 32).mark


def test_a_new_pepper_is_kept_and_only_its_owner_reads_it(tmp_path):
    home = tmp_path / "home"
    made = load_pepper(home, create=True)
    assert stat.S_IMODE((home / "pepper").stat().st_mode) == 0o600
    assert load_pepper(home, create=False).mark == load_pepper(home, create=True).mark == made.mark


def test_a_node_without_the_pepper_is_refused(tmp_path):
    with pytest.raises(StoreRefused, match="their pepper is missing"):
        load_pepper(tmp_path, create=False)
    assert not (tmp_path / "pepper").exists()


@pytest.mark.parametrize("said", ["", "abc", "zz" * 32, "ab" * 31])
def test_a_pepper_that_is_none_is_refused_without_being_shown(said):
    with pytest.raises(StoreRefused, match="hexadecimal digits") as refused:
        parse_pepper(said)
    assert not said or said not in refused.value.message
