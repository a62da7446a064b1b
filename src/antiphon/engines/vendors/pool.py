"""The connections to one vendor: idle ones to use again, and how a new one is opened.

A new connection goes to an address that the resolver has checked. Of several addresses the next is tried
when one fails or takes longer than NEXT_ADDRESS_S (RFC 8305). The first that answers is used. A proxy opens a
tunnel to a vendor that speaks TLS, by CONNECT.
"""

import asyncio
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import zip_longest

from antiphon.domain.values import Struct
from antiphon.engines.vendors.address_guard import GuardedResolver, is_literal
from antiphon.engines.vendors.connection import ConnectionLost, VendorConnection

KEEP_ALIVE_S = 15.0
"""Seconds after which an idle connection is closed here. Vendors' servers close idle connections later."""

NEXT_ADDRESS_S = 0.25
"""Seconds after which the next address is tried beside the ones before it."""

ADDRESSES_S = 30.0
"""Seconds for which the addresses of a name are kept."""

MAX_PROXY_HEAD = 1 << 16
"""The most bytes of a proxy's answer to CONNECT."""

PROXY_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")

Address = tuple[int, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
"""The family of an address, and the address as sockets take it."""


class ConnectFailed(OSError):
    """Raised if no connection could be opened."""


class ProxyRefused(OSError):
    """Raised if a proxy opened no tunnel."""


class Server(Struct, frozen=True):
    """A server to connect to. `tls`: the context of a server that speaks TLS."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


class ConnectionPool:
    """Connections to a vendor, directly or through a proxy. Needs a running event loop."""

    def __init__(
        self,
        vendor: Server,
        resolver: GuardedResolver,
        limit: int,
        connect_timeout: float,
        proxy: Server | None = None,
        tunnel_request: bytes = b"",
    ) -> None:
        """`limit`: the most requests at a time. `connect_timeout`: seconds in which a connection must be
        open. `tunnel_request`: what a proxy is asked for a tunnel to a vendor that speaks TLS."""
        self._loop = asyncio.get_running_loop()
        self._vendor = vendor
        self._server = proxy or vendor
        """Where connections go."""
        self._tunnel_tls = None if proxy is None else vendor.tls
        """The vendor's TLS in a tunnel; None without one."""
        self._tunnel_request = tunnel_request
        self._resolver = resolver
        self._limit = limit
        self._connect_timeout = connect_timeout
        self._used_count = 0
        """Connections that requests have, or open."""
        self._idle: list[VendorConnection] = []
        """The one that was used last is the last. Some may be closed."""
        self._waiting: deque[asyncio.Future[VendorConnection | None]] = deque()
        """Requests that wait for a connection, or for None: they may open one."""
        self._timer: asyncio.TimerHandle | None = None
        self._addresses: deque[Address] = deque()
        self._addresses_end = 0.0
        """Until when the addresses are kept."""
        self._look_up_lock = asyncio.Lock()
        self._is_closed = False

    def take_idle(self) -> VendorConnection | None:
        """Returns an idle connection for a request; None if there is none. Does not wait."""
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                self._used_count += 1
                return connection
        return None

    async def open(self, deadline: float) -> VendorConnection:
        """Opens a connection for a request, or waits until one is free. Raises ConnectFailed, another OSError
        for a fault of a proxy, or TimeoutError at the deadline, by the event loop's clock."""
        if self._used_count < self._limit:
            self._used_count += 1
        else:
            connection = await self._wait_for_turn(deadline)
            if connection is not None:
                return connection
        try:
            connection = await self._connect(deadline)
            if self._is_closed:
                connection.abort()
                raise ConnectionLost("the client is closed")
        except BaseException:
            self.take_back(None)
            raise
        return connection

    def take_back(self, connection: VendorConnection | None) -> None:
        """Takes back a request's place, with its connection unless that is closed. Both go to the next
        request that waits. If none waits, the connection becomes idle."""
        if connection is not None and self._is_closed:
            connection.abort()
        if connection is not None and connection.transport is None:
            connection = None
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(connection)
                return
        self._used_count -= 1
        if connection is not None:
            connection.idle_since = self._loop.time()
            self._idle.append(connection)
            if self._timer is None:
                self._timer = self._loop.call_later(KEEP_ALIVE_S, self._close_idle)

    async def aclose(self) -> None:
        """Closes the idle connections. Requests that wait for a connection fail."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(ConnectionLost("the client is closed"))
        await asyncio.sleep(0)  # the transports close their sockets

    async def _wait_for_turn(self, deadline: float) -> VendorConnection | None:
        """Waits for a connection, or for None: the request may open one. Raises TimeoutError."""
        turn: asyncio.Future[VendorConnection | None] = self._loop.create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout_at(deadline):
                return await turn
        except BaseException as failure:
            if turn.cancelled():
                with suppress(ValueError):
                    self._waiting.remove(turn)
            elif turn.exception() is None:  # its turn came at the moment when it left
                self.take_back(turn.result())
            if isinstance(failure, TimeoutError):
                raise TimeoutError(f"all {self._limit} connections were in use; raise connections") from None
            raise

    def _close_idle(self) -> None:
        """Closes the connections that have been idle for KEEP_ALIVE_S."""
        begin = self._loop.time() - KEEP_ALIVE_S
        count = sum(connection.idle_since <= begin for connection in self._idle)
        for connection in self._idle[:count]:
            connection.abort()
        del self._idle[:count]
        self._timer = None
        if self._idle:
            self._timer = self._loop.call_at(self._idle[0].idle_since + KEEP_ALIVE_S, self._close_idle)

    async def _connect(self, deadline: float) -> VendorConnection:
        """Opens a connection, through a tunnel if there is one."""
        server, tls = self._server, self._tunnel_tls
        protocol: VendorConnection | ProxyTunnel
        build: Callable[[], VendorConnection | ProxyTunnel]
        build = VendorConnection if tls is None else partial(ProxyTunnel, tls)
        ends_at = min(deadline, self._loop.time() + self._connect_timeout)
        try:
            async with asyncio.timeout_at(ends_at):
                try:
                    addresses = await self._find_addresses()
                    while True:
                        connected, address = await connect_socket(self._loop, addresses)
                        try:
                            transport, protocol = await self._loop.create_connection(
                                build,
                                sock=connected,
                                ssl=server.tls,
                                server_hostname=None if server.tls is None else server.host.rstrip("."),
                            )
                            break
                        except OSError:  # TLS failed, or the connection broke meanwhile
                            addresses.remove(address)
                            if not addresses:
                                raise
                    if isinstance(protocol, ProxyTunnel):
                        return await self._open_tunnel(transport, protocol)
                    return protocol
                except ProxyRefused:
                    raise
                except OSError as failure:
                    raise ConnectFailed(f"cannot connect to {server.host}:{server.port}: {failure}") from None
        except TimeoutError:
            if ends_at >= deadline:
                raise TimeoutError("the time passed before a connection was open") from None
            raise ConnectFailed(
                f"cannot connect to {server.host}:{server.port} in {self._connect_timeout:g} seconds"
            ) from None

    async def _open_tunnel(self, transport: asyncio.Transport, proxy: "ProxyTunnel") -> VendorConnection:
        """Has a proxy open a tunnel to the vendor, and begins TLS in it."""
        connection = VendorConnection()
        try:
            transport.write(self._tunnel_request)
            await proxy.answer
            secured = await self._loop.start_tls(
                transport, connection, proxy.tls, server_hostname=self._vendor.host.rstrip(".")
            )
        except BaseException:
            transport.abort()
            raise
        if secured is None:
            raise ConnectFailed("the tunnel was closed")
        connection.connection_made(secured)
        return connection

    async def _find_addresses(self) -> list[Address]:
        """Returns the checked addresses of the server in the order in which to try them: the families take
        turns, and each call begins with another address. Raises OSError."""
        server, loop = self._server, self._loop
        if is_literal(server.host):  # the provider has checked it
            flags = socket.AI_NUMERICHOST
            found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM, flags=flags)
            return [(family, where) for family, _, _, _, where in found]
        async with self._look_up_lock:
            if loop.time() >= self._addresses_end:
                resolved = await self._resolver.resolve(server.host, server.port, socket.AF_UNSPEC)
                self._addresses = deque(
                    (socket.AF_INET6, (each["host"], each["port"], 0, 0))
                    if ":" in each["host"]
                    else (socket.AF_INET, (each["host"], each["port"]))
                    for each in resolved
                )
                self._addresses_end = loop.time() + ADDRESSES_S
        addresses = list(self._addresses)
        self._addresses.rotate(-1)
        first = [address for address in addresses if address[0] == addresses[0][0]]
        others = [address for address in addresses if address[0] != addresses[0][0]]
        return [each for pair in zip_longest(first, others) for each in pair if each is not None]


async def connect_socket(
    loop: asyncio.AbstractEventLoop, addresses: Sequence[Address]
) -> tuple[socket.socket, Address]:
    """Returns a socket that is connected to one of the addresses, and the address. Raises the OSError of the
    first address if all fail."""
    opened: list[tuple[socket.socket, Address]] = []
    failures: list[OSError] = []

    async def connect(address: Address) -> None:
        family, where = address
        connecting = socket.socket(family, socket.SOCK_STREAM)
        try:
            connecting.setblocking(False)
            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(connecting, where)
        except BaseException as failure:
            connecting.close()
            if not isinstance(failure, OSError):
                raise
            failures.append(failure)
        else:
            opened.append((connecting, address))

    untried = deque(addresses)
    try:
        async with asyncio.TaskGroup() as group:
            attempts: set[asyncio.Task[None]] = set()
            while not opened and (untried or attempts):
                if untried:
                    attempts.add(group.create_task(connect(untried.popleft())))
                _, attempts = await asyncio.wait(
                    attempts,
                    timeout=NEXT_ADDRESS_S if untried else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            for attempt in attempts:
                attempt.cancel()
    except BaseException:
        for connected, _ in opened:
            connected.close()
        raise
    for connected, _ in opened[1:]:
        connected.close()
    if not opened:
        raise failures[0] if failures else OSError("the name has no address")
    return opened[0]


class ProxyTunnel(asyncio.Protocol):
    """The connection to a proxy until the tunnel is open."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        """`tls`: of the vendor at the end of the tunnel."""
        self.tls = tls
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the tunnel is open. Raises ProxyRefused."""
        self._head = b""

    def data_received(self, data: bytes) -> None:
        self._head += data
        end = self._head.find(b"\r\n\r\n") + 4
        if end < 4 and len(self._head) <= MAX_PROXY_HEAD:
            return
        status = PROXY_STATUS.match(self._head)
        if end < 4 or status is None:
            self._fail("gave no answer of HTTP")
        elif status[1] != b"200":
            self._fail(f"answered with the status {status[1].decode()}")
        elif end < len(self._head):
            self._fail("sent bytes into the tunnel")
        elif not self.answer.done():
            self.answer.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("closed the connection")

    def _fail(self, deed: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(ProxyRefused(f"the proxy {deed}"))


@cache
def load_system_certificates() -> ssl.SSLContext:
    """Returns the context of servers whose certificates the system trusts."""
    return build_tls_context(None)


def build_tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Returns a context that checks certificates by those of the system, or of a file. Raises OSError."""
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context
