"""Ends answers that stall, and answers that pass their deadline. One timer serves all answers of a
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
    """Watches the answers of one provider while there are any. It forgets an answer when it has ended."""

    def __init__(self, chunk_timeout: float) -> None:
        """`chunk_timeout`: seconds between two parts of a stream."""
        self._interval = min(max(chunk_timeout / CHECKS_PER_TIMEOUT, MIN_INTERVAL), MAX_INTERVAL)
        self._answers: set[UpstreamResponse] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next_check = inf
        """When the timer fires."""

    def add(self, answer: UpstreamResponse) -> None:
        """Begins to watch an answer, from the request on."""
        self._answers.add(answer)
        self._check_by(min(asyncio.get_running_loop().time() + self._interval, answer.deadline))

    def finish(self, answer: UpstreamResponse) -> None:
        """Gives a complete stream LAST_BYTES_S to end its body, and then closes its connection. Does not
        wait."""
        answer.is_complete = True
        answer.next_bytes_due = asyncio.get_running_loop().time() + LAST_BYTES_S

    def close(self) -> None:
        """Stops the timer, and closes the connections that it watches."""
        for answer in self._answers:
            answer.close()
        self._answers.clear()
        self._stop_timer()

    def _check_by(self, when: float) -> None:
        """Makes sure that the next check is not later than `when`."""
        if when < self._next_check:
            self._stop_timer()
            self._timer = asyncio.get_running_loop().call_at(when, self._check)
            self._next_check = when

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._next_check = None, inf

    def _check(self) -> None:
        """Ends each answer that is late. Its reader gets a TimeoutError."""
        now = asyncio.get_running_loop().time()
        self._timer, self._next_check = None, inf
        self._answers = {answer for answer in self._answers if not _end_if_late(answer, now)}
        if self._answers:
            self._check_by(min(now + self._interval, *(answer.deadline for answer in self._answers)))


def _end_if_late(answer: UpstreamResponse, now: float) -> bool:
    """Ends an answer if it is late. Returns whether the answer has ended."""
    if answer.is_closed:
        return True
    if now <= answer.next_bytes_due and now <= answer.deadline:
        return False
    if answer.is_complete:
        answer.close()
    else:
        answer.fail(TimeoutError("the answer stalled"))
    return True
