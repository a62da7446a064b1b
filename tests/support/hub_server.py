"""A model hub on loopback for tests: metadata on HEAD, redirects to a file host, ranges, gates and faults.

Clients see the same behaviour as on the public hub. The file host listens on another port, so it is another
origin. Its recorded requests must not contain the token.
"""

import hashlib
import json
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from tests.support.waiting import wait_until

COMMIT = "a" * 40
TOKEN = "hf_of_these_tests_only"


@dataclass
class HubRequest:
    """A received request."""

    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class Repository:
    """Files by name, and their access rules."""

    files: dict[str, bytes]
    commit: str = COMMIT
    revisions: tuple[str, ...] = ("main",)
    is_gated: bool = False
    is_small: bool = False
    """Whether git stores the files: no redirect, and git's checksum as ETag."""

    def etag(self, name: str) -> str:
        data = self.files[name]
        if self.is_small:
            return hashlib.sha1(f"blob {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()
        return hashlib.sha256(data).hexdigest()


@dataclass
class Faults:
    """Faults of the server. Positions are bytes from the start of the file."""

    hang_up_at: int | None = None
    """The connection closes normally at that byte, once."""
    reset_at: int | None = None
    """The connection is reset at that byte, each time."""
    has_arrived: Callable[[], bool] | None = None
    """Whether the client has read the bytes before the reset, which discards what is unread. If None, the
    reset waits for a moment."""
    stall_at: int | None = None
    """No byte from that position on is sent until the server ends."""
    flip_at: int | None = None
    """The lowest bit of that byte is flipped."""
    ignores_ranges: bool = False
    status: int | None = None
    """The status of every response."""
    hides: frozenset[str] = frozenset()
    """Headers that responses omit."""
    longer_by: int = 0
    """Number of bytes that are sent after the file."""


@dataclass
class HubServer:
    """Both hosts and their requests."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    requests: list[HubRequest] = field(default_factory=list)
    file_requests: list[HubRequest] = field(default_factory=list)
    """Requests to the file host."""
    ended: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    files_url: str = ""

    def ranges(self) -> list[str | None]:
        """Returns the Range header of each GET to the file host."""
        return [request.range for request in self.file_requests if request.method == "GET"]


@contextmanager
def serve_hub(server: HubServer) -> Iterator[HubServer]:
    """Runs both hosts on free ports."""
    hub, files = _create_host(_HubHandler, server), _create_host(_FilesHandler, server)
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
        """Ignores connections that end early, which some tests cause."""
        if not isinstance(sys.exc_info()[1], OSError | ValueError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _create_host(handler: type[BaseHTTPRequestHandler], server: HubServer) -> _Host:
    host = _Host(("127.0.0.1", 0), handler)
    host.state = server
    return host


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Host

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Prints nothing; tests read the recorded requests."""

    def _record_request(self, requests: list[HubRequest]) -> None:
        requests.append(
            HubRequest(self.command, self.path, self.headers.get("Range"), self.headers.get("Authorization"))
        )

    def _send_response(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            if name not in self.server.state.faults.hides:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_file(self, data: bytes, headers: dict[str, str]) -> None:
        """Sends the file from the start of the range, with the active faults."""
        faults = self.server.state.faults
        start = 0
        range_match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if range_match and not faults.ignores_ranges:
            start = int(range_match[1])
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
        break_offsets = (faults.hang_up_at, faults.reset_at, faults.stall_at, len(body))
        end = min(offset for offset in break_offsets if offset is not None)
        self.wfile.write(body[start:end])
        self.wfile.flush()
        if end < len(body):
            self._break_connection()

    def _break_connection(self) -> None:
        """Breaks the connection in the middle of the body."""
        faults = self.server.state.faults
        self.close_connection = True
        if faults.stall_at is not None:
            self.server.state.ended.wait(30)
            return
        if faults.has_arrived is None:
            time.sleep(0.05)
        else:
            wait_until(faults.has_arrived, what="the client has read the bytes before the reset")
        if faults.reset_at is not None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            faults.hang_up_at = None


class _HubHandler(_Handler):
    """Serves metadata and gates, and redirects to the file host."""

    def do_HEAD(self) -> None:
        self._resolve()

    def do_GET(self) -> None:
        if listing := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^?]+)(\?.*)?", self.path):
            self._record_request(self.server.state.requests)
            self._send_file_list(listing[1], unquote(listing[2]))
        else:
            self._resolve()

    def _send_file_list(self, name: str, revision: str) -> None:
        """Lists the files, as on the public hub also those of a gated repository."""
        state = self.server.state
        repository = state.repositories.get(name)
        authorization = self.headers.get("Authorization")
        if state.faults.status:
            self._send_response(state.faults.status, {})
            return
        if repository is None or authorization not in (None, f"Bearer {TOKEN}"):
            self._send_refusal(repository)
            return
        if revision not in (*repository.revisions, repository.commit):
            self._send_response(404, {"X-Error-Code": "RevisionNotFound"})
            return
        rows = [
            {"type": "file", "path": path, "size": len(data), "oid": "0" * 40}
            for path, data in repository.files.items()
        ]
        self._send_response(200, {"Content-Type": "application/json"}, json.dumps(rows).encode())

    def _resolve(self) -> None:
        state = self.server.state
        self._record_request(state.requests)
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
        if state.faults.status or match is None:
            self._send_response(state.faults.status or 404, {})
            return
        name, revision, file = match[1], unquote(match[2]), unquote(match[3])
        repository = state.repositories.get(name)
        if repository is None or not self._may_read(repository):
            self._send_refusal(repository)
        elif revision not in (*repository.revisions, repository.commit):
            self._send_response(404, {"X-Error-Code": "RevisionNotFound"})
        elif file not in repository.files:
            self._send_response(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repository.commit})
        else:
            self._send_found_file(name, repository, file)

    def _may_read(self, repository: Repository) -> bool:
        authorization = self.headers.get("Authorization")
        return authorization in (None, f"Bearer {TOKEN}") and not (
            repository.is_gated and authorization is None
        )

    def _send_refusal(self, repository: Repository | None) -> None:
        authorization = self.headers.get("Authorization")
        if authorization not in (None, f"Bearer {TOKEN}") and (repository is None or not repository.is_gated):
            self._send_response(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repository is None:
            missing = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
            unknown = {"X-Error-Message": "Invalid username or password."}
            self._send_response(*((404, missing) if authorization else (401, unknown)))
        else:
            gated = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model is restricted."}
            self._send_response(403 if authorization else 401, gated)

    def _send_found_file(self, name: str, repository: Repository, file: str) -> None:
        headers = {"X-Repo-Commit": repository.commit, "ETag": f'"{repository.etag(file)}"'}
        data = repository.files[file]
        if repository.is_small:
            self._send_file(data, headers)
            return
        redirect_headers = {
            "ETag": '"of the pointer"',
            "X-Linked-Etag": f'"{repository.etag(file)}"',
            "X-Linked-Size": str(len(data)),
            "Location": f"{self.server.state.files_url}/{name}/{file}?signature=secret",
        }
        self._send_response(302, headers | redirect_headers)


class _FilesHandler(_Handler):
    """Serves the files to anyone with the address."""

    def do_GET(self) -> None:
        state = self.server.state
        self._record_request(state.file_requests)
        owner, name, file = self.path.partition("?")[0].strip("/").split("/", 2)
        self._send_file(state.repositories[f"{owner}/{name}"].files[unquote(file)], {})
