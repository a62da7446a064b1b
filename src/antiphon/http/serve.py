"""Runs the application on a socket that is already bound, until it is told to stop; then drains.

Draining: no new connection is taken, what runs gets so many seconds, and what is still running then ends
with an error
that its caller sees.
"""

import asyncio
import contextlib
import functools
import gc
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from antiphon.errors import EngineUnavailable
from antiphon.http.edge import Edge
from antiphon.http.protocol import Policy, Protocol

IDLE_SECONDS = 75
"""How long an idle connection is kept: longer than the 60 seconds after which common proxies and clients
drop theirs."""

FAREWELL_SECONDS = 2
"""For the last error events to be written, and connections to close."""

RESTART_SECONDS = 5.0
"""What callers are told to wait when the server goes away: about the time of a restart."""

BACKLOG = 2048
"""Connections that the kernel holds until they are accepted."""


class Server(uvicorn.Server):
    """uvicorn's server, which ends running work by its own means and leaves signals to `serve`."""

    def __init__(self, config: uvicorn.Config, edge: Edge, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._edge = edge
        self._tell = started

    def stop(self) -> None:
        """Begins to drain."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._tell()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        gone = EngineUnavailable("the server is shutting down; try again", retry_after=RESTART_SECONDS)
        drain = self._edge.settings.drain_timeout
        timer = asyncio.get_running_loop().call_later(drain, self._edge.ongoing.end, gone)
        await super().shutdown(sockets)
        timer.cancel()


def make_server(app: ASGIApp, edge: Edge, started: Callable[[], None] = lambda: None) -> Server:
    """A server that is configured and not yet running; it calls `started` when it accepts connections."""
    policy = Policy(edge.dialect_of, edge.settings.receive_timeout, edge.clock.unique)
    config = uvicorn.Config(
        app,
        http=functools.partial(Protocol, policy=policy),  # type: ignore[arg-type]
        loop="none",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=int(edge.settings.drain_timeout) + FAREWELL_SECONDS,
    )
    return Server(config, edge, started)


async def serve(
    app: ASGIApp, edge: Edge, listener: socket.socket, started: Callable[[], None] = lambda: None
) -> None:
    """Serves until SIGTERM or SIGINT, and returns when all is drained. Calls `started` when it accepts."""
    server = make_server(app, edge, started)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    gc.collect()
    gc.freeze()
    try:
        await server.serve(sockets=[listener])
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
