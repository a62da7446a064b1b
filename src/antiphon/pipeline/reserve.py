"""Reserves the usage of a request in its limits before it starts, extends it while it runs, and returns the
rest. `LimitIndex` knows which limits and which price apply.

A request without limits costs nothing here.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from antiphon.domain.context import Context
from antiphon.domain.identity import Actor, matches
from antiphon.domain.limits import Amounts, Limit, LimitStatus, Measure, Subject
from antiphon.domain.prices import Price, find_currency
from antiphon.engines.base import RequestSize
from antiphon.errors import BudgetExceeded, LargerThanLimit, RateLimited
from antiphon.ledger.base import Ledger, Recorder
from antiphon.limits.base import Limiter
from antiphon.telemetry.metrics import Metrics

MAX_CACHED = 10_000
"""Cached answers. Callers choose part of the cache key, so the cache is bounded."""


class RuleSet:
    """All limits and prices at one moment. It never changes; a change makes a new one."""

    def __init__(
        self,
        limits: tuple[Limit, ...] = (),
        prices: tuple[Price, ...] = (),
        families: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`families`: maps the id of each successor key to the id of its first key. A limit of one key
        applies to its whole family."""
        self._prices = sorted(
            prices, key=lambda price: (len(price.models), price.since, price.id), reverse=True
        )
        self.currency = find_currency(prices)
        """Currency of all costs."""
        self._prices_by_model: dict[str, tuple[Price, ...]] = {}
        self._by_target: dict[tuple[Subject, str], list[Limit]] = {}
        self._families = families
        for limit in limits:
            of_key = limit.subject is Subject.KEY
            target = families.get(limit.target, limit.target) if of_key else limit.target
            self._by_target.setdefault((limit.subject, target), []).append(limit)
        self._limits_by_request: dict[tuple[str, str | None, str, str], tuple[Limit, ...]] = {}

    def find_limits(self, actor: Actor, model: str) -> tuple[Limit, ...]:
        """Returns every limit that applies to requests of this actor to this model."""
        if not self._by_target:
            return ()
        selector = (actor.id, actor.user, actor.project, model)
        limits = self._limits_by_request.get(selector)
        if limits is None:
            limits = tuple(self._match_limits(actor, model))
            if len(self._limits_by_request) >= MAX_CACHED:
                self._limits_by_request.clear()
            self._limits_by_request[selector] = limits
        return limits

    def _match_limits(self, actor: Actor, model: str) -> Iterable[Limit]:
        """Yields the limits of the actor's key, project and user and of the model."""
        key = self._families.get(actor.id, actor.id)
        targets = [(Subject.KEY, key), (Subject.PROJECT, actor.project), (Subject.MODEL, model)]
        if actor.user is not None:
            targets.append((Subject.USER, actor.user))
        for target in targets:
            for limit in self._by_target.get(target, ()):
                if limit.models is None or matches((limit.models,), model):
                    yield limit

    def find_price(self, model: str, at: int) -> Price | None:
        """Returns the price at a time (Unix seconds); None if there is none. Of several prices the one with
        the longest matching pattern is used, and of these the latest."""
        known_price = self._prices_by_model.get(model)
        if known_price is None:
            known_price = tuple(price for price in self._prices if matches((price.models,), model))
            if len(self._prices_by_model) >= MAX_CACHED:
                self._prices_by_model.clear()
            self._prices_by_model[model] = known_price
        for price in known_price:
            if price.holds(at):
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


MINIMUM = Amounts(requests=1, input_tokens=1)
"""What every request takes at least, before its prompt is counted."""

CHILD_MINIMUM = Amounts(input_tokens=1)
"""What a call takes at least that another request makes on its way. It counts as no request."""

NOTHING = Amounts()

UNLIMITED = sys.maxsize

EXHAUSTED_S = 60.0
"""Seconds for which a limit counts as exhausted lately."""

Refusal = RateLimited | BudgetExceeded | LargerThanLimit
REFUSALS = (RateLimited, BudgetExceeded, LargerThanLimit)


