"""Open calls to an engine host: their replies, the limit of unsent bytes, and the adapters to send again."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection

from antiphon.engines.host.frames import DoneReply, ErrorReply, Reply
from antiphon.errors import AntiphonError, EngineBusy, Overloaded


class PendingCall:
    """The unread replies of one call."""

    __slots__ = ("_arrived", "_replies", "has_started")

    def __init__(self) -> None:
        self.has_started = False
        self._replies: deque[Reply | AntiphonError] = deque()
        self._arrived: asyncio.Future[None] | None = None

    def push(self, reply: Reply | AntiphonError) -> None:
        """Adds a reply, or the error that ends the call."""
        self._replies.append(reply)
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def next(self) -> Reply:
        """Waits for the next reply. Raises the error that ended the call."""
        while not self._replies:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
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


MAX_UNSENT = 32 * 1024 * 1024
"""Unsent bytes above which new calls are refused; one caller may use at most half of them."""

RETRY_AFTER = 1.0
"""Retry delay in seconds for refused callers. A running host reads its messages in less time."""


def require_room(name: str, unsent: int, unsent_by_caller: int, size: int) -> None:
    """Raises Overloaded if this message makes one caller's unsent bytes exceed its share. Raises EngineBusy
    if the unsent bytes of all callers leave no room. If nothing is unsent, accepts any size."""
    if not unsent:
        return
    bytes_left = MAX_UNSENT - unsent - size
    if unsent_by_caller and unsent_by_caller + size > bytes_left:
        raise Overloaded(
            f"your requests would fill more than half of the send buffer to the engine of {name}; "
            "wait for some of them to begin, or send less at once",
            retry_after=RETRY_AFTER,
        )
    if bytes_left < 0:
        raise EngineBusy(
            f"the send buffer to the engine of {name} is full; try again", retry_after=RETRY_AFTER
        )


FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
"""Seconds before a refused adapter is sent again. A file that is being replaced is soon complete, and a
failed attempt costs one access to the disk."""


class PendingReloads:
    """Adapters that a host could not load again, and the time of the next attempt. This object sends nothing
    itself and stores no paths. It belongs to one event loop."""

    def __init__(self, send_adapter: Callable[[str], None], first_pause: float = FIRST_PAUSE) -> None:
        """`send_adapter` sends the adapter of a digest to the host again. `first_pause`: seconds before the
        first attempt; each later pause is twice as long."""
        self._send_adapter = send_adapter
        self._first_pause = first_pause
        self._pause = first_pause
        self._digests: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, digest: str) -> bool:
        return digest in self._digests

    def add(self, digest: str) -> bool:
        """Adds a refused adapter. Returns whether the adapter is new here."""
        is_new = digest not in self._digests
        self._digests.add(digest)
        if self._timer is None:
            self._schedule()
        return is_new

    def discard(self, digest: str) -> bool:
        """Removes an adapter that the host has loaded or no longer needs. Returns whether it was pending."""
        was_pending = digest in self._digests
        self.keep(self._digests - {digest})
        return was_pending

    def keep(self, digests: Collection[str]) -> None:
        """Drops all adapters except these."""
        self._digests &= set(digests)
        if not self._digests:
            self.clear()

    def clear(self) -> None:
        """Drops all adapters after the connection is lost, because the next host gets all adapters."""
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
        """Sends all pending adapters again, and schedules the attempt after this one."""
        self._schedule()
        for digest in tuple(self._digests):
            self._send_adapter(digest)
