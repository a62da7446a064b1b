"""A server that answers by script: the model's name chooses what it does. It keeps what it was asked."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODELS = ("good", "endless", "error", "cut", "escape", "uncounted", "thinks", "flaky", "long")
ALIAS = "gpt-4o"
SCRIPTS = {ALIAS: "good"}
"""Another name of the good one, which is not listed."""
ENCODER = "encoder"
"""Makes vectors."""


@dataclass
class Standin:
    """A running one."""

    url: str
    key: str | None
    asked: list[dict[str, object]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)
    """A client went away while the endless answer ran."""
    models: tuple[str, ...] = MODELS
    """Those that it lists."""
    cards: bool = True
    """Whether it tells of single models, as not every server does."""
    page: Callable[[], str | None] = str
    """Makes what /metrics answers with; an empty one is a 404, None ends the connection."""


@contextmanager
def standin(key: str | None = None) -> Iterator[Standin]:
    """Listens on a free port while the context lasts."""
    state = Standin("", key)

    class Handler(_Handler):
        standin = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    standin: Standin

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""

    def do_GET(self) -> None:
        if not self._known():
            return
        if self.path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": name} for name in self.standin.models]})
        elif self.path != "/metrics":
            self._card(self.path.removeprefix("/v1/models/"))
        elif page := self.standin.page():
            self._send(200, page.encode())
        elif page is not None:
            self._json(404, {"error": {"message": "no such path"}})

    def _card(self, name: str) -> None:
        if not self.standin.cards or name not in (*self.standin.models, ALIAS):
            self._json(404, {"error": {"message": "no such model or path.", "code": "model_not_found"}})
            return
        embedding = {"dimensions": 384} if name == ENCODER else None
        self._json(200, {"id": name, "profile": {"chat": not embedding, "embedding": embedding}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.standin.asked.append(body)
        if not self._known():
            return
        model = body["model"]
        if model == "long":
            said = {"message": "the prompt is too long.", "code": "context_length_exceeded"}
            self._json(400, {"error": said})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        script: Callable[[dict[str, object]], None] = getattr(self, f"_{SCRIPTS.get(model, model)}")
        with suppress(BrokenPipeError, ConnectionResetError):
            script(body)

    def _known(self) -> bool:
        key = self.standin.key
        if key is None or self.headers["authorization"] == f"Bearer {key}":
            return True
        self._json(401, {"error": {"message": "no such key.", "code": "invalid_api_key"}})
        return False

    def _json(self, status: int, value: object) -> None:
        self._send(status, json.dumps(value).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _event(self, value: object) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\r\n\r\n")

    def _delta(self, **delta: str) -> None:
        self._event({"choices": [{"index": 0, "delta": delta}]})

    def _end(self, *, finish: str = "stop", usage: dict[str, int] | None = None) -> None:
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _good(self, body: dict[str, object]) -> None:
        messages = body["messages"]
        assert isinstance(messages, list)
        words = sum(len(str(message["content"]).split()) for message in messages)
        self.wfile.write(b": a comment\n\n")
        for word in ("one", " two", " three"):
            self._delta(content=word)
            time.sleep(0.005)
        self._end(usage={"prompt_tokens": 10 + 2 * words, "completion_tokens": 3})

    def _endless(self, _: dict[str, object]) -> None:
        try:
            while True:
                self._delta(content="on ")
                time.sleep(0.01)
        except OSError:
            self.standin.left.set()

    def _error(self, _: dict[str, object]) -> None:
        self._delta(content="half")
        self._event({"error": {"message": "the engine died", "code": "engine_died"}})

    def _flaky(self, body: dict[str, object]) -> None:
        """Fails when it has something to do."""
        script = self._good if body["max_tokens"] == 1 else self._error
        script(body)

    def _cut(self, _: dict[str, object]) -> None:
        self._delta(content="half")

    def _escape(self, _: dict[str, object]) -> None:
        self._delta(content="a\x1b]52;c;ZXZpbA==\x07b\n\tc")
        self._end()

    def _uncounted(self, _: dict[str, object]) -> None:
        self._delta(content="one")
        self._delta(content=" two")
        self._end(finish="length")

    def _thinks(self, _: dict[str, object]) -> None:
        self._delta(reasoning_content="hm")
        self._delta(content="yes")
        self._end()
