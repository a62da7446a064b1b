"""Open calls to an engine host: their replies, the limit of unsent bytes, and the adapters to send again
after a restart."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection

from antiphon.engines.host.frames import DoneReply, ErrorReply, Reply
from antiphon.errors import AntiphonError, EngineBusy, Overloaded

MAX_UNSENT = 32 * 1024 * 1024
"""Unsent bytes above which new calls are refused. One caller's bytes must not exceed the bytes that they
leave free, so a lone caller may use half."""

RETRY_AFTER = 1.0
"""Retry delay in seconds for refused callers. A running host reads its messages in less time."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
"""The shortest and the longest pause in seconds before refused adapters are sent again. A file that is being
replaced is soon complete, and a failed attempt costs one access to the disk."""


class PendingCall:
    """The unread replies of one call."""

    __slots__ = ("_replies", "_reply_arrived", "has_started")

    def __init__(self) -> None:
        self.has_started = False
        """Whether the host has begun the sequence or the vectors of this call."""
        self._replies: deque[Reply | AntiphonError] = deque()
        self._reply_arrived: asyncio.Future[None] | None = None

    def push(self, reply: Reply | AntiphonError) -> None:
        """Adds a reply, or the error that ends the call."""
        self._replies.append(reply)
        if self._reply_arrived is not None and not self._reply_arrived.done():
            self._reply_arrived.set_result(None)

    async def next(self) -> Reply:
        """Waits for the next reply. Raises the error that ended the call."""
        while not self._replies:
            self._reply_arrived = asyncio.get_running_loop().create_future()
            await self._reply_arrived
        reply = self._replies.popleft()
        try:
            if isinstance(reply, AntiphonError):
                raise reply
            if isinstance(reply, ErrorReply):
                raise reply.value.to_exception()
            return reply
        finally:
            del reply  # its traceback refers to this variable, which would keep the request alive


class AdapterReload(PendingCall):
    """A call that sends an adapter to a restarted host again. No caller waits for its reply."""

    __slots__ = ("_on_loaded", "_on_refused")

    def __init__(self, on_refused: Callable[[str], None], on_loaded: Callable[[], None]) -> None:
        super().__init__()
        self._on_refused = on_refused
        self._on_loaded = on_loaded

    def push(self, reply: Reply | AntiphonError) -> None:
        """Passes the host's reply to one of the two callbacks. Ignores a lost connection, because the next
        host gets all adapters."""
        match reply:
            case ErrorReply():
                self._on_refused(reply.value.message)
            case DoneReply():
                self._on_loaded()
            case _:
                pass


def require_send_buffer(name: str, unsent_bytes: int, caller_unsent_bytes: int, message_bytes: int) -> None:
    """Raises Overloaded if the caller has unsent bytes, and they would exceed the bytes that stay free with
    this message. Raises EngineBusy if the unsent bytes of all callers would exceed MAX_UNSENT. If nothing is
    unsent, accepts any message, because a large message must be sent at some time."""
    if not unsent_bytes:
        return
    bytes_left = MAX_UNSENT - unsent_bytes - message_bytes
    if caller_unsent_bytes and caller_unsent_bytes + message_bytes > bytes_left:
        raise Overloaded(
            f"your requests would take more of the send buffer to the engine of {name} than they leave free; "
            "wait for some of them to begin, or send less at once",
            retry_after=RETRY_AFTER,
        )
    if bytes_left < 0:
        raise EngineBusy(
            f"the send buffer to the engine of {name} is full; try again", retry_after=RETRY_AFTER
        )


class PendingReloads:
    """The adapters that a restarted host refused, or that could not be sent to it, and the timer of the next
    attempt. This object knows only digests: `send_adapter` finds the path and sends the call. It belongs to
    one event loop."""

    def __init__(self, send_adapter: Callable[[str], None], first_pause: float = FIRST_PAUSE) -> None:
        """`send_adapter` sends the adapter of a digest to the host again. `first_pause`: seconds before
        adapters are sent again for the first time. Each further pause is twice as long, up to
        LONGEST_PAUSE."""
        self._send_adapter = send_adapter
        self._first_pause = first_pause
        self._pause = first_pause
        self._digests: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, digest: str) -> bool:
        return digest in self._digests

    def add(self, digest: str) -> bool:
        """Notes that this adapter must be sent again. Returns True if it was not pending before."""
        is_new = digest not in self._digests
        self._digests.add(digest)
        if self._timer is None:
            self._schedule()
        return is_new

    def discard(self, digest: str) -> bool:
        """Notes that the host has loaded this adapter or no longer needs it. Returns whether it was
        pending."""
        was_pending = digest in self._digests
        self.drop_except(self._digests - {digest})
        return was_pending

    def drop_except(self, digests: Collection[str]) -> None:
        """Drops the pending adapters that are not among `digests`."""
        self._digests &= set(digests)
        if not self._digests:
            self.clear()

    def clear(self) -> None:
        """Drops all pending adapters and stops the timer. After a lost connection, the client sends all
        adapters to the next host anyway."""
        self._digests.clear()
        self._pause = self._first_pause
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        """Schedules the next attempt after the current pause, and doubles the pause up to LONGEST_PAUSE."""
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._reload_all)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _reload_all(self) -> None:
        """Sends all pending adapters again. Schedules the next attempt first, because sending may drop
        adapters and stop the timer."""
        self._schedule()
        for digest in tuple(self._digests):
            self._send_adapter(digest)
