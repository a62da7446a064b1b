"""The scheduler: admission, sharing of prefills, chunks of prompts, and the rows of each decode.

It does no I/O: the decode loop requests a plan, carries it out, and reports the results. All of it runs on
the decode thread. `sequence` has the queue of waiting ones; `kv` contains the layouts of the KV cache.

A prompt is computed in chunks without logits; its last token gives the first draw.

  - without exact mode: a step has one or two calls with the decode rows and the chunks of several sequences.
    The time limit of a step bounds its chunks.
  - exact: how a sequence's rows are batched must not depend on other sequences. Chunks begin at multiples of
    `chunk` from the prompt's start, each in a call of its own, and leave out the prompt's last token. That
    token is a decode row like any drawn token. Decode rows are padded to a number of rows with which, as
    `loading` has found, every row is computed alike.

A preempted sequence continues with the tokens that it has: prompt and drawn tokens are computed again like
one prompt, but in exact mode in the same chunks and rows as before. `queue.choose_exchange` decides when a
sequence yields to another caller.

A sequence that draws a token can have drafts behind it (`drafting`), but not in a step that computes prompts,
because drafts would delay them.

All rows of a call use one adapter, because the library cannot mix adapters.
"""

from collections import Counter
from collections.abc import Iterator

from antiphon.domain.values import Struct
from antiphon.engines.llama.batch import DecodeCall, DraftSpan, PromptSpan, StepPlan
from antiphon.engines.llama.drafting import MAX_DRAFTS
from antiphon.engines.llama.kv.layout import CacheChange, CacheLayout, PrefixMatch
from antiphon.engines.llama.kv.pool import PoolLayout
from antiphon.engines.llama.kv.streams import StreamLayout
from antiphon.engines.llama.media import MediaNumbers
from antiphon.engines.llama.queue import SequenceQueue, choose_exchange
from antiphon.engines.llama.sequence import SchedulingPolicy, SequencePhase, TokenSequence
from antiphon.errors import AntiphonError

WORTH_WAITING = 32
"""A sequence waits until another sequence has computed common tokens only if it saves at least this many."""
HEADROOM = 16
"""Cells that are left free for the next tokens of each running sequence when a new sequence is admitted."""


class SchedulerCounts(Struct):
    """The scheduler's totals so far."""

    admitted: int = 0
    prefix_hits: int = 0
    cached_tokens: int = 0
    preemptions: int = 0


