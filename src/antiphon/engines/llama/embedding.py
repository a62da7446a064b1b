"""Embedding models and rerankers: loading one, and the thread that makes vectors of texts.

The file tells whether a model makes tokens or vectors. Loading blocks, so it runs on the embedding thread. A
text is computed in one step, and nothing of it stays in the cache. Actors take turns: a step takes one text
of each actor in turn, and the requests of one actor take turns too. Therefore many or long texts of one actor
delay the other actors by one step at most.
"""

import time
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.fair_queue import FairQueue
from antiphon.domain.models import Load, Timer
from antiphon.domain.request import EmbeddingFacts, EmbedRequest, Pooling, SamplingOptions, Vectors
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import EngineInfo, LoadSpec, SequenceStarted
from antiphon.engines.defects import build_batch_error, guard, log_thread_end
from antiphon.engines.llama.libllama.context import (
    POOLING,
    UNPOOLED,
    ContextSizes,
    DecodeStatus,
    DeviceLost,
    NativeEmbedder,
)
from antiphon.engines.llama.libllama.model import NativeModel
from antiphon.engines.llama.loading import (
    NO_VOCABULARY,
    LoadedGenerator,
    describe,
    load_generator,
    load_placed,
)
from antiphon.engines.llama.machine import choose_thread_count
from antiphon.engines.llama.mailboxes import AbortableContext, CommandInbox, EventMailbox, StreamEnd
from antiphon.engines.llama.sequence import SchedulingPolicy
from antiphon.errors import AntiphonError, EngineDied, EngineError, EngineUnavailable, LoadError

Rows = NDArray[np.float32]

FinishRows = Callable[[Rows], tuple[Rows, NDArray[np.bool_]]]
"""Computes vectors or scores from the model's pooled rows, and tells which of them are valid."""

CLASS_COUNTS = (1, 2)
"""How many numbers a reranker can give for a pair: one score, or two probabilities, of yes and of no."""

LARGEST_ODDS = 104.0
"""The logarithm of the odds of the smallest probability that float32 can express."""

EmbeddingEvent = SequenceStarted | Vectors


