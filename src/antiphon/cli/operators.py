"""The operator's key that lies on this machine, in `admin.key`: read by the commands, and kept true where one
of them rotates or revokes it."""

import os
from collections.abc import Mapping
from pathlib import Path

from antiphon.auth.secrets import KEY, prefix_of, write_secret
from antiphon.cli.home import ADMIN_FILE, home_of


def kept_key() -> str | None:
    """The key; None where none lies there that may be read."""
    try:
        return key_file().read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def is_kept(card: Mapping[str, object]) -> bool:
    """Whether a key that the server shows is the one that lies there."""
    kept = kept_key()
    return kept is not None and KEY.fullmatch(kept) is not None and card.get("prefix") == prefix_of(kept)


def put(secret: str) -> str:
    """Puts another key there, which only its owner reads; returns what came of it, for people. A start of the
    server finishes what is cut in between."""
    path = key_file()
    begun = path.with_name(f"{path.name}.new")
    try:
        begun.unlink(missing_ok=True)
        write_secret(begun, secret)
        begun.replace(path)
    except OSError as problem:
        return f"{path} still holds the old key, and cannot be written: {problem.strerror}"
    return f"{path} holds the new key now"


def put_aside() -> str:
    """Takes a key away that has ended; returns what came of it, for people."""
    path = key_file()
    ended = path.with_name(f"{path.name}.ended")
    try:
        path.replace(ended)
    except OSError as problem:
        return f"{path} holds the key that has ended, and cannot be moved away: {problem.strerror}"
    return f"it was the key in {path}, which is {ended} now; antiphon store admin-key makes another"


def refused() -> str:
    """What to do where the server accepts the key no more."""
    return (
        f"The key in {key_file()} has ended, or is of another server; say one that may in ANTIPHON_API_KEY, "
        "or have antiphon store admin-key --out FILE make another"
    )


def key_file() -> Path:
    """Where it lies, if it does."""
    return home_of(os.environ, Path.home()) / ADMIN_FILE
