"""Sockets that only this user may open."""

import socket
from contextlib import suppress
from pathlib import Path


def bind_private(path: str) -> socket.socket:
    """A socket at the path, mode 0600 before anybody can connect; what lay there before is replaced."""
    remove(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        Path(path).chmod(0o600)
    except OSError:
        sock.close()
        raise
    return sock


def remove(path: str) -> None:
    """Takes a socket's path away, if it is there. Who gave up the right to leaves it to the
    supervisor."""
    with suppress(PermissionError):
        Path(path).unlink(missing_ok=True)
