"""Meters one request where keys are on: its reservation in the limits, and its ledger entry.

The entry is written twice: as an intent before the engine starts, and as a completion at the end. A request
that is refused earlier leaves no entry, and its reservation is released.
"""

import logging
import math

from antiphon.domain.context import Context
from antiphon.domain.events import Usage, UsageSource
from antiphon.domain.identity import Actor
from antiphon.domain.ledger import ABORTED, Entry, encode_tries
from antiphon.domain.limits import Amounts, Measure
from antiphon.domain.prices import Price, format_decimal
from antiphon.domain.values import Value
from antiphon.engines.base import RequestSize
from antiphon.engines.registry import Model, ModelRoute
from antiphon.errors import AntiphonError, DeadlineExceeded, LedgerFull, PermissionDenied
from antiphon.pipeline.late_settlements import LateSettlements
from antiphon.pipeline.reserve import NOTHING, Accounting, Reservation, RuleSet
from antiphon.telemetry.logs import record
from antiphon.telemetry.metrics import Metrics

MILLISECONDS = 1000

MAX_HELD_SHARE = 0.1
"""The share of its time in which the caller can hold an answer that tells the speed of its route."""

NUL, REPLACEMENT = "\0", "\ufffd"
"""NUL, which no database stores in a text, and its replacement."""


class RequestOutcome(Value, frozen=True):
    """How a request ended."""

    status: str
    usage: Usage
    """The tokens that were computed and generated."""
    total_s: float
    """Seconds from the start of the request to its end."""
    queued_s: float | None = None
    """Seconds in the queue of the engine; None if it is unknown."""
    first_token_s: float | None = None
    """Seconds from the start of the request to its first token; None without a token."""


