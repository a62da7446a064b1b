"""A bounded queue in which actors take turns, so that one busy caller does not delay the others.
`FairSemaphore` uses such a queue for a limited number of places."""

import asyncio
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

from antiphon.domain.context import Clock
from antiphon.domain.values import Struct, field
from antiphon.errors import AntiphonError, EngineBusy, Overloaded

MAX_MEASURED_ENDS = 32
"""The number of latest item ends from which the speed of the queue is estimated."""
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0
"""The shortest and the longest retry delay, in seconds."""


class Queued(Protocol):
    """An item of an actor, with a priority among the actor's items."""

    @property
    def actor(self) -> str: ...

    @property
    def priority(self) -> int:
        """Items with a lower number come first."""


class QueueBounds(Protocol):
    """Limits of a queue."""

    @property
    def queue(self) -> int:
        """The most waiting items in total."""

    @property
    def queue_per_actor(self) -> int:
        """The most waiting items of one actor."""


Q = TypeVar("Q", bound=Queued)


class FairQueue(Generic[Q]):
    """A queue with one line of items for each actor."""

    def __init__(
        self, bounds: QueueBounds, item_name: str = "requests", seconds_per_item: float = 0.0
    ) -> None:
        """`item_name`: the plural name of the items in errors. `seconds_per_item`: the estimated seconds
        between the ends of two items, until ends were measured."""
        self.refusal_count = 0
        """Number of refusals so far."""
        self._bounds = bounds
        self._item_name = item_name
        self._seconds_per_item = seconds_per_item
        self._lines: dict[str, deque[Q]] = {}
        """One line for each waiting actor, in the order of their turns."""
        self._item_count = 0
        self._end_times: deque[float] = deque(maxlen=MAX_MEASURED_ENDS)

    def __len__(self) -> int:
        return self._item_count

    def list_waiting(self) -> list[Q]:
        """Returns all waiting items in no order. Any thread may call it."""
        lines = [tuple(line) for line in tuple(self._lines.values())]
        return [item for line in lines for item in line]

    def find_refusal(self, item: Q, now: float, free_places: int = 0) -> AntiphonError | None:
        """Returns the error of a full queue, which has no room for this item; None if it can be added.
        `free_places`: places that are free now. Items that take them do not wait."""
        own_item_count, bounds = len(self._lines.get(item.actor, ())), self._bounds
        if self._item_count >= bounds.queue + free_places:
            self.refusal_count += 1
            return EngineBusy(
                "The server is currently overloaded, please try again later: no more than "
                f"{bounds.queue:,} {self._item_name} may wait",
                retry_after=self._estimate_wait(self._item_count, now),
            )
        if own_item_count >= bounds.queue_per_actor + free_places:
            self.refusal_count += 1
            return Overloaded(
                f"no more than {bounds.queue_per_actor:,} {self._item_name} of yours may wait; "
                "wait for some of them to end",
                retry_after=self._estimate_wait(own_item_count * len(self._lines), now),
            )
        return None

    def add(self, item: Q) -> None:
        """Adds an item to its actor's line, behind items with an equal or lower priority number."""
        line = self._lines.setdefault(item.actor, deque())
        line.insert(sum(waiting.priority <= item.priority for waiting in line), item)
        self._item_count += 1

    def remove(self, item: Q) -> None:
        """Removes a waiting item."""
        self._item_count -= 1
        line = self._lines[item.actor]
        line.remove(item)
        if not line:
            del self._lines[item.actor]

    def iterate_turns(self) -> Iterator[Q]:
        """Yields the first item of each actor, in the order of their turns."""
        return (line[0] for line in self._lines.values())

    def requeue(self, item: Q) -> None:
        """Moves an item to the end of its actor's line, and the actor's line to the end of all lines."""
        self._lines[item.actor].remove(item)
        self._lines[item.actor].append(item)
        self._move_to_end(item.actor)

    def take_turn(self, item: Q) -> None:
        """Removes the item whose turn it is, and moves its actor's line to the end of all lines."""
        self.remove(item)
        self._move_to_end(item.actor)

    def note_end(self, now: float) -> None:
        """Stores the time at which an item that had waited here ended. `now`: monotonic seconds."""
        self._end_times.append(now)

    def note_empty(self) -> None:
        """Drops the measured ends, because no item waits. They would make the queue look slower than it
        is."""
        self._end_times.clear()

    def _move_to_end(self, actor: str) -> None:
        """Moves the actor's line to the end of all lines."""
        line = self._lines.pop(actor, None)
        if line is not None:
            self._lines[actor] = line

    def _estimate_wait(self, items_ahead: int, now: float) -> float:
        """Estimates the seconds until `items_ahead` items have ended, from the times of the latest ends."""
        seconds_per_item = self._seconds_per_item
        if len(self._end_times) > 1 and now > self._end_times[0]:
            seconds_per_item = (now - self._end_times[0]) / (len(self._end_times) - 1)
        return min(MAX_RETRY_S, max(MIN_RETRY_S, items_ahead * seconds_per_item))


class QueueLimits(Struct, frozen=True):
    """The most items that run at once, and the most that may wait."""

    at_once: int
    """The most items that run at the same time."""
    queue: int
    """The most items that wait."""
    queue_per_actor: int
    item_name: str = "requests"
    """The items' name in errors."""
    seconds_per_item: float = 0.0
    """Estimated seconds of one item, while none has ended."""
    at_once_per_actor: int = sys.maxsize
    """The most items of one actor that run at the same time."""


class Waiter(Struct, frozen=True, eq=False):
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
            del refusal  # otherwise the error's traceback refers to the error, and keeps the request alive
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
    """A limited number of places with a fair queue. It belongs to one event loop."""

    def __init__(self, bounds: QueueLimits) -> None:
        self._bounds = bounds
        self._queue: FairQueue[Waiter] = FairQueue(
            bounds, bounds.item_name, bounds.seconds_per_item / bounds.at_once
        )
        self._running: Counter[str] = Counter()

    @property
    def waiting_count(self) -> int:
        """Number of items that wait."""
        return len(self._queue)

    @asynccontextmanager
    async def hold(self, actor: str, clock: Clock) -> AsyncIterator[None]:
        """Holds a place for an actor while the context lasts. Raises Overloaded or EngineBusy if too many
        items wait."""
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
        """Frees a place, and gives it to the actor whose turn it is."""
        self._running[actor] -= 1
        if not self._running[actor]:
            del self._running[actor]
        if not len(self._queue):
            self._queue.note_empty()
            return
        self._queue.note_end(clock.monotonic())
        waiter = next((waiter for waiter in self._queue.iterate_turns() if self.has_room(waiter.actor)), None)
        if waiter is not None:
            self._queue.take_turn(waiter)
            self._running[waiter.actor] += 1
            waiter.has_place.set()

    def has_room(self, actor: str) -> bool:
        """Whether the actor would get a place without waiting."""
        bounds = self._bounds
        return self._running.total() < bounds.at_once and self._running[actor] < bounds.at_once_per_actor
