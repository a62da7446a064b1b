"""The queue of sequences: lines of actors, and before them those that were preempted.

Siblings of one that is here or runs are never refused. It does not say who is admitted; it says in which
order to try.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace

from antiphon.domain.fair_queue import FairQueue
from antiphon.engines.llama.policy import Policy
from antiphon.engines.llama.sequence import Sequence
from antiphon.errors import AntiphonError


class Waiting(FairQueue[Sequence]):
    """Sequences that wait to be admitted, and what is known of how fast that goes."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._preempted: deque[Sequence] = deque()
        self._groups: Counter[str] = Counter()
        """Groups of those that are queued or run."""

    def everybody(self) -> list[Sequence]:
        """All that wait, in no order that matters. From any thread."""
        return [*tuple(self._preempted), *super().everybody()]

    def refusal(self, one: Sequence, now: float, free: int = 0) -> AntiphonError | None:
        """Why it may not be queued, if so."""
        if one.group is not None and self._groups[one.group]:
            return None
        return super().refusal(one, now, free)

    def add(self, one: Sequence) -> None:
        super().add(one)
        if one.group is not None:
            self._groups[one.group] += 1

    def put_back(self, sequence: Sequence) -> None:
        """Puts one that ran before all others, the older first."""
        self._preempted.append(sequence)
        if len(self._preempted) > 1:
            self._preempted = deque(sorted(self._preempted, key=lambda one: one.arrival))
        self._count += 1

    def give_back(self, sequence: Sequence) -> None:
        """Puts one that gave its place to another caller before those of its own that are no more urgent; all
        others' turns come before its caller's next one."""
        line = self._lines.setdefault(sequence.actor, deque())
        line.insert(sum(other.priority < sequence.priority for other in line), sequence)
        self._count += 1
        self._turn(sequence.actor)

    def remove(self, one: Sequence) -> None:
        """It is admitted, or waits no longer."""
        if one.started and one in self._preempted:
            self._count -= 1
            self._preempted.remove(one)
        else:
            super().remove(one)

    def admit(self, sequence: Sequence) -> None:
        """Takes it out; its actor's next turn comes after everybody else's."""
        self.leave(sequence)

    def note_departure(self, sequence: Sequence, now: float) -> None:
        """It neither waits nor runs any more."""
        if sequence.started:
            self.note_end(now)
        if sequence.group is not None:
            self._groups[sequence.group] -= 1
            if not self._groups[sequence.group]:
                del self._groups[sequence.group]

    def in_turn(self, held: Mapping[str, int]) -> Iterator[Sequence]:
        """All in the order in which to try them: those of the caller that has the fewest places first, and of
        equal ones those whose turn it is. `held`: places of each caller that has any. The queue may change
        meanwhile."""
        yield from tuple(self._preempted)
        lines = [tuple(line) for line in self._lines.values()]
        order = [(held.get(line[0].actor, 0), turn, 0) for turn, line in enumerate(lines)]
        heapify(order)
        while order:
            places, turn, at = order[0]
            yield lines[turn][at]
            if at + 1 < len(lines[turn]):
                heapreplace(order, (places + 1, turn, at + 1))
            else:
                heappop(order)

    def actors(self) -> set[str]:
        """Callers of whom any waits."""
        return {*self._lines, *(one.actor for one in self._preempted)}

    def since(self, moment: float) -> bool:
        """Whether the first of any line has waited since then, or since before."""
        return any(line[0].queued <= moment for line in self._lines.values()) or any(
            one.queued <= moment for one in self._preempted
        )

    def firsts(self, is_held: Callable[[Sequence], bool]) -> Iterator[Sequence]:
        """The first of each caller's in the order of their turns, not counting those for which this holds."""
        yield from (one for one in self._preempted if not is_held(one))
        for line in self._lines.values():
            first = next((one for one in line if not is_held(one)), None)
            if first is not None:
                yield first
