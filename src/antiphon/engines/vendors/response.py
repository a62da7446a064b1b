"""One HTTP response of a vendor, from the moment when the request is written to the last byte of the body.

Connections, TLS and the parser of answers are aiohttp's. Its client session is not used, because it would
build the shared headers again for each request.
"""

from collections.abc import Mapping
from math import inf

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from antiphon.engines.vendors.pool import VendorProtocol

MAX_BODY = 256 << 20
"""The most bytes of a whole answer."""

UPGRADE = 101
"""The only status below 200 that ends an exchange."""


class UpstreamResponse:
    """An open response. A `StallWatch` ends it if it is late. Times are seconds of the event loop's clock."""

    __slots__ = (
        "_connection",
        "_protocol",
        "content",
        "deadline",
        "headers",
        "is_complete",
        "next_bytes_due",
        "status",
    )

    status: int
    headers: Mapping[str, str]

    def __init__(self, connection: aiohttp.connector.Connection, deadline: float) -> None:
        """`connection` is of a ConnectionPool, and must have no other request."""
        protocol = connection.protocol
        if not isinstance(protocol, VendorProtocol):
            raise TypeError("the connection is of another pool")
        self._connection: aiohttp.connector.Connection | None = connection
        self._protocol = protocol
        self.content: aiohttp.StreamReader | None = None
        """The body; None until the head has arrived."""
        self.next_bytes_due = inf
        """The time by which the next bytes must arrive. The reader sets it before it waits for bytes, and to
        infinity when it stops waiting."""
        self.deadline = deadline
        self.is_complete = False
        """Whether all content has arrived, and only the end of the body is missing."""

    @property
    def is_closed(self) -> bool:
        """Whether the answer has ended, or was closed before its end."""
        return self._connection is None

    @property
    def has_begun(self) -> bool:
        """Whether any byte of the response has arrived, even if the head is not complete."""
        return self._protocol.has_begun

    @property
    def media_type(self) -> str:
        """The type of the body, without parameters."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    async def exchange(self, head: bytes, body: bytes) -> None:
        """Writes the request, and waits for the head of the answer. Raises a ClientError, TimeoutError or
        OSError, and then closes the connection."""
        protocol = self._protocol
        protocol.is_idle = protocol.has_begun = False
        try:
            protocol.set_response_params(read_until_eof=True)
            if protocol.transport is None:
                raise aiohttp.ClientOSError("the connection is closed")
            protocol.transport.write(head + body)
            message, content = await protocol.read()
            while message.code < 200 and message.code != UPGRADE:
                message, content = await protocol.read()
        except HttpProcessingError as error:
            self.close()
            raise aiohttp.ClientPayloadError(f"{error.code}, message={error.message!r}") from error
        except BaseException:
            self.close()
            raise
        self.status, self.headers, self.content = message.code, message.headers, content
        content.on_eof(self._release)

    async def read_part(self) -> bytes:
        """Waits for the next bytes of the body, and returns them. Returns no bytes at its end."""
        return b"" if self.content is None else await self.content.readany()

    async def read(self, max_bytes: int = MAX_BODY) -> bytes:
        """Returns the whole body. Raises ValueError if it has more than `max_bytes`, and a ClientError or
        OSError if the answer breaks or is late."""
        parts: list[bytes] = []
        byte_count = 0
        while part := await self.read_part():
            parts.append(part)
            byte_count += len(part)
            if byte_count > max_bytes:
                raise ValueError("the answer is too large")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def fail(self, error: Exception) -> None:
        """Makes the reader of the answer raise an error."""
        if self.content is None:
            self._protocol.set_exception(error)
        else:
            self.content.set_exception(error)

    def close(self) -> None:
        """Closes the connection at once, unless the response has ended. An orderly close would wait for a
        vendor that has stopped reading the request, or that does not confirm the end of TLS."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self.content is not None and self.content.exception() is None:
            self.content.set_exception(aiohttp.ClientConnectionError("the answer is closed"))
        self._protocol.abort()
        connection.close()

    def _release(self) -> None:
        """Gives the connection back to the pool at the end of the body. Closes it if the vendor answered
        before it had read the whole request."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        transport = connection.transport
        if transport is None or transport.get_write_buffer_size():
            self._protocol.abort()
            connection.close()
        else:
            self._protocol.is_idle = True
            connection.release()
