"""Ends responses that stall, and responses that pass their deadline. One timer serves all responses of a
provider."""

import asyncio
from math import inf

from antiphon.engines.vendors.response import UpstreamResponse

CHECKS_PER_TIMEOUT = 4
"""The number of checks within one timeout."""

MIN_INTERVAL = 0.02
MAX_INTERVAL = 1.0
"""The bounds of the interval between two checks, in seconds."""

LAST_BYTES_S = 0.25
"""Seconds that a complete stream has to end its body. If it does, its connection can be used again."""


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
        self._schedule_check(min(asyncio.get_running_loop().time() + self._interval, response.deadline))

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
        """Sets the timer to `when`, unless the next check is earlier."""
        if when < self._next_check:
            self._stop_timer()
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
