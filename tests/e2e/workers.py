"""A server with several HTTP processes, and a connection to each of them."""

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from tests.support.server import Server

PATIENCE = 50.0
CHAT = "/v1/chat/completions"


@dataclass
class Line:
    """A connection to one HTTP process, which is kept."""

    process: psutil.Process
    connection: http.client.HTTPConnection
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: object = None, key: str | None = None) -> tuple[int, Any]:
        """Status and body of an answer of this process."""
        headers = self.headers | ({"authorization": f"Bearer {key}"} if key else {})
        data = None if body is None else json.dumps(body)
        self.connection.request(method, path, data, headers | {"content-type": "application/json"})
        reply = self.connection.getresponse()
        content = reply.read()
        is_json = "json" in (reply.getheader("content-type") or "")
        return reply.status, json.loads(content) if is_json and content else content.decode()

    def say(self, model: str = "cantor", key: str | None = None, **more: Any) -> tuple[int, Any]:
        """A short completion."""
        asked = {"model": model, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 24}
        return self.ask("POST", "/v1/completions", asked | more, key)


def workers(server: Server) -> list[psutil.Process]:
    """The HTTP processes, the oldest first."""
    return sorted(server.children("antiphon.assembly"), key=lambda process: process.create_time())


def line_to(server: Server, process: psutil.Process, key: str | None = None) -> Line:
    """A connection that this process took, because all others stood still."""
    host, port = server.url.removeprefix("http://").split(":")
    others = [other for other in workers(server) if other.pid != process.pid]
    for other in others:
        other.suspend()
    try:
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        line = Line(process, connection, headers)
        assert line.ask("GET", "/health")[0] == 200
    finally:
        for other in others:
            other.resume()
    return line


@contextmanager
def lines(server: Server, key: str | None = None) -> Iterator[list[Line]]:
    """A connection to each HTTP process."""
    with ExitStack() as stack:
        made = [line_to(server, process, key) for process in workers(server)]
        for line in made:
            stack.callback(line.connection.close)
        yield made
