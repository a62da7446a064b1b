"""Requests over a bare connection, whose caller can leave."""

import json
import socket

from tests.support.server import Server

MOST = 3000
"""Tokens of a generation that nobody leaves."""
LONG_PROMPT = [100] * 3500
"""Token ids whose prefill takes seconds on the random model."""


def posted(server: Server, id_: str = "left", **fields: object) -> socket.socket:
    """A connection on which the request was sent and nothing was read. `id_`: the request's id."""
    host, port = server.url.removeprefix("http://").split(":")
    said = {"model": "noise", "prompt": "x", "max_tokens": MOST, "ignore_eos": True}
    body = json.dumps(said | fields).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: {id_}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(head.encode() + body)
    return connection
