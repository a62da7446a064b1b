"""The decode thread: it owns the native context, carries out the scheduler's plans, draws tokens and reports.

Other threads talk to it through its inbox, `submit`, `close` and `stop` only. It talks to them through one
call of `post` for each step. It does not choose which sequences run; the scheduler does.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from antiphon.domain.engine_load import AdapterLoad, Load, Timer
from antiphon.engines.base import (
    Counts,
    PromptScores,
    SequenceFinished,
    SequenceStarted,
    Steps,
    StopCause,
    TokenEvent,
)
from antiphon.engines.defects import end_of_thread, failed_batch, guard
from antiphon.engines.llama.adapters.cache import NO_NUMBERS, AdapterRefs
from antiphon.engines.llama.batch import Call, Computing, Drawer, Logits, Plan, Span, change, empty, fill
from antiphon.engines.llama.guided_decoding import Guiding
from antiphon.engines.llama.libllama.context import Decoded
from antiphon.engines.llama.mailboxes import Ended, Inbox, Stream
from antiphon.engines.llama.scheduler import Scheduler
from antiphon.engines.llama.sequence import Phase, Sequence
from antiphon.engines.sampling import prompt_scores
from antiphon.errors import AntiphonError, EngineDied, EngineError, EngineUnavailable


@dataclass(slots=True)
class Meters:
    """What was done so far. The decode thread adds, any thread may look."""

    prefill_tokens: int = 0
    decoded_tokens: int = 0
    steps: int = 0
    by_adapter: Counter[str] = field(default_factory=Counter)
    """Tokens decoded with each adapter."""
    queue: Timer = field(default_factory=Timer)
    first_token: Timer = field(default_factory=Timer)
    inter_token: Timer = field(default_factory=Timer)

    def drew(self, adapter: str | None, tokens: int) -> None:
        """Notes completion tokens."""
        self.decoded_tokens += tokens
        if adapter is not None:
            self.by_adapter[adapter] += tokens

    def load(self, scheduler: Scheduler, arriving: int) -> Load:
        """Counters, each true at some moment of the running step; `arriving` will be queued."""
        cells, tally = scheduler.cells, scheduler.tally
        running = scheduler.running
        return Load(
            running=running,
            queued=len(scheduler.waiting) + arriving,
            free_sequences=scheduler.policy.sequences - running,
            cells_used=cells.used,
            prefill_tokens=self.prefill_tokens,
            decoded_tokens=self.decoded_tokens,
            steps=self.steps,
            cells=cells.total,
            cells_cached=cells.cached,
            cached_tokens=tally.cached_tokens,
            admitted=tally.admitted,
            prefix_hits=tally.hits,
            preemptions=tally.preemptions,
            refused=scheduler.waiting.refused,
            queue_seconds=self.queue.histogram(),
            first_token_seconds=self.first_token.histogram(),
            inter_token_seconds=self.inter_token.histogram(),
            adapters=tuple(self._adapters(scheduler)),
        )

    def _adapters(self, scheduler: Scheduler) -> list[AdapterLoad]:
        running = Counter(sequence.request.adapter for sequence in scheduler.everybody())
        queued = Counter(sequence.request.adapter for sequence in scheduler.waiting.everybody())
        used = {*running, *queued, *tuple(self.by_adapter)}
        named = sorted(adapter for adapter in used if adapter is not None)
        return [
            AdapterLoad(adapter, running[adapter], queued[adapter], self.by_adapter[adapter])
            for adapter in named
        ]


Delivery = tuple[Stream, TokenEvent | Ended]

MEASURABLE = 16
"""Rows from which a call's time says something about the speed of prefill."""
MEMORY = 0.8
"""Weight of the past in that speed."""


