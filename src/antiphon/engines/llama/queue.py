"""The queue of sequences: preempted sequences come first, then the callers take turns.

Sequences of a group that already waits or runs are never refused. The queue only gives the order in which the
scheduler tries to admit sequences.

A running sequence has a place in the batch. Turns alone are not fair: a caller that came first with long
answers would occupy all places until one of its sequences ends. So all callers with running or waiting
sequences have equal shares of the places, and of the cells when cells run short. A lone caller has all of
them. `choose_exchange` chooses the sequence that yields its place, and the scheduler carries the exchange
out.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from heapq import heapify, heappop, heapreplace

from antiphon.domain.fair_queue import FairQueue
from antiphon.engines.llama.sequence import SchedulingPolicy, TokenSequence
from antiphon.errors import AntiphonError


class SequenceQueue(FairQueue[TokenSequence]):
    """The sequences that wait to be admitted, and the recent rate of admissions."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        super().__init__(policy)
        self._preempted: deque[TokenSequence] = deque()
        self._groups: Counter[str] = Counter()
        """The number of queued and running sequences of each group."""

    def list_waiting(self) -> list[TokenSequence]:
        """All waiting sequences, in no particular order. Any thread may call it."""
        return [*tuple(self._preempted), *super().list_waiting()]

    def find_refusal(self, sequence: TokenSequence, now: float, free_places: int = 0) -> AntiphonError | None:
        """The error that refuses the sequence, or None if it may be queued."""
        if sequence.group is not None and self._groups[sequence.group]:
            return None
        return super().find_refusal(sequence, now, free_places)

    def add(self, sequence: TokenSequence) -> None:
        super().add(sequence)
        if sequence.group is not None:
            self._groups[sequence.group] += 1

    def requeue_preempted(self, sequence: TokenSequence) -> None:
        """Queues a preempted sequence before all sequences of callers' turns. Of several preempted sequences,
        the oldest comes first."""
        self._preempted.append(sequence)
        if len(self._preempted) > 1:
            self._preempted = deque(sorted(self._preempted, key=lambda preempted: preempted.arrival))
        self._item_count += 1

    def requeue_yielded(self, sequence: TokenSequence) -> None:
        """Queues a sequence that has yielded its place. It comes before its caller's other sequences, except
        those with a lower priority number. All other callers have a turn before this caller."""
        actor_queue = self._lines.setdefault(sequence.actor, deque())
        actor_queue.insert(sum(queued.priority < sequence.priority for queued in actor_queue), sequence)
        self._item_count += 1
        self._move_to_end(sequence.actor)

    def remove(self, sequence: TokenSequence) -> None:
        """Removes a sequence that is admitted or cancelled."""
        if sequence.has_started and sequence in self._preempted:
            self._item_count -= 1
            self._preempted.remove(sequence)
        else:
            super().remove(sequence)

    def admit(self, sequence: TokenSequence) -> None:
        """Removes an admitted sequence. The next turn of its caller comes after those of all other
        callers."""
        self.take_turn(sequence)

    def note_departure(self, sequence: TokenSequence, now: float) -> None:
        """Notes that a sequence has left the queue and the batch."""
        if sequence.has_started:
            self.note_end(now)
        if sequence.group is not None:
            self._groups[sequence.group] -= 1
            if not self._groups[sequence.group]:
                del self._groups[sequence.group]

    def list_in_turn(self, place_counts: Mapping[str, int]) -> Iterator[TokenSequence]:
        """Yields all sequences in the order in which to admit them: those of callers with the fewest places
        first; callers with equally many take turns. `place_counts`: the number of places of each caller. The
        queue may change during the iteration."""
        yield from tuple(self._preempted)
        caller_queues = [tuple(caller_queue) for caller_queue in self._lines.values()]
        order = [
            (place_counts.get(caller_queue[0].actor, 0), turn, 0)
            for turn, caller_queue in enumerate(caller_queues)
        ]
        heapify(order)
        while order:
            places, turn, index = order[0]
            yield caller_queues[turn][index]
            if index + 1 < len(caller_queues[turn]):
                heapreplace(order, (places + 1, turn, index + 1))
            else:
                heappop(order)

    def list_actors(self) -> set[str]:
        """The callers that have a waiting sequence."""
        return {*self._lines, *(sequence.actor for sequence in self._preempted)}

    def has_waited_since(self, time: float) -> bool:
        """Whether the first sequence of any caller, or a preempted sequence, was queued at this time or
        before."""
        return any(caller_queue[0].queued_at <= time for caller_queue in self._lines.values()) or any(
            sequence.queued_at <= time for sequence in self._preempted
        )

    def list_first_in_line(
        self, waits_for_prompt: Callable[[TokenSequence], bool]
    ) -> Iterator[TokenSequence]:
        """The first sequence of each caller, in the order of turns. It skips those for which
        `waits_for_prompt` is true."""
        yield from (sequence for sequence in self._preempted if not waits_for_prompt(sequence))
        for caller_queue in self._lines.values():
            first_sequence = next(
                (sequence for sequence in caller_queue if not waits_for_prompt(sequence)), None
            )
            if first_sequence is not None:
                yield first_sequence


