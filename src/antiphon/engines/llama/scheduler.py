"""Who runs next: admission, sharing of prefills, chunks of prompts, and which rows one decode computes.

It decides and does no I/O: the decode loop asks for a plan, carries it out, and tells what came of it. All of
it runs on the decode thread. `queue` is the queue; `kv` has the layouts of the KV cache.

A prompt is computed in chunks without logits; its last token gives the first draw.
  - pool, and streams that are not exact: a step's decode rows and chunks are as many as its time allows.
  - exact: what a sequence's rows are computed with must not depend on who else runs. Chunks lie at multiples
    of `chunk` from the prompt's start, each in a call of its own, all but the prompt's last token; that one
    is a decode row like any drawn token, and decode rows are padded to a number of rows that `loading`
    found to compute each row alike.

A sequence that was put back goes on from its tokens: prompt and draws are computed as one prompt, in exact
mode as they were before. `queue.exchange` says when one makes way for another caller.

A call computes for one adapter only, since the library cannot mix them.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.engines.llama.batch import Call, Plan, Span
from antiphon.engines.llama.kv.layout import Cells, Change, Match
from antiphon.engines.llama.kv.pool import PoolLayout
from antiphon.engines.llama.kv.streams import StreamLayout
from antiphon.engines.llama.queue import Waiting, exchange
from antiphon.engines.llama.sequence import Phase, Policy, Sequence
from antiphon.errors import AntiphonError

WORTH_WAITING = 32
"""Tokens that a sequence must be spared to wait until another has computed them."""
HEADROOM = 16
"""Cells that each sequence is to have for its next tokens when one more is admitted."""


@dataclass(slots=True)
class Tally:
    """What the scheduler did so far."""

    admitted: int = 0
    hits: int = 0
    cached_tokens: int = 0
    preemptions: int = 0


class Scheduler:
    """The queue, those that run, and the cells."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.tally = Tally()
        self.waiting = Waiting(policy)
        self.cells: Cells
        self._lanes: StreamLayout | None = None
        if policy.streams:
            self.cells = self._lanes = StreamLayout(policy)
        else:
            self.cells = PoolLayout(policy.ids, policy.cells, policy.most_kept)
        self._running: dict[Sequence, None] = {}
        """In order of admission."""
        self._arrivals = 0
        self._crowded = False
        """Whether the library had no room for those that run; nobody is admitted until one of them ends."""
        self._adapter: str | None = None
        self._served: dict[str | None, int] = {}
        """The step in which each adapter that runs was served last."""
        self._steps = self._quantum_ends = 0
        self._now = self._turn_ends = 0.0

    @property
    def running(self) -> int:
        return len(self._running)

    def everybody(self) -> tuple[Sequence, ...]:
        """Those that run. From any thread."""
        return tuple(self._running)

    def add(self, sequence: Sequence, now: float = 0.0) -> AntiphonError | None:
        """Queues it, or says why it may not be."""
        refusal = self.waiting.refusal(sequence, now, self.policy.sequences - self.running)
        if refusal is None:
            self._arrivals += 1
            sequence.arrival, sequence.queued = self._arrivals, now
            self.waiting.add(sequence)
        return refusal

    def drop(self, sequence: Sequence, now: float = 0.0, keep: bool = True) -> None:
        """Ends a sequence wherever it stands; with `keep` what it has computed may stay for others."""
        if sequence.phase is Phase.OVER:
            return
        self._stop_waiting(sequence)
        if sequence.phase is Phase.QUEUED:
            self.waiting.remove(sequence)
        else:
            del self._running[sequence]
            self.cells.release(sequence, keep and (self.policy.keep or sequence.awaited > 0))
            self._crowded = False
        self.waiting.note_departure(sequence, now)
        sequence.end()

    def decoding(self) -> bool:
        """Whether any sequence waits for nothing but its next token."""
        return any(one.computed == len(one.tokens) - 1 for one in self._running)

    def prefilling(self) -> int:
        """How many have more to compute than their last token, those included for whom there is a place."""
        coming = min(len(self.waiting), self.policy.sequences - self.running)
        return coming + sum(one.computed < len(one.tokens) - 1 for one in self._running)

    def take_changes(self) -> list[Change]:
        """Changes of the cache that nobody was told of yet."""
        changes, self.cells.changes = self.cells.changes, []
        return changes

    def plan(self, budget: int, now: float = 0.0) -> Plan:
        """What to do next, with about so many prompt tokens at most; calls whenever any sequence is left."""
        self._now = now
        plan = Plan()
        self._admit(plan)
        self._even_out(plan)
        if not self.policy.keep:
            self.cells.forget_all()
        if self._lanes is not None and not self.waiting:
            self._lanes.compact()
        self._steps += 1
        plan.calls = self._calls(budget)
        plan.changes = self.take_changes()
        return plan

    def make_room(self, rows: int) -> bool:
        """The library had no room for a call of so many rows; whether there may be now."""
        if self.policy.streams:
            return False
        cached = self.cells.cached
        if cached:
            self.cells.reserve(self.cells.total - self.cells.used - cached + min(rows, cached))
            return True
        self._crowded = True
        return self._preempt()

    def put_all_back(self) -> None:
        """Nothing in the cache is to be believed: who runs is computed again from the beginning. Whoever asks
        for it clears the cache."""
        for sequence in tuple(self._running):
            self._put_back(sequence, False)
        self.cells.forget_all()
        self.cells.changes.clear()

    # --- admission

    def _admit(self, plan: Plan) -> None:
        """Gives free places in turn, less to those that another's prompt will spare most of theirs."""
        if not self.waiting or len(self._running) >= self.policy.sequences or self._crowded:
            return
        for sequence in self.waiting.in_turn(Counter(one.actor for one in self._running)):
            if self._still_waits(sequence):
                continue
            match = self.cells.match(sequence)
            if self._waits_for_another(sequence, match):
                continue
            if not self._fits(sequence, match):
                return
            self._start(sequence, match, plan)
            if len(self._running) >= self.policy.sequences:
                return

    def _even_out(self, plan: Plan) -> None:
        """Has a caller that holds more than its share give one place to another that waits with less."""
        if not self.waiting or self._crowded:
            return
        found = exchange(self._running.keys(), self.waiting, self.policy, self._now, self._still_waits)
        if found is None:
            return
        taker, giver = found
        if self._waits_for_another(taker, self.cells.match(taker)):
            return
        self._release(giver, True)
        self.waiting.give_back(giver)
        self.tally.preemptions += 1
        match = self.cells.match(taker)
        if self._fits(taker, match):
            self._start(taker, match, plan)

    def _start(self, sequence: Sequence, match: Match, plan: Plan) -> None:
        self.waiting.admit(sequence)
        self.cells.admit(sequence, match)
        self._running[sequence] = None
        sequence.since = self._now
        if sequence.started:
            return
        sequence.started = True
        sequence.shared = match.length
        self.tally.admitted += 1
        self.tally.hits += match.length > 0
        self.tally.cached_tokens += match.length
        plan.admitted.append(sequence)

    def _still_waits(self, sequence: Sequence) -> bool:
        other = sequence.awaits
        if other is None:
            return False
        if other.phase is Phase.PREFILL and other.computed < sequence.goal:
            return True
        self._stop_waiting(sequence)
        return False

    def _stop_waiting(self, sequence: Sequence) -> None:
        if sequence.awaits is not None:
            sequence.awaits.awaited -= 1
            sequence.awaits = None

    def _waits_for_another(self, sequence: Sequence, match: Match) -> bool:
        """Has it wait for a running sequence that will have computed clearly more of it than there is."""
        most = match.length
        for other in self._running:
            if other.key != sequence.key or other.phase is not Phase.PREFILL:
                continue
            reach = self.cells.shareable(other, sequence)
            sibling = sequence.group is not None and other.group == sequence.group
            if reach > most and reach - match.length >= (1 if sibling else WORTH_WAITING):
                most, sequence.awaits, sequence.goal = reach, other, reach
        if sequence.awaits is None:
            return False
        sequence.awaits.awaited += 1
        return True

    def _fits(self, sequence: Sequence, match: Match) -> bool:
        """Whether the rest of its prompt, those of all others, and some head-room fit. Alone each does."""
        if not self._running:
            return True
        rest = sum(len(one.tokens) - one.computed + headroom(one) for one in self._running)
        mine = len(sequence.tokens) - match.length + headroom(sequence)
        return rest + mine <= self.cells.count_available(match)

    def _preempt(self) -> bool:
        """Puts the youngest back into the queue, unless it is the only one."""
        if len(self._running) < 2:
            return False
        youngest = max(self._running, key=lambda sequence: sequence.arrival)
        self._put_back(youngest, True)
        self.tally.preemptions += 1
        return True

    def _put_back(self, sequence: Sequence, keep: bool) -> None:
        self._release(sequence, keep)
        self.waiting.put_back(sequence)

    def _release(self, sequence: Sequence, keep: bool) -> None:
        """It runs no more, for now."""
        del self._running[sequence]
        sequence.reached = max(sequence.reached, sequence.computed)
        sequence.queued = self._now
        self.cells.release(sequence, keep)

    # --- rows

    def _calls(self, budget: int) -> list[Call]:
        """The calls of this step; preempts when there are no cells for them."""
        while True:
            mine = self._in_turn()
            decoding = [one for one in mine if self._is_row(one) and one.request.max_tokens]
            decoding = [one for one in decoding if not one.held or one.computed < len(one.tokens) - 1]
            room = self.cells.count_available(Match(0)) - len(decoding)
            if (room < 0 or (room == 0 and not decoding and mine)) and self._preempt():
                continue
            spans = list(self._spans(mine, min(budget, room))) if len(decoding) < len(mine) and room else []
            self.cells.reserve(len(decoding) + sum(span.stop - span.start for span in spans))
            return self._laid_out(decoding, spans)

    def _laid_out(self, decoding: list[Sequence], spans: list[Span]) -> list[Call]:
        """Rows as the layout wants them; those of scores last."""
        adapter = self._adapter
        spans = sorted(spans, key=lambda span: span.scored)
        if self._lanes is None:
            if not decoding and not spans:
                return []
            return [Call(*_columns(decoding), spans, adapter)]
        calls = [Call(*self._build_padded_rows(self._lanes, decoding), [], adapter)] if decoding else []
        if self.policy.exact:
            return calls + [Call(spans=[span], adapter=adapter) for span in spans]
        return [*calls, Call(spans=spans, adapter=adapter)] if spans else calls

    def _in_turn(self) -> list[Sequence]:
        """Those that run with the adapter whose turn it is."""
        adapters = {sequence.request.adapter: None for sequence in self._running}
        able = {one.request.adapter: None for one in self._running if not one.idle} or adapters
        served = self._steps >= self._quantum_ends and self._now >= self._turn_ends
        if self._adapter not in able or (served and len(able) > 1):
            self._served = {adapter: self._served.get(adapter, 0) for adapter in adapters}
            self._adapter = min(able, key=self._served.__getitem__, default=None)
            self._quantum_ends = self._steps + self.policy.quantum
            self._turn_ends = self._now + self.policy.turn
        self._served[self._adapter] = self._steps
        if len(adapters) < 2:
            return list(self._running)
        return [one for one in self._running if one.request.adapter == self._adapter]

    def _is_row(self, one: Sequence) -> bool:
        """Whether its next token is a row of its own: its last, and in exact mode those that were rows before
        it was put back, since rows of chunks have other bits."""
        at = one.computed
        if at == len(one.tokens) - 1:
            return True
        return self.policy.exact and one.prompt - 1 <= at < one.reached and at not in one.forced

    def _spans(self, mine: list[Sequence], budget: int) -> Iterator[Span]:
        """Parts of prompts up to the budget, at least one. In every other step the one admitted first comes
        first, else the one that needs least: so long prompts come in, and short ones do not wait for them."""
        order = [one for one in mine if one.computed < len(one.tokens) - 1 and not self._is_row(one)]
        if self._steps % 2:
            order.sort(key=lambda sequence: len(sequence.tokens) - sequence.computed)
        left, scored = budget, self.policy.scored_rows
        for sequence in order:
            scores, start = sequence.scores, sequence.computed
            for stop in self._stops(sequence, min(left, scored) if scores else left):
                if stop - start > left < budget:
                    return
                yield Span(sequence, start, stop, scores)
                left -= stop - start
                scored -= (stop - start) * (scores and not self.policy.exact)
                start = stop
            if left <= 0:
                return

    def _stops(self, sequence: Sequence, left: int) -> Iterator[int]:
        """Where the chunks of a prompt end. The last token is left to be a decode row in exact mode, and
        where the prompt is scored. In exact mode all that was computed before is computed so again."""
        end = len(sequence.tokens) - (self.policy.exact or sequence.scores)
        at, grid = sequence.computed, self.policy.chunk
        if not self.policy.exact:
            if left > 0:
                yield min(end, at + left)
            return
        if at in sequence.forced:
            yield sequence.forced[at]
            return
        if at < sequence.prompt - 1:
            end = sequence.prompt - 1
        most = self.policy.scored_rows if sequence.scores else grid
        while at < end:
            at = min(end, (at // grid + 1) * grid, at + most)
            yield at

    @staticmethod
    def _build_padded_rows(
        lanes: StreamLayout, decoding: list[Sequence]
    ) -> tuple[list[Sequence | None], list[int], list[int], list[int]]:
        """Decode rows in the order of lanes, without gaps."""
        window = lanes.window(decoding)
        inside = {sequence.id: sequence for sequence in decoding}
        rows = [inside.get(lane.id) for lane in window]
        return (
            list(rows),
            [lane.id for lane in window],
            [lane.length for lane in window],
            [0 if one is None else one.tokens[one.computed] for one in rows],
        )


def headroom(sequence: Sequence) -> int:
    """Cells that are to be free for its next tokens."""
    return min(HEADROOM, sequence.limit - len(sequence.tokens))


def _columns(decoding: list[Sequence]) -> tuple[list[Sequence | None], list[int], list[int], list[int]]:
    """Decode rows of a pool."""
    return (
        list(decoding),
        [sequence.id or 0 for sequence in decoding],
        [sequence.computed for sequence in decoding],
        [sequence.tokens[-1] for sequence in decoding],
    )
