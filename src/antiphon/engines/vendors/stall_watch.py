"""Ends answers that stall, and answers that pass their deadline. One timer serves all answers of a
provider."""

import asyncio
from math import inf

from antiphon.engines.vendors.response import UpstreamResponse

TICKS = 4
"""Looks at an answer within one timeout."""

SHORTEST_TICK = 0.02
LONGEST_TICK = 1.0
"""Bounds of the seconds between two looks."""

LAST_BYTES_S = 0.25
"""Seconds that a complete stream gets to end its body, so that its connection can be used again."""


class StallWatch:
    """Watches the answers of one provider while there are any. It forgets an answer when it has ended."""

    def __init__(self, chunk_timeout: float) -> None:
        """`chunk_timeout`: seconds between two parts of a stream."""
        self._tick = min(max(chunk_timeout / TICKS, SHORTEST_TICK), LONGEST_TICK)
        self._answers: set[UpstreamResponse] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next_look = inf
        """When the timer fires."""

    def add(self, answer: UpstreamResponse) -> None:
        """Begins to watch an answer, from the request on."""
        self._answers.add(answer)
        self._look_by(min(asyncio.get_running_loop().time() + self._tick, answer.deadline))

    def finish(self, answer: UpstreamResponse) -> None:
        """Gives a complete stream a moment to end its body, and then closes its connection. Nobody waits for
        it."""
        answer.is_complete = True
        answer.due = asyncio.get_running_loop().time() + LAST_BYTES_S

    def close(self) -> None:
        """Stops the timer, and closes the connections that it watches."""
        for answer in self._answers:
            answer.close()
        self._answers.clear()
        self._stop_timer()

    def _look_by(self, when: float) -> None:
        """Has the answers looked at until `when`, at the latest."""
        if when < self._next_look:
            self._stop_timer()
            self._timer = asyncio.get_running_loop().call_at(when, self._look)
            self._next_look = when

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._next_look = None, inf

    def _look(self) -> None:
        """Ends each answer that is late. Its reader gets a TimeoutError."""
        now = asyncio.get_running_loop().time()
        self._timer, self._next_look = None, inf
        self._answers = {answer for answer in self._answers if not _is_over(answer, now)}
        if self._answers:
            self._look_by(min(now + self._tick, *(answer.deadline for answer in self._answers)))


def _is_over(answer: UpstreamResponse, now: float) -> bool:
    """Ends an answer if it is late. Returns whether it need not be watched any more."""
    if answer.is_closed:
        return True
    if now <= answer.due and now <= answer.deadline:
        return False
    if answer.is_complete:
        answer.close()
    else:
        answer.fail(TimeoutError("the answer stalled"))
    return True