def scale_rows(rows: Rows) -> tuple[Rows, NDArray[np.bool_]]:
    """Scales rows to unit length. Also returns which rows are valid: finite and not zero."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        vectors = (rows / lengths).astype("<f4")
    return vectors, np.isfinite(lengths[:, 0]) & (lengths[:, 0] > 0)


def compute_log_odds(rows: Rows) -> tuple[Rows, NDArray[np.bool_]]:
    """Returns one number for each row of a reranker: the logarithm of the odds that the texts match.

    A model of one class gives this number. A model of two classes gives the probabilities of yes and no.
    """
    odds = rows
    if rows.shape[1] > 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = np.log(rows[:, :1]) - np.log(rows[:, 1:])
        odds = np.clip(odds, -LARGEST_ODDS, LARGEST_ODDS)  # a probability can be rounded to zero
    return odds.astype("<f4"), np.isfinite(odds[:, 0])


class EmbeddingStream(EventMailbox[EmbeddingEvent]):
    """One request: its texts, their progress, and the mailbox for its events. Only the embedding thread uses
    the attributes below; the mailbox belongs to the event loop."""

    __slots__ = ("actor", "is_over", "sent_count", "started_count", "texts")
    priority = 0

    def __init__(self, request: EmbedRequest, start_time: float) -> None:
        super().__init__(start_time)
        self.actor = request.actor
        self.texts = [array("i", text) for text in request.texts]
        self.started_count = 0
        """The number of texts that were taken into a step."""
        self.sent_count = 0
        """The number of texts whose vectors were sent."""
        self.is_over = False
        """Whether the request was closed or has failed."""


Delivery = tuple[EventMailbox[EmbeddingEvent], EmbeddingEvent | StreamEnd]


class EmbeddingContext(AbortableContext, Protocol):
    """The context methods that the loop calls; `NativeEmbedder` documents them."""

    def compute(self, texts: list["array[int]"]) -> tuple[int, Rows]: ...


class EmbeddingLoop:
    """Computes vectors. `run` is the thread's function. Only the embedding thread may use an object of this
    class, except the members whose docs name other threads."""

    def __init__(
        self,
        context: EmbeddingContext,
        policy: SchedulingPolicy,
        post: Callable[[list[Delivery]], None],
        clock: Callable[[], float] = time.monotonic,
        finish: FinishRows = scale_rows,
    ) -> None:
        """`policy.budget`: the most tokens of one step, unless a single text has more. `finish`: computes
        vectors from the model's rows; the default scales the rows to unit length."""
        self._context = context
        self._policy = policy
        self._post = post
        self._clock = clock
        self._finish_rows = finish
        self._inbox = CommandInbox(context)
        self._outbox: list[Delivery] = []
        self._queue: FairQueue[EmbeddingStream] = FairQueue(policy)
        self._active: dict[EmbeddingStream, None] = {}
        """The requests that have not ended."""
        self._submitted_count = self._added_count = 0
        self._is_stopping = False
        self._running_count = self._token_count = self._step_count = self._admitted_count = 0
        self._queue_seconds = Timer()

    # --- from any thread

    def submit(self, stream: EmbeddingStream) -> None:
        """Queues the request. Any thread may call it. Raises EngineUnavailable when the embedding thread has
        ended."""
        self._submitted_count += 1
        self._inbox.put(partial(self._add_stream, stream))

    def close(self, stream: EmbeddingStream) -> None:
        """Ends the request in any state. A `StreamEnd` follows when the request has ended. Any thread may
        call it."""
        self._inbox.put_and_abort(partial(self._end, stream, StreamEnd()), stream)

    def stop(self) -> None:
        """Ends every request, then the embedding thread. Any thread may call it."""
        self._inbox.put_and_abort(self._stop)

    def measure_load(self) -> Load:
        """Returns the current counters, which are read one after another while a step may run. Sequences are
        texts. Any thread may call it. Raises EngineUnavailable when the embedding thread has ended."""
        if self._inbox.is_closed:
            raise EngineUnavailable("the engine has stopped; try again soon")
        running = self._running_count
        return Load(
            running=running,
            queued=len(self._queue) + self._submitted_count - self._added_count,
            free_sequences=self._policy.sequences - running,
            prefill_tokens=self._token_count,
            steps=self._step_count,
            cells=self._policy.cells,
            admitted=self._admitted_count,
            refused=self._queue.refusal_count,
            queue_seconds=self._queue_seconds.build_histogram(),
        )

    # --- the thread

    def run(self) -> None:
        """Works until it is stopped. An internal failure ends every request with an error, and ends the
        thread."""
        try:
            while not self._is_stopping:
                self._run_commands()
                if not self._is_stopping:
                    self._run_step()
        except Exception as defect:  # noqa: BLE001 - the engine adapter's border
            log_thread_end("the embedding thread", defect)
        self._inbox.close()
        for command in self._inbox.take_all():
            command()
        for stream in tuple(self._active):
            error_type = EngineDied if stream.started_count else EngineUnavailable
            self._end(stream, StreamEnd(error_type("the engine has stopped")))
        self._deliver_events()

    def _run_commands(self) -> None:
        """Carries out the commands of other threads. If there is nothing to compute, it waits for a
        command."""
        if not self._queue:
            self._deliver_events()
            self._inbox.wait()()
        for command in self._inbox.take_all():
            command()

    def _add_stream(self, stream: EmbeddingStream) -> None:
        """Queues a request. If the request is refused, reports the error to its stream."""
        self._added_count += 1
        refusal = self._queue.find_refusal(stream, self._clock(), 0 if self._queue else 1)
        if refusal is not None:
            self._outbox.append((stream, StreamEnd(refusal)))
            return
        self._queue.add(stream)
        self._active[stream] = None

    def _stop(self) -> None:
        """Makes the thread end after the current step."""
        self._is_stopping = True

    def _end(self, stream: EmbeddingStream, end_event: StreamEnd) -> None:
        """Ends a request, unless it has already ended."""
        if stream not in self._active:
            return
        del self._active[stream]
        stream.is_over = True
        if stream.started_count < len(stream.texts):
            self._queue.remove(stream)
        self._queue.note_end(self._clock())
        self._outbox.append((stream, end_event))

    # --- one step

    def _run_step(self) -> None:
        """Computes the next batch and sends its vectors. If a batch of several texts fails with an error,
        computes each of its texts alone, so that the error ends only the requests that cause it."""
        batch = self._select_batch()
        if not batch:
            return
        self._announce_started(batch)
        result = self._try_compute(batch)
        if isinstance(result, AntiphonError) and len(batch) > 1:
            for stream, text in batch:
                if not stream.is_over:
                    self._finish_batch([(stream, text)], self._try_compute([(stream, text)]))
        else:
            self._finish_batch(batch, result)
        self._deliver_events()

    def _try_compute(
        self, batch: list[tuple[EmbeddingStream, "array[int]"]]
    ) -> tuple[int, Rows] | AntiphonError:
        """Computes a batch. Returns its vectors, or the error of its requests. Raises DeviceLost, which ends
        the thread."""
        result = guard(self._compute, batch)
        if isinstance(result, DeviceLost):
            raise result
        return result

    def _finish_batch(
        self, batch: list[tuple[EmbeddingStream, "array[int]"]], result: tuple[int, Rows] | AntiphonError
    ) -> None:
        """Sends the computed vectors. A failure ends the requests of the batch; an aborted batch sends
        nothing."""
        if isinstance(result, AntiphonError):
            failure = result
        elif result[0] == DecodeStatus.DONE:
            self._send_vectors(batch, result[1])
            return
        elif result[0] == DecodeStatus.ABORTED:
            return
        else:
            failure = build_batch_error(result[0])
        for stream in {stream for stream, _ in batch}:
            self._end(stream, StreamEnd(failure))

    def _select_batch(self) -> list[tuple[EmbeddingStream, "array[int]"]]:
        """Selects the texts of the next step, each with its request. The first text is taken even if it has
        more tokens than a step. A text that does not fit beside the texts before it begins the next step."""
        batch: list[tuple[EmbeddingStream, array[int]]] = []
        tokens_left, max_texts = self._policy.budget, 1 if self._policy.exact else self._policy.sequences
        while len(batch) < max_texts and (stream := next(self._queue.iterate_turns(), None)) is not None:
            text = stream.texts[stream.started_count]
            if batch and len(text) > tokens_left:
                break
            batch.append((stream, text))
            tokens_left -= len(text)
            if stream.started_count + 1 < len(stream.texts):
                self._queue.requeue(stream)
            else:
                self._queue.take_turn(stream)
            stream.started_count += 1
        return batch

    def _announce_started(self, batch: list[tuple[EmbeddingStream, "array[int]"]]) -> None:
        """Sends SequenceStarted to requests whose first text is in this batch."""
        now = self._clock()
        for stream in dict.fromkeys(stream for stream, _ in batch):
            if stream.started_count - sum(other is stream for other, _ in batch):
                continue
            self._queue_seconds.add(now - stream.start_time)
            tokens = sum(map(len, stream.texts))
            self._outbox.append((stream, SequenceStarted(tokens, 0, now - stream.start_time)))
        self._deliver_events()

    def _compute(self, batch: list[tuple[EmbeddingStream, "array[int]"]]) -> tuple[int, Rows]:
        """Computes the vectors of a batch. If all texts are of one request, closing that request aborts the
        batch."""
        texts, streams = [text for _, text in batch], frozenset(stream for stream, _ in batch)
        # A batch of several requests is short, so closing one of them does not abort the others' texts.
        abortable: frozenset[object] = streams if len(streams) == 1 else frozenset()
        self._running_count = len(batch)
        self._inbox.allow_abort(abortable)
        try:
            return self._context.compute(texts)
        finally:
            self._inbox.forbid_abort()
            self._running_count = 0
            self._step_count += 1
            self._admitted_count += len(batch)
            self._token_count += sum(map(len, texts))

    def _send_vectors(self, batch: list[tuple[EmbeddingStream, "array[int]"]], rows: Rows) -> None:
        """Sends each request its vectors in the order of its texts."""
        vectors, is_valid = self._finish_rows(rows)
        for stream in dict.fromkeys(stream for stream, _ in batch):
            own_rows = [row for row, (row_stream, _) in enumerate(batch) if row_stream is stream]
            if not is_valid[own_rows].all():
                self._end(
                    stream, StreamEnd(EngineError("the model gave no valid vector for one of these texts"))
                )
                continue
            self._outbox.append((stream, Vectors(stream.sent_count, vectors[own_rows].tobytes())))
            stream.sent_count += len(own_rows)
            if stream.sent_count == len(stream.texts):
                self._end(stream, StreamEnd())

    def _deliver_events(self) -> None:
        """Delivers all pending events in one call."""
        if self._outbox:
            self._post(self._outbox)
            self._outbox = []


