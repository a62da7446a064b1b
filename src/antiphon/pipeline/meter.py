"""Counts the tokens of each generation, and reports the generation once when it ends, for any reason. The
report goes to the log and the metrics, and to the ledger and the limits if keys are on. If a generation ends
with an error, the HTTP edge writes its log record, with the counts of this module.

A generation that is cut short counts the tokens that were generated. A vendor's deltas have no token counts,
so `RequestMeter.charge_unfinished` decides what it is charged. If the caller left after the answer ended,
or after all of it came, the vendor's usage is read. This module contains no limits and no prices.

`record_stream` records the text of requests and answers, for projects that turned it on.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from types import TracebackType

from antiphon.domain.context import Clock, Context
from antiphon.domain.events import (
    CandidateTokens,
    Event,
    Finished,
    ReasoningDelta,
    SpeechDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    UsageSource,
)
from antiphon.domain.messages import estimate_tokens, measure_speech, measure_text
from antiphon.domain.values import Struct, field, replace
from antiphon.engines.registry import Model
from antiphon.errors import AntiphonError, DeadlineExceeded, InternalError
from antiphon.ledger.base import Recorder
from antiphon.pipeline.attempt import StartedStream
from antiphon.pipeline.late_settlements import MAX_WAIT_S
from antiphon.pipeline.recorded_answer import RecordedAnswer
from antiphon.pipeline.request_meter import RequestMeter, RequestOutcome
from antiphon.pipeline.spans import close_operation
from antiphon.telemetry.logs import record
from antiphon.telemetry.metrics import Generation, Metrics

OK = "ok"
CANCELLED = "cancelled"


class GenerationTally(Struct):
    """The counts of one generation so far."""

    started_at: float
    """Monotonic seconds."""
    first_token_at: float | None = None
    """Monotonic seconds."""
    queued_s: float | None = None
    """Seconds in the queue of the engine."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    source: UsageSource = UsageSource.ENGINE
    is_estimated: bool = False
    """Whether the deltas have no token counts, so the bytes of their text are counted instead."""
    text_bytes: int = 0
    """Bytes of text, tool calls and speech, if `is_estimated`."""
    reasoning_bytes: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    has_usage: bool = False
    """Whether the stream has ended normally, with its usage."""
    answer: RecordedAnswer | None = None
    """The texts so far; None if spans contain no texts."""

    def add(self, event: Event, clock: Clock) -> None:
        """Counts an event. The most frequent kind is tested first: nearly all events of a stream are text
        deltas."""
        if isinstance(event, TextDelta):
            self.completion_tokens += event.tokens
            if self.is_estimated:
                self.text_bytes += measure_text(event.text)
        elif isinstance(event, Finished):
            self.completion_tokens += event.tokens
            self.finish_reasons.append(event.reason)
        elif isinstance(event, Started):
            self.first_token_at = clock.monotonic()
            self.prompt_tokens, self.cached_tokens = event.prompt_tokens, event.cached_tokens
            self.queued_s, self.source = event.queued, event.source
            self.is_estimated = event.source is UsageSource.ESTIMATED
        elif isinstance(event, ReasoningDelta):
            self.completion_tokens += event.tokens
            self.reasoning_tokens += event.tokens
            if self.is_estimated:
                self.reasoning_bytes += measure_text(event.text)
        elif isinstance(event, ToolCallStarted | ToolCallDelta | SpeechDelta | CandidateTokens):
            self.completion_tokens += event.tokens
            if self.is_estimated and not isinstance(event, CandidateTokens):
                self.text_bytes += measure_delta(event)
        elif isinstance(event, Usage):
            self.prompt_tokens, self.cached_tokens = event.prompt_tokens, event.cached_tokens
            self.completion_tokens = event.completion_tokens
            self.reasoning_tokens, self.source = event.reasoning_tokens, event.source
            self.has_usage = True

    def estimate(self) -> None:
        """Estimates the completion of a stream that ended without the vendor's usage, by the rule of
        `domain.messages.estimate_tokens`."""
        self.reasoning_tokens = estimate_tokens(self.reasoning_bytes)
        self.completion_tokens = estimate_tokens(self.text_bytes + self.reasoning_bytes)

    def build_outcome(self, status: str, now: float) -> RequestOutcome:
        """Returns the outcome of the generation. `now`: monotonic seconds."""
        if self.is_estimated and not self.has_usage:
            self.estimate()
        usage = Usage(
            self.prompt_tokens,
            self.completion_tokens,
            self.cached_tokens,
            self.reasoning_tokens,
            self.source,
        )
        first_token_s = None if self.first_token_at is None else self.first_token_at - self.started_at
        return RequestOutcome(status, usage, now - self.started_at, self.queued_s, first_token_s)


