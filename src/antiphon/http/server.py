"""Runs the application on a bound socket until a signal stops it, and then drains.

A server that was asked to stop first says that it is not ready, for a delay. Then it drains: it accepts no
new connections, and running requests get a limited time. After this time the server ends them with an error
that the caller sees. A server retires when another process replaces it. A retiring server drains for a longer
time, and also answers requests that arrive on open connections.
"""

import asyncio
import gc
import math
import signal
import socket
import time
from collections.abc import Callable
from email.utils import formatdate

from antiphon.errors import EngineUnavailable
from antiphon.http.application import Application
from antiphon.http.protocol import HttpProtocol, ServerState
from antiphon.http.slow_clients import SlowClientWatch
from antiphon.http.state import AppState

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


class Server:
    """Accepts connections, and drains them at the end. It leaves signals to `serve`."""

    def __init__(
        self,
        app: Application,
        app_state: AppState,
        on_started: Callable[[], None] = lambda: None,
        on_retiring: Callable[[], object] = lambda: None,
    ) -> None:
        """The server calls `on_started` when it accepts connections, and `on_retiring` when another process
        replaces it."""
        settings = app_state.settings
        self.state = ServerState(
            app,
            app_state.get_dialect,
            settings.receive_timeout,
            app_state.clock.unique,
            SlowClientWatch(settings.send_timeout),
        )
        self._app_state = app_state
        self._on_started = on_started
        self._on_retiring = on_retiring
        self._accepting: asyncio.Server | None = None
        self._listening_socket: socket.socket | None = None
        self._is_draining = asyncio.Event()
        self._drain_seconds = settings.drain_timeout
        self._drain_timer: asyncio.TimerHandle | None = None
        """Ends the delay before the drain, and then the drain."""
        self._date_timer: asyncio.TimerHandle | None = None
        self._closing_deadline = math.inf
        """The time of the event loop after which `_drain` cancels the requests that have not ended."""

    async def serve(self, listening_socket: socket.socket) -> None:
        """Serves until `stop` or `retire` is called. Returns when all requests have ended."""
        await self.start(listening_socket)
        await self._is_draining.wait()
        await self._drain()

    async def start(self, listening_socket: socket.socket) -> None:
        """Starts to accept connections, and calls `on_started`."""
        loop, state = asyncio.get_running_loop(), self.state
        self._update_date()
        self._listening_socket = listening_socket
        self._accepting = await loop.create_server(
            lambda: HttpProtocol(state, loop), sock=listening_socket, backlog=BACKLOG
        )
        self._on_started()

    def stop(self) -> None:
        """Starts to drain, after the delay. A server that already retires accepts nothing, so it starts at
        once, and gets the shorter time of a normal stop."""
        delay, was_stopping = self._app_state.settings.drain_delay, self._app_state.in_flight.is_stopping
        self._app_state.in_flight.is_stopping = True
        if delay and not was_stopping and not self._is_draining.is_set():
            self._drain_timer = asyncio.get_running_loop().call_later(delay, self.stop)
            return
        self._drain_seconds = self._app_state.settings.drain_timeout
        self.state.grace_seconds = 0.0
        if self._is_draining.is_set():
            self._close_connections()
        self._is_draining.set()

    def retire(self) -> None:
        """Starts to drain slowly, while another process accepts the new connections."""
        if not self._is_draining.is_set() and not self._app_state.in_flight.is_stopping:
            self._drain_seconds = self._app_state.settings.retire_timeout
            self.state.grace_seconds = GRACE_SECONDS
            self._is_draining.set()
            self._on_retiring()

    def close(self) -> None:
        """Closes the listening socket and drops all connections at once."""
        self._stop_accepting()
        for connection in tuple(self.state.connections):
            connection.transport.abort()

    async def _drain(self) -> None:
        """Closes the listening socket, and each connection after its running request. Cancels what is left at
        the deadline."""
        self._stop_accepting()
        self._close_connections()
        loop, state = asyncio.get_running_loop(), self.state
        while (state.connections or state.tasks) and loop.time() < self._closing_deadline:  # noqa: ASYNC110 - no single event
            await asyncio.sleep(POLL_SECONDS)
        for task in state.tasks:
            task.cancel()
        if self._drain_timer is not None:
            self._drain_timer.cancel()

    def _stop_accepting(self) -> None:
        if self._accepting is not None:
            self._accepting.close()
        if self._listening_socket is not None:
            self._listening_socket.close()
        if self._date_timer is not None:
            self._date_timer.cancel()

    def _close_connections(self) -> None:
        """Closes every connection after its running request, and starts the timer that ends running
        requests."""
        for connection in tuple(self.state.connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()
        error = EngineUnavailable("the server is shutting down; try again", retry_after=RESTART_SECONDS)
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        self._drain_timer = loop.call_later(self._drain_seconds, self._app_state.in_flight.end, error)
        self._closing_deadline = loop.time() + self._drain_seconds + CLOSING_SECONDS

    def _update_date(self) -> None:
        """Sets the header Date of all answers, every second."""
        self.state.date_line = b"date: %b\r\n" % formatdate(time.time(), usegmt=True).encode()
        self._date_timer = asyncio.get_running_loop().call_later(1.0, self._update_date)


async def serve(
    app: Application,
    app_state: AppState,
    listening_socket: socket.socket,
    on_started: Callable[[], None] = lambda: None,
    on_retiring: Callable[[], object] = lambda: None,
) -> None:
    """Serves until SIGTERM or SIGINT arrives, and retires on SIGUSR2. Returns when all requests have
    ended."""
    server = Server(app, app_state, on_started, on_retiring)
    loop = asyncio.get_running_loop()
    handlers = {signal.SIGTERM: server.stop, signal.SIGINT: server.stop, signal.SIGUSR2: server.retire}
    for signal_number, handler in handlers.items():
        loop.add_signal_handler(signal_number, handler)
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTION_THRESHOLD)
    try:
        await server.serve(listening_socket)
    finally:
        for signal_number in handlers:
            loop.remove_signal_handler(signal_number)
