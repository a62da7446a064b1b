"""The account of one request: the tokens that it takes, what it reserves in the limits, its entry in the
ledger, and its report to the log, the metrics and its span.

Generations, embeddings and rankings have one, child calls too. It is opened before the request reserves
anything, and closed once, whatever ends the request. Without keys it only counts and reports.

The entry is written twice: as an intent before the engine starts, and as a completion at the end. A request
that is refused earlier leaves no entry, and its reservation is released. If the request ends with an error,
the HTTP edge writes its log record, with the values that this module leaves in the progress.
"""

import asyncio
import logging
import math
import sys
from collections.abc import Coroutine
from types import TracebackType

from antiphon.domain.context import Context
from antiphon.domain.events import (
    CandidateTokens,
    EventGroup,
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
from antiphon.domain.ledger import ABORTED, CANCELLED, OK, Entry, build_entry_id, encode_tries
from antiphon.domain.limits import Amounts, Limit, LimitStatus
from antiphon.domain.messages import estimate_tokens, measure_speech, measure_text
from antiphon.domain.prices import Price, format_decimal
from antiphon.engines.base import RequestSize
from antiphon.engines.registry import ModelRoute
from antiphon.errors import (
    AntiphonError,
    BudgetExceeded,
    DeadlineExceeded,
    InternalError,
    LargerThanLimit,
    LedgerFull,
    PermissionDenied,
    RateLimited,
)
from antiphon.ledger.base import Recorder
from antiphon.pipeline.plans import RequestPlan
from antiphon.pipeline.recorded_answer import RecordedAnswer
from antiphon.pipeline.rules import Accounting
from antiphon.pipeline.spans import close_operation
from antiphon.telemetry.logs import record
from antiphon.telemetry.metrics import Generation, Metrics

MILLISECONDS = 1000

REQUEST_MINIMUM = Amounts(requests=1, input_tokens=1)
"""The amounts that a request reserves before its prompt is counted."""

CHILD_MINIMUM = Amounts(input_tokens=1)
"""The amounts that a child call reserves before its prompt is counted. It does not count as a request."""

NOTHING = Amounts()

UNLIMITED = sys.maxsize

REFUSALS = (RateLimited, BudgetExceeded, LargerThanLimit)

MAX_HELD_SHARE = 0.1
"""The share of its time in which the caller can hold an answer that tells the speed of its route."""

NUL, REPLACEMENT = "\0", "\ufffd"
"""NUL, which no database stores in a text, and its replacement."""

GENERATION, EMBEDDING, RERANK = "generation", "embedding", "rerank"
"""What is accounted for. It is also the event of the log record."""


class RequestAccount:
    """What one request takes. The caller of `count` adds what the engine made; the end of the context
    settles and reports it."""

    __slots__ = (
        "_accounting",
        "_context",
        "_first_token_at",
        "_inputs",
        "_is_admitted",
        "_is_bounded",
        "_is_estimated",
        "_is_open",
        "_is_shown_in_span",
        "_kind",
        "_limits",
        "_metrics",
        "_minimum",
        "_model",
        "_plan",
        "_price",
        "_queued_s",
        "_reasoning_bytes",
        "_reasoning_tokens",
        "_recorder",
        "_requested_name",
        "_reserved",
        "_route",
        "_rules",
        "_settles_later",
        "_size",
        "_source",
        "_started_at",
        "_status",
        "_text_bytes",
        "_total_s",
        "_usage",
        "answer",
        "cached_tokens",
        "completion_tokens",
        "finish_reasons",
        "granted_tokens",
        "has_usage",
        "id",
        "prompt_tokens",
        "started_ms",
    )

    def __init__(
        self,
        plan: RequestPlan,
        requested_name: str,
        context: Context,
        metrics: Metrics,
        accounting: Accounting | None,
        is_bounded: bool = True,
        kind: str = GENERATION,
        inputs: int = 0,
    ) -> None:
        """`requested_name`: the model as the caller wrote it. `accounting`: None if keys are off.
        `is_bounded`: whether the caller limited the output. `inputs`: the number of texts, if nothing is
        generated. Raises PermissionDenied if a cost limit applies and the only route has no price."""
        self._plan = plan
        self._model = model = plan.model
        self._requested_name = requested_name
        self._context = context
        self._metrics = metrics
        self._accounting = accounting
        self._is_bounded = is_bounded
        self._kind = kind
        self._inputs = inputs
        self._started_at = context.clock.monotonic()
        self.started_ms = int(context.clock.wall() * MILLISECONDS)
        """The start of the request in Unix milliseconds."""

        self.prompt_tokens = self.completion_tokens = self.cached_tokens = self._reasoning_tokens = 0
        self._source = UsageSource.ENGINE
        self._is_estimated = False
        """Whether the deltas have no token counts, so the bytes of their text are counted instead."""
        self._text_bytes = self._reasoning_bytes = 0
        self.finish_reasons: list[str] = []
        self.has_usage = False
        """Whether the answer is complete, with its usage."""
        self._first_token_at: float | None = None
        self._queued_s: float | None = None
        """Seconds in the queue of the engine."""
        self.answer: RecordedAnswer | None = None
        """The texts so far; None if neither the project nor the span records texts."""
        self._recorder: Recorder | None = None
        """Records the texts of a caller's request, if its project turned that on."""
        span = context.span
        self._is_shown_in_span = span is not None and span.is_recorded and span.records_content
        """Whether the span contains the texts."""

        self.id = ""
        """Id of the ledger entry; empty if keys are off."""
        self._is_admitted = False
        """Whether an intent was written."""
        self._route = model.routes[0]
        """The latest route that was tried."""
        self._size: RequestSize | None = None
        """The size on that route."""
        self._price: Price | None = None
        self._limits: tuple[Limit, ...] = ()
        self._minimum = REQUEST_MINIMUM if context.parent is None else CHILD_MINIMUM
        self._reserved = NOTHING
        self._is_open = False
        """Whether the limiter may count the request."""
        self.granted_tokens = UNLIMITED
        """Output tokens that can be made before more must be reserved."""

        self._status = OK
        self._usage = Usage(0, 0)
        self._total_s = 0.0
        self._settles_later = False
        """Whether the request waits for its usage without its caller."""
        if accounting is not None:
            self.id = build_entry_id(self.started_ms, context.clock.unique())
            self._rules = plan.rules
            self._limits = plan.limits if context.parent is None else plan.child_limits
            if self._limits:
                self.granted_tokens = 0
            if len(model.routes) == 1:
                self._set_price()
            recorder = accounting.recorder
            if recorder is not None and kind == GENERATION and context.parent is None:
                self._recorder = recorder if recorder.is_recorded(context.actor.project) else None
        if kind == GENERATION and (self._recorder is not None or self._is_shown_in_span):
            self.answer = RecordedAnswer()

    async def __aenter__(self) -> "RequestAccount":
        if self._kind == GENERATION:
            self._metrics.begin_generation(self._model.label)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Settles and reports the request. Raises LedgerFull if a complete request cannot be written to the
        ledger. The client does not get the end of its stream then."""
        try:
            if not self._settles_later:
                self._conclude(error)
                self._settle(error)
        finally:
            if self._recorder is not None and self.answer is not None and self._is_admitted:
                body = self._context.body.decode("utf-8", "replace")
                project, answer = self._context.actor.project, self.answer.to_json()
                self._recorder.record(self.id, project, self.started_ms, body, answer)

    # --- counting ---

    def has_granted(self, group: EventGroup) -> bool:
        """Whether all tokens of a group are reserved already."""
        granted = self.granted_tokens
        if granted == UNLIMITED:
            return True
        return self.completion_tokens + sum([getattr(event, "tokens", 0) for event in group]) <= granted

    def count(self, group: EventGroup) -> bool:
        """Counts events. Returns whether more tokens must be reserved before they are passed on. The most
        frequent kind is tested first: nearly all events of a stream are text deltas."""
        for event in group:
            if isinstance(event, TextDelta):
                self.completion_tokens += event.tokens
                if self._is_estimated:
                    text = event.text
                    self._text_bytes += len(text) if text.isascii() else measure_text(text)
            elif isinstance(event, Finished):
                self.completion_tokens += event.tokens
                self.finish_reasons.append(event.reason)
            elif isinstance(event, Started):
                self._first_token_at = self._context.clock.monotonic()
                self.prompt_tokens, self.cached_tokens = event.prompt_tokens, event.cached_tokens
                self._queued_s, self._source = event.queued, event.source
                self._is_estimated = event.source is UsageSource.ESTIMATED
            elif isinstance(event, ReasoningDelta):
                self.completion_tokens += event.tokens
                self._reasoning_tokens += event.tokens
                if self._is_estimated:
                    self._reasoning_bytes += measure_text(event.text)
            elif isinstance(event, ToolCallStarted | ToolCallDelta | SpeechDelta | CandidateTokens):
                self.completion_tokens += event.tokens
                if self._is_estimated and not isinstance(event, CandidateTokens):
                    self._text_bytes += measure_delta(event)
            elif isinstance(event, Usage):
                self.prompt_tokens, self.cached_tokens = event.prompt_tokens, event.cached_tokens
                self.completion_tokens = event.completion_tokens
                self._reasoning_tokens, self._source = event.reasoning_tokens, event.source
                self.has_usage = True
        # The final count of a vendor must not refuse the request.
        return self.completion_tokens > self.granted_tokens and not self.has_usage

    # --- reserving ---

    async def reserve_early(self) -> None:
        """Reserves the request before its size is known, if one of its limits was exhausted recently. So most
        refused requests cost no template and no tokenizing. Raises RateLimited, BudgetExceeded or
        LimitsUnavailable."""
        if self._accounting is not None and self._limits:
            now = self._context.clock.monotonic()
            if self._accounting.exhausted.includes_any(self._limits, now):
                await self._reserve_minimum(self._accounting)

    async def admit(self) -> None:
        """Reserves one request and writes the intent, before the request makes child calls. So the parent of
        child calls has an entry even if it is refused later. Raises the refusal, or LedgerFull."""
        if self._accounting is not None and not self._is_admitted:
            await self._reserve_minimum(self._accounting)
            self._write_intent(self._accounting, Usage(0, 0, source=UsageSource.ESTIMATED))

    async def reserve(self, route: ModelRoute, size: RequestSize) -> None:
        """Reserves the prompt, the output and their cost on a route, and writes the intent to the ledger. A
        later route reserves only the missing part. If the caller limited the output, all of it is reserved.
        If not, one step of output is reserved, or as much of the step as the limits allow. Raises the errors
        of `Limiter.reserve`, and LedgerFull."""
        accounting = self._accounting
        if accounting is None:
            return
        if route is not self._route or len(self._model.routes) > 1:
            self._route = route
            self._set_price()
        self._size = size
        if self.granted_tokens != UNLIMITED:
            is_bounded = self._is_bounded or not size.is_counted
            output_tokens = size.output_tokens
            if not is_bounded:
                output_tokens = min(output_tokens, accounting.reserve_tokens)
            while True:
                try:
                    await self._extend(accounting, max(output_tokens, self.granted_tokens))
                    break
                except REFUSALS as refusal:
                    if is_bounded or output_tokens <= 1 or not isinstance(refusal, LargerThanLimit):
                        self._count_refusal(accounting, refusal)
                        raise
                output_tokens //= 2
        if not self._is_admitted:
            self._write_intent(accounting, Usage(size.prompt_tokens, 0, source=UsageSource.ESTIMATED))

    async def grow(self) -> None:
        """Reserves another step of output, or as much of it as the limits allow. Raises RateLimited or
        BudgetExceeded if the limits do not allow the output so far."""
        accounting, size = self._accounting, self._size
        if accounting is None or size is None:
            return None
        needed_tokens = self.completion_tokens - self.granted_tokens
        step = max(needed_tokens, min(accounting.reserve_tokens, size.output_tokens - self.granted_tokens))
        while True:
            try:
                return await self._extend(accounting, self.granted_tokens + step)
            except REFUSALS as refusal:
                if step <= needed_tokens:
                    self._count_refusal(accounting, refusal)
                    raise
            step = max(needed_tokens, step // 2)

    async def _reserve_minimum(self, accounting: Accounting) -> None:
        """Reserves the request before its size is known."""
        if self._limits:
            try:
                await self._reserve_amounts(accounting, self._minimum)
            except REFUSALS as refusal:
                self._count_refusal(accounting, refusal)
                raise

    async def _extend(self, accounting: Accounting, output_tokens: int) -> None:
        """Reserves the part of `output_tokens`, and of their cost, that is not reserved yet."""
        reserved, prompt, cost = self._reserved, 0 if self._size is None else self._size.prompt_tokens, 0
        if self._price is not None:
            cost = self._price.compute_max_cost(prompt, output_tokens)
        prompt, cost = max(prompt, reserved.input_tokens), max(cost, reserved.cost)
        amounts = Amounts(self._minimum.requests, prompt, output_tokens, cost)
        await self._reserve_amounts(accounting, amounts)
        self.granted_tokens = output_tokens

    async def _reserve_amounts(self, accounting: Accounting, amounts: Amounts) -> None:
        """Reserves the part of these amounts that is not reserved yet. Limits count in their current form,
        without removed ones. A limit that was added later applies only to later requests."""
        reserved, rules = self._reserved, accounting.limit_index.rules
        if rules is not self._rules:
            self._rules = rules
            all_limits = rules.find_limits(self._context.actor, self._model.counted_name)
            current_limits = {limit.id: limit for limit in all_limits}
            self._limits = tuple(
                current_limits[limit.id] for limit in self._limits if limit.id in current_limits
            )
        claim, progress = self.id, self._context.progress
        if reserved is NOTHING:
            self._is_open = True  # the limiter may count the reservation even if its answer is lost
            progress.limit_statuses = await accounting.limiter.reserve(claim, self._limits, amounts)
        elif amounts != reserved:
            added = Amounts(
                0,
                amounts.input_tokens - reserved.input_tokens,
                amounts.output_tokens - reserved.output_tokens,
                amounts.cost - reserved.cost,
            )
            progress.limit_statuses = await accounting.limiter.extend(claim, self._limits, added)
        self._reserved = amounts

    def _count_refusal(
        self, accounting: Accounting, refusal: RateLimited | BudgetExceeded | LargerThanLimit
    ) -> None:
        """Counts a refusal in the metrics, remembers the exhausted limit, and names its subject in the
        message. The limiter knows ids only."""
        for limit in self._limits:
            if limit.id == refusal.limit:
                subject = f"{limit.subject} {limit.target}"
                refusal.message = refusal.message.replace(subject, self._rules.describe_subject(limit), 1)
                self._metrics.count_refusal(limit.subject, limit.measure, limit.window)
                if not isinstance(refusal, LargerThanLimit):
                    accounting.exhausted.add(limit, self._context.clock.monotonic())
        statuses = tuple(status for status in refusal.statuses if isinstance(status, LimitStatus))
        progress = self._context.progress
        progress.limit_statuses = statuses or progress.limit_statuses

    def _set_price(self) -> None:
        """Sets the price of the route at the start of the request. Raises PermissionDenied if a cost limit
        applies and the route has no price, since the limit could not count the cost."""
        plan, at = self._plan, self.started_ms // MILLISECONDS
        for price in plan.prices[self._route]:
            if price.applies_at(at):
                self._price = price
                return
        self._price, model, limit = None, self._model.counted_name, plan.cost_limit
        if limit is not None:
            raise PermissionDenied(
                f"the model {model} has no price here, so a limit in cost that applies cannot count it: "
                f"{format_decimal(limit.amount)} per {limit.window} for the "
                f"{plan.rules.describe_subject(limit)}; the operator adds a price, 0 where it is free "
                f"(antiphon prices add {self._route.price or model})",
                param="model",
            )

    # --- the end ---

    def expects_usage(self, error: BaseException | None, has_arrived: bool) -> bool:
        """Whether a vendor's usage may come although the caller has left: the answer ended, or all of it
        came. `has_arrived`: see `LateUsageStream`."""
        if self.has_usage or isinstance(error, AntiphonError) or self._size is None:
            return False
        if self._accounting is None or self._accounting.late_settlements is None:
            return False
        return has_arrived or (self._is_estimated and len(self.finish_reasons) == self._size.choices)

    def settle_later(
        self, error: BaseException | None, read_usage: Coroutine[None, None, Usage | None]
    ) -> None:
        """Concludes a request whose usage may come, and settles it when `read_usage` has ended, without the
        caller. Its caller has no place among concurrent requests any more."""
        accounting = self._accounting
        if accounting is None or accounting.late_settlements is None:
            raise RuntimeError("nothing is settled later where keys are off")
        self._conclude(error)
        self._settles_later = True
        if self._is_open:
            accounting.limiter.release_place(self.id)
        accounting.late_settlements.start(self._settle_with(read_usage))

    async def _settle_with(self, read_usage: Coroutine[None, None, Usage | None]) -> None:
        left = asyncio.CancelledError()  # the original one would keep the frames of the request in memory
        try:
            self._usage = await read_usage or self._usage
        finally:
            self._settle(left)

    def _conclude(self, error: BaseException | None) -> None:
        """Decides the status, the time and the usage of the request. Adds a vendor's complete answer to the
        speed of its route, unless its caller could have made it slow: by several choices, or by reading
        slowly."""
        context, now = self._context, self._context.clock.monotonic()
        self._total_s = now - self._started_at
        if not self.has_usage or isinstance(error, AntiphonError):
            self._status = self._name_status(error)
        if self._kind != GENERATION and not self.has_usage:
            self.prompt_tokens = context.progress.report.embedded_tokens
        if self._is_estimated and not self.has_usage:
            self._reasoning_tokens = estimate_tokens(self._reasoning_bytes)
            self.completion_tokens = estimate_tokens(self._text_bytes + self._reasoning_bytes)
        self._usage = Usage(
            self.prompt_tokens,
            self.completion_tokens,
            self.cached_tokens,
            self._reasoning_tokens,
            self._source,
        )
        size, sent_at = self._size, context.progress.report.sent_at
        if size is None or size.is_counted:
            return
        if not self.has_usage:
            self._charge_unfinished(size, error, now)
        elif sent_at is not None and size.choices == 1:
            seconds = now - sent_at
            if context.progress.report.held_s <= seconds * MAX_HELD_SHARE:
                self._route.state.speed.add(self.completion_tokens, seconds)

    def _charge_unfinished(self, size: RequestSize, error: BaseException | None, now: float) -> None:
        """Decides what a request is charged that ends before its vendor's usage came. This is the only place
        that decides it.

        An engine of this server counts each token, so what was made is charged. If a vendor failed, what came
        is charged. If the caller left, or the time was up, the vendor has worked until now, whether or not
        anything came: hidden reasoning does not come, and what came last was made earlier. Then the estimate
        of the prompt is charged, and the output that the route makes in this time, at most the whole output
        that was asked for. The caller cannot choose less by when they leave.
        """
        prompt, output = self.prompt_tokens, self.completion_tokens
        sent_at = self._context.progress.report.sent_at
        is_failure = isinstance(error, AntiphonError) and not isinstance(error, DeadlineExceeded)
        if sent_at is not None and not is_failure:
            prompt, speed = size.estimated_prompt_tokens, self._route.state.speed.estimate()
            if speed is None:
                output = size.output_tokens
            else:
                output = max(output, math.ceil((now - sent_at) * speed * size.choices))
        output = min(output, size.output_tokens)
        reasoning = min(self._reasoning_tokens, output)
        self._usage = Usage(prompt, output, 0, reasoning, UsageSource.ESTIMATED)

    def _name_status(self, error: BaseException | None) -> str:
        """Returns the status of a request that is not complete: the code of its error, or `cancelled` if the
        caller left. A request that the HTTP edge cancels has the code of the edge's error."""
        if isinstance(error, AntiphonError):
            return error.code
        if error is not None and not isinstance(error, GeneratorExit | asyncio.CancelledError):
            return InternalError.code
        if self._context.progress.end_code is not None:
            return self._context.progress.end_code
        return DeadlineExceeded.code if self._context.remaining() == 0 else CANCELLED

    def _settle(self, error: BaseException | None) -> None:
        """Writes the completion, settles the limits and reports the request. If the completion cannot be
        written, the intent remains as the entry. Raises LedgerFull then, if there is no other error."""
        context, ledger_error = self._context, None
        if self._accounting is not None and self._is_admitted:
            ledger_error = self._complete(self._accounting)
        elif self._accounting is not None and self._is_open:
            self._is_open = False
            self._accounting.limiter.settle(self.id, NOTHING)
        if ledger_error is not None:
            self._status = ledger_error.code
        first_token_s = None if self._first_token_at is None else self._first_token_at - self._started_at
        if context.span is not None:
            close_operation(
                context,
                self._model,
                self._status,
                self._usage,
                self._total_s,
                first_token_s,
                self.finish_reasons,
                self.answer if self._is_shown_in_span else None,
            )
        # The HTTP edge writes the only log record of a request that it answers with an error.
        is_logged_by_edge = (
            ledger_error is not None
            or context.progress.end_code is not None
            or (isinstance(error, AntiphonError) and not isinstance(error, InternalError))
        )
        self._report(first_token_s, is_logged_by_edge)
        try:
            if ledger_error is not None and error is None:
                raise ledger_error
        finally:
            del ledger_error  # the error's own traceback would keep the whole request in memory

    def _complete(self, accounting: Accounting) -> LedgerFull | None:
        """Writes the completion and settles the limits. Returns the error if it cannot be written."""
        if self._price is not None and self._price.currency != accounting.limit_index.rules.currency:
            self._price = None  # the currency has changed since, and sums can have only one currency
        usage, project = self._usage, self._context.actor.project
        cost = self._compute_cost(usage)
        if self._price is not None:
            self._metrics.add_cost(self._model.label, project, self._price.currency, cost)
        try:
            accounting.ledger.complete(self._build_entry(usage, cost, self._status, self._total_s))
        except LedgerFull as error:
            record("completion_lost", logging.ERROR, request_id=self._context.request_id, entry=self.id)
            return error
        finally:
            if self._is_open:
                self._is_open = False
                used = Amounts(self._minimum.requests, usage.prompt_tokens, usage.completion_tokens, cost)
                ended_ms = self.started_ms + round(self._total_s * MILLISECONDS)
                accounting.limiter.settle(self.id, used, ended_ms)
        return None

    def _report(self, first_token_s: float | None, is_logged_by_edge: bool) -> None:
        """Counts the request in the metrics. Writes its log record, or leaves the values to the HTTP edge."""
        context, model, usage, metrics = self._context, self._model, self._usage, self._metrics
        fields: dict[str, object] = {"actor": context.actor.id}
        if self._kind == GENERATION:
            metrics.end_generation(
                Generation(
                    model.label,
                    self._status,
                    usage.prompt_tokens,
                    usage.completion_tokens,
                    usage.cached_tokens,
                    self._total_s,
                    first_token_s,
                )
            )
            fields |= {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "cached_tokens": usage.cached_tokens,
                "finish_reasons": self.finish_reasons,
                "ttft_ms": None if first_token_s is None else round(first_token_s * MILLISECONDS, 1),
                "total_ms": round(self._total_s * MILLISECONDS, 1),
            }
            if model.is_routed:
                fields["route"] = context.progress.route.decode()
        else:
            count = metrics.count_embedding if self._kind == EMBEDDING else metrics.count_rerank
            count(model.label, self._status, usage.prompt_tokens, self._total_s)
            fields |= {
                "inputs": self._inputs,
                "prompt_tokens": usage.prompt_tokens,
                "total_ms": round(self._total_s * MILLISECONDS, 1),
            }
        metrics.count_project(context.actor.project, usage.prompt_tokens, usage.completion_tokens)
        if is_logged_by_edge:
            context.progress.log_fields = fields
            return
        record(
            self._kind,
            logging.INFO,
            request_id=context.request_id,
            model=model.name,
            status=self._status,
            path=context.origin.operation,
            client=context.actor.client or "",
            **fields,
        )

    # --- the ledger's entry ---

    def _write_intent(self, accounting: Accounting, estimate: Usage) -> None:
        """Writes the intent."""
        accounting.ledger.begin(self._build_entry(estimate, self._compute_cost(estimate)))
        self._is_admitted = True

    def _compute_cost(self, usage: Usage) -> int:
        """Returns the cost in nano-units; 0 without a price, and of a request that used no token."""
        prompt_tokens, completion_tokens = usage.prompt_tokens, usage.completion_tokens
        if self._price is None or not (prompt_tokens or completion_tokens):
            return 0
        return self._price.compute_cost(prompt_tokens, usage.cached_tokens, completion_tokens)

    def _build_entry(
        self, usage: Usage, cost: int, status: str = ABORTED, total_s: float | None = None
    ) -> Entry:
        """Builds the ledger entry: the completion, or the intent if there is no time. Building both is faster
        than copying the intent."""
        context, model, price = self._context, self._model, self._price
        if total_s is None and not context.progress.tries:
            routes = self._route.aborted_try
        else:
            routes = encode_tries(context.progress.tries, status)
        queue_ms = ttft_ms = total_ms = None
        if total_s is not None:
            total_ms = round(total_s * MILLISECONDS)
            if self._queued_s is not None:
                queue_ms = round(self._queued_s * MILLISECONDS)
            if self._first_token_at is not None:
                ttft_ms = round((self._first_token_at - self._started_at) * MILLISECONDS)
        actor, origin = context.actor, context.origin
        return Entry(
            id=self.id,
            request_id=context.request_id,
            at=self.started_ms,
            project=actor.project,
            key=actor.id,
            user=actor.user,
            dialect=origin.dialect,
            operation=origin.operation,
            asked=self._requested_name.replace(NUL, REPLACEMENT),
            model=model.counted_name,
            adapter=None if model.adapter is None else model.adapter.digest,
            engine=self._route.kind,
            attempts=context.progress.attempts,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            source=usage.source,
            price=None if price is None else price.id,
            cost=cost,
            currency="" if price is None else price.currency,
            status=status,
            queue_ms=queue_ms,
            ttft_ms=ttft_ms,
            total_ms=total_ms,
            end_user=origin.end_user,
            parent=context.parent,
            tags=origin.tags,
            routes=routes,
        )


def measure_delta(event: ToolCallStarted | ToolCallDelta | SpeechDelta) -> int:
    """Returns the bytes of text in a part of a tool call. For a part of speech, returns an equivalent number
    of bytes."""
    if isinstance(event, SpeechDelta):
        return measure_text(event.transcript) + measure_speech(event.data)
    return measure_text(event.name if isinstance(event, ToolCallStarted) else event.arguments)
