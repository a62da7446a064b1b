"""A queue in which actors take turns, with bounds. What waits in it, and when it is let go, is the user's."""

from collections import deque
from typing import Generic, Protocol, TypeVar

from antiphon.errors import AntiphonError, EngineBusy, Overloaded

ENDINGS = 32
"""Ends that say how fast the queue moves."""
SOONEST, LATEST = 1.0, 60.0
"""Seconds after which a refused caller is told to try again."""


class Asked(Protocol):
    """Who waits belongs to an actor."""

    @property
    def actor(self) -> str: ...


class Bounds(Protocol):
    """How many may wait."""

    @property
    def queue(self) -> int:
        """Altogether."""

    @property
    def queue_per_actor(self) -> int:
        """Of one actor."""


Q = TypeVar("Q", bound=Asked)


class Lines(Generic[Q]):
    """A line for each actor."""

    def __init__(self, policy: Bounds, waiting: str = "requests") -> None:
        """`waiting`: what does, as errors call it."""
        self.refused = 0
        """How many were refused so far."""
        self._policy = policy
        self._what = waiting
        self._lines: dict[str, deque[Q]] = {}
        """One for each actor that waits, in the order of their turns."""
        self._count = 0
        self._endings: deque[float] = deque(maxlen=ENDINGS)

    def __len__(self) -> int:
        return self._count

    def everybody(self) -> list[Q]:
        """All that wait, in no order that matters. From any thread."""
        lines = [tuple(line) for line in tuple(self._lines.values())]
        return [one for line in lines for one in line]

    def refusal(self, one: Q, now: float, free: int = 0) -> AntiphonError | None:
        """Why it may not be queued, if so. `free`: places that nobody has; who is about to take one of these
        does not wait."""
        mine, policy = len(self._lines.get(one.actor, ())), self._policy
        if self._count >= policy.queue + free:
            self.refused += 1
            return EngineBusy(
                "The server is currently overloaded, please try again later: no more than "
                f"{policy.queue:,} {self._what} may wait",
                retry_after=self._retry_after(self._count, now),
            )
        if mine >= policy.queue_per_actor + free:
            self.refused += 1
            return Overloaded(
                f"no more than {policy.queue_per_actor:,} {self._what} of yours may wait; wait for some of "
                "them to end",
                retry_after=self._retry_after(mine * len(self._lines), now),
            )
        return None

    def add(self, one: Q) -> None:
        """Puts it at the end of its actor's line."""
        self._lines.setdefault(one.actor, deque()).append(one)
        self._count += 1

    def remove(self, one: Q) -> None:
        """It waits no longer."""
        self._count -= 1
        line = self._lines[one.actor]
        line.remove(one)
        if not line:
            del self._lines[one.actor]

    def first(self) -> Q | None:
        """Whose turn it is."""
        return next((line[0] for line in self._lines.values()), None)

    def served(self, one: Q) -> None:
        """It had its turn and still waits: everybody else of its actor comes before it, every other actor
        before this one."""
        self._lines[one.actor].remove(one)
        self._lines[one.actor].append(one)
        self._turn(one.actor)

    def leave(self, one: Q) -> None:
        """It had its last turn; its actor's next turn comes after everybody else's."""
        self.remove(one)
        self._turn(one.actor)

    def note_end(self, now: float) -> None:
        """One of those that waited here has ended."""
        self._endings.append(now)

    def _turn(self, actor: str) -> None:
        """Puts the actor's line behind all others."""
        line = self._lines.pop(actor, None)
        if line is not None:
            self._lines[actor] = line

    def _retry_after(self, ahead: int, now: float) -> float:
        """Seconds in which so many end, as fast as the last ones did."""
        if len(self._endings) < 2 or now <= self._endings[0]:
            return SOONEST
        pace = (now - self._endings[0]) / (len(self._endings) - 1)
        return min(LATEST, max(SOONEST, ahead * pace))
