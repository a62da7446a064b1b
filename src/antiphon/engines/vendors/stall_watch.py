"""Ends streams that stall, and streams that pass their deadline. One timer serves all streams of a
provider."""

import asyncio
from math import inf

import aiohttp

TICKS = 4
"""Looks at a stream within one timeout."""

SHORTEST_TICK = 0.02
LONGEST_TICK = 1.0
"""Bounds of the seconds between two looks."""

LAST_BYTES_S = 0.25
"""Seconds that a complete stream gets to end its body, so that its connection can be used again."""


class WatchedStream:
    """Until when one stream must show a sign of life. Times are seconds of the event loop's clock."""

    __slots__ = ("deadline", "due", "is_complete", "response")

    def __init__(self, response: aiohttp.ClientResponse, deadline: float) -> None:
        self.response = response
        self.due = inf
        """The reader sets it before it waits for bytes. While it does not wait, the vendor is not late."""
        self.deadline = deadline
        self.is_complete = False
        """Whether only the end of the body is missing."""

    def look(self, now: float) -> bool:
        """Ends the stream if it is late. Returns whether it must be watched further."""
        if now <= self.due and now <= self.deadline:
            return not (self.is_complete and self.response.closed)
        if self.is_complete:
            self.response.close()
        else:
            self.response.content.set_exception(TimeoutError("the stream stalled"))
        return False


class StallWatch:
    """Watches the streams of one provider while there are any."""

    def __init__(self, chunk_timeout: float) -> None:
        """`chunk_timeout`: seconds between two parts of a stream."""
        self._tick = min(max(chunk_timeout / TICKS, SHORTEST_TICK), LONGEST_TICK)
        self._streams: set[WatchedStream] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next_look = inf
        """When the timer fires."""

    def add(self, stream: WatchedStream) -> None:
        """Begins to watch a stream."""
        self._streams.add(stream)
        self._look_by(min(asyncio.get_running_loop().time() + self._tick, stream.deadline))

    def remove(self, stream: WatchedStream) -> None:
        """Stops watching a stream."""
        self._streams.discard(stream)

    def finish(self, stream: WatchedStream) -> None:
        """Gives a complete stream a moment to end its body, and then closes its connection. Nobody waits for
        it."""
        stream.is_complete = True
        stream.due = asyncio.get_running_loop().time() + LAST_BYTES_S

    def close(self) -> None:
        """Stops the timer, and closes the connections that it watches."""
        for stream in self._streams:
            stream.response.close()
        self._streams.clear()
        self._stop_timer()

    def _look_by(self, when: float) -> None:
        """Has the streams looked at until `when`, at the latest."""
        if when < self._next_look:
            self._stop_timer()
            self._timer = asyncio.get_running_loop().call_at(when, self._look)
            self._next_look = when

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._next_look = None, inf

    def _look(self) -> None:
        """Ends each stream that is late. The reader of an ended stream gets a TimeoutError."""
        now = asyncio.get_running_loop().time()
        self._timer, self._next_look = None, inf
        self._streams = {stream for stream in self._streams if stream.look(now)}
        if self._streams:
            self._look_by(min(now + self._tick, *(stream.deadline for stream in self._streams)))
