"""An HTTP server on loopback for tests: a function gives the answer to each request, and the server collects
the requests."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class VendorCall:
    """A received request."""

    path: str
    headers: Mapping[str, str]
    """Values by lower-case names."""
    body: bytes


@dataclass(frozen=True)
class VendorReply:
    """The answer to a request."""

    parts: tuple[bytes, ...]
    """The chunks of the body."""
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class VendorServer:
    """`url`: the server's address without a path. `calls`: all requests in order."""

    url: str
    calls: list[VendorCall] = field(default_factory=list)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints an error, unless the client has left."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serve_vendor(answer: Callable[[VendorCall], VendorReply]) -> Iterator[VendorServer]:
    """Serves in threads until the end of the block."""
    calls: list[VendorCall] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            calls.append(VendorCall(self.path, headers, body))
            reply = answer(calls[-1])
            self.send_response(reply.status)
            for name, value in {"content-type": reply.content_type, **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for part in (*reply.parts, b""):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))

        def log_message(self, *args: object) -> None:
            """Prints nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield VendorServer(f"http://127.0.0.1:{server.server_address[1]}", calls)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
