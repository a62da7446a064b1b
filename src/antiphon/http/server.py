"""Runs the application on a bound socket until a signal stops it, and then drains.

A server that was asked to stop first says that it is not ready, for a delay. Then it drains: it accepts no
new connections, and running requests get a limited time. After this time the server ends them with an error
that the caller sees. A server retires when another process replaces it. A retiring server drains for a longer
time, and also answers requests that arrive on open connections.
"""

import asyncio
import contextlib
import functools
import gc
import math
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from antiphon.errors import EngineUnavailable
from antiphon.http.connection import SlowClientWatch
from antiphon.http.protocol import Protocol, ProtocolOptions, ShutdownState
from antiphon.http.state import AppState

IDLE_SECONDS = 75
"""Seconds for which an idle connection stays open. Common proxies and clients close idle connections after 60
seconds, so they close first."""

CLOSING_SECONDS = 2
"""Seconds for writing the last error events and closing connections."""

RESTART_SECONDS = 5.0
"""Seconds after which callers can try again when the server shuts down. A restart takes about this time."""

BACKLOG = 2048
"""The most connections that the kernel queues before they are accepted."""

COLLECTION_THRESHOLD = 10_000
"""The number of new objects that starts a garbage collection. Python's default of 700 is about one request,
so every request would start a scan of all running requests."""

GRACE_SECONDS = 2.0
"""Seconds for which a retiring process keeps idle connections for requests that are on their way."""

POLL_SECONDS = 0.02
"""Seconds between two checks whether all connections are closed."""


class Server(uvicorn.Server):
    """Extends uvicorn's server. It ends running requests with an error, and leaves signals to `serve`."""

    def __init__(
        self,
        config: uvicorn.Config,
        app_state: AppState,
        shutdown_state: ShutdownState,
        on_started: Callable[[], None],
        on_retiring: Callable[[], object],
    ) -> None:
        super().__init__(config)
        self._app_state = app_state
        self._shutdown_state = shutdown_state
        self._on_started = on_started
        self._on_retiring = on_retiring
        self._drain_seconds = app_state.settings.drain_timeout
        self._drain_timer: asyncio.TimerHandle | None = None
        """Ends the delay before the drain, and then the drain."""
        self._closing_deadline = math.inf
        """The time of the event loop after which `shutdown` cancels the requests that have not ended."""

    def stop(self) -> None:
        """Starts to drain, after the delay. A server that already retires accepts nothing, so it starts at
        once, and gets the shorter time of a normal stop."""
        delay, was_stopping = self._app_state.settings.drain_delay, self._app_state.in_flight.is_stopping
        self._app_state.in_flight.is_stopping = True
        if delay and not was_stopping and not self.should_exit:
            self._drain_timer = asyncio.get_running_loop().call_later(delay, self.stop)
            return
        self._drain_seconds = self._app_state.settings.drain_timeout
        self._shutdown_state.grace_seconds = 0.0
        if self.should_exit:
            self._close_connections()
        self.should_exit = True

    def retire(self) -> None:
        """Starts to drain slowly, while another process accepts the new connections."""
        if not self.should_exit and not self._app_state.in_flight.is_stopping:
            self._drain_seconds = self._app_state.settings.retire_timeout
            self._shutdown_state.grace_seconds = GRACE_SECONDS
            self.should_exit = True
            self._on_retiring()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures no signal, because `serve` handles the signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to accept connections, and calls `on_started`."""
        await super().startup(sockets)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes the sockets, and each connection after its running request. Cancels what is left at the
        deadline."""
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        self._close_connections()
        loop, state = asyncio.get_running_loop(), self.server_state
        while (state.connections or state.tasks) and loop.time() < self._closing_deadline:  # noqa: ASYNC110 - no single event
            await asyncio.sleep(POLL_SECONDS)
        for task in state.tasks:
            task.cancel()
        if self._drain_timer is not None:
            self._drain_timer.cancel()

    def _close_connections(self) -> None:
        """Closes every connection after its running request, and starts the timer that ends running
        requests."""
        for connection in tuple(self.server_state.connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()
        error = EngineUnavailable("the server is shutting down; try again", retry_after=RESTART_SECONDS)
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        self._drain_timer = loop.call_later(self._drain_seconds, self._app_state.in_flight.end, error)
        self._closing_deadline = loop.time() + self._drain_seconds + CLOSING_SECONDS


def create_server(
    app: ASGIApp,
    app_state: AppState,
    on_started: Callable[[], None] = lambda: None,
    on_retiring: Callable[[], object] = lambda: None,
) -> Server:
    """Creates a server without starting it. The server calls `on_started` when it accepts connections, and
    `on_retiring` when another process replaces it."""
    shutdown_state = ShutdownState()
    settings, watch = app_state.settings, SlowClientWatch(app_state.settings.send_timeout)
    options = ProtocolOptions(
        app_state.get_dialect, settings.receive_timeout, app_state.clock.unique, shutdown_state, watch
    )
    config = uvicorn.Config(
        app,
        http=functools.partial(Protocol, options=options),  # type: ignore[arg-type]
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
    )
    return Server(config, app_state, shutdown_state, on_started, on_retiring)


async def serve(
    app: ASGIApp,
    app_state: AppState,
    listening_socket: socket.socket,
    on_started: Callable[[], None] = lambda: None,
    on_retiring: Callable[[], object] = lambda: None,
) -> None:
    """Serves until SIGTERM or SIGINT arrives, and retires on SIGUSR2. Returns when all requests have ended.
    `create_server` describes `on_started` and `on_retiring`."""
    server = create_server(app, app_state, on_started, on_retiring)
    loop = asyncio.get_running_loop()
    handlers = {signal.SIGTERM: server.stop, signal.SIGINT: server.stop, signal.SIGUSR2: server.retire}
    for signal_number, handler in handlers.items():
        loop.add_signal_handler(signal_number, handler)
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTION_THRESHOLD)
    try:
        await server.serve(sockets=[listening_socket])
    finally:
        for signal_number in handlers:
            loop.remove_signal_handler(signal_number)