YIELD_DELAY = 0.25
"""Seconds that a caller waits before another caller must yield a place. A place may become free by itself in
that time."""

MIN_RUN_SECONDS = 1.0
"""Seconds that a sequence runs before it may yield."""

MIN_NEW_TOKENS = 16
"""The number of tokens that a sequence computes for the first time before it may yield again. So every
sequence makes progress."""


def choose_exchange(
    running: Collection[TokenSequence],
    waiting: SequenceQueue,
    policy: SchedulingPolicy,
    now: float,
    waits_for_prompt: Callable[[TokenSequence], bool],
) -> tuple[TokenSequence, TokenSequence] | None:
    """Returns a waiting sequence that gets a place, and the running sequence that yields it; None if no place
    is exchanged. The newest sequence of the caller that uses the most yields. Use and shares are counted in
    places if all places are taken, and in cells if not. A caller yields only what exceeds its share.
    `waits_for_prompt`: tells whether a sequence waits for another sequence's prompt, so that it needs no
    place."""
    if not waiting.has_waited_since(now - YIELD_DELAY):
        return None
    callers = len({sequence.actor for sequence in running} | waiting.list_actors())
    if callers < 2:
        return None
    is_full = len(running) >= policy.sequences
    if not is_full and policy.has_streams:
        return None
    share = -(-(policy.sequences if is_full else policy.cells) // callers)
    used_by_actor: Counter[str] = Counter()
    for sequence in running:
        used_by_actor[sequence.actor] += 1 if is_full else len(sequence.tokens)
    givers = [
        sequence
        for sequence in running
        if used_by_actor[sequence.actor] - (1 if is_full else len(sequence.tokens)) >= share
        and _can_yield(sequence, policy, now)
    ]
    if not givers:
        return None
    for taker in waiting.list_first_in_line(waits_for_prompt):
        if used_by_actor[taker.actor] < share and now - taker.queued_at >= YIELD_DELAY:
            return taker, max(givers, key=lambda sequence: (used_by_actor[sequence.actor], sequence.arrival))
    return None


def _can_yield(sequence: TokenSequence, policy: SchedulingPolicy, now: float) -> bool:
    """Whether the sequence has run long enough and made progress. In exact mode, a sequence with a scored
    prompt never yields: its chunks may have been shorter, so its prompt could not be computed again with
    equal bits."""
    if policy.exact and sequence.request.prompt_logprobs is not None:
        return False
    return (
        now - sequence.running_since >= MIN_RUN_SECONDS
        and sequence.computed - sequence.max_computed >= MIN_NEW_TOKENS
    )
