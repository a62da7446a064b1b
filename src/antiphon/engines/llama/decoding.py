"""The decode thread: it owns the native context, carries out the scheduler's plans, draws tokens, and
reports.

Other threads talk to it through `submit`, `close` and `stop` only; it talks to them through one call of
`post` for each step. Nothing here chooses who runs; that is the scheduler's.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.engines.base import (
    Counts,
    Load,
    SequenceFinished,
    SequenceStarted,
    Steps,
    StopCause,
    TokenEvent,
)
from antiphon.engines.llama.libllama_context import Decoded
from antiphon.engines.llama.sampler import draw
from antiphon.engines.llama.scheduler import Call, Padding, Plan, Scheduler
from antiphon.engines.llama.sequence import Phase, Sequence
from antiphon.engines.llama.streams import Ended, Stream
from antiphon.errors import AntiphonError, EngineDied, EngineError, EngineUnavailable

log = logging.getLogger(__name__)

Delivery = tuple[Stream, TokenEvent | Ended]

PREFILL_SLICE = 0.1
"""Seconds of one step that prompts may take while other sequences wait for their next token."""
SMALLEST_BUDGET = 32
"""Prompt tokens that a step computes however slow the machine is."""
MEASURABLE = 16
"""Rows from which a call's time says something about the speed of prefill."""
MEMORY = 0.8
"""Weight of the past in that speed."""


class Computing(Protocol):
    """What the loop needs of a context; `NativeContext` says what each does."""

    def set_row(self, at: int, token: int, position: int, sequence: int, output: bool) -> None: ...
    def set_rows(self, at: int, tokens: list[int], position: int, sequence: int, output: bool) -> None: ...
    def decode(self, rows: int) -> int: ...
    def logits(self, rows: int) -> NDArray[np.float32]: ...
    def remove(self, sequence: int, start: int = 0) -> None: ...
    def copy(self, source: int, target: int, length: int) -> None: ...
    def abort(self) -> None: ...
    def resume(self) -> None: ...


@dataclass(slots=True)
class Totals:
    """What was done so far."""

    prefill_tokens: int = 0
    decoded_tokens: int = 0
    steps: int = 0


