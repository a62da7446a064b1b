"""The queue of sequences: lines of actors, and before them those that were preempted.

Siblings of one that is here or runs are never refused. It does not say who is admitted; it says in which
order to try.
"""

from collections import Counter, deque
from collections.abc import Iterator

from antiphon.domain.lines import Lines
from antiphon.engines.llama.policy import Policy
from antiphon.engines.llama.sequence import Sequence
from antiphon.errors import AntiphonError


class Waiting(Lines[Sequence]):
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
        """Puts it into its actor's line, behind those whose priority is no higher a number."""
        super().add(one)
        line, priority = self._lines[one.actor], one.request.priority
        line.pop()
        line.insert(sum(other.request.priority <= priority for other in line), one)
        if one.group is not None:
            self._groups[one.group] += 1

    def put_back(self, sequence: Sequence) -> None:
        """Puts one that ran before all others, the older first."""
        self._preempted.append(sequence)
        if len(self._preempted) > 1:
            self._preempted = deque(sorted(self._preempted, key=lambda one: one.arrival))
        self._count += 1

    def remove(self, one: Sequence) -> None:
        """It is admitted, or waits no longer."""
        if one.started:
            self._count -= 1
            self._preempted.remove(one)
        else:
            super().remove(one)

    def admitted(self, sequence: Sequence) -> None:
        """Takes it out; its actor's next turn comes after everybody else's."""
        self.leave(sequence)

    def ended(self, sequence: Sequence, now: float) -> None:
        """It neither waits nor runs any more."""
        if sequence.started:
            self.note_end(now)
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