class RequestMeter:
    """The reservation and the ledger entry of one request."""

    __slots__ = (
        "_accounting",
        "_context",
        "_is_bounded",
        "_metrics",
        "_model",
        "_price",
        "_requested_name",
        "_reservation",
        "_route",
        "_size",
        "granted_tokens",
        "id",
        "is_admitted",
        "started_ms",
    )

    def __init__(
        self,
        accounting: Accounting,
        model: Model,
        requested_name: str,
        is_bounded: bool,
        context: Context,
        metrics: Metrics,
    ) -> None:
        """`requested_name`: the model as the caller wrote it. `is_bounded`: whether the caller limited the
        output. Raises PermissionDenied if a cost limit applies and the only route has no price."""
        self._accounting = accounting
        self._model = model
        self._requested_name = requested_name
        self._is_bounded = is_bounded
        self._size: RequestSize | None = None
        """The size on the latest route that was tried."""
        self._context = context
        self._metrics = metrics
        self.id = context.clock.unique()
        """Id of the ledger entry."""
        self.started_ms = int(context.clock.wall() * MILLISECONDS)
        """The start of the request in Unix milliseconds."""
        self.is_admitted = False
        """Whether an intent was written."""
        self._route = model.routes[0]
        self._price: Price | None = None
        if len(model.routes) == 1:
            self._set_price()
        self.granted_tokens = 0
        """The number of output tokens that are reserved. Call `grow` before the engine makes more."""
        self._reservation = Reservation(accounting, self.id, model.counted_name, context, metrics)

    async def reserve_early(self) -> None:
        """Reserves one request before its size is known, if one of its limits was exhausted recently. Raises
        the refusal."""
        await self._reservation.reserve_early()

    async def admit(self) -> None:
        """Reserves one request and writes the intent, before the request makes child calls. So the parent of
        child calls has an entry even if it is refused later. Raises the refusal, or LedgerFull."""
        if not self.is_admitted:
            await self._reservation.reserve_minimum()
            self._write_intent(Usage(0, 0, source=UsageSource.ESTIMATED))

    async def reserve(self, route: ModelRoute, size: RequestSize) -> None:
        """Reserves what the request needs on a route, and writes the intent to the ledger. A later route
        reserves only the missing part. Raises the errors of `Reservation.reserve`, and
        LedgerFull."""
        if route is not self._route or len(self._model.routes) > 1:
            self._route = route
            self._set_price()
        self._size = size
        await self._reservation.reserve(size, self._price, self._is_bounded or not size.is_counted)
        if not self.is_admitted:
            self._write_intent(Usage(size.prompt_tokens, 0, source=UsageSource.ESTIMATED))
        self.granted_tokens = self._reservation.granted_tokens

    def _write_intent(self, estimate: Usage) -> None:
        """Writes the intent."""
        cost = self._compute_cost(estimate) if estimate.total_tokens else 0
        self._accounting.ledger.begin(self._build_entry(estimate, cost))
        self.is_admitted = True

    async def grow(self, output_tokens: int) -> None:
        """Reserves more output tokens. `output_tokens`: the tokens made so far. Raises the refusal."""
        await self._reservation.grow(output_tokens)
        self.granted_tokens = self._reservation.granted_tokens

    def _set_price(self) -> None:
        """Sets the price of the route. Raises PermissionDenied if a cost limit applies and the route has no
        price."""
        name, rules = self._route.price or self._model.counted_name, self._accounting.limit_index.rules
        self._price = rules.find_price(name, self.started_ms // MILLISECONDS)
        if self._price is None:
            _require_countable(rules, self._context.actor, self._model.counted_name, name)

    @property
    def choices(self) -> int:
        """The number of choices of all prompts."""
        return 1 if self._size is None else self._size.choices

    @property
    def late_settlements(self) -> LateSettlements | None:
        return self._accounting.late_settlements

    def release_place(self) -> None:
        """Ends what the request counts in limits of concurrent requests, before it is closed."""
        self._reservation.release_place()

    def add_speed(self, usage: Usage) -> None:
        """Adds a vendor's answer that is complete now to the speed of its route. An answer does not count if
        its caller could have made it slow, by several choices or by reading slowly."""
        progress = self._context.progress
        if progress.sent_at is not None and self.choices == 1:
            seconds = self._context.clock.monotonic() - progress.sent_at
            if progress.held_s <= seconds * MAX_HELD_SHARE:
                self._route.state.speed.add(usage.completion_tokens, seconds)

    def charge_unfinished(self, seen: Usage, error: BaseException | None) -> Usage:
        """Returns what a request is charged that ends before its usage came. `seen`: the usage by the events
        that came. This is the only place that decides it.

        An engine of this server counts each token, so what was made is charged. If a vendor failed, what came
        is charged. If the caller left, or the time was up, the vendor has worked until now, whether or not
        anything came: hidden reasoning does not come, and what came last was made earlier. Then the estimate
        of the prompt is charged, and the output that the route makes in this time, at most the whole output
        that was asked for. The caller cannot choose less by when they leave.
        """
        size, progress = self._size, self._context.progress
        if size is None or size.is_counted:
            return seen
        prompt, output = seen.prompt_tokens, seen.completion_tokens
        is_failure = isinstance(error, AntiphonError) and not isinstance(error, DeadlineExceeded)
        if progress.sent_at is not None and not is_failure:
            prompt, speed = size.estimated_prompt_tokens, self._route.state.speed.estimate()
            if speed is None:
                output = size.output_tokens
            else:
                seconds = self._context.clock.monotonic() - progress.sent_at
                output = max(output, math.ceil(seconds * speed * size.choices))
        output = min(output, size.output_tokens)
        reasoning = min(seen.reasoning_tokens, output)
        return Usage(prompt, output, 0, reasoning, UsageSource.ESTIMATED)

    def close(self, outcome: RequestOutcome) -> LedgerFull | None:
        """Writes the completion and settles the limits. If the completion cannot be written, returns the
        error; the intent then remains as the entry."""
        if not self.is_admitted:
            self._reservation.settle(NOTHING)
            return None
        if self._price is not None and self._price.currency != self._accounting.limit_index.rules.currency:
            self._price = None  # the currency has changed since, and sums can have only one currency
        usage = outcome.usage
        cost = self._compute_cost(usage) if usage.total_tokens else 0
        if self._price is not None:
            project = self._context.actor.project
            self._metrics.add_cost(self._model.label, project, self._price.currency, cost)
        try:
            self._accounting.ledger.complete(self._build_entry(usage, cost, outcome))
        except LedgerFull as error:
            record("completion_lost", logging.ERROR, request_id=self._context.request_id, entry=self.id)
            return error
        finally:
            requests = 0 if self._context.parent is not None else 1
            used = Amounts(requests, usage.prompt_tokens, usage.completion_tokens, cost)
            self._reservation.settle(used, self.started_ms + round(outcome.total_s * MILLISECONDS))
        return None

    def _compute_cost(self, usage: Usage) -> int:
        """Returns the cost in nano-units; 0 without a price."""
        if self._price is None:
            return 0
        return self._price.compute_cost(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)

    def _build_entry(self, usage: Usage, cost: int, outcome: RequestOutcome | None = None) -> Entry:
        """Builds the ledger entry: the completion, or the intent if there is no outcome. Building both is
        faster than copying the intent."""
        context, model, price = self._context, self._model, self._price
        status = ABORTED if outcome is None else outcome.status
        if outcome is None and not context.progress.tries:
            routes = self._route.aborted_try
        else:
            routes = encode_tries(context.progress.tries, status)
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
            queue_ms=None if outcome is None else _to_milliseconds(outcome.queued_s),
            ttft_ms=None if outcome is None else _to_milliseconds(outcome.first_token_s),
            total_ms=None if outcome is None else _to_milliseconds(outcome.total_s),
            end_user=origin.end_user,
            parent=context.parent,
            tags=origin.tags,
            routes=routes,
        )


def _require_countable(rules: RuleSet, actor: Actor, model: str, priced_name: str) -> None:
    """Raises PermissionDenied if a cost limit applies to a model without a price, since the limit could not
    count the cost. `priced_name`: the name of its route for prices."""
    for limit in rules.find_limits(actor, model):
        if limit.measure is Measure.COST:
            raise PermissionDenied(
                f"the model {model} has no price here, so a limit in cost that applies cannot count it: "
                f"{format_decimal(limit.amount)} per {limit.window} for the {limit.subject} {limit.target}; "
                f"the operator adds a price, 0 where it is free (antiphon prices add {priced_name})",
                param="model",
            )


def _to_milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * MILLISECONDS)