class ExhaustedLimits:
    """Limits that recently had no room. Their requests are checked early; nothing is refused here."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        """For each limit id, the monotonic seconds at which the limit is forgotten. The earliest comes
        first."""

    def __len__(self) -> int:
        """Number of remembered limits."""
        return len(self._until)

    def add(self, limit: Limit, now: float) -> None:
        """Remembers a limit that has no room. `now`: monotonic seconds."""
        self._until.pop(limit.id, None)
        self._until[limit.id] = now + EXHAUSTED_S
        while (
            self._until[first := next(iter(self._until))] <= now
        ):  # forgets limits that no request asks for any more
            del self._until[first]

    def includes_any(self, limits: tuple[Limit, ...], now: float) -> bool:
        """Whether one of these limits was exhausted lately. Forgets the limits whose time has passed."""
        for id_ in [limit.id for limit in limits if limit.id in self._until]:
            if self._until[id_] > now:
                return True
            del self._until[id_]
        return False


@dataclass(frozen=True, slots=True)
class Accounting:
    """Limiter, ledger and prices, where keys are on."""

    limiter: Limiter
    ledger: Ledger
    limit_index: LimitIndex
    reserve_tokens: int
    """Output tokens that a request without a maximum reserves, at first and with each extension."""
    recorder: Recorder | None = None
    """Keeps the texts of requests, for projects that turned it on."""
    exhausted: ExhaustedLimits = field(default_factory=ExhaustedLimits)


class Reservation:
    """What one request has taken of its limits. It is settled once."""

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
        "_max_output",
        "_metrics",
        "_minimum",
        "_model",
        "_price",
        "_progress",
        "_prompt",
        "_reserved_amounts",
        "_rules",
        "_step",
        "granted",
    )

    def __init__(
        self,
        accounting: Accounting,
        claim: str,
        model: str,
        context: Context,
        metrics: Metrics,
    ) -> None:
        """`claim`: a unique id. `model`: the model's own name."""
        self._limiter = accounting.limiter
        self._step = accounting.reserve_tokens
        self._claim = claim
        self._limit_index, self._rules = accounting.limit_index, accounting.limit_index.rules
        self._actor, self._model = context.actor, model
        self._is_child = context.parent is not None
        self._minimum = CHILD_MINIMUM if self._is_child else MINIMUM
        self._limits = self._find_limits()
        self._price: Price | None = None
        self._progress, self._clock = context.progress, context.clock
        self._metrics = metrics
        self._exhausted = accounting.exhausted
        self._reserved_amounts = NOTHING
        self._is_open = False
        self._prompt = self._max_output = 0
        self.granted = 0 if self._limits else UNLIMITED
        """Output tokens that can be made before more must be reserved."""

    async def open(self) -> None:
        """Reserves the request early if one of its limits was exhausted lately. So a flood of refused
        requests costs no template and no tokenizing. Other requests are reserved once their size is known.
        Raises RateLimited, BudgetExceeded or LimitsUnavailable."""
        if self._limits and self._exhausted.includes_any(self._limits, self._clock.monotonic()):
            await self.require()

    async def require(self) -> None:
        """Reserves the request before its size is known. Raises RateLimited, BudgetExceeded or
        LimitsUnavailable."""
        if self._limits:
            try:
                await self._take(self._minimum)
            except REFUSALS as refusal:
                self._count_refusal(refusal)
                raise

    async def take(self, size: RequestSize, price: Price | None, is_bounded: bool) -> None:
        """Reserves the prompt, the output and their cost. `is_bounded`: whether the caller limited the
        output; all of it is then reserved. Otherwise one step of output is reserved, or as much of the step
        as the limits allow."""
        if self.granted == UNLIMITED:
            return None
        self._prompt, self._max_output, self._price = size.prompt_tokens, size.output_tokens, price
        output = size.output_tokens if is_bounded else min(size.output_tokens, self._step)
        while True:
            try:
                return await self._extend(max(output, self.granted))
            except REFUSALS as refusal:
                if is_bounded or output <= 1 or not isinstance(refusal, LargerThanLimit):
                    self._count_refusal(refusal)
                    raise
            output //= 2

    async def grow(self, output_tokens: int) -> None:
        """Reserves another step of output, or as much of it as the limits allow. `output_tokens`: the output
        so far. Raises RateLimited or BudgetExceeded if there is no room for these."""
        needed = output_tokens - self.granted
        step = max(needed, min(self._step, self._max_output - self.granted))
        while True:
            try:
                return await self._extend(self.granted + step)
            except REFUSALS as refusal:
                if step <= needed:
                    self._count_refusal(refusal)
                    raise
            step = max(needed, step // 2)

    def settle(self, used: Amounts, at: int | None = None) -> None:
        """Ends the reservation. `used`: the amounts that were really used. `at`: the end of the request in
        the ledger, in Unix milliseconds."""
        if self._is_open:
            self._is_open = False
            self._limiter.settle(self._claim, used, at)

    async def _extend(self, output: int) -> None:
        """Reserves the part of `output` tokens, and of their cost, that is not reserved yet."""
        before, cost = self._reserved_amounts, 0
        if self._price is not None:
            cost = self._price.most(self._prompt, output)
        prompt = max(self._prompt, before.input_tokens)
        await self._take(Amounts(self._minimum.requests, prompt, output, max(cost, before.cost)))
        self.granted = output

    async def _take(self, amounts: Amounts) -> None:
        """Reserves the part of these amounts that is not reserved yet."""
        before = self._reserved_amounts
        if before is NOTHING:
            self._is_open = True  # from now on there is something to settle, even if no answer comes
            self._progress.limit_statuses = await self._limiter.reserve(
                self._claim, self._refresh_limits(), amounts
            )
        elif amounts != before:
            added = Amounts(
                0,
                amounts.input_tokens - before.input_tokens,
                amounts.output_tokens - before.output_tokens,
                amounts.cost - before.cost,
            )
            self._progress.limit_statuses = await self._limiter.extend(
                self._claim, self._refresh_limits(), added
            )
        self._reserved_amounts = amounts

    def _refresh_limits(self) -> tuple[Limit, ...]:
        """Returns the request's limits in their current form, without removed ones. A limit that was added
        later applies only to later requests."""
        rules = self._limit_index.rules
        if rules is not self._rules:
            self._rules = rules
            now = {limit.id: limit for limit in self._find_limits()}
            self._limits = tuple(now[limit.id] for limit in self._limits if limit.id in now)
        return self._limits

    def _find_limits(self) -> tuple[Limit, ...]:
        """Returns the limits that apply now. A call that another request makes on its way takes no place of
        its own."""
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
        statuses = tuple(each for each in refusal.standings if isinstance(each, LimitStatus))
        self._progress.limit_statuses = statuses or self._progress.limit_statuses