class DecodeLoop:
    """`run` is the thread; everything without a note belongs to it."""

    def __init__(
        self,
        context: Computing,
        scheduler: Scheduler,
        ends: frozenset[int],
        post: Callable[[list[Delivery]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._scheduler = scheduler
        self._ends = ends
        """The model's end-of-generation tokens."""
        self._post = post
        self._clock = clock
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._outbox: list[Delivery] = []
        self._streams: dict[Sequence, Stream] = {}
        self._totals = Totals()
        self._lock = Lock()
        """Guards the next three, which other threads look at."""
        self._flight: frozenset[Sequence] = frozenset()
        """Closing one of these aborts the running decode."""
        self._stopped = False
        self._submitted = 0
        self._added = 0
        self._victims: frozenset[Sequence] = frozenset()
        """Whose rows the last decode lost to an abort. While one of them is left the next decode is not
        aborted: those who come and go cannot keep the others from computing.
        """
        self._stopping = False
        self._pace = 0.0
        """Seconds that one prompt token takes; 0 while unknown."""

    # --- from any thread

    def submit(self, stream: Stream) -> None:
        """Queues the stream's sequence. Raises EngineUnavailable when the thread has ended."""
        with self._lock:
            if self._stopped:
                raise EngineUnavailable("the engine has stopped; try again soon")
            self._submitted += 1
            self._inbox.put(partial(self._add, stream))

    def close(self, stream: Stream) -> None:
        """Ends the stream's sequence wherever it stands; its `Ended` comes when that is done."""
        with self._lock:
            if stream.sequence in self._flight:
                self._context.abort()
            self._inbox.put(partial(self._close, stream))

    def stop(self) -> None:
        """Ends every sequence, then the thread."""
        with self._lock:
            if self._flight:
                self._context.abort()
            self._inbox.put(self._stop)

    def load(self) -> Load:
        """Counters, each true at some moment of the running step. Raises EngineUnavailable when the thread
        has ended.
        """
        if self._stopped:
            raise EngineUnavailable("the engine has stopped; try again soon")
        scheduler, totals = self._scheduler, self._totals
        running = scheduler.running
        return Load(
            running=running,
            queued=len(scheduler.queue) + self._submitted - self._added,
            free_sequences=scheduler.policy.sequences - running,
            cells_used=sum(sequence.computed for sequence in tuple(scheduler.slots) if sequence),
            prefill_tokens=totals.prefill_tokens,
            decoded_tokens=totals.decoded_tokens,
            steps=totals.steps,
        )

    # --- the thread

    def run(self) -> None:
        """Works until stopped. A failure of ours ends every sequence with an error, and the thread."""
        try:
            while not self._stopping:
                self._obey()
                if not self._stopping:
                    self._step()
        except Exception:  # the engine adapter's border
            log.exception("the decode thread failed")
        with self._lock:
            self._stopped = True
        for command in self._commands():
            command()
        self._end_all()
        self._flush()

    def _obey(self) -> None:
        """Carries out what others asked for; waits for it while there is nothing to compute."""
        if not self._streams:
            self._flush()
            self._inbox.get()()
        for command in self._commands():
            command()

    def _commands(self) -> Iterator[Callable[[], None]]:
        try:
            while True:
                yield self._inbox.get_nowait()
        except Empty:
            return

    def _add(self, stream: Stream) -> None:
        self._streams[stream.sequence] = stream
        self._scheduler.add(stream.sequence)
        self._added += 1

    def _close(self, stream: Stream) -> None:
        if stream.sequence in self._streams:
            self._release(stream.sequence, Ended())

    def _stop(self) -> None:
        self._stopping = True

    def _end_all(self) -> None:
        for sequence in tuple(self._streams):
            gone = EngineUnavailable if sequence.phase is Phase.QUEUED else EngineDied
            self._release(sequence, Ended(gone("the engine has stopped")))

    def _step(self) -> None:
        plan = self._scheduler.plan(self._budget())
        self._prepare(plan)
        began = self._clock()
        for call in plan.calls:
            if not self._run(call) or (call.prefills() and self._should_look_up(began)):
                break

    def _budget(self) -> int:
        """Prompt tokens for the next step: fewer while others wait for their next token."""
        most = self._scheduler.policy.budget
        if not self._pace or not self._scheduler.decoding():
            return most
        return min(most, max(SMALLEST_BUDGET, int(PREFILL_SLICE / self._pace)))

    def _should_look_up(self, began: float) -> bool:
        """Whether the rest of a plan is left for the next one, now that one prompt was worked on."""
        late = self._clock() - began > PREFILL_SLICE
        return not self._inbox.empty() or (late and bool(self._scheduler.decoding()))

    def _prepare(self, plan: Plan) -> None:
        for copy in plan.copies:
            self._context.copy(copy.source, copy.target, copy.length)
            if copy.moves:
                self._context.remove(copy.source)
        now = self._clock()
        for sequence in plan.admitted:
            queued = now - self._streams[sequence].began
            self._say(sequence, SequenceStarted(len(sequence.prompt), sequence.shared, queued))
        self._flush()

    def _run(self, call: Call) -> bool:
        """Carries out one call; whether it was computed."""
        rows = self._fill(call)
        began = self._clock()
        status = self._decode(rows, call.abortable())
        self._victims = call.sequences() if status == Decoded.ABORTED else frozenset()
        if status != Decoded.DONE:
            self._undo(call, status)
        else:
            if call.prefills() and rows >= MEASURABLE:
                self._measure((self._clock() - began) / rows)
            self._advance(call)
        self._flush()
        return status == Decoded.DONE

    def _decode(self, rows: int, abortable: frozenset[Sequence]) -> int:
        spared = any(victim.phase is not Phase.OVER for victim in self._victims)
        with self._lock:
            self._context.resume()
            self._flight = frozenset() if spared else abortable
        status = self._context.decode(rows)
        with self._lock:
            self._flight = frozenset()
        self._totals.steps += 1
        return status

    def _fill(self, call: Call) -> int:
        """Writes the call's rows into the batch; how many they are."""
        context, at = self._context, 0
        for row in call.rows:
            if isinstance(row, Padding):
                context.set_row(at, 0, row.position, row.slot, True)
                at += 1
            elif row.sequence.slot is not None:
                tokens = row.sequence.tokens
                count = row.stop - row.start
                if count == 1:
                    context.set_row(at, tokens[row.start], row.start, row.sequence.slot, row.logits)
                else:
                    context.set_rows(
                        at, tokens[row.start : row.stop], row.start, row.sequence.slot, row.logits
                    )
                at += count
        return at

    def _undo(self, call: Call, status: int) -> None:
        """Frees what a call left in the cache that was not computed whole; a failure ends its sequences."""
        if status != Decoded.ABORTED:
            log.error("llama_decode failed with %d", status)
        for row in call.rows:
            if isinstance(row, Padding):
                self._context.remove(row.slot, row.position)
            elif row.sequence.slot is not None:
                self._context.remove(row.sequence.slot, row.start)
                if status != Decoded.ABORTED:
                    failure = EngineError(
                        "the engine's library failed at this batch; the server's log says how"
                    )
                    self._release(row.sequence, Ended(failure))

    def _advance(self, call: Call) -> None:
        """Notes what was computed and draws a token for each row of logits."""
        outputs: list[Sequence | None] = []
        for row in call.rows:
            if isinstance(row, Padding):
                self._context.remove(row.slot, row.position)
                outputs.append(None)
                continue
            row.sequence.computed = row.stop
            self._totals.prefill_tokens += max(0, min(row.stop, len(row.sequence.prompt)) - row.start)
            if row.logits:
                outputs.append(row.sequence)
        if not outputs:
            return
        logits = self._context.logits(len(outputs))
        for index, sequence in enumerate(outputs):
            if sequence is not None:
                self._draw(sequence, logits[index])

    def _draw(self, sequence: Sequence, row: NDArray[np.float32]) -> None:
        request = sequence.request
        try:
            drawn = draw(row, request.sampling, request.choice, sequence.made, request.logprobs)
        except AntiphonError as error:
            self._release(sequence, Ended(error))
            return
        cause = sequence.accept(drawn.token, self._ends)
        self._totals.decoded_tokens += 1
        if drawn.logprob is None:
            self._say(sequence, Steps((drawn.token,)))
        else:
            self._say(sequence, Steps((drawn.token,), (drawn.logprob,), (drawn.alternatives,)))
        if cause is not None:
            self._finish(sequence, cause)

    def _finish(self, sequence: Sequence, cause: StopCause) -> None:
        counts = Counts(len(sequence.prompt), sequence.made, sequence.shared)
        stream = self._streams[sequence]
        self._release(sequence, None)
        self._outbox += (stream, SequenceFinished(cause, counts)), (stream, Ended())

    def _release(self, sequence: Sequence, ended: Ended | None) -> None:
        """Frees what a sequence holds; then says that it ended."""
        slot = self._scheduler.drop(sequence)
        if slot is not None:
            self._context.remove(slot)
        stream = self._streams.pop(sequence)
        if ended is not None:
            self._outbox.append((stream, ended))

    def _measure(self, pace: float) -> None:
        self._pace = MEMORY * self._pace + (1 - MEMORY) * pace if self._pace else pace

    def _say(self, sequence: Sequence, event: TokenEvent) -> None:
        self._outbox.append((self._streams[sequence], event))

    def _flush(self) -> None:
        """Hands over what there is to say, in one call."""
        if self._outbox:
            self._post(self._outbox)
            self._outbox = []
