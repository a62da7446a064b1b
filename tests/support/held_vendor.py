"""A vendor whose streams send the first word at once, each further word when the test releases it, and their
end when the test says so."""

import json
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class HeldVendor:
    """`url`: its address. `began` and `left` are set when a request arrives, and when its client has left."""

    url: str = ""
    words: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Each release sends one more word."""
    finish: threading.Event = field(default_factory=threading.Event)
    """Once set, all streams end whole."""
    began: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)

    def reset(self) -> None:
        self.began.clear()
        self.left.clear()


@contextmanager
def serve_held_vendor() -> Iterator[HeldVendor]:
    """Serves until the end of the block."""
    vendor = HeldVendor()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if body.get("stream"):
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                self._send_word()
            vendor.began.set()
            while not _has_left(self.connection):
                if vendor.words.acquire(blocking=False):
                    self._send_word()
                if vendor.finish.is_set() and body.get("stream"):
                    self._send_word("stop")
                    done = b"data: [DONE]\n\n"
                    self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(done), done))
                    return
            vendor.left.set()
            self.close_connection = True

        def _send_word(self, finish_reason: str | None = None) -> None:
            choice = {"index": 0, "delta": {"content": "word "}, "finish_reason": finish_reason}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            event = b"data: %b\n\n" % json.dumps(chunk | {"choices": [choice]}).encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
            self.wfile.flush()

        def log_message(self, *args: object) -> None:
            """Prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    vendor.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield vendor
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _has_left(connection: socket.socket) -> bool:
    readable, _, _ = select.select([connection], [], [], 0.02)
    try:
        return bool(readable) and connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True
