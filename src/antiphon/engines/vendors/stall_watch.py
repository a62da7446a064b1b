"""Ends streams that stall, and streams that pass their deadline. One timer serves all streams of a
provider."""

import asyncio

import aiohttp

TICKS = 4
"""Looks at a stream within one timeout."""

SHORTEST_TICK = 0.02
LONGEST_TICK = 1.0
"""Bounds of the seconds between two looks."""


class WatchedStream:
    """The last sign of life of one stream."""

    __slots__ = ("deadline", "moved_at", "response")

    def __init__(self, response: aiohttp.ClientResponse, now: float, deadline: float) -> None:
        self.response = response
        self.moved_at = now
        """Seconds of the event loop's clock. The reader updates it."""
        self.deadline = deadline


class StallWatch:
    """Watches the streams of one provider while there are any."""

    def __init__(self, chunk_timeout: float) -> None:
        """`chunk_timeout`: seconds between two parts of a stream."""
        self._chunk_timeout = chunk_timeout
        self._tick = min(max(chunk_timeout / TICKS, SHORTEST_TICK), LONGEST_TICK)
        self._streams: set[WatchedStream] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: WatchedStream) -> None:
        """Begins to watch a stream."""
        self._streams.add(stream)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick, self._look)

    def remove(self, stream: WatchedStream) -> None:
        """Stops watching a stream."""
        self._streams.discard(stream)

    def close(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Ends each stream that is late. The reader of an ended stream gets a TimeoutError."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for stream in self._streams:
            if now > stream.deadline or now - stream.moved_at > self._chunk_timeout:
                stream.response.content.set_exception(TimeoutError("the stream stalled"))
        self._timer = loop.call_later(self._tick, self._look) if self._streams else None
