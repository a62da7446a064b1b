"""Seals reasoning that clients carry to their next request.

A seal is `antiphon1.` and the base64 of a nonce and of an XChaCha20-Poly1305 ciphertext. The key belongs to
the installation. The prefix and the project are authenticated with the text, so a seal opens only for the
project whose answer it was. The text is compressed before it is encrypted: it has nothing but one caller's
own reasoning, so its length tells nothing about anybody else.
"""

import base64
import binascii
import hashlib
import hmac
import zlib
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from antiphon.domain.stored_responses import SealedReasoning

if TYPE_CHECKING:
    from nacl.secret import Aead

SEAL_PREFIX = "antiphon1."
"""How each seal begins. It tells seals from vendors' signatures. The digit is the version of the form."""

KEY_BYTES = 32

PURPOSE = b"antiphon: the key of sealed reasoning"
"""Separates this key from others that are derived from the same secret."""

SHORTEST_SEAL = 24 + 16
"""The bytes of the nonce and of the authentication code."""

MAX_TEXT_BYTES = 16 << 20
"""The most bytes of an opened seal. Models write some hundred kilobytes."""

COMPRESSION = 6
"""zlib's level. Level 9 takes twice the time and saves one percent of a reasoning text."""


def derive_key(secret: bytes) -> bytes:
    """Derives the key of seals from a secret of the installation, by HKDF with SHA-256 (RFC 5869)."""
    extracted = hmac.digest(PURPOSE, secret, hashlib.sha256)
    return hmac.digest(extracted, PURPOSE + b"\x01", hashlib.sha256)


class Sealer:
    """Seals and opens reasoning with the installation's key."""

    def __init__(self, key: bytes) -> None:
        """`key`: KEY_BYTES bytes."""
        self._key = key
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(SealedReasoning)

    @cached_property
    def _aead(self) -> "Aead":
        """The cipher. Its library takes 20 ms to import, so it is imported with the first seal."""
        from nacl.secret import Aead

        return Aead(self._key)

    def seal(self, reasoning: SealedReasoning, project: str) -> str:
        """Returns the seal of a project's reasoning."""
        text = zlib.compress(self._encoder.encode(reasoning), COMPRESSION)
        sealed = self._aead.encrypt(text, SEAL_PREFIX.encode() + project.encode())
        return SEAL_PREFIX + base64.b64encode(sealed).decode("ascii")

    def unseal(self, text: str, project: str) -> SealedReasoning | None:
        """Returns the reasoning of a seal. Returns None if the text is no seal of this key and project."""
        if not text.startswith(SEAL_PREFIX):
            return None
        try:
            sealed = base64.b64decode(text[len(SEAL_PREFIX) :], validate=True)
        except (binascii.Error, ValueError):  # ValueError: characters outside ASCII
            return None
        if len(sealed) < SHORTEST_SEAL:
            return None
        from nacl.exceptions import CryptoError

        try:
            compressed = self._aead.decrypt(sealed, SEAL_PREFIX.encode() + project.encode())
        except CryptoError:
            return None
        decompressor = zlib.decompressobj()
        encoded = decompressor.decompress(compressed, MAX_TEXT_BYTES)
        return self._decoder.decode(encoded) if decompressor.eof else None
