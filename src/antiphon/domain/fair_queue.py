"""A bounded queue in which actors take turns, so a busy caller keeps nobody else waiting. `FairSemaphore`
lets a few items out of such a queue at once."""

import asyncio
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from antiphon.domain.context import Clock
from antiphon.errors import AntiphonError, EngineBusy, Overloaded

ENDINGS = 32
"""Ends from which the speed of the queue is estimated."""
SOONEST, LATEST = 1.0, 60.0
"""Bounds of the seconds after which a refused caller may try again."""


class Queued(Protocol):
    """An item of an actor, with a priority among the actor's items."""

    @property
    def actor(self) -> str: ...

    @property
    def priority(self) -> int:
        """Lower ones come first."""


class QueueBounds(Protocol):
    """How many items may wait."""

    @property
    def queue(self) -> int:
        """In total."""

    @property
    def queue_per_actor(self) -> int:
        """For one actor."""


Q = TypeVar("Q", bound=Queued)


class FairQueue(Generic[Q]):
    """A queue with a line for each actor."""

    def __init__(self, policy: QueueBounds, waiting: str = "requests", pace: float = 0.0) -> None:
        """`waiting`: the items' name in errors. `pace`: seconds between two ends, while none are known."""
        self.refusal_count = 0
        """Number of refusals so far."""
        self._policy = policy
        self._what = waiting
        self._pace = pace
        self._lines: dict[str, deque[Q]] = {}
        """One line for each waiting actor, in the order of their turns."""
        self._count = 0
        self._endings: deque[float] = deque(maxlen=ENDINGS)

    def __len__(self) -> int:
        return self._count

    def list_waiting(self) -> list[Q]:
        """Returns all waiting items in no order. Any thread may call it."""
        lines = [tuple(line) for line in tuple(self._lines.values())]
        return [item for line in lines for item in line]

    def find_refusal(self, item: Q, now: float, free: int = 0) -> AntiphonError | None:
        """Returns the error if it may not be queued. `free`: free places; an item that takes one at once does
        not wait."""
        mine, policy = len(self._lines.get(item.actor, ())), self._policy
        if self._count >= policy.queue + free:
            self.refusal_count += 1
            return EngineBusy(
                "The server is currently overloaded, please try again later: no more than "
                f"{policy.queue:,} {self._what} may wait",
                retry_after=self._retry_after(self._count, now),
            )
        if mine >= policy.queue_per_actor + free:
            self.refusal_count += 1
            return Overloaded(
                f"no more than {policy.queue_per_actor:,} {self._what} of yours may wait; wait for some of "
                "them to end",
                retry_after=self._retry_after(mine * len(self._lines), now),
            )
        return None

    def add(self, item: Q) -> None:
        """Adds it to its actor's line, behind items with an equal or lower priority number."""
        line = self._lines.setdefault(item.actor, deque())
        line.insert(sum(other.priority <= item.priority for other in line), item)
        self._count += 1

    def remove(self, item: Q) -> None:
        """Removes a waiting item."""
        self._count -= 1
        line = self._lines[item.actor]
        line.remove(item)
        if not line:
            del self._lines[item.actor]

    def turns(self) -> Iterator[Q]:
        """Yields the first item of each actor, in the order of their turns."""
        return (line[0] for line in self._lines.values())

    def requeue(self, item: Q) -> None:
        """Moves an item that still waits after its turn behind its actor's others, and its actor behind all
        others."""
        self._lines[item.actor].remove(item)
        self._lines[item.actor].append(item)
        self._turn(item.actor)

    def take_turn(self, item: Q) -> None:
        """Removes the item whose turn it is, and moves its actor behind all other actors."""
        self.remove(item)
        self._turn(item.actor)

    def note_end(self, now: float) -> None:
        """Notes the end of an item that waited here."""
        self._endings.append(now)

    def note_rest(self) -> None:
        """Notes that nothing waits, so the next end says nothing about the queue's speed."""
        self._endings.clear()

    def _turn(self, actor: str) -> None:
        """Moves the actor's line behind all others."""
        line = self._lines.pop(actor, None)
        if line is not None:
            self._lines[actor] = line

    def _retry_after(self, ahead: int, now: float) -> float:
        """Estimates the seconds until `ahead` items end, from the latest ends."""
        pace = self._pace
        if len(self._endings) > 1 and now > self._endings[0]:
            pace = (now - self._endings[0]) / (len(self._endings) - 1)
        return min(LATEST, max(SOONEST, ahead * pace))


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How many run at once, and how many may wait."""

    at_once: int
    queue: int
    queue_per_actor: int
    waiting: str = "requests"
    """The items' name in errors."""
    usual: float = 0.0
    """Estimated seconds of one item, while none has ended."""
    at_once_per_actor: int = sys.maxsize


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """An item that waits for a place."""

    actor: str
    priority: int
    has_place: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(
        self, queue: "FairQueue[Waiter]", refusal: AntiphonError | None, release: Callable[[], None]
    ) -> None:
        """Waits in the queue for a place. Raises the refusal, if any. `release` gives the place back if the
        task is cancelled when it has just got one."""
        try:
            if refusal is not None:
                raise refusal
        finally:
            del refusal  # otherwise its own traceback refers to it, and keeps the request; callers hold none
        queue.add(self)
        try:
            await self.has_place.wait()
        except asyncio.CancelledError:
            if self.has_place.is_set():
                release()
            else:
                queue.remove(self)
            raise


class FairSemaphore:
    """A few places with a fair queue. It belongs to one event loop."""

    def __init__(self, bounds: QueueLimits) -> None:
        self._bounds = bounds
        self._queue: FairQueue[Waiter] = FairQueue(bounds, bounds.waiting, bounds.usual / bounds.at_once)
        self._running: Counter[str] = Counter()

    @asynccontextmanager
    async def hold(self, actor: str, clock: Clock) -> AsyncIterator[None]:
        """A place for an actor, while the context lasts. Raises Overloaded or EngineBusy where too many
        wait."""
        await self.acquire(actor, clock)
        try:
            yield
        finally:
            self.release(actor, clock)

    async def acquire(self, actor: str, clock: Clock, priority: int = 0) -> None:
        """Takes a place, now or at this actor's turn. Raises as `hold` does."""
        if self.has_room(actor):
            self._running[actor] += 1
            return
        waiter = Waiter(actor, priority)
        await waiter.wait(
            self._queue,
            self._queue.find_refusal(waiter, clock.monotonic()),
            lambda: self.release(actor, clock),
        )

    def release(self, actor: str, clock: Clock) -> None:
        """Returns a place, to the actor whose turn it is."""
        self._running[actor] -= 1
        if not self._running[actor]:
            del self._running[actor]
        if not len(self._queue):
            self._queue.note_rest()
            return
        self._queue.note_end(clock.monotonic())
        waiter = next((waiter for waiter in self._queue.turns() if self.has_room(waiter.actor)), None)
        if waiter is not None:
            self._queue.take_turn(waiter)
            self._running[waiter.actor] += 1
            waiter.has_place.set()

    def has_room(self, actor: str) -> bool:
        """Whether the actor would get a place without waiting."""
        bounds = self._bounds
        return self._running.total() < bounds.at_once and self._running[actor] < bounds.at_once_per_actor