def measure_delta(event: ToolCallStarted | ToolCallDelta | SpeechDelta) -> int:
    """Returns the bytes of text in a part of a tool call. For a part of speech, returns an equivalent number
    of bytes."""
    if isinstance(event, SpeechDelta):
        return measure_text(event.transcript) + measure_speech(event.data)
    return measure_text(event.name if isinstance(event, ToolCallStarted) else event.arguments)


class Settlement:
    """A context that reports a generation when it ends, for any reason, and settles its limits."""

    __slots__ = ("_context", "_meter", "_metrics", "_model", "_tally", "stream")

    def __init__(
        self,
        tally: GenerationTally,
        model: Model,
        context: Context,
        metrics: Metrics,
        meter: RequestMeter | None,
    ) -> None:
        self._tally = tally
        self._model = model
        self._context = context
        self._metrics = metrics
        self._meter = meter
        self.stream: StartedStream | None = None
        """The stream, once it has started. The end of this context closes it."""

    async def __aenter__(self) -> "Settlement":
        self._metrics.begin_generation(self._model.label)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the stream, settles the limits of the generation and reports it. Raises LedgerFull if a
        complete generation cannot be written to the ledger."""
        tally, context, meter, stream = self._tally, self._context, self._meter, self.stream
        is_complete = tally.has_usage and not isinstance(error, AntiphonError)
        outcome = tally.build_outcome(
            OK if is_complete else find_status(error, context), context.clock.monotonic()
        )
        if meter is not None:
            if tally.has_usage:
                meter.add_speed(outcome.usage)
            else:
                outcome = replace(outcome, usage=meter.charge_unfinished(outcome.usage, error))
                waits = meter.late_settlements
                has_ended = tally.is_estimated and len(tally.finish_reasons) == meter.choices
                has_left = not isinstance(error, AntiphonError)
                if (
                    stream is not None
                    and waits is not None
                    and has_left
                    and (has_ended or stream.has_arrived)
                ):
                    meter.release_place()
                    waits.start(self._settle_late(outcome, stream))
                    return
        try:
            if stream is not None:
                await stream.__aexit__(kind, error, trace)
        finally:
            self._settle(outcome, error)

    async def _settle_late(self, outcome: RequestOutcome, stream: StartedStream) -> None:
        """Reads the usage of an answer that has ended and whose caller has left, and settles it."""
        left = asyncio.CancelledError()  # the original one would keep the frames of the request in memory
        try:
            usage = await stream.read_usage(MAX_WAIT_S)
            outcome = outcome if usage is None else replace(outcome, usage=usage)
        finally:
            try:
                await stream.__aexit__(asyncio.CancelledError, left, None)
            finally:
                self._settle(outcome, left)

    def _settle(self, outcome: RequestOutcome, error: BaseException | None) -> None:
        """Settles the limits and reports the generation. Raises LedgerFull if there is no other error."""
        tally, context = self._tally, self._context
        ledger_error = None if self._meter is None else self._meter.close(outcome)
        if ledger_error is not None:
            outcome = replace(outcome, status=ledger_error.code)
        if context.span is not None:
            close_operation(context, self._model, outcome, tally.finish_reasons, tally.answer)
        logged_by_edge = ledger_error is not None or is_logged_by_edge(error, context)
        _report(outcome, tally.finish_reasons, self._model, context, self._metrics, logged_by_edge)
        try:
            if ledger_error is not None and error is None:
                raise ledger_error
        finally:
            del ledger_error  # the error's own traceback would keep the whole request in memory


async def meter_stream(
    start_stream: Callable[[], Awaitable[StartedStream]],
    model: Model,
    context: Context,
    metrics: Metrics,
    meter: RequestMeter | None = None,
) -> AsyncGenerator[Event, None]:
    """Starts a stream and yields its events. Reserves more tokens when the reserved ones are used up. Settles
    the generation when it ends, for any reason.

    Raises LedgerFull if a complete generation cannot be written to the ledger. The client does not get the
    end of that stream.
    """
    clock = context.clock
    tally = GenerationTally(clock.monotonic())
    span = context.span
    if span is not None and span.is_recorded and span.records_content:
        tally.answer = RecordedAnswer()
    async with Settlement(tally, model, context, metrics, meter) as settlement:
        stream = settlement.stream = await _start_metered(start_stream, meter)
        event: Event | None = stream.first_event
        while event is not None:
            tally.add(event, clock)
            if tally.answer is not None:
                tally.answer.add(event)
            if (
                meter is not None
                and tally.completion_tokens > meter.granted_tokens
                and not tally.has_usage  # the final count of the vendor must not refuse the request
            ):
                await meter.grow(tally.completion_tokens)
            yield event
            event = await anext(stream.events, None)


async def _start_metered(
    start_stream: Callable[[], Awaitable[StartedStream]], meter: RequestMeter | None
) -> StartedStream:
    """Reserves the request if one of its limits was exhausted recently. Then starts the stream."""
    if meter is not None:
        await meter.reserve_early()
    return await start_stream()


def find_status(error: BaseException | None, context: Context) -> str:
    """Returns the status of a generation that is not complete: the code of its error, or `cancelled` if the
    caller left. A request that the HTTP edge cancels has the code of the edge's error."""
    if isinstance(error, AntiphonError):
        return error.code
    caller_left = error is None or isinstance(error, GeneratorExit | asyncio.CancelledError)
    if not caller_left:
        return InternalError.code
    if context.progress.end_code is not None:
        return context.progress.end_code
    return DeadlineExceeded.code if context.remaining() == 0 else CANCELLED


