"""Keys that callers carry, and the pepper without which their digests cannot be made.

A key is `ak_NAME_SECRET`: a public name of twelve characters, by which people and lists tell keys apart, and
43 characters of secret (256 bits). Only the digest of the whole is kept: HMAC-SHA256 under the pepper, so who
has the database alone has no key, and cannot even try some.
"""

import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path

from antiphon.errors import StoreRefused

KEY = re.compile(r"ak_[0-9a-z]{12}_[A-Za-z0-9_-]{43}")
MARK = "ak_"
NAME_LENGTH = len(MARK) + 12
ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"

PEPPER_BYTES = 32
PEPPER_FILE = "pepper"
MARK_TEXT = b"antiphon: whose pepper this is"
"""What a database's mark is made of: tells the right pepper, and nothing of it."""


def new_key() -> str:
    """A key that nobody has."""
    name = "".join(secrets.choice(ALPHABET) for _ in range(12))
    return f"{MARK}{name}_{secrets.token_urlsafe(PEPPER_BYTES)}"


def extract_prefix(key: str) -> str:
    """The part that is shown."""
    return key[:NAME_LENGTH]


class Pepper:
    """The secret that digests are made with; used for nothing else."""

    def __init__(self, secret: bytes) -> None:
        self._keyed = hmac.new(secret, digestmod=hashlib.sha256)
        """Begun with the secret alone: what is the same for every key."""

    def digest(self, key: str) -> bytes:
        """32 bytes by which a key is found."""
        return self._digest(key.encode())

    @property
    def mark(self) -> str:
        """By which a database knows its pepper."""
        return self._digest(MARK_TEXT).hex()

    def _digest(self, text: bytes) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(text)
        return keyed.digest()


def parse_pepper(said: str) -> Pepper:
    """The pepper of the settings, in hexadecimal. Raises StoreRefused."""
    try:
        secret = bytes.fromhex(said)
    except ValueError:
        secret = b""
    if len(secret) < PEPPER_BYTES:
        raise StoreRefused(
            f"keys.pepper must be at least {2 * PEPPER_BYTES} hexadecimal digits; make one with `openssl "
            f"rand -hex {PEPPER_BYTES}`"
        )
    return Pepper(secret)


def load_pepper(home: Path, *, make: bool) -> Pepper:
    """The pepper that lies in a directory; a new one only where it may be made. Raises StoreRefused."""
    path = home / PEPPER_FILE
    if make and not path.exists():
        write_secret(path, secrets.token_hex(PEPPER_BYTES))
    try:
        said = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is no text"
        raise StoreRefused(
            f"the database has keys, and their pepper is missing: {path}: {reason}; copy it from the node "
            "that made them, or set ANTIPHON_PEPPER"
        ) from None
    try:
        return parse_pepper(said)
    except StoreRefused:
        raise StoreRefused(
            f"{path} holds no pepper: put the one of the database's keys there; where there are none yet, "
            "remove the file"
        ) from None


def write_secret(path: Path, text: str) -> None:
    """A file that only its owner reads: whole, or not there. Raises FileExistsError, OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(beside, path)
    finally:
        beside.unlink()
