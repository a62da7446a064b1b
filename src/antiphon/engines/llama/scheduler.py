"""Who runs next: admission, sharing of prefills, chunks of prompts, and which rows one decode computes.

It decides and does no I/O: the decode loop asks for a plan, carries it out, and tells what came of it. All of
it runs on the decode thread.

A prompt is computed in chunks without logits, all but its last token; that one is a decode row like any drawn
token. So every distribution comes from a row of one kind, and siblings need only the prompt's cells.

Two layouts of the KV cache:
  - pool: all sequences share one pool of cells; one call computes decode rows and chunks together.
  - exact: a stream of cells for each sequence. What a sequence's rows are computed with must not depend on
    who else runs: chunks lie at multiples of `chunk` from the prompt's start, each in a call of its own, and
    decode rows are padded to a number of rows that `proof` found to compute each row alike. llama.cpp
    computes rows of neighbouring slots together and others apart, so gaps are padded too, and the occupied
    slots are kept dense.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from antiphon.engines.llama.sequence import Phase, Sequence


@dataclass(frozen=True, slots=True)
class Policy:
    """Sizes that the scheduler keeps to."""

    sequences: int
    chunk: int
    """Most prompt tokens of one sequence in one call; in exact mode also the grid that chunks lie on."""
    budget: int
    """Most prompt tokens that one step computes, all sequences together."""
    exact: bool
    row_counts: tuple[int, ...] = ()
    """Exact mode: the numbers of decode rows that compute every row alike, ascending; the last is
    `sequences`.
    """


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence that one call computes."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def logits(self) -> bool:
        """Whether its last token is the sequence's last, so that a token can be drawn."""
        return self.stop == len(self.sequence.tokens)

    @property
    def prefills(self) -> bool:
        """Whether it computes part of a prompt, and so may take long."""
        return self.stop - self.start > 1 or not self.logits


@dataclass(frozen=True, slots=True)
class Padding:
    """A row that is computed and thrown away, at the next position of a slot."""

    slot: int
    position: int


@dataclass(frozen=True, slots=True)
class Call:
    """One call of decode. Rows come in the order of spans; padding and decode rows in the order of slots."""

    rows: tuple[Span | Padding, ...]

    def sequences(self) -> frozenset[Sequence]:
        """Sequences that have a row in it."""
        return frozenset(row.sequence for row in self.rows if isinstance(row, Span))

    def prefills(self) -> bool:
        """Whether it computes part of a prompt."""
        return any(isinstance(row, Span) and row.prefills for row in self.rows)

    def abortable(self) -> frozenset[Sequence]:
        """Sequences whose leaving is worth an abort: those whose prompt it computes, or the only one."""
        everybody = self.sequences()
        if len(everybody) == 1:
            return everybody
        return frozenset(row.sequence for row in self.rows if isinstance(row, Span) and row.prefills)


@dataclass(frozen=True, slots=True)
class Copy:
    """The first `length` positions of one slot are to be those of another, which is empty."""

    source: int
    target: int
    length: int
    moves: bool = False
    """Whether the source is to be emptied afterwards."""


@dataclass(slots=True)
class Plan:
    """What to do in one step, in this order."""

    copies: list[Copy] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


