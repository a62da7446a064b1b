"""A connection to a vendor, the answer that it carries, and the watch that ends late answers.

The connection is an `asyncio.Protocol`. An `UpstreamResponse` writes one request to it and reads the answer
with httptools, whose parser adds the parts of a body to a list without a call of Python. A vendor can close
an idle connection at the moment when the next request is written to it. `ConnectionLost` then lets the
provider send the request again; `has_bytes` tells whether any byte of an answer came.
"""

import asyncio
from collections.abc import Callable, Mapping
from copy import copy
from math import inf

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

NO_BODY_ENCODING = "identity"
"""The only encoding of a body that requests accept."""

OK = 200

FINAL = 200
"""The first status that ends an exchange. Below it, only UPGRADE does."""

UPGRADE = 101

MAX_INFORMATIONAL = 16
"""The most answers below 200, such as `100 Continue`, before the answer itself."""

MAX_ANSWER = 8 << 20
"""The most bytes of a whole answer, and of one event of a stream, unless the operator sets another number."""

MAX_EXCHANGE = 256 << 20
"""The most bytes of any answer, with all that HTTP adds to its content."""

MAX_FRAMING = 1 << 16
"""The most bytes of a head, and bytes of an answer after which at least a quarter must be content. Chunks of
one byte, or with endless extensions, cost a hundred times as much as their content."""

MAX_UNREAD = 1 << 18
"""Bytes of an answer that wait for their reader. With more, nothing is read from the network."""

CHECKS_PER_TIMEOUT = 4
"""The number of checks within one timeout."""

MIN_INTERVAL = 0.02
MAX_INTERVAL = 1.0
"""The bounds of the interval between two checks, in seconds."""

LAST_BYTES_S = 0.25
"""Seconds that a complete stream has to end its body. If it does, its connection can be used again."""


class ConnectionLost(ConnectionError):
    """Raised if a connection ended before the answer."""


class AnswerRefused(OSError):
    """Raised if an answer is not HTTP/1, is too large, or is compressed."""