class Scheduler:
    """Owns the queue, the running sequences and the cells."""

    def __init__(self, policy: SchedulingPolicy, numbers: MediaNumbers | None = None) -> None:
        """`numbers`: the numbers of media in the sequences' tokens, if there are media."""
        self.policy = policy
        self.totals = SchedulerCounts()
        self.waiting = SequenceQueue(policy)
        self.layout: CacheLayout
        self._streams: StreamLayout | None = None
        if policy.has_streams:
            self.layout = self._streams = StreamLayout(policy, numbers)
        else:
            self.layout = PoolLayout(policy.ids, policy.cells, policy.max_kept_cells, numbers)
        self._running: dict[TokenSequence, None] = {}
        """The running sequences, in the order of their admission."""
        self._arrival_count = 0
        self._lacks_cells = False
        """Whether the library has reported that the cells do not suffice for the running sequences. No
        sequence is admitted until a running one ends."""
        self._current_adapter: str | None = None
        """The adapter whose turn it is."""
        self._last_step_by_adapter: dict[str | None, int] = {}
        """The step in which the sequences of each running adapter last had rows; 0 if they had none yet."""
        self._repeatable: DecodeCall | None = None
        """The only call of the last plan, if the next plan is the same call with the next token of each
        sequence. It is None from the moment that a sequence comes or leaves."""
        self._steps = self._quantum_end_step = 0
        self._now = self._turn_end_time = 0.0

    @property
    def running(self) -> int:
        return len(self._running)

    def list_running(self) -> tuple[TokenSequence, ...]:
        """The running sequences. Any thread may call it."""
        return tuple(self._running)

    def add(self, sequence: TokenSequence, now: float = 0.0) -> AntiphonError | None:
        """Queues a sequence, or returns the error that refuses it."""
        refusal = self.waiting.find_refusal(sequence, now, self.policy.sequences - self.running)
        if refusal is None:
            self._arrival_count += 1
            sequence.arrival, sequence.queued_at = self._arrival_count, now
            sequence.drafter = self.policy.create_drafter(sequence.request, sequence.prompt_length)
            self.waiting.add(sequence)
            self._repeatable = None
        return refusal

    def drop(self, sequence: TokenSequence, now: float = 0.0, keep_prefix: bool = True) -> None:
        """Ends a sequence in any phase. `keep_prefix`: whether its computed tokens may stay in the cache for
        other sequences."""
        if sequence.phase is SequencePhase.OVER:
            return
        self._repeatable = None
        self._stop_waiting(sequence)
        if sequence.phase is SequencePhase.QUEUED:
            self.waiting.remove(sequence)
        else:
            del self._running[sequence]
            self.layout.release(
                sequence, keep_prefix and (self.policy.keeps_prefixes or sequence.followers > 0)
            )
            self._lacks_cells = False
        self.waiting.note_departure(sequence, now)
        sequence.end()

    def has_decoding(self) -> bool:
        """Whether any running sequence only needs its last token computed to draw the next one."""
        return any(sequence.computed == len(sequence.tokens) - 1 for sequence in self._running)

    def count_prefilling(self) -> int:
        """The number of sequences that have more to compute than their last token. It includes as many
        waiting sequences as there are free places."""
        arriving = min(len(self.waiting), self.policy.sequences - self.running)
        return arriving + sum(sequence.computed < len(sequence.tokens) - 1 for sequence in self._running)

    def take_changes(self) -> list[CacheChange]:
        """Takes the cache changes that were not carried out yet."""
        changes, self.layout.changes = self.layout.changes, []
        return changes

    def plan(self, budget: int, now: float = 0.0) -> StepPlan:
        """Plans the next step. The plan has at least one call if any sequence is left. `budget`: the most
        prompt tokens, which a single chunk can exceed in exact mode."""
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
        self._repeatable = self._find_repeatable(plan)
        return plan

    def repeat(self, now: float = 0.0) -> DecodeCall | None:
        """Returns the only call of the next step, if `plan` would return the last call again with the next
        token of each sequence. Otherwise returns None, and the caller has to plan. Nearly all steps repeat
        the last one, and planning would be a quarter of the time between two decodes of a small model."""
        call = self._repeatable
        if call is None:
            return None
        for sequence in self._running:
            if sequence.computed != len(sequence.tokens) - 1:
                return None
            drafter = sequence.drafter if self._allows_drafts else None
            if drafter is not None and drafter.has_drafts(sequence.tokens):
                return None
        if not self.layout.reserve(len(call.rows)) or self.layout.changes:
            return None  # a sequence has to yield its cells, or the cache changes before the call
        self._now = now
        self._steps += 1
        self._last_step_by_adapter[self._current_adapter] = self._steps
        call.advance()
        return call

    def _find_repeatable(self, plan: StepPlan) -> DecodeCall | None:
        """Returns the plan's only call, if the next plan is this call with the next token of each sequence
        unless something changes."""
        if self.waiting or plan.changes or len(plan.calls) != 1:
            return None
        if plan.calls[0].spans or plan.calls[0].draft_spans:
            return None
        owners = [row for row in plan.calls[0].rows if row is not None]
        if len(owners) < len(self._running) or any(owner.guide is not None for owner in owners):
            return None  # a guide can force tokens, or delay a draw
        return plan.calls[0]

    def make_room(self, rows: int) -> bool:
        """Frees cells after the library has found no cells for `rows` rows. Returns whether another attempt
        may succeed."""
        if self.policy.has_streams:
            return False
        cached = self.layout.cached_cells
        if cached:
            self.layout.reserve(self.layout.total - self.layout.used_cells - cached + min(rows, cached))
            return True
        self._lacks_cells = True
        return self._preempt()

    def requeue_all(self) -> None:
        """Queues all running sequences again from the beginning, because the cache contents are invalid. The
        caller clears the cache."""
        for sequence in tuple(self._running):
            self._requeue(sequence, False)
        self.layout.forget_all()
        self.layout.changes.clear()

    # --- admission

    def _admit(self, plan: StepPlan) -> None:
        """Admits waiting sequences in their order while places and cells are free. Skips a sequence that
        should wait for another sequence's prompt."""
        if not self.waiting or len(self._running) >= self.policy.sequences or self._lacks_cells:
            return
        for sequence in self.waiting.list_in_turn(Counter(running.actor for running in self._running)):
            if self._is_still_waiting(sequence):
                continue
            match = self.layout.match(sequence)
            if self._wait_for_another(sequence, match):
                continue
            if not self._has_enough_cells(sequence, match):
                return
            self._start_sequence(sequence, match, plan)
            if len(self._running) >= self.policy.sequences:
                return

    def _exchange_places(self, plan: StepPlan) -> None:
        """Makes a caller that has more than its share yield one place to a waiting caller that has less than
        its share."""
        if not self.waiting or self._lacks_cells:
            return
        exchange = choose_exchange(
            self._running.keys(), self.waiting, self.policy, self._now, self._is_still_waiting
        )
        if exchange is None:
            return
        taker, giver = exchange
        if self._wait_for_another(taker, self.layout.match(taker)):
            return
        self._release(giver, True)
        self.waiting.requeue_yielded(giver)
        self.totals.preemptions += 1
        match = self.layout.match(taker)
        if self._has_enough_cells(taker, match):
            self._start_sequence(taker, match, plan)

    def _start_sequence(self, sequence: TokenSequence, match: PrefixMatch, plan: StepPlan) -> None:
        """Moves a sequence from the queue into the batch; reports its first admission in the plan."""
        self.waiting.admit(sequence)
        self.layout.admit(sequence, match)
        self._running[sequence] = None
        sequence.running_since = self._now
        if sequence.has_started:
            return
        sequence.has_started = True
        sequence.shared_tokens = match.length
        self.totals.admitted += 1
        self.totals.prefix_hits += match.length > 0
        self.totals.cached_tokens += match.length
        plan.admitted.append(sequence)

    def _is_still_waiting(self, sequence: TokenSequence) -> bool:
        """Whether a sequence still waits for the prompt of another sequence. The wait ends when the shared
        part of that prompt is computed, or when the other sequence has left the prefill."""
        leader = sequence.waits_for
        if leader is None:
            return False
        if leader.phase is SequencePhase.PREFILL and leader.computed < sequence.waits_until:
            return True
        self._stop_waiting(sequence)
        return False

    def _stop_waiting(self, sequence: TokenSequence) -> None:
        """Notes that a sequence no longer waits for the prompt of another sequence."""
        if sequence.waits_for is not None:
            sequence.waits_for.followers -= 1
            sequence.waits_for = None

    def _wait_for_another(self, sequence: TokenSequence, match: PrefixMatch) -> bool:
        """Makes a sequence wait if a running sequence will compute many more of its prompt tokens than the
        cache contains now. Returns whether the sequence waits."""
        match_length = match.length
        for leader in self._running:
            if leader.key != sequence.key or leader.phase is not SequencePhase.PREFILL:
                continue
            shareable = self.layout.count_shareable(leader, sequence)
            is_sibling = sequence.group is not None and leader.group == sequence.group
            if shareable > match_length and shareable - match.length >= (1 if is_sibling else WORTH_WAITING):
                match_length, sequence.waits_for, sequence.waits_until = shareable, leader, shareable
        if sequence.waits_for is None:
            return False
        sequence.waits_for.followers += 1
        return True

    def _has_enough_cells(self, sequence: TokenSequence, match: PrefixMatch) -> bool:
        """Whether the cells suffice for the rest of this sequence's prompt, the rest of all running prompts,
        and some headroom. If no sequence runs, any sequence is admitted."""
        if not self._running:
            return True
        remaining_cells = sum(
            len(running.tokens) - running.computed + count_headroom(running) for running in self._running
        )
        own_cells = len(sequence.tokens) - match.length + count_headroom(sequence)
        return remaining_cells + own_cells <= self.layout.count_available(match)

    def _preempt(self) -> bool:
        """Preempts the youngest running sequence, unless it is the only one. Returns whether a sequence was
        preempted."""
        if len(self._running) < 2:
            return False
        youngest = max(self._running, key=lambda sequence: sequence.arrival)
        self._requeue(youngest, True)
        self.totals.preemptions += 1
        return True

    def _requeue(self, sequence: TokenSequence, keep_prefix: bool) -> None:
        """Preempts a running sequence: releases its cells and queues it again."""
        self._release(sequence, keep_prefix)
        self.waiting.requeue_preempted(sequence)

    def _release(self, sequence: TokenSequence, keep_prefix: bool) -> None:
        """Removes a sequence from the batch and releases its cells."""
        self._repeatable = None
        del self._running[sequence]
        sequence.max_computed = max(sequence.max_computed, sequence.computed)
        sequence.queued_at = self._now
        self.layout.release(sequence, keep_prefix)

    # --- rows

    def _build_calls(self, budget: int) -> list[DecodeCall]:
        """Builds the calls of this step; preempts sequences when cells run out."""
        while True:
            own_sequences = self._select_sequences()
            decoding = [
                sequence
                for sequence in own_sequences
                if self._is_decode_row(sequence) and sequence.request.max_tokens
            ]
            decoding = [
                sequence
                for sequence in decoding
                if not sequence.is_undecided or sequence.computed < len(sequence.tokens) - 1
            ]
            free_cells = self.layout.count_available(PrefixMatch(0)) - len(decoding)
            if (free_cells < 0 or (free_cells == 0 and not decoding and own_sequences)) and self._preempt():
                continue
            spans = (
                list(self._build_spans(own_sequences, min(budget, free_cells)))
                if len(decoding) < len(own_sequences) and free_cells
                else []
            )
            drafts = [] if spans else self._choose_drafts(decoding, free_cells)
            row_count = len(decoding) + sum(span.stop - span.start for span in spans)
            self.layout.reserve(row_count + sum(len(draft.drafts) for draft in drafts))
            return self._arrange_calls(decoding, spans, drafts)

    @property
    def _allows_drafts(self) -> bool:
        """Whether drafts may make the running sequences faster. In streams, sequences with unlike numbers of
        rows take several passes through the network, so only a sequence that runs alone can gain."""
        return self._streams is None or len(self._running) == 1

    def _choose_drafts(self, decoding: list[TokenSequence], free_cells: int) -> list[DraftSpan]:
        """Chooses the drafts of this step. `free_cells`: the cells that are left for them."""
        policy, draft_spans, draft_rows = self.policy.drafts, list[DraftSpan](), 0
        if not self._allows_drafts:
            return draft_spans
        for sequence in decoding:
            drafter = sequence.drafter
            if drafter is None or sequence.computed != len(sequence.tokens) - 1 or sequence.is_undecided:
                continue
            # The last token needs no row: nothing is drawn from it.
            limit = min(MAX_DRAFTS, sequence.max_length - len(sequence.tokens) - 1, free_cells - draft_rows)
            if limit <= 0:
                continue
            source, drafts = drafter.propose(sequence.tokens, limit)
            if not drafts:
                continue
            acceptance, other_rows = drafter.get_acceptance(source), len(decoding) - 1 + draft_rows
            count = policy.choose_count(len(drafts), acceptance, other_rows, draft_rows)
            if count:
                draft_rows += count
                draft_spans.append(DraftSpan(sequence, sequence.computed, source, drafts[:count]))
            else:
                drafter.note_unused(source)
        return draft_spans

    def _arrange_calls(
        self, decoding: list[TokenSequence], spans: list[PromptSpan], drafts: list[DraftSpan]
    ) -> list[DecodeCall]:
        """Distributes the rows over calls as the layout requires. Scored spans come last, so that their
        logits follow those of the rows for draws."""
        adapter = self._current_adapter
        spans = sorted(spans, key=lambda span: span.is_scored)
        if drafts:
            drafting = {draft.sequence for draft in drafts}
            decoding = [sequence for sequence in decoding if sequence not in drafting]
        if self._streams is not None and self.policy.exact:
            calls = self._build_padded_calls(self._streams, decoding)
            return calls + [DecodeCall(spans=[span], adapter=adapter) for span in spans]
        media_calls = [DecodeCall(spans=[span], adapter=adapter) for span in spans if span.medium is not None]
        spans = [span for span in spans if span.medium is None]
        if self._streams is not None:
            calls = self._build_padded_calls(self._streams, decoding)
            if spans or drafts:
                calls.append(DecodeCall(spans=spans, adapter=adapter, draft_spans=drafts))
        elif decoding or spans or drafts:
            calls = [DecodeCall(*_build_columns(decoding), spans, adapter, drafts)]
        else:
            calls = []
        return calls + media_calls

    def _build_padded_calls(self, streams: StreamLayout, decoding: list[TokenSequence]) -> list[DecodeCall]:
        """Builds the call of the decode rows in streams, if there are any."""
        if not decoding:
            return []
        return [DecodeCall(*self._build_padded_rows(streams, decoding), [], self._current_adapter)]

    def _select_sequences(self) -> list[TokenSequence]:
        """Lists the running sequences of the adapter whose turn it is. Begins the turn of the adapter that
        has had no rows for longest if the current turn is over, or its sequences can compute nothing."""
        adapters = {sequence.request.adapter: None for sequence in self._running}
        adapters_ready = {
            running.request.adapter: None for running in self._running if not running.is_idle
        } or adapters
        is_turn_over = self._steps >= self._quantum_end_step and self._now >= self._turn_end_time
        if self._current_adapter not in adapters_ready or (is_turn_over and len(adapters_ready) > 1):
            self._last_step_by_adapter = {
                adapter: self._last_step_by_adapter.get(adapter, 0) for adapter in adapters
            }
            self._current_adapter = min(
                adapters_ready, key=self._last_step_by_adapter.__getitem__, default=None
            )
            self._quantum_end_step = self._steps + self.policy.quantum
            self._turn_end_time = self._now + self.policy.min_turn
        self._last_step_by_adapter[self._current_adapter] = self._steps
        if len(adapters) < 2:
            return list(self._running)
        return [running for running in self._running if running.request.adapter == self._current_adapter]

    def _is_decode_row(self, sequence: TokenSequence) -> bool:
        """Whether the next token that the sequence computes is a decode row, not part of a chunk. The
        sequence's last token always is a decode row. In exact mode, tokens that were decode rows before a
        preemption are decode rows again, because rows of chunks give other bits."""
        position = sequence.computed
        if position == len(sequence.tokens) - 1:
            return True
        return (
            self.policy.exact
            and sequence.prompt_length - 1 <= position < sequence.max_computed
            and position not in sequence.forced_spans
        )

    def _build_spans(self, sequences: list[TokenSequence], budget: int) -> Iterator[PromptSpan]:
        """Builds prompt spans up to the budget, but at least one. In every second step, the shortest
        remaining prompts come first, so that short prompts do not wait. In the steps between, the oldest
        sequences come first, so that long prompts progress."""
        candidates = [
            sequence
            for sequence in sequences
            if sequence.computed < len(sequence.tokens) - 1 and not self._is_decode_row(sequence)
        ]
        if self._steps % 2:
            candidates.sort(key=lambda sequence: len(sequence.tokens) - sequence.computed)
        tokens_left, scored_rows_left = budget, self.policy.scored_rows
        for sequence in candidates:
            scores, start = sequence.needs_scores, sequence.computed
            for stop in self._find_chunk_ends(
                sequence, min(tokens_left, scored_rows_left) if scores else tokens_left
            ):
                if stop - start > tokens_left < budget:
                    return
                yield PromptSpan(sequence, start, stop, scores)
                tokens_left -= stop - start
                scored_rows_left -= (stop - start) * (scores and not self.policy.exact)
                start = stop
            if tokens_left <= 0:
                return

    def _find_chunk_ends(self, sequence: TokenSequence, token_budget: int) -> Iterator[int]:
        """Yields the ends of the chunks of a sequence's remaining prompt. Chunks leave out the last token in
        exact mode and for scored prompts, because it is a decode row there. Exact mode repeats the chunks of
        earlier computations. A medium has chunks of its own."""
        end = len(sequence.tokens) - (self.policy.exact or sequence.needs_scores)
        position, chunk = sequence.computed, self.policy.chunk
        if not self.policy.exact:
            if token_budget > 0:
                yield sequence.find_span_end(position, min(end, position + token_budget))
            return
        if position in sequence.forced_spans:
            yield sequence.forced_spans[position]
            return
        if position < sequence.prompt_length - 1:
            end = sequence.prompt_length - 1
        chunk_size = self.policy.scored_rows if sequence.needs_scores else chunk
        while position < end:
            stop = min(end, (position // chunk + 1) * chunk, position + chunk_size)
            position = sequence.find_span_end(position, stop)
            yield position

    @staticmethod
    def _build_padded_rows(
        streams: StreamLayout, decoding: list[TokenSequence]
    ) -> tuple[list[TokenSequence | None], list[int], list[int], list[int]]:
        """Returns the columns of a `DecodeCall` for decode rows in streams. The rows are in the order of the
        streams, and padding rows fill the gaps."""
        window = streams.find_window(decoding)
        by_id = {sequence.id: sequence for sequence in decoding}
        rows = [by_id.get(stream.id) for stream in window]
        return (
            list(rows),
            [stream.id for stream in window],
            [streams.count_positions(stream) for stream in window],
            [0 if row is None else row.tokens[row.computed] for row in rows],
        )


def count_headroom(sequence: TokenSequence) -> int:
    """The cells to keep free for the sequence's next tokens."""
    return min(HEADROOM, sequence.max_length - len(sequence.tokens))


def _build_columns(
    decoding: list[TokenSequence],
) -> tuple[list[TokenSequence | None], list[int], list[int], list[int]]:
    """Returns the columns of a `DecodeCall` for decode rows in a pool."""
    return (
        list(decoding),
        [sequence.id or 0 for sequence in decoding],
        [sequence.computed - sequence.lost_positions for sequence in decoding],
        [sequence.tokens[-1] for sequence in decoding],
    )
