"""Places for work that takes long, for which callers take turns: whoever sends much of it keeps nobody else
from theirs. What the work is, is the user's."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from antiphon.domain.context import Clock
from antiphon.domain.lines import Lines

SOONEST, LATEST = 1.0, 60.0
"""Seconds after which a refused caller is told to try again."""

REMEMBERED = 8
"""Of the last pieces of work, how many say how long one takes."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is done at once, and how much may wait for it."""

    at_once: int
    queue: int
    queue_per_actor: int
    usual: float
    """Seconds that one takes, while nothing is known of any."""
    waiting: str
    """What waits, as errors call it."""


class Turn:
    """One that waits."""

    __slots__ = ("actor", "come")

    def __init__(self, actor: str) -> None:
        self.actor = actor
        self.come = asyncio.Event()
        """Set when it has a place."""


class Waiting(Lines[Turn]):
    """A line for each actor."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds, bounds.waiting)
        self._at_once = bounds.at_once
        self._taken: deque[float] = deque([bounds.usual], maxlen=REMEMBERED)

    def note(self, seconds: float) -> None:
        """One took so long."""
        self._taken.append(seconds)

    def _retry_after(self, ahead: int, now: float) -> float:
        """Seconds in which so many are through, if they take as long as the last ones did. How often one
        ended says less: before a burst it is seldom."""
        mean = sum(self._taken) / len(self._taken)
        return min(LATEST, max(SOONEST, ahead * mean / self._at_once))


class Places:
    """A few places, and who waits for one."""

    def __init__(self, bounds: Bounds) -> None:
        self._at_once = bounds.at_once
        self._waiting = Waiting(bounds)
        self._running = 0

    @property
    def idle(self) -> bool:
        """Whether nobody has a place or waits for one."""
        return not self._running

    @asynccontextmanager
    async def taken(self, actor: str, clock: Clock) -> AsyncIterator[None]:
        """A place for an actor, kept while the context lasts. Raises Overloaded or EngineBusy where too many
        wait for one."""
        await self._turn(actor, clock)
        begun = clock.monotonic()
        try:
            yield
        finally:
            self._waiting.note(clock.monotonic() - begun)
            self._pass_on()

    async def _turn(self, actor: str, clock: Clock) -> None:
        if self._running < self._at_once:  # then nobody waits
            self._running += 1
            return
        one = Turn(actor)
        refusal = self._waiting.refusal(one, clock.monotonic())
        try:
            if refusal is not None:
                raise refusal
        finally:
            del refusal  # or its own traceback leads to it, and keeps the request
        self._waiting.add(one)
        try:
            await one.come.wait()
        except asyncio.CancelledError:
            if one.come.is_set():
                self._pass_on()
            else:
                self._waiting.remove(one)
            raise

    def _pass_on(self) -> None:
        """A place is free: for the actor whose turn it is."""
        if (one := self._waiting.first()) is None:
            self._running -= 1
            return
        self._waiting.leave(one)
        one.come.set()


class Shares:
    """Places that each actor has for itself, before work that is done in the order in which it comes: nobody
    has more there than these."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._of: dict[str, Places] = {}

    @asynccontextmanager
    async def taken(self, actor: str, clock: Clock) -> AsyncIterator[None]:
        """As of `Places`."""
        places = self._of.setdefault(actor, Places(self._bounds))
        try:
            async with places.taken(actor, clock):
                yield
        finally:
            if places.idle:
                self._of.pop(actor, None)