STEP_ROWS = 256
"""The most tokens of several texts that one step computes. More tokens are no faster on a processor, and
other requests wait for the step."""

MAX_DEFAULT_LENGTH = 8192
"""The most tokens of one text if no setting tells the number."""

LOGITS_BYTES = 128 * 1024 * 1024
"""Bytes for the library's rows of logits. For each row of a step, the library allocates one row of logits as
wide as the vocabulary, though no code reads it. So a large vocabulary makes steps smaller."""

MIN_STEP_ROWS = 64
"""The fewest tokens of several texts that one step computes, however large the vocabulary."""


class LoadedEmbedder(Struct, frozen=True):
    """An embedding model and its context. The owner closes it."""

    model: NativeModel
    context: NativeEmbedder
    policy: SchedulingPolicy
    info: EngineInfo
    finish: FinishRows

    def close(self) -> None:
        self.context.close()
        self.model.close()


def load_any(spec: LoadSpec) -> LoadedGenerator | LoadedEmbedder:
    """Loads a model that makes tokens or vectors, and tests it. Raises a StartupError."""
    return load_placed(spec, prepare_opened)


def prepare_opened(spec: LoadSpec, model: NativeModel, origin: str) -> LoadedGenerator | LoadedEmbedder:
    """Prepares a model that makes tokens or vectors to compute. If that fails, frees its weights. `origin`:
    the library's package and version. Raises a StartupError."""
    try:
        pooling = find_pooling(model, Path(spec.model).name)
        if pooling is not None:
            return load_embedder(spec, model, pooling, origin)
    except BaseException:
        model.close()
        raise
    return load_generator(spec, model, origin)


