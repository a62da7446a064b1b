"""A client of HTTP/1.1 that does as little work as can be: it runs beside what it measures."""

import socket
from typing import NamedTuple

PATIENCE = 120.0
"""Seconds for an answer: the machine may be busy."""


class Answer(NamedTuple):
    """What a request came to. Of one that was left, the status alone."""

    status: int
    body: bytes


class Wire:
    """A connection that is kept, and made again after it was left."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._address = (host, int(port))
        self._socket: socket.socket | None = None
        self._read = b""

    def ask(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], leave: bool = False
    ) -> Answer:
        """Sends a request and reads its answer; with `leave` only until the first part of it has come."""
        lines = [f"{method} {path} HTTP/1.1", "host: localhost"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        self._connected().sendall("\r\n".join([*lines, "", ""]).encode() + (body or b""))
        status, said = self._head()
        if leave:
            self.close()
            return Answer(status, b"")
        answer = self._chunks() if "chunked" in said else self._take(_length(said))
        if "\r\nconnection: close" in said:
            self.close()
        return Answer(status, answer)

    def close(self) -> None:
        """Leaves, whether or not something is on the way."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._read = None, b""

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=PATIENCE)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def _head(self) -> tuple[int, str]:
        head = self._until(b"\r\n\r\n").decode().lower()
        return int(head.split(" ", 2)[1]), head

    def _chunks(self) -> bytes:
        parts: list[bytes] = []
        while size := int(self._until(b"\r\n"), 16):
            parts.append(self._take(size))
            self._take(2)
        self._take(2)
        return b"".join(parts)

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._read:
            self._more()
        found, _, self._read = self._read.partition(mark)
        return found

    def _take(self, size: int) -> bytes:
        while len(self._read) < size:
            self._more()
        found, self._read = self._read[:size], self._read[size:]
        return found

    def _more(self) -> None:
        data = self._connected().recv(65536)
        if not data:
            self.close()
            raise ConnectionResetError("the server closed the connection")
        self._read += data


def _length(head: str) -> int:
    at = head.find("\r\ncontent-length:")
    return int(head[at + len("\r\ncontent-length:") :].split("\r\n", 1)[0]) if at >= 0 else 0
