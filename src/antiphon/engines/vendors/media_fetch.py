"""Fetches a file from an `https:` address that a caller sent, for a model of this server.

The address is parsed once, by one expression, and only its parts are used afterwards. Its host must be one
that the operator allows. The name is resolved once, and the connection goes to that address, which is public
unless the operator allows others. No redirect is followed, no header of the caller is sent, and bytes and
time are limited.
"""

import asyncio
import re
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from antiphon.domain.context import Clock
from antiphon.domain.fair_queue import FairSemaphore, QueueLimits
from antiphon.engines.vendors.address_guard import (
    GuardedResolver,
    LookUp,
    is_literal,
    is_public,
    is_unusual_number,
)
from antiphon.engines.vendors.connection import UpstreamResponse
from antiphon.engines.vendors.pool import ConnectionPool, Server, load_system_certificates
from antiphon.errors import InvalidValue

ADDRESS = re.compile(
    r"https://(?P<host>[a-z0-9](?:[a-z0-9.-]{0,252}[a-z0-9])?|\[[0-9a-f:.]{2,45}\])(?::(?P<port>\d{1,5}))?"
    r"(?P<path>/[!\"$-\[\]-~]*)?",
    re.IGNORECASE,
)
"""An address without user, fragment, backslash and trailing dot of the host. What programs read differently
is in no such address."""

PORT = 443

TIMEOUT_S = 10.0
"""Seconds from the first step to the last byte."""

ANY_HOST = "*"
"""The operator's entry for all public hosts at PORT."""

QUEUE_LIMITS = QueueLimits(
    4, 64, queue_per_actor=16, item_name="images to fetch", seconds_per_item=0.5, at_once_per_actor=2
)


class MediaFetcher:
    """Fetches files from allowed hosts. Belongs to one event loop."""

    def __init__(
        self,
        allowed: Sequence[str],
        allows_private: bool = False,
        look_up: LookUp | None = None,
        load_certificates: Callable[[], ssl.SSLContext] = load_system_certificates,
        timeout: float = TIMEOUT_S,
    ) -> None:
        """`allowed`: entries `HOST` or `HOST:PORT`, or ANY_HOST. `allows_private`: whether named hosts can
        have private addresses. `look_up`: resolves names instead of the system."""
        self._allowed = frozenset(allowed)
        self._allows_private = allows_private
        self._load_certificates = load_certificates
        self._timeout = timeout
        self._places = FairSemaphore(QUEUE_LIMITS)
        self._threads = ThreadPoolExecutor(2, "antiphon-dns-media")
        self._public = GuardedResolver(self._threads, False, timeout, look_up=look_up)
        self._named = GuardedResolver(self._threads, allows_private, timeout, look_up=look_up)

    async def fetch(self, url: str, max_bytes: int, field: str, actor: str, clock: Clock) -> bytes:
        """Returns the bytes at an address. `field`: the caller's name of the part. Raises InvalidValue with a
        sentence that says nothing of this server's network."""
        parts = ADDRESS.fullmatch(url)
        if parts is None:
            raise _build_refusal(
                field, "has an address that is not fetched; send https://HOST/PATH without user and fragment"
            )
        host, port = parts["host"].lower(), int(parts["port"] or PORT)
        entry = host if port == PORT else f"{host}:{port}"
        is_named = entry in self._allowed
        if not is_named and not (ANY_HOST in self._allowed and port == PORT):
            raise _build_refusal(
                field, f"is at {entry}, from which this server fetches nothing; send the image as a data: URL"
            )
        allows_private = is_named and self._allows_private
        if is_unusual_number(host) or (is_literal(host) and not allows_private and not is_public(host)):
            raise _build_refusal(field, "cannot be fetched: its host cannot be reached")
        async with self._places.hold(actor, clock):
            try:
                async with asyncio.timeout(self._timeout):
                    resolver = self._named if is_named else self._public
                    return await self._get(host, port, parts["path"] or "/", resolver, max_bytes, field)
            except TimeoutError:
                problem = f"it did not arrive within {self._timeout:g} seconds"
                raise _build_refusal(field, f"cannot be fetched: {problem}") from None

    async def aclose(self) -> None:
        """Ends the threads that resolve names."""
        self._threads.shutdown(wait=False)

    async def _get(
        self, host: str, port: int, path: str, resolver: GuardedResolver, max_bytes: int, field: str
    ) -> bytes:
        """Requests the path from the host. Raises InvalidValue or TimeoutError."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        server = Server(host.strip("[]"), port, self._load_certificates())
        pool = ConnectionPool(server, resolver, 1, self._timeout)
        try:
            try:
                connection = await pool.open(deadline)
            except TimeoutError:
                raise
            except OSError as failure:
                raise _build_refusal(
                    field, "cannot be fetched: its host cannot be reached", str(failure)
                ) from None
            response = UpstreamResponse(connection, pool.take_back, deadline)
            try:
                response.limit(max_bytes + max_bytes // 4)
                lines = (
                    f"GET {path} HTTP/1.1",
                    f"Host: {host}" if port == PORT else f"Host: {host}:{port}",
                    *("User-Agent: antiphon", "Accept: image/*, audio/*", "Accept-Encoding: identity"),
                    "Connection: close",
                )
                await response.exchange("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n", b"")
                if 300 <= response.status < 400:
                    raise _build_refusal(field, "is a redirect; send the address to which it leads")
                if response.status != 200:
                    raise _build_refusal(
                        field, f"cannot be fetched: its host answered with the status {response.status}"
                    )
                return await response.read(max_bytes)
            except ValueError:
                raise _build_refusal(field, f"has more than {max_bytes:,} bytes; send it smaller") from None
            except TimeoutError:
                raise
            except OSError as failure:
                raise _build_refusal(
                    field,
                    "cannot be fetched: the connection broke, or the answer is no HTTP/1.1",
                    str(failure),
                ) from None
            finally:
                response.close()
        finally:
            await pool.aclose()


def _build_refusal(field: str, problem: str, cause: str | None = None) -> InvalidValue:
    """Returns the error for an address that is not fetched."""
    return InvalidValue(f"{field} {problem}", param=field, cause=cause)
