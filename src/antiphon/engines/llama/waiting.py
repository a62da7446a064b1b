"""The queue: actors take turns in it, and it has bounds.

Those that were preempted stand before all others; siblings of one that is here or runs are never refused. It
does not say who is admitted; it says in which order to try.
"""

from collections import Counter, deque
from collections.abc import Iterator

from antiphon.engines.llama.policy import Policy
from antiphon.engines.llama.sequence import Sequence
from antiphon.errors import AntiphonError, EngineBusy, Overloaded

ENDINGS = 32
"""Sequences whose ends say how fast the queue moves."""
SOONEST, LATEST = 1.0, 60.0
"""Seconds after which a refused caller is told to try again."""


class Waiting:
    """Sequences that wait to be admitted, and what is known of how fast that goes."""

    def __init__(self, policy: Policy) -> None:
        self.refused = 0
        """Sequences refused so far."""
        self._policy = policy
        self._preempted: deque[Sequence] = deque()
        self._lines: dict[str, deque[Sequence]] = {}
        """One for each actor that waits, in the order of their turns."""
        self._count = 0
        self._groups: Counter[str] = Counter()
        """Groups of those that are queued or run."""
        self._endings: deque[float] = deque(maxlen=ENDINGS)

    def __len__(self) -> int:
        return self._count

    def everybody(self) -> list[Sequence]:
        """All that wait, in no order that matters. From any thread."""
        lines = [tuple(line) for line in tuple(self._lines.values())]
        return [*tuple(self._preempted), *(sequence for line in lines for sequence in line)]

    def refusal(self, sequence: Sequence, now: float, free: int = 0) -> AntiphonError | None:
        """Why it may not be queued, if so. `free`: places of sequences that nobody runs in; who is about to
        take one of these does not wait."""
        if sequence.group is not None and self._groups[sequence.group]:
            return None
        mine = len(self._lines.get(sequence.actor, ()))
        if self._count >= self._policy.queue + free:
            self.refused += 1
            return EngineBusy(
                f"{self._count} requests wait already, as many as may; try again later",
                retry_after=self._retry_after(self._count, now),
            )
        if mine >= self._policy.queue_per_actor + free:
            self.refused += 1
            return Overloaded(
                f"{mine} requests of yours wait already, as many as may; wait for some of them to end",
                retry_after=self._retry_after(mine * len(self._lines), now),
            )
        return None

    def add(self, sequence: Sequence) -> None:
        """Puts it at the end of its actor's line."""
        self._lines.setdefault(sequence.actor, deque()).append(sequence)
        self._count += 1
        if sequence.group is not None:
            self._groups[sequence.group] += 1

    def put_back(self, sequence: Sequence) -> None:
        """Puts one that ran before all others, the older first."""
        self._preempted.append(sequence)
        if len(self._preempted) > 1:
            self._preempted = deque(sorted(self._preempted, key=lambda one: one.arrival))
        self._count += 1

    def remove(self, sequence: Sequence) -> None:
        """It is admitted, or waits no longer."""
        self._count -= 1
        if sequence.started:
            self._preempted.remove(sequence)
            return
        line = self._lines[sequence.actor]
        line.remove(sequence)
        if not line:
            del self._lines[sequence.actor]

    def admitted(self, sequence: Sequence) -> None:
        """Takes it out; its actor's next turn comes after everybody else's."""
        self.remove(sequence)
        line = self._lines.pop(sequence.actor, None)
        if line is not None:
            self._lines[sequence.actor] = line

    def ended(self, sequence: Sequence, now: float) -> None:
        """It neither waits nor runs any more."""
        if sequence.started:
            self._endings.append(now)
        if sequence.group is not None:
            self._groups[sequence.group] -= 1
            if not self._groups[sequence.group]:
                del self._groups[sequence.group]

    def in_turn(self) -> Iterator[Sequence]:
        """All in the order in which to try them. The queue may change meanwhile."""
        yield from tuple(self._preempted)
        lines = [tuple(line) for line in self._lines.values()]
        for place in range(max(map(len, lines), default=0)):
            yield from (line[place] for line in lines if place < len(line))

    def _retry_after(self, ahead: int, now: float) -> float:
        """Seconds in which so many end, as fast as the last ones did."""
        if len(self._endings) < 2 or now <= self._endings[0]:
            return SOONEST
        pace = (now - self._endings[0]) / (len(self._endings) - 1)
        return min(LATEST, max(SOONEST, ahead * pace))
