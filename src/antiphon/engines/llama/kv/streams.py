"""A stream of cells for each sequence: a lane is an id with what its stream holds.

Nothing is shared: a prefix is either gone on with in the lane that holds it, or copied, a whole stream at a
time. Exact mode takes over whole chunks of prompts only, which hold the same bits whoever computed them; or
all of a prompt of the same length, whose last chunk was computed alike.

llama.cpp computes rows of neighbouring lanes together and others apart, so gaps between them are padded with
rows that are thrown away, and the running lanes of an adapter are kept together: only they share a call.
"""

import sys
from array import array
from dataclasses import dataclass, field

from antiphon.engines.llama.kv.layout import Change, Copy, Match, Trim
from antiphon.engines.llama.sequence import Key, Policy, Sequence, common

WORTH, WORTH_PART = 8, 128
"""A whole stream is copied for so many tokens, and for this part of its cells: fewer are computed as fast."""

ADAPTED_ROWS = 2
"""Fewest decode rows with an adapter: with F32, F16 or BF16 matrices a lone row is computed otherwise than
one among others. The proof at load knows only the model's own."""


@dataclass(slots=True)
class KVStream:
    """One id: who runs in it, or what is kept in it."""

    id: int
    owner: Sequence | None = None
    key: Key | None = None
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    kept: int = 0
    """Tokens whose cells are kept; 0 while it runs."""
    used: int = 0
    """When it was last released; the higher, the later."""

    @property
    def length(self) -> int:
        """Cells in it."""
        return self.kept if self.owner is None else self.owner.computed


