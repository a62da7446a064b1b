"""Which sequences run next: admission, sharing of prefills, chunks of prompts, and which rows one decode
computes.

It decides and does no I/O: the decode loop asks for a plan, carries it out, and tells what came of it. All of
it runs on the decode thread. `queue` is the queue; `kv` has the layouts of the KV cache.

A prompt is computed in chunks without logits; its last token gives the first draw.
  - pool, and streams that are not exact: a step's decode rows and chunks are as many as its time allows.
  - exact: what a sequence's rows are computed with must not depend on who else runs. Chunks lie at multiples
    of `chunk` from the prompt's start, each in a call of its own, all but the prompt's last token; that one
    is a decode row like any drawn token, and decode rows are padded to a number of rows that `loading`
    found to compute each row alike.

A sequence that was put back goes on from its tokens: prompt and draws are computed as one prompt, in exact
mode as they were before. `queue.choose_exchange` says when one makes way for another caller.

A call computes for one adapter only, since the library cannot mix them.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.engines.llama.batch import DecodeCall, PromptSpan, StepPlan
from antiphon.engines.llama.kv.layout import CacheChange, CacheLayout, PrefixMatch
from antiphon.engines.llama.kv.pool import PoolLayout
from antiphon.engines.llama.kv.streams import StreamLayout
from antiphon.engines.llama.queue import SequenceQueue, choose_exchange
from antiphon.engines.llama.sequence import SchedulingPolicy, SequencePhase, TokenSequence
from antiphon.errors import AntiphonError

WORTH_WAITING = 32
"""Tokens that a sequence must be spared to wait until another has computed them."""
HEADROOM = 16
"""Cells that each sequence is to have for its next tokens when one more is admitted."""


@dataclass(slots=True)
class SchedulerCounts:
    """What the scheduler did so far."""

    admitted: int = 0
    hits: int = 0
    cached_tokens: int = 0
    preemptions: int = 0


class Scheduler:
    """The queue, the running sequences, and the cells."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.policy = policy
        self.tally = SchedulerCounts()
        self.waiting = SequenceQueue(policy)
        self.layout: CacheLayout
        self._streams: StreamLayout | None = None
        if policy.has_streams:
            self.layout = self._streams = StreamLayout(policy)
        else:
            self.layout = PoolLayout(policy.ids, policy.cells, policy.most_kept)
        self._running: dict[TokenSequence, None] = {}
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

    def list_running(self) -> tuple[TokenSequence, ...]:
        """Those that run. From any thread."""
        return tuple(self._running)

    def add(self, sequence: TokenSequence, now: float = 0.0) -> AntiphonError | None:
        """Queues a sequence, or returns the error that refuses it."""
        refusal = self.waiting.refusal(sequence, now, self.policy.sequences - self.running)
        if refusal is None:
            self._arrivals += 1
            sequence.arrival, sequence.queued_at = self._arrivals, now
            self.waiting.add(sequence)
        return refusal

    def drop(self, sequence: TokenSequence, now: float = 0.0, keep: bool = True) -> None:
        """Ends a sequence at any point; with `keep` its computed tokens may stay for others."""
        if sequence.phase is SequencePhase.OVER:
            return
        self._stop_waiting(sequence)
        if sequence.phase is SequencePhase.QUEUED:
            self.waiting.remove(sequence)
        else:
            del self._running[sequence]
            self.layout.release(sequence, keep and (self.policy.keeps_prefixes or sequence.followers > 0))
            self._crowded = False
        self.waiting.note_departure(sequence, now)
        sequence.end()

    def has_decoding(self) -> bool:
        """Whether any sequence waits only for its next token."""
        return any(one.computed == len(one.tokens) - 1 for one in self._running)

    def count_prefilling(self) -> int:
        """How many sequences have more to compute than their last token, including waiting ones for which
        there is a place."""
        coming = min(len(self.waiting), self.policy.sequences - self.running)
        return coming + sum(one.computed < len(one.tokens) - 1 for one in self._running)

    def take_changes(self) -> list[CacheChange]:
        """Cache changes that were not carried out yet."""
        changes, self.layout.changes = self.layout.changes, []
        return changes

    def plan(self, budget: int, now: float = 0.0) -> StepPlan:
        """Plans the next step, with about so many prompt tokens at most. There are calls whenever any
        sequence is left."""
        self._now = now
        plan = StepPlan()
        self._admit(plan)
        self._exchange_places(plan)
        if not self.policy.keeps_prefixes:
            self.layout.forget_all()
        if self._streams is not None and not self.waiting:
            self._streams.compact()
        self._steps += 1
        plan.calls = self._build_calls(budget)
        plan.changes = self.take_changes()
        return plan

    def make_room(self, rows: int) -> bool:
        """After the library had no room for so many rows: frees some; whether there may be room now."""
        if self.policy.has_streams:
            return False
        cached = self.layout.cached
        if cached:
            self.layout.reserve(self.layout.total - self.layout.used - cached + min(rows, cached))
            return True
        self._crowded = True
        return self._preempt()

    def put_all_back(self) -> None:
        """Queues all running sequences again, to be computed from the beginning, because the cache cannot be
        trusted. The caller clears the cache."""
        for sequence in tuple(self._running):
            self._put_back(sequence, False)
        self.layout.forget_all()
        self.layout.changes.clear()

    # --- admission

    def _admit(self, plan: StepPlan) -> None:
        """Gives free places in turn, except to sequences that another's prompt will spare most of theirs."""
        if not self.waiting or len(self._running) >= self.policy.sequences or self._crowded:
            return
        for sequence in self.waiting.list_in_turn(Counter(one.actor for one in self._running)):
            if self._still_waits(sequence):
                continue
            match = self.layout.match(sequence)
            if self._wait_for_another(sequence, match):
                continue
            if not self._fits(sequence, match):
                return
            self._start(sequence, match, plan)
            if len(self._running) >= self.policy.sequences:
                return

    def _exchange_places(self, plan: StepPlan) -> None:
        """Has a caller that holds more than its share yield one place to a waiting caller that holds less."""
        if not self.waiting or self._crowded:
            return
        found = choose_exchange(self._running.keys(), self.waiting, self.policy, self._now, self._still_waits)
        if found is None:
            return
        taker, giver = found
        if self._wait_for_another(taker, self.layout.match(taker)):
            return
        self._release(giver, True)
        self.waiting.give_back(giver)
        self.tally.preemptions += 1
        match = self.layout.match(taker)
        if self._fits(taker, match):
            self._start(taker, match, plan)

    def _start(self, sequence: TokenSequence, match: PrefixMatch, plan: StepPlan) -> None:
        self.waiting.admit(sequence)
        self.layout.admit(sequence, match)
        self._running[sequence] = None
        sequence.running_since = self._now
        if sequence.started:
            return
        sequence.started = True
        sequence.shared_tokens = match.length
        self.tally.admitted += 1
        self.tally.hits += match.length > 0
        self.tally.cached_tokens += match.length
        plan.admitted.append(sequence)

    def _still_waits(self, sequence: TokenSequence) -> bool:
        other = sequence.waits_for
        if other is None:
            return False
        if other.phase is SequencePhase.PREFILL and other.computed < sequence.waits_until:
            return True
        self._stop_waiting(sequence)
        return False

    def _stop_waiting(self, sequence: TokenSequence) -> None:
        if sequence.waits_for is not None:
            sequence.waits_for.followers -= 1
            sequence.waits_for = None

    def _wait_for_another(self, sequence: TokenSequence, match: PrefixMatch) -> bool:
        """Makes a sequence wait for a running one that will have computed clearly more of it than the cache
        has; whether it waits."""
        most = match.length
        for other in self._running:
            if other.key != sequence.key or other.phase is not SequencePhase.PREFILL:
                continue
            reach = self.layout.count_shareable(other, sequence)
            sibling = sequence.group is not None and other.group == sequence.group
            if reach > most and reach - match.length >= (1 if sibling else WORTH_WAITING):
                most, sequence.waits_for, sequence.waits_until = reach, other, reach
        if sequence.waits_for is None:
            return False
        sequence.waits_for.followers += 1
        return True

    def _fits(self, sequence: TokenSequence, match: PrefixMatch) -> bool:
        """Whether the rest of its prompt, those of all others, and some headroom fit. A lone sequence always
        fits."""
        if not self._running:
            return True
        rest = sum(len(one.tokens) - one.computed + count_headroom(one) for one in self._running)
        mine = len(sequence.tokens) - match.length + count_headroom(sequence)
        return rest + mine <= self.layout.count_available(match)

    def _preempt(self) -> bool:
        """Puts the youngest back into the queue, unless it is the only one."""
        if len(self._running) < 2:
            return False
        youngest = max(self._running, key=lambda sequence: sequence.arrival)
        self._put_back(youngest, True)
        self.tally.preemptions += 1
        return True

    def _put_back(self, sequence: TokenSequence, keep: bool) -> None:
        self._release(sequence, keep)
        self.waiting.put_back(sequence)

    def _release(self, sequence: TokenSequence, keep: bool) -> None:
        """Takes a running sequence out, for now."""
        del self._running[sequence]
        sequence.furthest = max(sequence.furthest, sequence.computed)
        sequence.queued_at = self._now
        self.layout.release(sequence, keep)

    # --- rows

    def _build_calls(self, budget: int) -> list[DecodeCall]:
        """The calls of this step; preempts when there are no cells for them."""
        while True:
            mine = self._select_turn()
            decoding = [one for one in mine if self._is_row(one) and one.request.max_tokens]
            decoding = [one for one in decoding if not one.is_undecided or one.computed < len(one.tokens) - 1]
            room = self.layout.count_available(PrefixMatch(0)) - len(decoding)
            if (room < 0 or (room == 0 and not decoding and mine)) and self._preempt():
                continue
            spans = (
                list(self._build_spans(mine, min(budget, room))) if len(decoding) < len(mine) and room else []
            )
            self.layout.reserve(len(decoding) + sum(span.stop - span.start for span in spans))
            return self._arrange_calls(decoding, spans)

    def _arrange_calls(self, decoding: list[TokenSequence], spans: list[PromptSpan]) -> list[DecodeCall]:
        """Rows as the layout needs them; scored rows last."""
        adapter = self._adapter
        spans = sorted(spans, key=lambda span: span.scored)
        if self._streams is None:
            if not decoding and not spans:
                return []
            return [DecodeCall(*_build_columns(decoding), spans, adapter)]
        calls = (
            [DecodeCall(*self._build_padded_rows(self._streams, decoding), [], adapter)] if decoding else []
        )
        if self.policy.exact:
            return calls + [DecodeCall(spans=[span], adapter=adapter) for span in spans]
        return [*calls, DecodeCall(spans=spans, adapter=adapter)] if spans else calls

    def _select_turn(self) -> list[TokenSequence]:
        """The running sequences of the adapter whose turn it is."""
        adapters = {sequence.request.adapter: None for sequence in self._running}
        able = {one.request.adapter: None for one in self._running if not one.is_idle} or adapters
        served = self._steps >= self._quantum_ends and self._now >= self._turn_ends
        if self._adapter not in able or (served and len(able) > 1):
            self._served = {adapter: self._served.get(adapter, 0) for adapter in adapters}
            self._adapter = min(able, key=self._served.__getitem__, default=None)
            self._quantum_ends = self._steps + self.policy.quantum
            self._turn_ends = self._now + self.policy.min_turn
        self._served[self._adapter] = self._steps
        if len(adapters) < 2:
            return list(self._running)
        return [one for one in self._running if one.request.adapter == self._adapter]

    def _is_row(self, one: TokenSequence) -> bool:
        """Whether its next token is a row of its own: its last one, and in exact mode those that were rows
        before it was put back, since rows of chunks have other bits."""
        at = one.computed
        if at == len(one.tokens) - 1:
            return True
        return self.policy.exact and one.prompt_length - 1 <= at < one.furthest and at not in one.forced_spans

    def _build_spans(self, mine: list[TokenSequence], budget: int) -> Iterator[PromptSpan]:
        """Parts of prompts up to the budget, at least one. In every other step the sequence that needs least
        comes first, otherwise the one that was admitted first: long prompts come in, and short ones do not
        wait for them."""
        order = [one for one in mine if one.computed < len(one.tokens) - 1 and not self._is_row(one)]
        if self._steps % 2:
            order.sort(key=lambda sequence: len(sequence.tokens) - sequence.computed)
        left, scored = budget, self.policy.scored_rows
        for sequence in order:
            scores, start = sequence.needs_scores, sequence.computed
            for stop in self._find_chunk_ends(sequence, min(left, scored) if scores else left):
                if stop - start > left < budget:
                    return
                yield PromptSpan(sequence, start, stop, scores)
                left -= stop - start
                scored -= (stop - start) * (scores and not self.policy.exact)
                start = stop
            if left <= 0:
                return

    def _find_chunk_ends(self, sequence: TokenSequence, left: int) -> Iterator[int]:
        """Where the chunks of a prompt end. The last token is left to be a decode row in exact mode, and
        where the prompt is scored. In exact mode all that was computed before is computed so again."""
        end = len(sequence.tokens) - (self.policy.exact or sequence.needs_scores)
        at, grid = sequence.computed, self.policy.chunk
        if not self.policy.exact:
            if left > 0:
                yield min(end, at + left)
            return
        if at in sequence.forced_spans:
            yield sequence.forced_spans[at]
            return
        if at < sequence.prompt_length - 1:
            end = sequence.prompt_length - 1
        most = self.policy.scored_rows if sequence.needs_scores else grid
        while at < end:
            at = min(end, (at // grid + 1) * grid, at + most)
            yield at

    @staticmethod
    def _build_padded_rows(
        streams: StreamLayout, decoding: list[TokenSequence]
    ) -> tuple[list[TokenSequence | None], list[int], list[int], list[int]]:
        """Decode rows in the order of streams, without gaps."""
        window = streams.find_window(decoding)
        inside = {sequence.id: sequence for sequence in decoding}
        rows = [inside.get(stream.id) for stream in window]
        return (
            list(rows),
            [stream.id for stream in window],
            [stream.length for stream in window],
            [0 if one is None else one.tokens[one.computed] for one in rows],
        )


def count_headroom(sequence: TokenSequence) -> int:
    """Cells to keep free for its next tokens."""
    return min(HEADROOM, sequence.max_length - len(sequence.tokens))


def _build_columns(
    decoding: list[TokenSequence],
) -> tuple[list[TokenSequence | None], list[int], list[int], list[int]]:
    """Decode rows of a pool."""
    return (
        list(decoding),
        [sequence.id or 0 for sequence in decoding],
        [sequence.computed for sequence in decoding],
        [sequence.tokens[-1] for sequence in decoding],
    )
