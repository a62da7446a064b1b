"""A receiver of webhooks on loopback: it keeps what arrives, and answers as it is told."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class WebhookReceiver:
    """What arrived, and what is answered."""

    port: int = 0
    statuses: list[int] = field(default_factory=list)
    """The answers to the next requests; 204 to all further ones."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of each answer."""
    arrived: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    """Headers with names in lower case, and bodies."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in list(self.arrived)]


@contextmanager
def receiving() -> Iterator[WebhookReceiver]:
    """A receiver, while the context lasts."""
    receiver = WebhookReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.arrived.append(({name.lower(): text for name, text in self.headers.items()}, body))
            self.send_response(receiver.statuses.pop(0) if receiver.statuses else 204)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
