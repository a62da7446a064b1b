"""A server that answers the admin API by a list, and keeps what it was asked."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

__all__ = ["server"]


@dataclass
class Scripted:
    """Answers in turn, and keeps what it was asked."""

    url: str = ""
    answers: list[tuple[int, object]] = field(default_factory=list)
    asked: list[tuple[str, str, object, str | None]] = field(default_factory=list)
    """Method, path, body, bearer."""


@pytest.fixture
def server() -> Iterator[Scripted]:
    state = Scripted()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

        def handle_one(self) -> None:
            size = int(self.headers["content-length"] or 0)
            said = json.loads(self.rfile.read(size)) if size else None
            state.asked.append((self.command, self.path, said, self.headers["authorization"]))
            status, answer = state.answers.pop(0)
            body = (
                answer if isinstance(answer, bytes) else b"" if status == 204 else json.dumps(answer).encode()
            )
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_one  # noqa: N815 - as http.server calls them

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{listening.server_address[1]}"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield state
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


def page(*rows: object, following: str | None = None) -> tuple[int, object]:
    return 200, {"object": "list", "data": list(rows), "next": following}
