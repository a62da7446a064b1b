"""Keys that callers send, and the pepper for their digests.

A key is `ak_NAME_SECRET`: a public name of twelve characters, which lists show, and a secret of 43 characters
(256 bits). Only the HMAC-SHA256 of the whole key with the pepper is stored. A stolen copy of the database
contains no usable keys.
"""

import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path

from antiphon.errors import StoreRefused

KEY = re.compile(r"ak_[0-9a-z]{12}_[A-Za-z0-9_-]{43}")
PREFIX = "ak_"
NAME_LENGTH = 12
"""Characters of the public name in a key."""
ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"

PEPPER_BYTES = 32
PEPPER_FILE = "pepper"
MARK_TEXT = b"antiphon: whose pepper this is"
"""The digest of this text is stored in the database. It identifies the pepper without revealing it."""


def generate_key() -> str:
    """Returns a new random key."""
    name = "".join(secrets.choice(ALPHABET) for _ in range(NAME_LENGTH))
    return f"{PREFIX}{name}_{secrets.token_urlsafe(PEPPER_BYTES)}"


def extract_prefix(key: str) -> str:
    """Returns the public part of a key: `ak_NAME`."""
    return key[: len(PREFIX) + NAME_LENGTH]


class Pepper:
    """A secret that is mixed into the digests of keys, so that a stolen database does not suffice to test
    keys."""

    def __init__(self, secret: bytes) -> None:
        self._hmac = hmac.new(secret, digestmod=hashlib.sha256)
        """An HMAC that knows the secret and no text yet. It is copied for each key."""

    def digest(self, key: str) -> bytes:
        """Returns the 32 bytes that identify a key."""
        return self._digest(key.encode())

    @property
    def mark(self) -> str:
        """A text that identifies this pepper in a database."""
        return self._digest(MARK_TEXT).hex()

    def _digest(self, text: bytes) -> bytes:
        """Returns the HMAC-SHA256 of the text."""
        hmac_of_text = self._hmac.copy()
        hmac_of_text.update(text)
        return hmac_of_text.digest()


def parse_pepper(text: str) -> Pepper:
    """Parses a pepper in hexadecimal. Raises StoreRefused."""
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) < PEPPER_BYTES:
        raise StoreRefused(
            f"keys.pepper must be at least {2 * PEPPER_BYTES} hexadecimal digits; make one with "
            f"`openssl rand -hex {PEPPER_BYTES}`"
        )
    return Pepper(secret)


def load_pepper(home: Path, *, create: bool) -> Pepper:
    """Loads the pepper from its file in `home`. `create`: whether a missing file is created with a new
    pepper. Raises StoreRefused."""
    path = home / PEPPER_FILE
    if create and not path.exists():
        write_secret(path, secrets.token_hex(PEPPER_BYTES))
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not a text"
        raise StoreRefused(
            f"the database has keys, and their pepper is missing: {path}: {reason}; copy it from the node "
            "that created them, or set ANTIPHON_PEPPER"
        ) from None
    try:
        return parse_pepper(text)
    except StoreRefused:
        raise StoreRefused(
            f"{path} contains no pepper: restore the pepper of the database's keys; if there are no keys "
            "yet, remove the file"
        ) from None


def write_secret(path: Path, text: str) -> None:
    """Creates a file that only its owner can read. It is complete when it appears. Raises FileExistsError if
    the file exists, and OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary_path = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary_path, path)
    finally:
        temporary_path.unlink()
