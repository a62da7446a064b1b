"""Calls to an engine host that are not over: their replies, the bytes that may wait, adapters to load
again."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection

from antiphon.engines.host.frames import Done, Failed, Reply
from antiphon.errors import AntiphonError, EngineBusy, Overloaded


class Call:
    """What has come for one call and was not yet read, and what it ends with when the connection does."""

    __slots__ = ("_arrived", "_replies", "started")

    def __init__(self) -> None:
        self.started = False
        self._replies: deque[Reply | AntiphonError] = deque()
        self._arrived: asyncio.Future[None] | None = None

    def push(self, reply: Reply | AntiphonError) -> None:
        """One more reply, or what ends the call."""
        self._replies.append(reply)
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def next(self) -> Reply:
        """The next reply in order. Raises the error that ended the call."""
        while not self._replies:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        reply = self._replies.popleft()
        try:
            if isinstance(reply, AntiphonError):
                raise reply
            if isinstance(reply, Failed):
                raise reply.value.to_exception()
            return reply
        finally:
            del reply  # an error that its own traceback leads to keeps the whole request


class Restored(Call):
    """Tells a host that came back of an adapter. Nobody waits for the answer, which is only noted."""

    __slots__ = ("_refused", "_taken")

    def __init__(self, refused: Callable[[str], None], taken: Callable[[], None]) -> None:
        super().__init__()
        self._refused = refused
        self._taken = taken

    def push(self, reply: Reply | AntiphonError) -> None:
        """Notes what the host says; a connection that ends is made again, and all is told again then."""
        match reply:
            case Failed():
                self._refused(reply.value.message)
            case Done():
                self._taken()
            case _:
                pass


MAX_UNSENT = 32 * 1024 * 1024
"""Bytes that may wait before new calls are refused; one caller takes half of it at most."""

RETRY_AFTER = 1.0
"""Seconds after which a refused caller may try again: the host reads as long as it lives."""


def require_room(name: str, waiting: int, mine: int, size: int) -> None:
    """Raises Overloaded when a caller of whose bytes so many wait would take more than it leaves to others
    with a message of this size, EngineBusy when others leave it no room. What finds nothing waiting is taken,
    whatever its size."""
    if not waiting:
        return
    left = MAX_UNSENT - waiting - size
    if mine and mine + size > left:
        raise Overloaded(
            f"what your requests send to the engine of {name} would take more room than it leaves to others; "
            "wait for some of them to begin, or send less at once",
            retry_after=RETRY_AFTER,
        )
    if left < 0:
        raise EngineBusy(f"too much is waiting for the engine of {name}; try again", retry_after=RETRY_AFTER)


FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
"""Seconds before a host is given them again: a file that is being put back is there soon, and finding out
that it is not costs a look at the disk."""


class PendingReloads:
    """Digests, in no order. Belongs to one event loop."""

    def __init__(self, give: Callable[[str], None], first: float = FIRST_PAUSE) -> None:
        """`give`: gives the host the adapter of a digest again; who hears the answer says so here. `first`:
        seconds before that; each later pause is twice as long."""
        self._give = give
        self._first = first
        self._pause = first
        self._digests: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, digest: str) -> bool:
        return digest in self._digests

    def add(self, digest: str) -> bool:
        """The host refused it; whether that is news."""
        is_new = digest not in self._digests
        self._digests.add(digest)
        if self._timer is None:
            self._wait()
        return is_new

    def discard(self, digest: str) -> bool:
        """The host has it, or need not; whether it lacked it."""
        lacked = digest in self._digests
        self.keep(self._digests - {digest})
        return lacked

    def keep(self, digests: Collection[str]) -> None:
        """None but these are wanted any more."""
        self._digests &= set(digests)
        if not self._digests:
            self.clear()

    def clear(self) -> None:
        """The host is gone; the next one is told of all."""
        self._digests.clear()
        self._pause = self._first
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._again)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _again(self) -> None:
        self._wait()
        for digest in tuple(self._digests):
            self._give(digest)
