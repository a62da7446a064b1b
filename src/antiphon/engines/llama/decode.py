"""The decode thread: it owns the native context, carries out the scheduler's plans, draws tokens and reports
events.

Other threads use only its inbox, `submit`, `close`, `stop` and `measure_load`. The thread delivers all events
of a step by one call of `post`. The scheduler chooses which sequences run.
"""

import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np

from antiphon.domain.events import TokenOrigin
from antiphon.domain.models import GAP_BOUNDS, AdapterLoad, Load, Timer
from antiphon.domain.values import Struct, field
from antiphon.engines.base import (
    Counts,
    PromptScores,
    SequenceFinished,
    SequenceStarted,
    Steps,
    StopCause,
    TokenEvent,
)
from antiphon.engines.defects import build_batch_error, guard, log_thread_end
from antiphon.engines.llama.adapter_cache import NO_NUMBERS, AdapterRefs
from antiphon.engines.llama.batch import (
    DecodeCall,
    DecodeContext,
    DraftSpan,
    Logits,
    PromptSpan,
    StepPlan,
    StepSampler,
    apply_changes,
    fill_batch,
    free_cells,
)
from antiphon.engines.llama.drafting import DraftSource
from antiphon.engines.llama.guided_decoding import GuidedSequences
from antiphon.engines.llama.libllama.context import DecodeStatus
from antiphon.engines.llama.machine import BoundThreads
from antiphon.engines.llama.mailboxes import CommandInbox, Delivery, SequenceStream, StreamEnd
from antiphon.engines.llama.scheduler import Scheduler
from antiphon.engines.llama.sequence import SequencePhase, TokenSequence
from antiphon.engines.sampling import SampledToken, score_prompt
from antiphon.errors import AntiphonError, EngineDied, EngineError, EngineUnavailable


class LoadCounters(Struct):
    """Totals and times since the start. The decode thread adds to them; any thread may read them."""

    prefill_tokens: int = 0
    decoded_tokens: int = 0
    steps: int = 0
    drafts: int = 0
    """The number of drafts that were computed."""
    accepted_drafts: int = 0
    """The number of drafts that were drawn."""
    tokens_by_adapter: Counter[str] = field(default_factory=Counter)
    """The number of tokens decoded with each adapter."""
    queue: Timer = field(default_factory=Timer)
    """Seconds from the request to its admission."""
    first_token: Timer = field(default_factory=Timer)
    """Seconds from the request to its first token."""
    inter_token: Timer = field(default_factory=Timer)
    """Seconds between two tokens of a sequence."""
    step_gap: Timer = field(default_factory=lambda: Timer(GAP_BOUNDS))
    """Seconds from the end of a decode to the beginning of the next one, unless the thread had no work."""

    def count_drawn(self, adapter: str | None, tokens: int) -> None:
        """Adds drawn completion tokens to the totals."""
        self.decoded_tokens += tokens
        if adapter is not None:
            self.tokens_by_adapter[adapter] += tokens

    def count_drafts(self, drafts: int, accepted: int) -> None:
        """Adds verified drafts to the totals."""
        self.drafts += drafts
        self.accepted_drafts += accepted

    def build_load(self, scheduler: Scheduler, arriving: int) -> Load:
        """Builds the load. The counters are read one after another while a step may run. `arriving`: the
        number of sequences that were submitted and are not queued yet."""
        cells, totals = scheduler.layout, scheduler.totals
        running = scheduler.running
        return Load(
            running=running,
            queued=len(scheduler.waiting) + arriving,
            free_sequences=scheduler.policy.sequences - running,
            cells_used=cells.used_cells,
            prefill_tokens=self.prefill_tokens,
            decoded_tokens=self.decoded_tokens,
            steps=self.steps,
            drafts=self.drafts,
            accepted_drafts=self.accepted_drafts,
            cells=cells.total,
            cells_cached=cells.cached_cells,
            cached_tokens=totals.cached_tokens,
            admitted=totals.admitted,
            prefix_hits=totals.prefix_hits,
            preemptions=totals.preemptions,
            refused=scheduler.waiting.refusal_count,
            queue_seconds=self.queue.build_histogram(),
            first_token_seconds=self.first_token.build_histogram(),
            inter_token_seconds=self.inter_token.build_histogram(),
            step_gap_seconds=self.step_gap.build_histogram(),
            adapters=tuple(self._list_adapter_loads(scheduler)),
        )

    def _list_adapter_loads(self, scheduler: Scheduler) -> list[AdapterLoad]:
        """Lists the load of each adapter that has ever decoded a token or has a sequence now."""
        running = Counter(sequence.request.adapter for sequence in scheduler.list_running())
        queued = Counter(sequence.request.adapter for sequence in scheduler.waiting.list_waiting())
        known_adapters = {*running, *queued, *tuple(self.tokens_by_adapter)}
        adapter_names = sorted(adapter for adapter in known_adapters if adapter is not None)
        return [
            AdapterLoad(adapter, running[adapter], queued[adapter], self.tokens_by_adapter[adapter])
            for adapter in adapter_names
        ]


