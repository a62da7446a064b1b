"""A hub on loopback that speaks what its clients are promised: metadata on HEAD, a redirect to a host that
holds the bytes, ranges, gates, and faults on demand.

What it does follows the public hub as far as clients see it. The files' host listens on another port, so it
is another origin, and it records what it is sent: a token there is a leak.
"""

import hashlib
import json
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "a" * 40
TOKEN = "hf_of_these_tests_only"


@dataclass
class Asked:
    """A request as it arrived."""

    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class Repository:
    """Files by name, and how they are guarded."""

    files: dict[str, bytes]
    commit: str = COMMIT
    revisions: tuple[str, ...] = ("main",)
    is_gated: bool = False
    is_small: bool = False
    """Held in git itself: no redirect, and git's checksum."""

    def etag(self, name: str) -> str:
        data = self.files[name]
        if self.is_small:
            return hashlib.sha1(f"blob {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()
        return hashlib.sha256(data).hexdigest()


@dataclass
class Faults:
    """What goes wrong. Bytes are counted from the start of the file."""

    hang_up_at: int | None = None
    """The connection is closed in order at that byte, once."""
    reset_at: int | None = None
    """The connection is reset at that byte, each time."""
    stall_at: int | None = None
    """Nothing more comes from that byte on, until the server ends."""
    flip_at: int | None = None
    """The lowest bit of that byte is another."""
    ignores_ranges: bool = False
    status: int | None = None
    """The answer to every request."""
    hides: frozenset[str] = frozenset()
    """Headers that are left out."""
    longer_by: int = 0
    """Bytes sent beyond the size."""


@dataclass
class HubServer:
    """Both hosts, and what they were asked."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    asked: list[Asked] = field(default_factory=list)
    sent: list[Asked] = field(default_factory=list)
    """What the files' host was asked."""
    ended: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    files_url: str = ""

    def ranges(self) -> list[str | None]:
        """The range of each request for bytes."""
        return [asked.range for asked in self.sent if asked.method == "GET"]


@contextmanager
def running(server: HubServer) -> Iterator[HubServer]:
    """Both hosts, on free ports."""
    hub, files = _listening(_HubHandler, server), _listening(_FilesHandler, server)
    server.url = f"http://127.0.0.1:{hub.server_address[1]}"
    server.files_url = f"http://127.0.0.1:{files.server_address[1]}"
    threads = [threading.Thread(target=host.serve_forever, args=(0.02,)) for host in (hub, files)]
    for thread in threads:
        thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        for host in (hub, files):
            host.shutdown()
            host.server_close()
        for thread in threads:
            thread.join()


class _Host(ThreadingHTTPServer):
    daemon_threads = True
    state: HubServer

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that ends early is what some tests are about."""
        if not isinstance(sys.exc_info()[1], OSError | ValueError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _listening(handler: type[BaseHTTPRequestHandler], server: HubServer) -> _Host:
    host = _Host(("127.0.0.1", 0), handler)
    host.state = server
    return host


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Host

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Nothing: the tests look at what was recorded."""

    def _note(self, where: list[Asked]) -> None:
        where.append(
            Asked(self.command, self.path, self.headers.get("Range"), self.headers.get("Authorization"))
        )

    def _answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            if name not in self.server.state.faults.hides:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_file(self, data: bytes, headers: dict[str, str]) -> None:
        """The bytes from where the range begins, with the faults that are on."""
        faults = self.server.state.faults
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and not faults.ignores_ranges:
            start = int(asked[1])
            headers = headers | {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        body = bytearray(data)
        if faults.flip_at is not None:
            body[faults.flip_at] ^= 1
        body += bytes(faults.longer_by)
        self.send_response(206 if start else 200)
        for name, value in {"Content-Length": str(len(body) - start), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        ends = (faults.hang_up_at, faults.reset_at, faults.stall_at, len(body))
        end = min(at for at in ends if at is not None)
        self.wfile.write(body[start:end])
        self.wfile.flush()
        if end < len(body):
            self._break()

    def _break(self) -> None:
        """Ends the connection in the middle of the body."""
        faults = self.server.state.faults
        self.close_connection = True
        if faults.stall_at is not None:
            self.server.state.ended.wait(30)
            return
        time.sleep(0.05)  # what was sent is read before a reset would discard it
        if faults.reset_at is not None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            faults.hang_up_at = None


class _HubHandler(_Handler):
    """Metadata, gates, and the way to the files."""

    def do_HEAD(self) -> None:
        self._resolve()

    def do_GET(self) -> None:
        if listing := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^?]+)(\?.*)?", self.path):
            self._note(self.server.state.asked)
            self._tree(listing[1], unquote(listing[2]))
        else:
            self._resolve()

    def _tree(self, name: str, revision: str) -> None:
        """Of a gated repository too, as on the public hub: only its files are guarded."""
        state = self.server.state
        repository = state.repositories.get(name)
        said = self.headers.get("Authorization")
        if state.faults.status:
            self._answer(state.faults.status, {})
            return
        if repository is None or said not in (None, f"Bearer {TOKEN}"):
            self._refuse(repository)
            return
        if revision not in (*repository.revisions, repository.commit):
            self._answer(404, {"X-Error-Code": "RevisionNotFound"})
            return
        rows = [
            {"type": "file", "path": path, "size": len(data), "oid": "0" * 40}
            for path, data in repository.files.items()
        ]
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(rows).encode())

    def _resolve(self) -> None:
        state = self.server.state
        self._note(state.asked)
        asked = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
        if state.faults.status or asked is None:
            self._answer(state.faults.status or 404, {})
            return
        name, revision, file = asked[1], unquote(asked[2]), unquote(asked[3])
        repository = state.repositories.get(name)
        if repository is None or not self._may_read(repository):
            self._refuse(repository)
        elif revision not in (*repository.revisions, repository.commit):
            self._answer(404, {"X-Error-Code": "RevisionNotFound"})
        elif file not in repository.files:
            self._answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repository.commit})
        else:
            self._found(name, repository, file)

    def _may_read(self, repository: Repository) -> bool:
        said = self.headers.get("Authorization")
        return said in (None, f"Bearer {TOKEN}") and not (repository.is_gated and said is None)

    def _refuse(self, repository: Repository | None) -> None:
        said = self.headers.get("Authorization")
        if said not in (None, f"Bearer {TOKEN}") and (repository is None or not repository.is_gated):
            self._answer(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repository is None:
            missing = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
            unknown = {"X-Error-Message": "Invalid username or password."}
            self._answer(*((404, missing) if said else (401, unknown)))
        else:
            gate = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model is restricted."}
            self._answer(403 if said else 401, gate)

    def _found(self, name: str, repository: Repository, file: str) -> None:
        headers = {"X-Repo-Commit": repository.commit, "ETag": f'"{repository.etag(file)}"'}
        data = repository.files[file]
        if repository.is_small:
            self._send_file(data, headers)
            return
        linked = {
            "ETag": '"of the pointer"',
            "X-Linked-Etag": f'"{repository.etag(file)}"',
            "X-Linked-Size": str(len(data)),
            "Location": f"{self.server.state.files_url}/{name}/{file}?signature=secret",
        }
        self._answer(302, headers | linked)


class _FilesHandler(_Handler):
    """The bytes, to whoever holds the address."""

    def do_GET(self) -> None:
        state = self.server.state
        self._note(state.sent)
        owner, name, file = self.path.partition("?")[0].strip("/").split("/", 2)
        self._send_file(state.repositories[f"{owner}/{name}"].files[unquote(file)], {})