class Scheduler:
    """The queue and the slots."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.queue: deque[Sequence] = deque()
        self.slots: list[Sequence | None] = [None] * policy.sequences
        self._running: dict[Sequence, None] = {}
        """In order of admission."""

    @property
    def running(self) -> int:
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        """Puts it at the end of the queue."""
        self.queue.append(sequence)

    def drop(self, sequence: Sequence) -> int | None:
        """Ends a sequence wherever it stands; the slot whose cells are to be freed, if it had one."""
        if sequence.phase is Phase.OVER:
            return None
        if sequence.phase is Phase.QUEUED:
            self.queue.remove(sequence)
        else:
            del self._running[sequence]
        slot, sequence.slot = sequence.slot, None
        if slot is not None:
            self.slots[slot] = None
        sequence.end()
        return slot

    def decoding(self) -> list[Sequence]:
        """Sequences that wait for nothing but their next token, in order of admission."""
        return [sequence for sequence in self._running if sequence.phase is Phase.DECODE]

    def plan(self, budget: int) -> Plan:
        """What to do next, with about so many prompt tokens at most; calls whenever any sequence is left."""
        plan = Plan()
        self._admit(plan)
        decoding = self.decoding()
        chunks = list(self._chunks(budget))
        if not self.policy.exact:
            rows = [_decode_row(sequence) for sequence in decoding] + chunks
            plan.calls = [Call(tuple(rows))] if rows else []
            return plan
        if not self.queue:
            plan.copies += self._compact()
        if decoding:
            plan.calls.append(Call(self._padded(decoding)))
        plan.calls += [Call((chunk,)) for chunk in chunks]
        return plan

    # --- admission

    def _admit(self, plan: Plan) -> None:
        """Gives free slots to those who wait longest, less siblings whose prompt is being computed."""
        if None not in self.slots:
            return
        for sequence in tuple(self.queue):
            holder = self._holder(sequence)
            if holder is not None and holder.phase is Phase.PREFILL and holder.made == 0:
                continue
            slot = self.slots.index(None)
            if holder is not None and holder.slot is not None:
                shared = len(sequence.prompt) - 1
                sequence.computed = sequence.shared = shared
                plan.copies.append(Copy(holder.slot, slot, shared))
            self.queue.remove(sequence)
            sequence.slot = slot
            self.slots[slot] = sequence
            self._running[sequence] = None
            plan.admitted.append(sequence)
            if None not in self.slots:
                return

    def _holder(self, sequence: Sequence) -> Sequence | None:
        """A running sibling, best one whose prompt is computed."""
        if sequence.group is None or len(sequence.prompt) == 1:
            return None
        siblings = [other for other in self._running if other.group == sequence.group]
        return max(siblings, key=lambda other: other.computed, default=None)

    # --- rows

    def _chunks(self, budget: int) -> Iterator[Span]:
        """Parts of prompts up to the budget, at least one; the first-admitted sequence first."""
        left = budget
        for sequence in self._running:
            if sequence.phase is not Phase.PREFILL:
                continue
            start = sequence.computed
            for stop in self._stops(sequence, left):
                if stop - start > left < budget:
                    return
                yield Span(sequence, start, stop)
                left -= stop - start
                start = stop
            if left <= 0:
                return

    def _stops(self, sequence: Sequence, left: int) -> Iterator[int]:
        """Where the chunks of a prompt end.

        In exact mode the last token is left to be a decode row, so that every distribution comes from a row
        of one kind. So it is while siblings wait, lest the sequence end with its first token and leave them
        nothing.
        """
        end = len(sequence.tokens) - (self.policy.exact or self._is_awaited(sequence))
        at, grid = sequence.computed, self.policy.chunk
        if not self.policy.exact:
            yield min(end, at + left)
            return
        while at < end:
            at = min(end, (at // grid + 1) * grid)
            yield at

    def _is_awaited(self, sequence: Sequence) -> bool:
        """Whether a sibling is queued."""
        return sequence.group is not None and any(other.group == sequence.group for other in self.queue)

    def _padded(self, decoding: list[Sequence]) -> tuple[Span | Padding, ...]:
        """Decode rows in the order of slots, without gaps, as many as one of the proved numbers of rows."""
        rows: dict[int, Span | Padding] = {}
        for sequence in decoding:
            if sequence.slot is not None:
                rows[sequence.slot] = _decode_row(sequence)
        low, high = min(rows), max(rows)
        count = next(count for count in self.policy.row_counts if count > high - low)
        low = min(low, self.policy.sequences - count)
        return tuple(rows.get(slot) or self._padding(slot) for slot in range(low, low + count))

    def _padding(self, slot: int) -> Padding:
        sequence = self.slots[slot]
        return Padding(slot, sequence.computed if sequence else 0)

    def _compact(self) -> list[Copy]:
        """Moves the highest occupied slot into the lowest free one, when that makes the occupied range
        shorter.
        """
        occupied = [slot for slot, sequence in enumerate(self.slots) if sequence]
        if len(occupied) in (0, self.policy.sequences) or occupied[-1] == len(occupied) - 1:
            return []
        source, target = occupied[-1], self.slots.index(None)
        sequence = self.slots[source]
        if sequence is None:
            return []
        self.slots[source], self.slots[target] = None, sequence
        sequence.slot = target
        return [Copy(source, target, sequence.computed, moves=True)] if sequence.computed else []


def _decode_row(sequence: Sequence) -> Span:
    return Span(sequence, sequence.computed, sequence.computed + 1)