FORCED = (TokenOrigin.FORCED,)
"""The origins of a step whose only token was forced."""


MIN_MEASURED_ROWS = 16
"""The fewest rows of a call whose time is used to measure the speed of prefill."""
SPEED_MEMORY = 0.8
"""The weight of the earlier mean when a new measurement of the speed of prefill is added."""


class DecodeLoop:
    """Decodes sequences. `run` is the thread's function. Only the decode thread may use an object of this
    class, except the members whose docs name other threads."""

    def __init__(
        self,
        context: DecodeContext,
        scheduler: Scheduler,
        sampler: StepSampler,
        end_ids: frozenset[int],
        post: Callable[[list[Delivery]], None],
        clock: Callable[[], float] = time.monotonic,
        bound_threads: BoundThreads | None = None,
    ) -> None:
        self._context = context
        self._bound_threads = bound_threads
        """The library's threads, if each has a core of its own."""
        self._scheduler = scheduler
        self._sampler = sampler
        self._end_ids = end_ids
        """The model's end-of-generation tokens."""
        self._post = post
        self._clock = clock
        self.inbox = CommandInbox(context)
        """Commands for this thread; any thread may put one."""
        self._outbox: list[Delivery] = []
        self._streams: dict[TokenSequence, SequenceStream] = {}
        self._counters = LoadCounters()
        self._guided = GuidedSequences()
        self.adapters = context.adapters
        self.adapter_refs = AdapterRefs(self.adapters, self._drop_adapter_prefixes)
        """The sequences of each adapter. The decode thread owns this object; other threads send it commands
        through the inbox."""
        self._submitted_count = 0
        self._added_count = 0
        self._aborted_sequences: frozenset[TokenSequence] = frozenset()
        """Sequences whose rows were lost because the last decode was aborted. While one of them is not over,
        the next decode is not aborted, so repeated cancellations cannot stall the other sequences."""
        self._is_stopping = False
        self._decode_end = 0.0
        """The time at which the last decode ended; 0 after a wait for work."""
        self._clear_count = 0
        """The number of times that the whole cache was overwritten."""
        self._seconds_per_token = 0.0
        """The mean of the seconds that one prompt token takes; 0 while unknown."""

    # --- from any thread

    def submit(self, stream: SequenceStream) -> None:
        """Queues the stream's sequence. Any thread may call it. Raises EngineUnavailable when the decode
        thread has ended."""
        self._submitted_count += 1
        self.inbox.put(partial(self._add_stream, stream))

    def close(self, stream: SequenceStream) -> None:
        """Ends the stream's sequence in any phase. A `StreamEnd` follows when the sequence has ended. Any
        thread may call it."""
        self.inbox.put_and_abort(partial(self._close_stream, stream), stream.sequence)

    def stop(self) -> None:
        """Ends every sequence, then the decode thread. Any thread may call it."""
        self.inbox.put_and_abort(self._stop)

    def measure_load(self) -> Load:
        """Returns the current counters. A step may change some of them meanwhile, so they need not fit
        together. Any thread may call it. Raises EngineUnavailable when the decode thread has ended."""
        if self.inbox.is_closed:
            raise EngineUnavailable("the engine has stopped; try again soon")
        return self._counters.build_load(self._scheduler, self._submitted_count - self._added_count)

    # --- the thread

    def run(self) -> None:
        """Works until it is stopped. An internal failure ends every sequence with an error, and ends the
        thread."""
        try:
            while not self._is_stopping:
                self._run_commands()
                if not self._is_stopping:
                    self._run_step()
        except Exception as defect:  # noqa: BLE001 - the engine adapter's border
            log_thread_end("the decode thread", defect)
        self.inbox.close()
        for command in self.inbox.take_all():
            command()
        self._end_all()
        self._deliver_events()

    def _run_commands(self) -> None:
        """Carries out the commands of other threads. If there is nothing to compute, it waits for a
        command."""
        if not self._streams:
            apply_changes(self._context, self._scheduler.take_changes())
            self._deliver_events()
            self.inbox.wait()()
            self._decode_end = 0.0
        if not self.inbox.is_empty:
            for command in self.inbox.take_all():
                command()

    def _add_stream(self, stream: SequenceStream) -> None:
        """Queues a sequence. If the sequence is refused, reports the error to its stream."""
        self._added_count += 1
        adapter = stream.sequence.request.adapter
        refusal = self.adapter_refs.find_refusal(adapter) or self._scheduler.add(
            stream.sequence, self._clock()
        )
        if refusal is not None:
            self._outbox.append((stream, StreamEnd(refusal)))
            return
        self.adapter_refs.acquire(adapter)
        self._streams[stream.sequence] = stream

    def _close_stream(self, stream: SequenceStream) -> None:
        """Ends the sequence of a stream, unless it has already ended."""
        if stream.sequence in self._streams:
            self._release_sequence(stream.sequence, StreamEnd())

    def _stop(self) -> None:
        """Makes the thread end after the current step."""
        self._is_stopping = True

    def _end_all(self) -> None:
        """Ends every sequence when the thread stops."""
        for sequence in tuple(self._streams):
            error_type = EngineDied if sequence.has_started else EngineUnavailable
            self._release_sequence(sequence, StreamEnd(error_type("the engine has stopped")))

    def _run_step(self) -> None:
        """Repeats the last call while nothing has changed. Otherwise plans one step and carries out its
        calls."""
        repeated_call = self._scheduler.repeat(self._clock())
        if repeated_call is not None:
            self._deliver_events()
            self._run_call(repeated_call)
            return
        self._apply_constraints()
        started_at = self._clock()
        plan = self._scheduler.plan(self._compute_budget(), started_at)
        self._begin_plan(plan)
        for call in plan.calls:
            if not self._run_call(call) or (call.spans and self._should_replan(started_at)):
                break

    def _apply_constraints(self) -> None:
        """Waits briefly for masks and forced tokens of guided sequences. Ends sequences whose constraint has
        failed, draws the tokens of rows whose mask has arrived, and appends forced tokens."""
        running = self._scheduler.list_running()
        if not any(sequence.guide is not None for sequence in running):
            return
        self._guided.wait_for_masks(running)
        for sequence, error in self._guided.find_failures(running):
            self._release_sequence(sequence, StreamEnd(error), keep_prefix=False)
        if (ready_rows := self._guided.take_ready_rows()) is not None:
            self._draw_tokens(*ready_rows, self._clock())
        for sequence, tokens in self._guided.collect_forced(self._scheduler.list_running()):
            self._take_forced(sequence, tokens)
        self._deliver_events()

    def _take_forced(self, sequence: TokenSequence, tokens: tuple[int, ...]) -> None:
        """Appends forced tokens to a sequence, and stops after one that ends the sequence."""
        cause, forced_count = None, 0
        while cause is None and forced_count < len(tokens):
            cause = guard(sequence.accept_forced, tokens[forced_count], self._end_ids)
            forced_count += 1
        if isinstance(cause, AntiphonError):
            self._release_sequence(sequence, StreamEnd(cause), keep_prefix=False)
            return
        self._queue_event(sequence, Steps(tokens[:forced_count]))
        self._counters.count_drawn(sequence.request.adapter, forced_count)
        if cause is not None:
            self._finish_sequence(sequence, cause)

    def _compute_budget(self) -> int:
        """The number of prompt tokens for the next step: fewer while other sequences wait for their next
        token."""
        policy = self._scheduler.policy
        if not self._scheduler.has_decoding():
            return policy.budget
        return policy.compute_prompt_budget(self._scheduler.count_prefilling(), self._seconds_per_token)

    def _should_replan(self, started_at: float) -> bool:
        """Whether to drop the rest of this plan and plan again, after a call that computed prompts: if a
        command has arrived, or the step is late and other sequences wait for their next token."""
        is_late = self._clock() - started_at > self._scheduler.policy.step_latency
        return not self.inbox.is_empty or (is_late and self._scheduler.has_decoding())

    def _begin_plan(self, plan: StepPlan) -> None:
        """Applies the plan's cache changes and sends SequenceStarted for admitted sequences."""
        apply_changes(self._context, plan.changes)
        now = self._clock()
        for sequence in plan.admitted:
            queue_seconds = now - self._streams[sequence].start_time
            self._counters.queue.add(queue_seconds)
            self._queue_event(
                sequence, SequenceStarted(sequence.prompt_length, sequence.shared_tokens, queue_seconds)
            )
            if sequence.is_complete:
                self._finish_sequence(sequence, StopCause.LENGTH)
            elif sequence.guide is not None:
                sequence.guide.begin()
        self._deliver_events()

    def _run_call(self, call: DecodeCall) -> bool:
        """Carries out one call. Returns whether the call was computed, and the cache was not cleared since
        the plan was made."""
        if not self._use_adapter(call.adapter):
            return False
        rows = fill_batch(self._context, call)
        clear_count = self._clear_count
        started_at = self._clock()
        if self._decode_end:
            self._counters.step_gap.add(started_at - self._decode_end)
        if self._bound_threads is not None:
            self._bound_threads.place(rows)
        status = self._decode(rows, call)
        self._decode_end = now = self._clock()
        self._aborted_sequences = call.list_sequences() if status == DecodeStatus.ABORTED else frozenset()
        if status == DecodeStatus.DONE:
            if call.spans and rows >= MIN_MEASURED_ROWS:
                seconds_per_token = (now - started_at) / rows
                self._seconds_per_token = (
                    SPEED_MEMORY * self._seconds_per_token + (1 - SPEED_MEMORY) * seconds_per_token
                    if self._seconds_per_token
                    else seconds_per_token
                )
            self._advance(call, now)
        elif status != DecodeStatus.NO_ROOM or not self._scheduler.make_room(rows):
            self._undo_call(call, status)
        self._deliver_events()
        return status == DecodeStatus.DONE and clear_count == self._clear_count

    def _use_adapter(self, adapter: str | None) -> bool:
        """Activates an adapter in the library. If that fails, ends the sequences that use the adapter.
        Returns whether it succeeded."""
        try:
            self.adapters.use(adapter)
        except EngineError as error:
            self._end_sequences_with(adapter, error.message)
            return False
        return True

    def _end_sequences_with(self, adapter: str | None, fault: str) -> None:
        """Ends the running sequences of an adapter with an error."""
        for sequence in self._scheduler.list_running():
            if sequence.request.adapter == adapter:
                self._release_sequence(sequence, StreamEnd(EngineError(fault)), keep_prefix=False)
        self._deliver_events()

    def _decode(self, rows: int, call: DecodeCall) -> int:
        """Computes the batch. Returns the library's status. A cancellation may abort the decode, unless its
        adapter has not given finite numbers yet, or sequences of the last aborted decode are left."""
        has_aborted_before = bool(self._aborted_sequences) and any(
            sequence.phase is not SequencePhase.OVER for sequence in self._aborted_sequences
        )
        is_tested = call.adapter is None or self.adapter_refs.is_tested(call.adapter)
        abortable = call.list_abortable() if is_tested and not has_aborted_before else frozenset()
        self.inbox.allow_abort(abortable)
        try:
            status = self._context.decode(rows)
        finally:
            self.inbox.forbid_abort()
        self._counters.steps += 1
        return status

    def _undo_call(self, call: DecodeCall, status: int) -> None:
        """Frees the cells of a call that was not computed. If the call failed, ends its sequences."""
        free_cells(self._context, call)
        if status == DecodeStatus.ABORTED:
            return
        failure = build_batch_error(status)
        for sequence in call.list_sequences():
            self._release_sequence(sequence, StreamEnd(failure), keep_prefix=False)

    # --- the results of a call

    def _advance(self, call: DecodeCall, now: float) -> None:
        """Notes the tokens that a call has computed, draws a token for each output row, and sends scores of
        prompts."""
        owners = list(call.rows)
        """The sequence of each output row. The rows of scored prompts come after these rows."""
        for row, sequence in enumerate(call.rows):
            if sequence is None:
                self._context.remove(call.ids[row], call.positions[row])
            else:
                self._counters.prefill_tokens += sequence.computed < sequence.prompt_length
                sequence.computed += 1
                if sequence.computed < len(sequence.tokens):
                    owners[row] = None  # the next token was drawn before the sequence was preempted
        scored_spans = []
        for span in call.spans:
            self._counters.prefill_tokens += max(0, min(span.stop, span.sequence.prompt_length) - span.start)
            span.sequence.note_span(span.start, span.stop)
            if span.is_scored:
                scored_spans.append(span)
            elif span.gives_logits or call.checks_adapter:
                owners.append(span.sequence if span.gives_logits else None)
        draft_row_count = sum(draft.row_count for draft in call.draft_spans)
        logit_row_count = len(owners) + draft_row_count + sum(span.stop - span.start for span in scored_spans)
        if not logit_row_count:
            return
        logits = self._context.read_logits(logit_row_count)
        if call.adapter is not None and not self._check_adapter_output(call.adapter, logits):
            return
        row_start, clear_count = len(owners), self._clear_count
        self._counters.count_drawn(call.adapter, len(owners) - owners.count(None))
        self._draw_tokens(owners, logits[:row_start], now)
        if call.draft_spans and clear_count == self._clear_count:
            self._verify_drafts(call.draft_spans, logits[row_start : row_start + draft_row_count], now)
            row_start += draft_row_count
        for span in scored_spans:
            self._send_prompt_scores(span, logits[row_start : row_start + span.stop - span.start])
            row_start += span.stop - span.start

    def _send_prompt_scores(self, span: PromptSpan, logits: Logits) -> None:
        """Sends the scores of prompt tokens. `logits`: the rows of the span; each row scores the token after
        it."""
        sequence, scored_end = span.sequence, min(span.stop + 1, span.sequence.prompt_length)
        prompt_tokens = np.frombuffer(sequence.tokens[span.start + 1 : scored_end], np.int32)
        width = sequence.request.prompt_logprobs or 0
        scores = guard(score_prompt, logits[: len(prompt_tokens)], prompt_tokens, width)
        if isinstance(scores, AntiphonError):
            self._release_sequence(sequence, StreamEnd(scores), keep_prefix=False)
            if isinstance(scores, EngineError):
                self._clear_cache()
            return
        sequence.scored_tokens = span.stop
        self._queue_event(sequence, PromptScores(span.start + 1, *scores))
        if sequence.is_complete:
            self._finish_sequence(sequence, StopCause.LENGTH)

    def _draw_tokens(self, owners: list[TokenSequence | None], logits: Logits, now: float) -> None:
        """Draws a token for each row, and appends the token to the row's sequence. `owners`: the sequence of
        each row; None for a row that needs no token."""
        previous_times: dict[float, int] = {}
        """How many of the sequences drew their last token at each time."""
        if any(owner is not None and owner.guide is not None for owner in owners):
            owners, errors = self._guided.set_masks(owners, logits)
            for guided, error in errors.items():
                self._release_sequence(guided, StreamEnd(error), keep_prefix=False)
        states = [None if owner is None else owner.sampling_state for owner in owners]
        results = self._sampler.draw(logits, states) if owners else []
        is_engine_defect = False
        for sequence, result in zip(owners, results, strict=True):
            if sequence is None or result is None:
                continue
            if isinstance(result, AntiphonError):
                is_engine_defect |= isinstance(result, EngineError)
                self._release_sequence(sequence, StreamEnd(result), keep_prefix=False)
                continue
            stream = self._streams[sequence]
            if stream.last_token_at:
                previous_times[stream.last_token_at] = previous_times.get(stream.last_token_at, 0) + 1
            else:
                self._counters.first_token.add(now - stream.start_time)
            stream.last_token_at = now
            cause = sequence.accept(result.token, self._end_ids)
            if result.logprob is None:
                step = Steps((result.token,))
            else:
                state = sequence.sampling_state
                origins = FORCED if state is not None and state.is_forced else ()
                step = Steps((result.token,), (result.logprob,), (result.alternatives,), origins=origins)
            self._outbox.append((stream, step))
            if cause is not None:
                self._finish_sequence(sequence, cause)
            elif sequence.guide is not None:
                sequence.guide.advance(result.token)
        for drawn_at, count in previous_times.items():
            self._counters.inter_token.add_several(now - drawn_at, count)
        if is_engine_defect:
            self._clear_cache()

    def _verify_drafts(self, draft_spans: list[DraftSpan], logits: Logits, now: float) -> None:
        """Draws the next tokens of sequences with drafts, from one row after another, until a token differs
        from its draft. The sequences keep the cells of right drafts, and lose the others. `logits`: the rows
        of all spans, in their order."""
        row_counts = [draft.row_count for draft in draft_spans]
        rows = [sum(row_counts[:index]) for index in range(len(draft_spans))]
        drawn: list[list[SampledToken]] = [[] for _ in draft_spans]
        ends: list[StopCause | AntiphonError | None] = [None] * len(draft_spans)
        going, depth = list(range(len(draft_spans))), 0
        while going:
            states = [draft_spans[index].sequence.sampling_state for index in going]
            drawn_rows = [rows[index] + depth for index in going]
            first_row = drawn_rows[0]
            # A single row needs no copy.
            selected = logits[drawn_rows] if len(going) > 1 else logits[first_row : first_row + 1]
            results = self._sampler.draw(selected, states)
            still_going = []
            for index, result in zip(going, results, strict=True):
                draft = draft_spans[index]
                if isinstance(result, AntiphonError):
                    ends[index] = result
                elif result is not None:
                    drawn[index].append(result)
                    ends[index] = draft.sequence.accept(result.token, self._end_ids)
                    is_right = depth < len(draft.drafts) and draft.drafts[depth] == result.token
                    if ends[index] is None and is_right:
                        still_going.append(index)
            going, depth = still_going, depth + 1
        for draft, tokens, end in zip(draft_spans, drawn, ends, strict=True):
            self._take_verified(draft, tokens, end, now)
        if any(isinstance(end, EngineError) for end in ends):
            self._clear_cache()

    def _take_verified(
        self,
        draft: DraftSpan,
        drawn: list[SampledToken],
        end: StopCause | AntiphonError | None,
        now: float,
    ) -> None:
        """Notes the tokens that were drawn for a sequence with drafts, frees the cells of wrong drafts and
        reports the tokens. `end`: what ends the sequence after them, if anything does."""
        sequence, stream, count = draft.sequence, self._streams[draft.sequence], len(drawn)
        right_count = sum(
            result.token == token for result, token in zip(drawn, draft.drafts[:count], strict=False)
        )
        has_mismatch = right_count < min(count, len(draft.drafts))
        sequence.computed = min(draft.start + 1 + right_count, len(sequence.tokens) - (count > 0))
        if sequence.computed < draft.start + draft.row_count:
            self._context.remove(sequence.running_id, sequence.get_position(sequence.computed))
        self._counters.prefill_tokens += draft.start < sequence.prompt_length
        self._counters.count_drafts(len(draft.drafts), right_count)
        if sequence.drafter is not None:
            sequence.drafter.note_verified(draft.source, right_count, has_mismatch)
        if drawn:
            self._counters.count_drawn(sequence.request.adapter, count)
            if stream.last_token_at:
                self._counters.inter_token.add_several((now - stream.last_token_at) / count, count)
            else:
                self._counters.first_token.add(now - stream.start_time)
            stream.last_token_at = now
            is_prediction = draft.source is DraftSource.PREDICTION
            has_logprobs = drawn[0].logprob is not None
            self._queue_event(
                sequence,
                Steps(
                    tuple(result.token for result in drawn),
                    tuple(result.logprob or 0.0 for result in drawn) if has_logprobs else (),
                    tuple(result.alternatives for result in drawn) if has_logprobs else (),
                    right_count if is_prediction else 0,
                    len(draft.drafts) - right_count if is_prediction else 0,
                    (*(TokenOrigin.DRAFTED,) * right_count, *(None,) * (count - right_count))
                    if has_logprobs and right_count
                    else (),
                ),
            )
        if isinstance(end, AntiphonError):
            self._release_sequence(sequence, StreamEnd(end), keep_prefix=False)
        elif end is not None:
            self._finish_sequence(sequence, end)

    def _check_adapter_output(self, adapter: str, logits: Logits) -> bool:
        """Returns whether a call with an adapter gave finite numbers. If not, bans the adapter and ends the
        sequences that use it."""
        is_finite = bool(np.isfinite(logits.max(axis=1)).all())
        if not self.adapter_refs.record_result(adapter, is_finite):
            self._end_sequences_with(adapter, NO_NUMBERS)
            self._clear_cache()
        return is_finite

    def _clear_cache(self) -> None:
        """Overwrites all cells and computes the running sequences again. Otherwise NaNs in freed cells would
        spoil the next sequence there."""
        self._scheduler.requeue_all()
        self._context.clear()
        self._clear_count += 1

    def _drop_adapter_prefixes(self, adapter: str) -> None:
        """Drops the prefixes that were computed with a removed adapter."""
        self._scheduler.layout.forget(adapter)
        self._counters.tokens_by_adapter.pop(adapter, None)

    def _finish_sequence(self, sequence: TokenSequence, cause: StopCause) -> None:
        """Ends a complete sequence, then reports SequenceFinished."""
        counts = Counts(sequence.prompt_length, sequence.completion_tokens, sequence.shared_tokens)
        stream = self._streams[sequence]
        self._release_sequence(sequence, None)
        self._outbox += (stream, SequenceFinished(cause, counts)), (stream, StreamEnd())

    def _release_sequence(
        self, sequence: TokenSequence, end_event: StreamEnd | None, keep_prefix: bool = True
    ) -> None:
        """Frees all resources of a sequence, then reports its end. `end_event`: None if the caller reports
        the end. `keep_prefix`: whether the sequence's computed tokens may stay in the cache."""
        if sequence.guide is not None:
            sequence.guide.abandon()
        adapter = sequence.request.adapter
        self._scheduler.drop(sequence, self._clock(), keep_prefix and self.adapter_refs.is_usable(adapter))
        self.adapter_refs.release(adapter)
        stream = self._streams.pop(sequence)
        if end_event is not None:
            self._outbox.append((stream, end_event))

    def _queue_event(self, sequence: TokenSequence, event: TokenEvent) -> None:
        """Queues an event for the next delivery."""
        self._outbox.append((self._streams[sequence], event))

    def _deliver_events(self) -> None:
        """Delivers all pending events in one call."""
        if self._outbox:
            self._post(self._outbox)
            self._outbox = []