def _report(
    outcome: RequestOutcome,
    finish_reasons: Sequence[str],
    model: Model,
    context: Context,
    metrics: Metrics,
    logged_by_edge: bool,
) -> None:
    """Counts the generation in the metrics. Writes its log record, or passes the fields to the HTTP edge if
    the edge writes the record."""
    usage, first_token_s = outcome.usage, outcome.first_token_s
    metrics.end_generation(
        Generation(
            model.label,
            outcome.status,
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.cached_tokens,
            outcome.total_s,
            first_token_s,
        )
    )
    metrics.count_project(context.actor.project, usage.prompt_tokens, usage.completion_tokens)
    fields: dict[str, object] = {
        "actor": context.actor.id,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "finish_reasons": finish_reasons,
        "ttft_ms": None if first_token_s is None else round(first_token_s * 1000, 1),
        "total_ms": round(outcome.total_s * 1000, 1),
    }
    if model.is_routed:
        fields["route"] = context.progress.route.decode()
    if logged_by_edge:
        context.progress.log_fields = fields
    else:
        log_fields = {"request_id": context.request_id, "model": model.name, "status": outcome.status}
        log_fields |= {"path": context.origin.operation, "client": context.actor.client or ""}
        record("generation", logging.INFO, **log_fields, **fields)


def is_logged_by_edge(error: BaseException | None, context: Context) -> bool:
    """Whether the HTTP edge sends an error for this request. If so, the edge writes the only log record."""
    return context.progress.end_code is not None or (
        isinstance(error, AntiphonError) and not isinstance(error, InternalError)
    )


async def record_stream(
    events: AsyncGenerator[Event, None], meter: RequestMeter, context: Context, recorder: Recorder
) -> AsyncGenerator[Event, None]:
    """Yields the same events, and records the answer at the end, for any reason. Records nothing if the
    request was refused before it ran."""
    answer = RecordedAnswer()
    try:
        async with aclosing(events):
            async for event in events:
                answer.add(event)
                yield event
    finally:
        if meter.is_admitted:
            body = context.progress.body.decode("utf-8", "replace")
            recorder.record(meter.id, context.actor.project, meter.started_ms, body, answer.to_json())