class DecodeLoop:
    """`run` is the thread; everything without a note belongs to it."""

    def __init__(
        self,
        context: Computing,
        scheduler: Scheduler,
        sampler: Drawer,
        ends: frozenset[int],
        post: Callable[[list[Delivery]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._scheduler = scheduler
        self._sampler = sampler
        self._ends = ends
        """The model's end-of-generation tokens."""
        self._post = post
        self._clock = clock
        self.inbox = Inbox(context)
        """For any thread."""
        self._outbox: list[Delivery] = []
        self._streams: dict[Sequence, Stream] = {}
        self._meters = Meters()
        self._guiding = Guiding()
        self.shelf = context.shelf
        self.lending = AdapterRefs(self.shelf, self._forget)
        """The decode thread's, like all else: ask the inbox for what it does."""
        self._submitted = 0
        self._added = 0
        self._victims: frozenset[Sequence] = frozenset()
        """Whose rows the last decode lost to an abort. While one of them is left the next decode is not
        aborted: those who come and go cannot keep the others from computing."""
        self._stopping = False
        self._cleanings = 0
        """How often the whole cache was overwritten."""
        self._pace = 0.0
        """Seconds that one prompt token takes; 0 while unknown."""

    # --- from any thread

    def submit(self, stream: Stream) -> None:
        """Queues the stream's sequence. Raises EngineUnavailable when the thread has ended."""
        self._submitted += 1
        self.inbox.put(partial(self._add, stream))

    def close(self, stream: Stream) -> None:
        """Ends the stream's sequence wherever it stands; its `Ended` comes when that is done."""
        self.inbox.interrupt(partial(self._close, stream), stream.sequence)

    def stop(self) -> None:
        """Ends every sequence, then the thread."""
        self.inbox.interrupt(self._stop)

    def load(self) -> Load:
        """Counters, each true at some moment of the running step. Raises EngineUnavailable when the thread
        has ended."""
        if self.inbox.is_shut:
            raise EngineUnavailable("the engine has stopped; try again soon")
        return self._meters.load(self._scheduler, self._submitted - self._added)

    # --- the thread

    def run(self) -> None:
        """Works until stopped. A failure of ours ends every sequence with an error, and the thread."""
        try:
            while not self._stopping:
                self._obey()
                if not self._stopping:
                    self._step()
        except Exception as defect:  # noqa: BLE001 - the engine adapter's border
            end_of_thread("the decode thread", defect)
        self.inbox.shut()
        for command in self.inbox.all():
            command()
        self._end_all()
        self._flush()

    def _obey(self) -> None:
        """Carries out what others asked for; waits for it while there is nothing to compute."""
        if not self._streams:
            change(self._context, self._scheduler.take_changes())
            self._flush()
            self.inbox.wait()()
        for command in self.inbox.all():
            command()

    def _add(self, stream: Stream) -> None:
        self._added += 1
        adapter = stream.sequence.request.adapter
        refusal = self.lending.refusal(adapter) or self._scheduler.add(stream.sequence, self._clock())
        if refusal is not None:
            self._outbox.append((stream, Ended(refusal)))
            return
        self.lending.begin(adapter)
        self._streams[stream.sequence] = stream

    def _close(self, stream: Stream) -> None:
        if stream.sequence in self._streams:
            self._release(stream.sequence, Ended())

    def _stop(self) -> None:
        self._stopping = True

    def _end_all(self) -> None:
        for sequence in tuple(self._streams):
            gone = EngineDied if sequence.started else EngineUnavailable
            self._release(sequence, Ended(gone("the engine has stopped")))

    def _step(self) -> None:
        self._follow()
        began = self._clock()
        plan = self._scheduler.plan(self._budget(), began)
        self._prepare(plan)
        for call in plan.calls:
            if not self._run(call) or (call.spans and self._should_look_up(began)):
                break

    def _follow(self) -> None:
        """Brings guided sequences up to what is known of their constraints."""
        running = self._scheduler.everybody()
        if not any(one.guide is not None for one in running):
            return
        self._guiding.await_answers(running)
        for sequence, error in self._guiding.find_failed(running):
            self._release(sequence, Ended(error), keep=False)
        if (kept := self._guiding.take_ready_rows()) is not None:
            self._accept(*kept, self._clock())
        for sequence, tokens in self._guiding.collect_forced(self._scheduler.everybody()):
            self._take(sequence, tokens)
        self._flush()

    def _take(self, sequence: Sequence, tokens: tuple[int, ...]) -> None:
        """Gives a sequence tokens that nothing was drawn for, until one ends it."""
        cause, said = None, 0
        while cause is None and said < len(tokens):
            cause = guard(sequence.take, tokens[said], self._ends)
            said += 1
        if isinstance(cause, AntiphonError):
            self._release(sequence, Ended(cause), keep=False)
            return
        self._say(sequence, Steps(tokens[:said]))
        self._meters.drew(sequence.request.adapter, said)
        if cause is not None:
            self._finish(sequence, cause)

    def _budget(self) -> int:
        """Prompt tokens for the next step: fewer while others wait for their next token."""
        policy = self._scheduler.policy
        if not self._scheduler.decoding():
            return policy.budget
        return policy.part(self._scheduler.prefilling(), self._pace)

    def _should_look_up(self, began: float) -> bool:
        """Whether the rest of a plan is left for the next one, now that one prompt was worked on."""
        late = self._clock() - began > self._scheduler.policy.step_latency
        return not self.inbox.empty or (late and self._scheduler.decoding())

    def _prepare(self, plan: Plan) -> None:
        change(self._context, plan.changes)
        now = self._clock()
        for sequence in plan.admitted:
            queued = now - self._streams[sequence].began
            self._meters.queue.add(queued)
            self._say(sequence, SequenceStarted(sequence.prompt, sequence.shared, queued))
            if sequence.complete:
                self._finish(sequence, StopCause.LENGTH)
        self._flush()

    def _run(self, call: Call) -> bool:
        """Carries out one call; whether it was computed, and all that it stands upon is still there."""
        if not self._turn_to(call.adapter):
            return False
        rows = fill(self._context, call)
        cleanings = self._cleanings
        began = self._clock()
        status = self._decode(rows, call)
        self._victims = call.sequences() if status == Decoded.ABORTED else frozenset()
        if status == Decoded.DONE:
            now = self._clock()
            if call.spans and rows >= MEASURABLE:
                pace = (now - began) / rows
                self._pace = MEMORY * self._pace + (1 - MEMORY) * pace if self._pace else pace
            self._advance(call, now)
        elif status != Decoded.NO_ROOM or not self._scheduler.make_room(rows):
            self._undo(call, status)
        self._flush()
        return status == Decoded.DONE and cleanings == self._cleanings

    def _turn_to(self, adapter: str | None) -> bool:
        """Has the library compute with an adapter; where it cannot, the sequences that run with it end."""
        try:
            self.shelf.use(adapter)
        except EngineError as error:
            self._end_adapted(adapter, error.message)
            return False
        return True

    def _end_adapted(self, adapter: str | None, fault: str) -> None:
        for sequence in self._scheduler.everybody():
            if sequence.request.adapter == adapter:
                self._release(sequence, Ended(EngineError(fault)), keep=False)
        self._flush()

    def _decode(self, rows: int, call: Call) -> int:
        spared = any(victim.phase is not Phase.OVER for victim in self._victims)
        trusted = call.adapter is None or self.lending.is_proved(call.adapter)
        abortable = call.abortable() if trusted and not spared else frozenset()
        with self.inbox.abortable(abortable):
            status = self._context.decode(rows)
        self._meters.steps += 1
        return status

    def _undo(self, call: Call, status: int) -> None:
        """Frees what a call left in the cache that was not computed whole; a failure ends its sequences."""
        empty(self._context, call)
        if status == Decoded.ABORTED:
            return
        failure = failed_batch(status)
        for sequence in call.sequences():
            self._release(sequence, Ended(failure), keep=False)

    # --- what comes of a call

    def _advance(self, call: Call, now: float) -> None:
        """Notes what was computed, draws a token for each row that gives one, and says scores of prompts."""
        owners = list(call.rows)
        """Whose token each row gives; rows of scores come after these."""
        for place, sequence in enumerate(call.rows):
            if sequence is None:
                self._context.remove(call.ids[place], call.positions[place])
            else:
                self._meters.prefill_tokens += sequence.computed < sequence.prompt
                sequence.computed += 1
                if sequence.computed < len(sequence.tokens):
                    owners[place] = None  # was drawn before the sequence was put back
        scored = []
        for span in call.spans:
            self._meters.prefill_tokens += max(0, min(span.stop, span.sequence.prompt) - span.start)
            span.sequence.computed_span(span.start, span.stop)
            if span.scored:
                scored.append(span)
            elif span.logits or call.watched:
                owners.append(span.sequence if span.logits else None)
        outputs = len(owners) + sum(span.stop - span.start for span in scored)
        if not outputs:
            return
        logits = self._context.logits(outputs)
        if call.adapter is not None and not self._is_sound(call.adapter, logits):
            return
        at = len(owners)
        self._meters.drew(call.adapter, sum(owner is not None for owner in owners))
        self._accept(owners, logits[:at], now)
        for span in scored:
            self._score(span, logits[at : at + span.stop - span.start])
            at += span.stop - span.start

    def _score(self, span: Span, logits: Logits) -> None:
        """Says the scores of the tokens that follow a span's."""
        sequence, last = span.sequence, min(span.stop + 1, span.sequence.prompt)
        asked = np.frombuffer(sequence.tokens[span.start + 1 : last], np.int32)
        width = sequence.request.prompt_logprobs or 0
        found = guard(prompt_scores, logits[: len(asked)], asked, width)
        if isinstance(found, AntiphonError):
            self._release(sequence, Ended(found), keep=False)
            if isinstance(found, EngineError):
                self._clean()
            return
        sequence.scored = span.stop
        self._say(sequence, PromptScores(span.start + 1, *found))
        if sequence.complete:
            self._finish(sequence, StopCause.LENGTH)

    def _accept(self, owners: list[Sequence | None], logits: Logits, now: float) -> None:
        """Draws and gives each sequence its token."""
        before: Counter[float] = Counter()
        owners, errors = self._guiding.set_masks(owners, logits)
        for guided, error in errors.items():
            self._release(guided, Ended(error), keep=False)
        drawings = [None if owner is None else owner.drawing for owner in owners]
        results = self._sampler.draw(logits, drawings) if owners else []
        for sequence, found in zip(owners, results, strict=True):
            if sequence is None or found is None:
                continue
            if isinstance(found, AntiphonError):
                self._release(sequence, Ended(found), keep=False)
                continue
            stream = self._streams[sequence]
            before[stream.said] += 1
            if not stream.said:
                self._meters.first_token.add(now - stream.began)
            stream.said = now
            cause = sequence.accept(found.token, self._ends)
            scored = () if found.logprob is None else ((found.logprob,), (found.alternatives,))
            self._say(sequence, Steps((found.token,), *scored))
            if cause is not None:
                self._finish(sequence, cause)
            elif sequence.guide is not None:
                sequence.guide.advance(found.token)
        for said in filter(None, before):
            self._meters.inter_token.add_several(now - said, before[said])
        if any(isinstance(found, EngineError) for found in results):
            self._clean()

    def _is_sound(self, adapter: str, logits: Logits) -> bool:
        """Whether a call with an adapter gave numbers. If not, those who run with it end."""
        sound = bool(np.isfinite(logits.max(axis=1)).all())
        if not self.lending.judge(adapter, sound):
            self._end_adapted(adapter, NO_NUMBERS)
            self._clean()
        return sound

    def _clean(self) -> None:
        """What is no number stays in the cells after they are free, and spoils whoever gets them next: so all
        are overwritten, and those who run are computed again."""
        self._scheduler.put_all_back()
        self._context.clear()
        self._cleanings += 1

    def _forget(self, adapter: str) -> None:
        """Gives up what is left of an adapter that goes away."""
        self._scheduler.cells.forget(adapter)
        self._meters.by_adapter.pop(adapter, None)

    def _finish(self, sequence: Sequence, cause: StopCause) -> None:
        counts = Counts(sequence.prompt, sequence.made, sequence.shared)
        stream = self._streams[sequence]
        self._release(sequence, None)
        self._outbox += (stream, SequenceFinished(cause, counts)), (stream, Ended())

    def _release(self, sequence: Sequence, ended: Ended | None, keep: bool = True) -> None:
        """Frees what a sequence holds; then says that it ended."""
        if sequence.guide is not None:
            sequence.guide.leave()
        adapter = sequence.request.adapter
        self._scheduler.drop(sequence, self._clock(), keep and self.lending.lends(adapter))
        self.lending.end(adapter)
        stream = self._streams.pop(sequence)
        if ended is not None:
            self._outbox.append((stream, ended))

    def _say(self, sequence: Sequence, event: TokenEvent) -> None:
        self._outbox.append((self._streams[sequence], event))

    def _flush(self) -> None:
        """Hands over what there is to say, in one call."""
        if self._outbox:
            self._post(self._outbox)
            self._outbox = []