class VendorConnection(asyncio.Protocol):
    """A connection to a vendor. It carries one request at a time."""

    __slots__ = ("idle_since", "is_used", "response", "transport")

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        """None when the connection has ended."""
        self.response: UpstreamResponse | None = None
        """The answer that is awaited or read; None while the connection is idle."""
        self.is_used = False
        """Whether it carried a request before."""
        self.idle_since = 0.0
        """When it became idle, in seconds of the event loop's clock."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's have no common class

    def data_received(self, data: bytes) -> None:
        if self.response is None:
            # The bytes belong to no request, and would be taken for the answer to the next one.
            self.abort()
        else:
            self.response.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.response is not None:
            self.response.lose(exc)

    def abort(self) -> None:
        """Closes the connection at once. An orderly close would wait for a vendor that has stopped reading
        the request, or that does not confirm the end of TLS."""
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.abort()


class UpstreamResponse:
    """An open response. A `StallWatch` ends it if it is late. Times are seconds of the event loop's clock.

    It is the target of its own parser, which calls the methods and attributes whose names begin with `on_`.
    """

    __slots__ = (
        "_byte_count",
        "_connection",
        "_content_count",
        "_error",
        "_give_back",
        "_has_all",
        "_informational_count",
        "_is_paused",
        "_keeps_alive",
        "_max_bytes",
        "_parser",
        "_parts",
        "_raw_headers",
        "_read_count",
        "_waiter",
        "deadline",
        "headers",
        "is_complete",
        "next_bytes_due",
        "on_body",
        "on_header",
        "status",
    )

    def __init__(
        self, connection: VendorConnection, give_back: Callable[[VendorConnection], object], deadline: float
    ) -> None:
        """`connection` has no other request. `give_back` is called with it when the response ends."""
        self.status = 0
        """The status; 0 until the head has arrived."""
        self.headers: Mapping[str, str] = {}
        """The headers by their names in lower case. Of several with the same name, the first."""
        self.next_bytes_due = inf
        """The time by which the next bytes must arrive. The reader sets it before it waits for bytes, and to
        infinity when it stops waiting."""
        self.deadline = deadline
        self.is_complete = False
        """Whether all content has arrived, and only the end of the body is missing."""
        self._connection: VendorConnection | None = connection
        """None when the response has ended."""
        self._give_back = give_back
        self._parts: list[bytes] = []
        """The parts of the body that nobody has read yet."""
        self._raw_headers: dict[bytes, bytes] = {}
        self._error: Exception | None = None
        """What the reader gets after the parts."""
        self._waiter: asyncio.Future[None] | None = None
        self._has_all = self._keeps_alive = self._is_paused = False
        self._informational_count = 0
        self._byte_count = self._read_count = self._content_count = 0
        """Bytes that arrived, those of them that had arrived when the body was last read, and bytes of the
        body that were read."""
        self._max_bytes = MAX_EXCHANGE
        self.on_header: Callable[[bytes, bytes], bytes] = self._raw_headers.setdefault
        self.on_body: Callable[[bytes], None] = self._parts.append
        self._parser = HttpResponseParser(self)
        """It refers back to the response, so it is deleted when the response ends."""
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )

    @property
    def is_closed(self) -> bool:
        """Whether the answer has ended, or was closed before its end."""
        return self._connection is None

    @property
    def has_bytes(self) -> bool:
        """Whether any byte of the response has arrived, even if the head is not complete."""
        return self._byte_count > 0

    @property
    def media_type(self) -> str:
        """The type of the body, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def limit(self, max_bytes: int) -> None:
        """Limits the bytes of the answer, with all that HTTP adds to its content. More bytes are an error of
        the reader."""
        self._max_bytes = min(max_bytes, MAX_EXCHANGE)

    async def exchange(self, head: bytes, body: bytes) -> None:
        """Writes the request, and waits for the head of the answer. Raises an OSError, and then closes the
        connection."""
        try:
            connection = self._connection
            if connection is None or connection.transport is None or connection.transport.is_closing():
                raise ConnectionLost("the connection is closed")
            connection.response, connection.is_used = self, True
            connection.transport.write(head + body)
            while not self.status:
                await self._wait()
            encoding = self.headers.get("content-encoding", NO_BODY_ENCODING)
            if self.status == OK and encoding.lower() not in ("", NO_BODY_ENCODING):
                # A compressed body of an error stays as it is: its status suffices.
                raise AnswerRefused("the answer is compressed, which was not asked for")
        except BaseException:
            self.close()
            raise

    async def read_part(self) -> bytes:
        """Waits for the next bytes of the body, and returns all that have arrived. Returns no bytes at its
        end."""
        parts = self._parts
        while not parts:
            if self._connection is None and self._error is None:
                return b""
            await self._wait()
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._read_count = self._byte_count
        self._content_count += len(data)
        if self._is_paused and self._connection is not None:
            self._is_paused = False
            transport = self._connection.transport
            if transport is not None and not transport.is_closing():
                transport.resume_reading()
        return data

    async def read(self, max_bytes: int = MAX_ANSWER) -> bytes:
        """Returns the whole body. Raises ValueError if it has more than `max_bytes`, and an OSError if the
        answer breaks or is late."""
        parts: list[bytes] = []
        byte_count = 0
        while part := await self.read_part():
            parts.append(part)
            byte_count += len(part)
            if byte_count > max_bytes:
                raise ValueError("the answer is too large")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _wait(self) -> asyncio.Future[None]:
        """Returns what is done when more of the answer has arrived. Raises the answer's error."""
        if self._error is not None:
            # The traceback of what is raised refers to this object. If this object kept it, the cycle would
            # keep the whole request in memory.
            raise copy(self._error)
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def fail(self, error: Exception) -> None:
        """Ends the answer: its reader gets the error. Closes the connection."""
        if self._connection is not None:
            self._parts.clear()
            self._end(error)

    def close(self) -> None:
        """Closes the connection, unless the response has ended."""
        self.fail(ConnectionLost("the answer is closed"))

    def feed(self, data: bytes) -> None:
        """Takes bytes of the answer from the connection."""
        self._byte_count += len(data)
        error: Exception | None = None
        has_surplus = False
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            pass  # the status is an error of its own
        except HttpParserError as failure:
            # The error of a callback refers to this frame, so it stays in no variable and is not kept.
            is_refusal = isinstance(failure.__context__, AnswerRefused)
            error = AnswerRefused(str(failure.__context__) if is_refusal else f"no HTTP/1: {failure}")
            has_surplus = self._has_all
        if self._has_all:
            self._end(None, can_be_reused=self._keeps_alive and not has_surplus)
            return
        if error is None and self._byte_count > MAX_FRAMING:
            if self._byte_count > self._max_bytes:
                error = AnswerRefused("the answer is too large")
            elif self._byte_count > 4 * (self._content_count + sum(map(len, self._parts))):
                error = AnswerRefused("the answer is more framing than content")
        if error is not None:
            self._end(error)
            return
        if self._byte_count - self._read_count > MAX_UNREAD and not self._is_paused:
            connection = self._connection
            if connection is not None and connection.transport is not None:
                self._is_paused = True
                connection.transport.pause_reading()
        if self.status:
            self._wake()

    def lose(self, failure: Exception | None) -> None:
        """Takes the end of the connection. It is the end of the answer if no header tells another, and if the
        connection ended in order."""
        if failure is not None:
            self._end(ConnectionLost(f"the connection is lost: {failure}"))
        elif not self.status:
            self._end(ConnectionLost("the connection was closed before the answer"))
        elif self.headers.keys() & {"content-length", "transfer-encoding"}:
            self._end(ConnectionLost("the connection was closed within the answer"))
        else:
            self._end(None)

    def on_message_begin(self) -> None:
        if self._has_all:
            raise AnswerRefused("bytes follow the answer")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < FINAL and status != UPGRADE:
            self._raw_headers.clear()
            self._informational_count += 1
            if self._informational_count > MAX_INFORMATIONAL:
                raise AnswerRefused(
                    f"more than {MAX_INFORMATIONAL} informational answers came before the answer"
                )
            return
        if self._byte_count > MAX_FRAMING:
            head_size = sum(len(name) + len(value) for name, value in self._raw_headers.items())
            if head_size > MAX_FRAMING:
                raise AnswerRefused("the head of the answer is too large")
        self._keeps_alive = self._parser.should_keep_alive() and status != UPGRADE
        self.status = status
        self.headers = {
            name.lower().decode("latin-1"): value.decode("utf-8", "surrogateescape").strip(" \t")
            for name, value in self._raw_headers.items()
        }

    def on_message_complete(self) -> None:
        self._has_all = self.status > 0

    def _end(self, error: Exception | None, can_be_reused: bool = False) -> None:
        """Ends the response, and gives its connection back. The connection can carry another request unless
        the vendor answered before it had read the whole one."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._error = error
        del self._parser
        connection.response = None
        transport = connection.transport
        if not can_be_reused or transport is None or transport.get_write_buffer_size():
            connection.abort()
        elif self._is_paused:
            transport.resume_reading()
        self._give_back(connection)
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class StallWatch:
    """Checks the open responses of one provider at intervals. It forgets a response that has ended."""

    def __init__(self, chunk_timeout: float) -> None:
        """`chunk_timeout`: seconds between two parts of a stream."""
        self._interval = min(max(chunk_timeout / CHECKS_PER_TIMEOUT, MIN_INTERVAL), MAX_INTERVAL)
        self._responses: set[UpstreamResponse] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next_check = inf
        """When the timer fires."""

    def add(self, response: UpstreamResponse) -> None:
        """Begins to watch a response whose request is about to be sent."""
        self._responses.add(response)
        when = min(asyncio.get_running_loop().time() + self._interval, response.deadline)
        if when < self._next_check:
            self._stop_timer()
            self._schedule_check(when)

    def finish(self, response: UpstreamResponse) -> None:
        """Gives a complete stream LAST_BYTES_S to end its body, and then closes its connection. Does not
        wait."""
        response.is_complete = True
        response.next_bytes_due = asyncio.get_running_loop().time() + LAST_BYTES_S

    def close(self) -> None:
        """Stops the timer, and closes the connections that it watches."""
        for response in self._responses:
            response.close()
        self._responses.clear()
        self._stop_timer()

    def _schedule_check(self, when: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(when, self._check)
        self._next_check = when

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._next_check = None, inf

    def _check(self) -> None:
        """Ends each response that is late."""
        now = asyncio.get_running_loop().time()
        self._timer, self._next_check = None, inf
        self._responses = {response for response in self._responses if not _end_if_late(response, now)}
        if self._responses:
            self._schedule_check(
                min(now + self._interval, *(response.deadline for response in self._responses))
            )


def _end_if_late(response: UpstreamResponse, now: float) -> bool:
    """Ends a response if it is late: its reader gets a TimeoutError, unless all content has arrived. Returns
    whether the response has ended."""
    if response.is_closed:
        return True
    if now <= response.next_bytes_due and now <= response.deadline:
        return False
    if response.is_complete:
        response.close()
    else:
        response.fail(TimeoutError("the answer stalled"))
    return True
