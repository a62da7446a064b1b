"""Reserves the usage of a request in its limits before it starts, extends the reservation while it runs, and
returns the rest. `RuleSet` finds the limits and the price that apply.

A request without limits costs nothing here.
"""

import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from antiphon.domain.context import Context
from antiphon.domain.identity import Actor, ActorKind, matches
from antiphon.domain.limits import Amounts, Limit, LimitStatus, Measure, Subject
from antiphon.domain.prices import Price, find_currency
from antiphon.domain.values import Struct, field
from antiphon.engines.base import RequestSize
from antiphon.errors import BudgetExceeded, LargerThanLimit, RateLimited
from antiphon.ledger.base import Ledger, Recorder
from antiphon.limits.base import Limiter
from antiphon.pipeline.late_settlements import LateSettlements
from antiphon.telemetry.metrics import Metrics

MAX_CACHE_ENTRIES = 10_000
"""The most entries of each cache. Callers choose part of the cache key, so the cache needs a bound."""


class RuleSet:
    """All limits and prices at one moment. A rule set never changes; a change of a limit makes a new one."""

    def __init__(
        self,
        limits: tuple[Limit, ...] = (),
        prices: tuple[Price, ...] = (),
        families: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`families` maps the id of each successor key to the id of its first key. A limit of one key applies
        to its whole family."""
        self._prices = sorted(
            prices, key=lambda price: (len(price.models), price.since, price.id), reverse=True
        )
        self.currency = find_currency(prices)
        """Currency of all costs."""
        self._prices_by_model: dict[str, tuple[Price, ...]] = {}
        self._limits_by_target: dict[tuple[Subject, str], list[Limit]] = {}
        self._families = families
        for limit in limits:
            is_key_limit = limit.subject is Subject.KEY
            target = families.get(limit.target, limit.target) if is_key_limit else limit.target
            self._limits_by_target.setdefault((limit.subject, target), []).append(limit)
        self._limits_by_request: dict[tuple[str, str | None, str, str], tuple[Limit, ...]] = {}

    def find_limits(self, actor: Actor, model: str) -> tuple[Limit, ...]:
        """Returns every limit that applies to requests of this actor to this model."""
        if not self._limits_by_target:
            return ()
        cache_key = (actor.id, actor.user, actor.project, model)
        limits = self._limits_by_request.get(cache_key)
        if limits is None:
            limits = tuple(self._match_limits(actor, model))
            if len(self._limits_by_request) >= MAX_CACHE_ENTRIES:
                self._limits_by_request.clear()
            self._limits_by_request[cache_key] = limits
        return limits

    def _match_limits(self, actor: Actor, model: str) -> Iterable[Limit]:
        """Yields the limits of the actor's key, project and user and of the model. A service key that acts
        for a user counts for its project alone: it cannot use up what the user has in other projects."""
        key = self._families.get(actor.id, actor.id)
        targets = [(Subject.KEY, key), (Subject.PROJECT, actor.project), (Subject.MODEL, model)]
        if actor.user is not None and actor.kind is not ActorKind.SERVICE_KEY:
            targets.append((Subject.USER, actor.user))
        for target in targets:
            for limit in self._limits_by_target.get(target, ()):
                if limit.models is None or matches((limit.models,), model):
                    yield limit

    def find_price(self, model: str, unix_seconds: int) -> Price | None:
        """Returns the price at a time (Unix seconds); None if there is none. Of several prices the one with
        the longest matching pattern is used, and of these the latest."""
        matching_prices = self._prices_by_model.get(model)
        if matching_prices is None:
            matching_prices = tuple(price for price in self._prices if matches((price.models,), model))
            if len(self._prices_by_model) >= MAX_CACHE_ENTRIES:
                self._prices_by_model.clear()
            self._prices_by_model[model] = matching_prices
        for price in matching_prices:
            if price.applies_at(unix_seconds):
                return price
        return None


class LimitIndex:
    """Holds the current rule set."""

    def __init__(self) -> None:
        self.rules = RuleSet()

    def update(
        self,
        limits: tuple[Limit, ...],
        prices: tuple[Price, ...],
        families: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Replaces the rule set."""
        self.rules = RuleSet(limits, prices, families)


REQUEST_MINIMUM = Amounts(requests=1, input_tokens=1)
"""The amounts that a request reserves before its prompt is counted."""

CHILD_MINIMUM = Amounts(input_tokens=1)
"""The amounts that a child call reserves before its prompt is counted. It does not count as a request."""

NOTHING = Amounts()

UNLIMITED = sys.maxsize

EXHAUSTED_SECONDS = 60.0
"""Seconds for which a limit stays in `ExhaustedLimits`."""

Refusal = RateLimited | BudgetExceeded | LargerThanLimit
REFUSALS = (RateLimited, BudgetExceeded, LargerThanLimit)


class ExhaustedLimits:
    """Limits that recently refused a request. Requests under these limits are reserved before their size is
    known. This class refuses nothing."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        """For each limit id, the monotonic seconds at which the limit is removed. The earliest comes
        first."""

    def __len__(self) -> int:
        """The number of these limits."""
        return len(self._until)

    def add(self, limit: Limit, now: float) -> None:
        """Adds a limit that refused a request. `now`: monotonic seconds."""
        self._until.pop(limit.id, None)
        self._until[limit.id] = now + EXHAUSTED_SECONDS
        while (
            self._until[oldest_id := next(iter(self._until))] <= now
        ):  # limits that no request uses any more
            del self._until[oldest_id]

    def includes_any(self, limits: tuple[Limit, ...], now: float) -> bool:
        """Whether one of these limits was exhausted recently. Removes the limits whose time has passed."""
        for id_ in [limit.id for limit in limits if limit.id in self._until]:
            if self._until[id_] > now:
                return True
            del self._until[id_]
        return False


class Accounting(Struct, frozen=True):
    """Limiter, ledger and prices, where keys are on."""

    limiter: Limiter
    ledger: Ledger
    limit_index: LimitIndex
    reserve_tokens: int
    """Output tokens that a request without a maximum reserves, at first and with each extension."""
    recorder: Recorder | None = None
    """Stores the texts of requests, for projects that turned it on."""
    exhausted: ExhaustedLimits = field(default_factory=ExhaustedLimits)
    late_settlements: LateSettlements | None = None
    """Waits for the usage of finished answers whose caller has left; None does not wait."""


class Reservation:
    """The amounts that one request has reserved in its limits. It is settled once."""

    __slots__ = (
        "_actor",
        "_claim",
        "_clock",
        "_exhausted",
        "_is_child",
        "_is_open",
        "_limit_index",
        "_limiter",
        "_limits",
        "_max_output_tokens",
        "_metrics",
        "_minimum",
        "_model",
        "_price",
        "_progress",
        "_prompt_tokens",
        "_reserved",
        "_rules",
        "_step_tokens",
        "granted_tokens",
    )

    def __init__(
        self,
        accounting: Accounting,
        claim: str,
        model: str,
        context: Context,
        metrics: Metrics,
    ) -> None:
        """`claim`: the unique id of the reservation. `model`: the model's own name."""
        self._limiter = accounting.limiter
        self._step_tokens = accounting.reserve_tokens
        self._claim = claim
        self._limit_index, self._rules = accounting.limit_index, accounting.limit_index.rules
        self._actor, self._model = context.actor, model
        self._is_child = context.parent is not None
        self._minimum = CHILD_MINIMUM if self._is_child else REQUEST_MINIMUM
        self._limits = self._find_limits()
        self._price: Price | None = None
        self._progress, self._clock = context.progress, context.clock
        self._metrics = metrics
        self._exhausted = accounting.exhausted
        self._reserved = NOTHING
        self._is_open = False
        self._prompt_tokens = self._max_output_tokens = 0
        self.granted_tokens = 0 if self._limits else UNLIMITED
        """Output tokens that can be made before more must be reserved."""

    async def reserve_early(self) -> None:
        """Reserves the request before its size is known, if one of its limits was exhausted recently. So most
        refused requests cost no template and no tokenizing. Other requests are reserved by `reserve`. Raises
        RateLimited, BudgetExceeded or LimitsUnavailable."""
        if self._limits and self._exhausted.includes_any(self._limits, self._clock.monotonic()):
            await self.reserve_minimum()

    async def reserve_minimum(self) -> None:
        """Reserves the request before its size is known. Raises RateLimited, BudgetExceeded or
        LimitsUnavailable."""
        if self._limits:
            try:
                await self._reserve_amounts(self._minimum)
            except REFUSALS as refusal:
                self._count_refusal(refusal)
                raise

    async def reserve(self, size: RequestSize, price: Price | None, is_bounded: bool) -> None:
        """Reserves the prompt, the output and their cost. `is_bounded`: whether the caller limited the
        output; if so, the whole output is reserved. If not, one step of output is reserved, or as much of the
        step as the limits allow. Raises the errors of `Limiter.reserve`."""
        if self.granted_tokens == UNLIMITED:
            return None
        self._prompt_tokens, self._max_output_tokens = size.prompt_tokens, size.output_tokens
        self._price = price
        output_tokens = size.output_tokens if is_bounded else min(size.output_tokens, self._step_tokens)
        while True:
            try:
                return await self._extend(max(output_tokens, self.granted_tokens))
            except REFUSALS as refusal:
                if is_bounded or output_tokens <= 1 or not isinstance(refusal, LargerThanLimit):
                    self._count_refusal(refusal)
                    raise
            output_tokens //= 2

    async def grow(self, output_tokens: int) -> None:
        """Reserves another step of output, or as much of it as the limits allow. `output_tokens`: the output
        so far. Raises RateLimited or BudgetExceeded if the limits do not allow this output."""
        needed_tokens = output_tokens - self.granted_tokens
        step = max(needed_tokens, min(self._step_tokens, self._max_output_tokens - self.granted_tokens))
        while True:
            try:
                return await self._extend(self.granted_tokens + step)
            except REFUSALS as refusal:
                if step <= needed_tokens:
                    self._count_refusal(refusal)
                    raise
            step = max(needed_tokens, step // 2)

    def release_place(self) -> None:
        """Ends what the request counts in limits of concurrent requests, before it is settled."""
        if self._is_open:
            self._limiter.release_place(self._claim)

    def settle(self, used: Amounts, ended_ms: int | None = None) -> None:
        """Ends the reservation. `used`: the amounts that were used. `ended_ms`: the end of the request in the
        ledger, in Unix milliseconds."""
        if self._is_open:
            self._is_open = False
            self._limiter.settle(self._claim, used, ended_ms)

    async def _extend(self, output_tokens: int) -> None:
        """Reserves the part of `output_tokens`, and of their cost, that is not reserved yet."""
        reserved, cost = self._reserved, 0
        if self._price is not None:
            cost = self._price.compute_max_cost(self._prompt_tokens, output_tokens)
        prompt = max(self._prompt_tokens, reserved.input_tokens)
        await self._reserve_amounts(
            Amounts(self._minimum.requests, prompt, output_tokens, max(cost, reserved.cost))
        )
        self.granted_tokens = output_tokens

    async def _reserve_amounts(self, amounts: Amounts) -> None:
        """Reserves the part of these amounts that is not reserved yet."""
        reserved = self._reserved
        if reserved is NOTHING:
            self._is_open = True  # the limiter may count the reservation even if its answer is lost
            self._progress.limit_statuses = await self._limiter.reserve(
                self._claim, self._refresh_limits(), amounts
            )
        elif amounts != reserved:
            added = Amounts(
                0,
                amounts.input_tokens - reserved.input_tokens,
                amounts.output_tokens - reserved.output_tokens,
                amounts.cost - reserved.cost,
            )
            self._progress.limit_statuses = await self._limiter.extend(
                self._claim, self._refresh_limits(), added
            )
        self._reserved = amounts

    def _refresh_limits(self) -> tuple[Limit, ...]:
        """Returns the request's limits in their current form, without removed ones. A limit that was added
        later applies only to later requests."""
        rules = self._limit_index.rules
        if rules is not self._rules:
            self._rules = rules
            current_limits = {limit.id: limit for limit in self._find_limits()}
            self._limits = tuple(
                current_limits[limit.id] for limit in self._limits if limit.id in current_limits
            )
        return self._limits

    def _find_limits(self) -> tuple[Limit, ...]:
        """Returns the limits that apply now. A child call does not count in limits of concurrent requests."""
        limits = self._rules.find_limits(self._actor, self._model)
        if not self._is_child:
            return limits
        return tuple(limit for limit in limits if limit.measure is not Measure.CONCURRENT)

    def _count_refusal(self, refusal: Refusal) -> None:
        """Counts a refusal in the metrics, and remembers the exhausted limit."""
        for limit in self._limits:
            if limit.id == refusal.limit:
                self._metrics.count_refusal(limit.subject, limit.measure, limit.window)
                if not isinstance(refusal, LargerThanLimit):
                    self._exhausted.add(limit, self._clock.monotonic())
        statuses = tuple(status for status in refusal.statuses if isinstance(status, LimitStatus))
        self._progress.limit_statuses = statuses or self._progress.limit_statuses