def find_pooling(model: NativeModel, name: str) -> Pooling | None:
    """The pooling of an embedding model. None if the model generates tokens. Raises LoadError if the model
    cannot be served."""
    pooling = int(read_attribute(model, "pooling_type") or UNPOOLED)
    if pooling == UNPOOLED:
        if is_causal(model):
            return None
        raise LoadError(
            f"{name} has bidirectional attention but no pooling type, so it can neither generate text nor "
            "embed; convert it again with its pooling configuration"
        )
    if pooling not in POOLING:
        raise LoadError(f"{name} has the unknown pooling type {pooling}; mean, CLS, last and rank are served")
    if POOLING[pooling] is Pooling.RANK and model.count_classes() not in CLASS_COUNTS:
        raise LoadError(
            f"{name} sorts texts into {model.count_classes()} classes; a reranker gives one number, or the "
            "probabilities of yes and no"
        )
    return POOLING[pooling]


def is_causal(model: NativeModel) -> bool:
    """Whether a token attends only to the tokens before it."""
    return read_attribute(model, "attention.causal") != "false"


def read_attribute(model: NativeModel, key: str) -> str | None:
    """Returns a value of the model file; None if there is none. `key`: without the name of the architecture,
    with which the key in the file begins."""
    return model.get_metadata(f"{model.get_metadata('general.architecture') or ''}.{key}")


def load_embedder(spec: LoadSpec, model: NativeModel, pooling: Pooling, origin: str) -> LoadedEmbedder:
    """Prepares an embedding model to compute. Raises a StartupError."""
    if not model.is_generative():
        raise LoadError(f"{Path(spec.model).name} cannot be served: its kind of encoder is not supported")
    if model.get_vocabulary_type() == NO_VOCABULARY:
        raise LoadError(
            f"{Path(spec.model).name} cannot be served: it has no tokenizer; convert it together with one"
        )
    longest = choose_text_length(spec, model)
    context = NativeEmbedder(model, choose_embedder_sizes(spec, model, longest), pooling)
    info = replace(
        describe(model, context, spec, origin),
        context_length=longest,
        chat_template=None,
        sampling=SamplingOptions(),
        embedding=EmbeddingFacts(1 if pooling is Pooling.RANK else model.get_dimensions(), pooling),
        rerank_template=find_rerank_template(model) if pooling is Pooling.RANK else None,
    )
    rows = count_step_rows(model)
    policy = SchedulingPolicy(
        sequences=spec.sequences,
        chunk=rows,
        budget=rows,
        cells=context.shape.cells,
        exact=spec.exact,
        queue=spec.queue,
        queue_per_actor=spec.queue_per_actor,
        keeps_prefixes=False,
    )
    finish = compute_log_odds if pooling is Pooling.RANK else scale_rows
    return LoadedEmbedder(model, context, policy, info, finish)


def find_rerank_template(model: NativeModel) -> str | None:
    """Returns the template of a pair's text from a reranker's file; None if the file has no template with
    `{query}` and `{document}`."""
    template = model.get_chat_template(b"rerank")
    return template if template and "{query}" in template and "{document}" in template else None


def choose_text_length(spec: LoadSpec, model: NativeModel) -> int:
    """Chooses the most tokens of one text. Raises LoadError if the setting exceeds what the model can
    take."""
    trained = model.get_trained_context()
    requested_length = spec.context_length or min(trained, MAX_DEFAULT_LENGTH)
    if not 1 <= requested_length <= trained:
        raise LoadError(
            f"context_length = {requested_length} is not possible, since the model reads texts of 1 to "
            f"{trained} tokens; lower it, or leave it out"
        )
    return requested_length


def count_step_rows(model: NativeModel) -> int:
    """The most tokens of several texts that one step computes."""
    return max(MIN_STEP_ROWS, min(STEP_ROWS, LOGITS_BYTES // (4 * model.size)))


def choose_embedder_sizes(spec: LoadSpec, model: NativeModel, longest: int) -> ContextSizes:
    """The sizes of the context. A non-causal model needs its longest text in one pass."""
    rows = count_step_rows(model) if is_causal(model) else max(longest, count_step_rows(model))
    return ContextSizes(
        cells=max(longest, rows),
        sequences=spec.sequences,
        rows=rows,
        micro_rows=rows,
        threads=spec.threads or max(1, choose_thread_count() // spec.hosts),
        unified=True,
        flash=True,
        kv_type=spec.kv_type,
        outputs=rows,
    )
