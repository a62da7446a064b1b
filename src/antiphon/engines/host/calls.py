"""What comes back for one call to an engine host."""

import asyncio
from collections import deque
from collections.abc import Callable

from antiphon.engines.host.frames import Done, Failed, Reply
from antiphon.errors import AntiphonError


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
