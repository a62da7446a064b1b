"""The service key: known by its digest, and by nothing else."""

import gc
import os

from antiphon.auth.base import RequestedScope
from antiphon.auth.keyring import SERVICE_ACTOR, SettingsKey

KEY = "canary-key-4f1d0c8e55"
NOBODY = RequestedScope()


async def test_the_key_itself_is_the_service_actor():
    assert await SettingsKey(KEY).verify(KEY, NOBODY) is SERVICE_ACTOR


async def test_a_key_with_other_letters_is_taken_whole():
    key = "schlüssel-für-alle-fälle"
    assert await SettingsKey(key).verify(key, NOBODY) is SERVICE_ACTOR


async def test_what_is_nearly_the_key_is_not_its_kind():
    verifier = SettingsKey(KEY)
    for token in (KEY[:-1], KEY + "x", KEY.upper(), KEY[:20] + "0", "", " " + KEY, "\0", "é" * 1000):
        assert await verifier.verify(token, NOBODY) is None, token


async def test_keys_that_share_their_first_twenty_characters_differ():
    assert await SettingsKey(KEY[:20] + "aaaa").verify(KEY[:20] + "bbbb", NOBODY) is None


def test_the_verifier_does_not_keep_the_key():
    key = f"kept-nowhere-{os.getpid()}"
    verifier = SettingsKey(key)
    assert all(key not in repr(held) for held in gc.get_referents(verifier))
    assert key.encode() not in b"".join(
        value for value in vars(verifier).values() if isinstance(value, bytes)
    )


def test_the_actor_says_nothing_of_the_key():
    assert SERVICE_ACTOR.id == "service-key"
