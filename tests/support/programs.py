"""Programs that some tests need beside Python's packages."""

import shutil
import socket

import pytest


def require_program(name: str, package: str = "") -> str:
    """Returns its path. Skips the test where it is missing, and names Debian's package."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name} (Debian: {package or name})")
    return found


def find_free_port() -> int:
    """A port of loopback that nothing listens on at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port