class StreamLayout:
    """`Cells` of several streams."""

    def __init__(self, policy: Policy) -> None:
        self.total = policy.cells * policy.sequences
        self.changes: list[Change] = []
        self.lanes = [KVStream(number) for number in range(policy.sequences)]
        self._policy = policy
        self._worth = max(WORTH, policy.cells // WORTH_PART)
        self._time = 0

    @property
    def used(self) -> int:
        return sum(lane.owner.computed for lane in self.lanes if lane.owner is not None)

    @property
    def cached(self) -> int:
        return sum(lane.kept for lane in self.lanes)

    def match(self, sequence: Sequence) -> Match:
        """The longest; of equal ones that of a lane that nobody runs in, so that it can be gone on with."""
        found = [
            (self._length(lane, sequence), lane.owner is None, -lane.id)
            for lane in self.lanes
            if lane.key == sequence.key
        ]
        length, _, turned = max(found, default=(0, True, 0))
        return Match(length, id=-turned) if length else Match(0)

    def shareable(self, running: Sequence, waiting: Sequence) -> int:
        most = min(len(running.tokens), waiting.takes)
        if self._policy.exact:
            most = min(most, running.prompt, waiting.prompt - 1)
        same = common(running.tokens, waiting.tokens, 0, most)
        length = self._cut(same, running.prompt - 1, waiting)
        return length if length >= self._worth else 0

    def count_available(self, match: Match) -> int:
        return sys.maxsize  # each lane has room for whatever may run in it

    def admit(self, sequence: Sequence, match: Match) -> None:
        source = self.lanes[match.id] if match.id is not None else None
        if source is not None and self._is_spent_on(source, match):
            lane = source
            if source.kept > match.length:
                self.changes.append(Trim(lane.id, match.length))
        else:
            lane = self._empty_lane(sequence, source)
            if source is not None:
                self.changes.append(Copy(source.id, lane.id, match.length))
        lane.owner, lane.key, lane.tokens, lane.kept = sequence, sequence.key, sequence.tokens, 0
        sequence.id, sequence.computed = lane.id, match.length

    def release(self, sequence: Sequence, keep: bool) -> None:
        lane = self.lanes[sequence.seat]
        length = sequence.computed if not self._policy.exact else self._whole(lane)
        self._time += 1
        lane.owner, lane.kept, lane.used = None, length if keep else 0, self._time
        if lane.kept < sequence.computed:
            self.changes.append(Trim(lane.id, lane.kept))
        lane.tokens = sequence.tokens[: lane.kept]
        if not lane.kept:
            lane.key = None
        sequence.id = None

    def reserve(self, count: int) -> bool:
        return True

    def forget(self, adapter: str) -> None:
        for lane in self.lanes:
            if lane.kept and lane.key is not None and lane.key[0] == adapter:
                self._clear(lane)

    def forget_all(self) -> None:
        for lane in self.lanes:
            if lane.kept:
                self._clear(lane)

    # --- where rows lie

    def window(self, decoding: list[Sequence]) -> list[KVStream]:
        """The lanes from the first to the last of these, as many as one of the proved numbers of rows."""
        ids = [sequence.seat for sequence in decoding]
        low, high = min(ids), max(ids)
        least = max(high - low + 1, min(ADAPTED_ROWS, len(self.lanes)) if decoding[0].request.adapter else 1)
        count = next(count for count in self._policy.row_counts if count >= least)
        low = min(low, len(self.lanes) - count)
        return self.lanes[low : low + count]

    def compact(self) -> None:
        """Moves the first or last of an adapter's running lanes nearer to its others, where there is room."""
        groups: dict[str | None, list[KVStream]] = {}
        for lane in self.lanes:
            if lane.owner is not None:
                groups.setdefault(lane.owner.request.adapter, []).append(lane)
        for group in groups.values():
            if group[-1].id - group[0].id >= len(group):
                self._tighten(group)

    def _tighten(self, group: list[KVStream]) -> None:
        free = [lane for lane in self.lanes if lane.owner is None]
        ways = [
            (_span(rest, target), target.id, mover)
            for mover, rest in ((group[-1], group[:-1]), (group[0], group[1:]))
            for target in free
        ]
        span, target, mover = min(ways, key=lambda way: way[:2], default=(len(self.lanes), 0, group[0]))
        if span < _span(group):
            self._move(mover, self.lanes[target])

    def _move(self, source: KVStream, target: KVStream) -> None:
        """Whoever runs in one lane goes on in the other."""
        mover = source.owner
        self._vacate(target)
        if mover is None:
            return
        if mover.computed:
            self.changes += Copy(source.id, target.id, mover.computed), Trim(source.id)
        target.owner, target.key, target.tokens = mover, mover.key, mover.tokens
        source.owner, source.key, mover.id = None, None, target.id

    def _is_spent_on(self, source: KVStream, match: Match) -> bool:
        """Whether a match's lane is gone on with: little is lost, or there is no other."""
        if source.owner is not None:
            return False
        others = any(lane.owner is None and lane is not source for lane in self.lanes)
        return source.kept <= 2 * match.length or not others

    def _empty_lane(self, sequence: Sequence, source: KVStream | None) -> KVStream:
        """An empty lane as near to the running ones of its adapter as there is; the first one's is as far as
        there is from others, so that there is room for more. What was kept in it moves."""
        free = [lane for lane in self.lanes if lane.owner is None and lane is not source]
        running = [lane for lane in self.lanes if lane.owner is not None]
        mine = [lane for lane in running if lane.key is not None and lane.key[0] == sequence.key[0]]
        if mine:
            lane = min(free, key=lambda lane: (_span(mine, lane), lane.id))
        else:
            lane = max(free, key=lambda lane: (_distance(lane, running), -lane.id))
        self._vacate(lane, source)
        return lane

    def _vacate(self, lane: KVStream, source: KVStream | None = None) -> None:
        """Empties a lane: what is kept in it takes the place of what was used longest ago."""
        if not lane.kept:
            return
        idle = [other for other in self.lanes if other.owner is None and other is not source]
        place = min(idle, key=lambda other: (other.kept > 0, other.used))
        if place is not lane:
            if place.kept:
                self._clear(place)
            self.changes.append(Copy(lane.id, place.id, lane.kept))
            place.key, place.tokens = lane.key, lane.tokens
            place.kept, place.used = lane.kept, lane.used
        self._clear(lane)

    def _clear(self, lane: KVStream) -> None:
        self.changes.append(Trim(lane.id))
        lane.key, lane.kept = None, 0

    # --- what may be taken over

    def _length(self, lane: KVStream, sequence: Sequence) -> int:
        """How much of a lane's content the sequence takes over: none that is not worth its copy."""
        most = min(lane.length, sequence.takes)
        if self._policy.exact:
            most = min(most, sequence.prompt - 1)  # what it drew itself were rows of their own
        length = common(lane.tokens, sequence.tokens, 0, most)
        if self._policy.exact:
            whole = self._whole(lane)
            length = self._cut(min(length, whole), whole, sequence)
        is_copied = lane.owner is not None or lane.kept > 2 * length
        return 0 if is_copied and length < self._worth else length

    def _cut(self, same: int, whole: int, sequence: Sequence) -> int:
        """How many of `same` equal tokens may be taken over; `whole` is where the other's prompt ends."""
        if not self._policy.exact or same == whole == sequence.prompt - 1:
            return same
        return same - same % self._policy.chunk

    def _whole(self, lane: KVStream) -> int:
        """Of a lane's tokens, those that were computed as chunks of a prompt."""
        if not self._policy.exact:
            return lane.length
        if lane.owner is None:
            return lane.kept
        scored = lane.owner.request.prompt_logprobs is not None
        if scored and self._policy.scored_rows < self._policy.chunk:
            return 0  # its chunks were shorter
        return min(lane.length, lane.owner.prompt - 1)


def _span(lanes: list[KVStream], *more: KVStream) -> int:
    """Lanes from the first to the last of these."""
    ids = [lane.id for lane in (*lanes, *more)]
    return max(ids) - min(ids) + 1


def _distance(lane: KVStream, others: list[KVStream]) -> int:
    """To the nearest of the others."""
    return min((abs(lane.id - other.id) for other in others), default=0)
