"""Places for so many sequences at once, and who gets the next free one: the actor that has waited longest,
and of what waits of that actor the lowest priority, then the first that came."""

import asyncio
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    actor: str
    priority: int
    turn: asyncio.Future[None]


class Slots:
    """Used on one event loop."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: list[_Waiter] = []
        """In the order in which they came."""

    def locked(self) -> bool:
        """Whether who comes now has to wait."""
        return not self._free

    async def acquire(self, actor: str, priority: int) -> None:
        """Takes a place, now or when it is this one's turn."""
        if self._free:
            self._free -= 1
            return
        waiter = _Waiter(actor, priority, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            if not waiter.turn.cancelled():
                self.release()  # its turn had just come
            raise

    def release(self) -> None:
        """Gives a place back."""
        self._waiting = [waiter for waiter in self._waiting if not waiter.turn.done()]  # cancelled just now
        if not self._waiting:
            self._free += 1
            return
        actor = self._waiting[0].actor
        theirs = [waiter for waiter in self._waiting if waiter.actor == actor]
        chosen = min(theirs, key=lambda waiter: waiter.priority)
        self._waiting.remove(chosen)
        chosen.turn.set_result(None)
