"""A connection of the server over a transport that keeps what is written."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from antiphon.dialects.openai.dialect import OpenAI
from antiphon.http.protocol import Exchange, HttpProtocol, ServerState
from antiphon.http.slow_clients import SlowClientWatch


class RecordedTransport(asyncio.Transport):
    """Keeps what is written to a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_aborted = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted


def connect(
    handle: Callable[[Exchange], Coroutine[None, None, None]],
) -> tuple[HttpProtocol, RecordedTransport]:
    """A new connection, whose requests `handle` answers."""
    server = ServerState(handle, lambda _: OpenAI(), 30.0, lambda: "1", SlowClientWatch(30.0))
    connection, transport = HttpProtocol(server, asyncio.get_running_loop()), RecordedTransport()
    connection.connection_made(transport)
    return connection, transport
