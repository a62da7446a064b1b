"""The event loop's end of what the decode thread works on: events put in by the loop's own callbacks, taken
by whoever reads."""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from antiphon.engines.base import TokenEvent
from antiphon.engines.llama.sequence import Sequence
from antiphon.errors import AntiphonError

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Ended:
    """The decode thread has let go; the error, when it failed."""

    error: AntiphonError | None = None


class Mailbox(Generic[E]):
    """It has one reader. Only the event loop's thread touches it; the decode thread carries it along."""

    __slots__ = ("_events", "_waiting", "began", "ended")

    def __init__(self, began: float) -> None:
        self.began = began
        """When it was asked for, in seconds of the engine's clock."""
        self.ended: Ended | None = None
        self._events: deque[E] = deque()
        self._waiting: asyncio.Future[None] | None = None

    def put(self, event: E | Ended) -> None:
        """Adds an event and wakes the reader."""
        if isinstance(event, Ended):
            self.ended = event
        else:
            self._events.append(event)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def take(self) -> E | None:
        """The next event; None after the last. Raises the error of a failure."""
        while not self._events and self.ended is None:
            await self._news()
        if self._events:
            return self._events.popleft()
        ended, self.ended = self.ended, Ended()  # an error that its own traceback leads to keeps the request
        try:
            if ended is not None and ended.error is not None:
                raise ended.error
        finally:
            del ended
        return None

    async def end(self) -> None:
        """Waits until the decode thread has let go; what else comes is dropped."""
        while self.ended is None:
            await self._news()
        self._events.clear()

    async def _news(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None


class Stream(Mailbox[TokenEvent]):
    """Of one sequence."""

    __slots__ = ("said", "sequence")

    def __init__(self, sequence: Sequence, began: float) -> None:
        super().__init__(began)
        self.sequence = sequence
        self.said = 0.0
        """When its last token was drawn; the decode thread's."""


def deliver(deliveries: Iterable[tuple[Mailbox[E], E | Ended]]) -> None:
    """Puts events where they belong."""
    for mailbox, event in deliveries:
        mailbox.put(event)
