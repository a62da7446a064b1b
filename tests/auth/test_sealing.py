"""Sealed reasoning: opens for its project and installation alone, and is nothing in any other hands."""

import base64
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.auth.sealing import SEAL_PREFIX, SHORTEST_SEAL, Sealer, derive_key
from antiphon.auth.secrets import Pepper
from antiphon.domain.stored_responses import SealedReasoning

REASONING = SealedReasoning(
    "Two and two \u20ac", "m", "anthropic", ({"type": "thinking", "signature": "s", "after": {"text": 3}},)
)
SEALER = Sealer(derive_key(b"s" * 32))


def test_a_seal_opens_for_its_project_alone():
    seal = SEALER.seal(REASONING, "one")
    assert seal.startswith("antiphon") and seal.isascii()
    assert SEALER.unseal(seal, "one") == REASONING
    assert Sealer(derive_key(b"s" * 32)).unseal(seal, "one") == REASONING, "after a restart"
    assert SEALER.unseal(seal, "two") is None
    assert Sealer(derive_key(b"t" * 32)).unseal(seal, "one") is None


def test_equal_texts_have_different_seals_that_show_nothing():
    seals = {SEALER.seal(REASONING, "one") for _ in range(50)}
    assert len(seals) == 50
    assert all(b"Two and two" not in base64.b64decode(seal[len(SEAL_PREFIX) :]) for seal in seals)


def test_a_long_reasoning_is_smaller_than_its_text():
    text = "The user wants to know how many letters the word has. " * 400
    assert len(SEALER.seal(SealedReasoning(text), "one")) < len(text) / 10


@pytest.mark.parametrize("place", [0, 8, 9, 12, -2, SHORTEST_SEAL, 60])
def test_a_seal_that_was_changed_is_none(place):
    seal = SEALER.seal(REASONING, "one")
    changed = seal[:place] + ("A" if seal[place] != "A" else "B") + seal[place:][1:]
    assert SEALER.unseal(changed, "one") is None


def test_every_cut_of_a_seal_is_none():
    seal = SEALER.seal(REASONING, "one")
    assert all(SEALER.unseal(seal[:end], "one") is None for end in range(len(seal)))
    assert SEALER.unseal(seal + "AAAA", "one") is None


@given(st.text(max_size=80), st.booleans())
def test_other_texts_are_none(text, has_prefix):
    assert SEALER.unseal(SEAL_PREFIX * has_prefix + text, "one") is None


def test_a_key_serves_one_purpose():
    """The key of seals is none of the digests that the same secret makes."""
    secret = b"s" * 32
    assert derive_key(secret) not in (secret, Pepper(secret).digest(""), bytes.fromhex(Pepper(secret).mark))
    assert len(derive_key(secret)) == 32
    assert derive_key(secret).hex() == ("9ec33027b19d12786d15c1d4185c3608e1b33f89ef2c49033743ec2d4dc2f268"), (
        "seals of an earlier release open in this one"
    )


def test_the_cipher_is_imported_with_the_first_seal():
    script = "import sys; import antiphon.auth.sealing; print('nacl' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "False\n"
