"""Programs that some tests need beside Python's packages."""

import secrets
import shutil
import socket
from contextlib import suppress

import pytest


def require_program(name: str, package: str = "") -> str:
    """Returns its path. Skips the test where it is missing, and names Debian's package."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name} (Debian: {package or name})")
    return found


def find_free_port() -> int:
    """Returns a port that the system gives to no program that asks for any, as other tests do."""
    while True:
        port = 15_000 + secrets.randbelow(17_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
