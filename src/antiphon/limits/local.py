"""The limiter of one process: exact, in memory.

Every amount counts from the moment at which it was reserved until its window has passed, or until it is
given back. A counter that is not there yet is made from what the ledger knows. All of it belongs to one event
loop; nothing but that first look waits for anything.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon.domain.context import Clock
from antiphon.domain.limits import Amounts, Limit, LimitStatus, Measure
from antiphon.limits.refusals import Refusal, build_refusal, pick_worst
from antiphon.limits.seeding import SeedAmounts, Seeder, SeedReader
from antiphon.limits.snapshot import ClaimState, CounterState, PartState, Snapshot
from antiphon.limits.windows import SECOND, ClockReading, UsageCounter, make_counter

UNUSED_NS = 24 * 3600 * SECOND
"""Nanoseconds after which a counter that nobody asked for is dropped; the ledger knows what it counted."""


@dataclass(slots=True)
class LimitCounter:
    """A limit, as it was said first, with its counter. What is too much is judged by how it is said with each
    call."""

    limit: Limit
    counter: UsageCounter
    last_used: int
    claims: int = 0
    """How many stand."""


@dataclass(slots=True)
class ClaimPart:
    """What a claim has taken of one limit: the places and amounts, the oldest first."""

    limit_counter: LimitCounter
    parts: list[tuple[int, int]] = field(default_factory=list)
    is_sized: bool = False
    """Whether more was taken after the first."""

    @property
    def amount(self) -> int:
        """All of it."""
        return sum(amount for _, amount in self.parts)

    def initial_amount(self, now: ClockReading) -> int:
        """What counts now of what was taken before the request's size was known; nothing, once it is."""
        parts = () if self.is_sized else self.parts
        return sum(amount for place, amount in parts if self.limit_counter.counter.is_current(now, place))

    def take(self, now: ClockReading, amount: int) -> None:
        """Takes more."""
        if amount:
            self.parts.append((self.limit_counter.counter.add(now, amount), amount))

    def settle(self, now: ClockReading, used: int) -> None:
        """Gives back what was taken last beyond what was used, or takes what is missing."""
        parts, counter = self.parts, self.limit_counter.counter
        counter.total(now)  # what has passed is taken out before anything is given back
        excess = -used
        for _, amount in parts:
            excess += amount
        if excess < 0:
            parts.append((counter.add(now, -excess), -excess))
        while excess > 0:
            place, amount = parts.pop()
            counter.subtract(place, min(amount, excess))
            excess -= amount


class LocalLimiter:
    """A `Limiter` for everybody in this process."""

    def __init__(self, clock: Clock, seeds: Seeder | None = None, opens: bool = False) -> None:
        """`opens`: whether counters begin at nothing where the ledger cannot be read; else nothing passes
        then."""
        self._clock = clock
        self._seed_reader = SeedReader(seeds, clock, opens)
        self._is_only_record = seeds is None
        """Whether nobody else knows what was counted."""
        self._counters: OrderedDict[str, LimitCounter] = OrderedDict()
        self._claims: dict[str, list[ClaimPart]] = {}
        self._seeding = asyncio.Lock()

    async def reserve(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        await self.seed(limits)
        return self.reserve_seeded(claim, limits, amounts)

    def reserve_seeded(
        self, claim: str, limits: Sequence[Limit], amounts: Amounts
    ) -> tuple[LimitStatus, ...]:
        """As `reserve`, of limits whose counters are there."""
        if claim in self._claims:
            raise ValueError(f"claim {claim} stands already")
        now = self.now()
        asked = [claim_amount(limit, amounts) for limit in limits]
        held = [ClaimPart(self._find_counter(limit, now)) for limit in limits]
        self._require_room(limits, held, asked, now)
        self._add_claim(claim, held, asked, now)
        self._drop_one_unused(now)
        return _build_statuses(limits, held, now)

    async def extend(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        return self.extend_seeded(claim, limits, amounts)

    def extend_seeded(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        """As `extend`, which waits for nothing here."""
        by_id = {each.limit_counter.limit.id: each for each in self._claims.get(claim, ())}
        limits = [limit for limit in limits if limit.id in by_id]
        held = [by_id[limit.id] for limit in limits]
        now = self.now()
        asked = [amounts.amount_of(limit.measure) for limit in limits]
        self._require_room(limits, held, asked, now)
        for each, amount in zip(held, asked, strict=True):
            each.take(now, amount)
            each.is_sized = True
        return _build_statuses(limits, held, now)

    def settle(self, claim: str, amounts: Amounts, at: int | None = None) -> None:
        now = self.now()
        for held in self._claims.pop(claim, ()):
            counted = held.limit_counter
            counted.claims -= 1
            held.settle(now, amounts.amount_of(counted.limit.measure))

    def abandon(self, claim: str) -> None:
        """Ends a claim whose holder is gone: what it reserved counts as used."""
        now = self.now()
        for held in self._claims.pop(claim, []):
            at_once = held.limit_counter.limit.measure is Measure.CONCURRENT
            held.settle(now, 0 if at_once else held.amount)
            held.limit_counter.claims -= 1

    async def restore(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> None:
        """Counts a claim that stands already, as its holder says; refuses nothing. Raises
        LimitsUnavailable."""
        await self.seed(limits)
        if claim not in self._claims:
            now = self.now()
            held = [ClaimPart(self._find_counter(limit, now)) for limit in limits]
            self._add_claim(claim, held, [claim_amount(limit, amounts) for limit in limits], now)

    async def read_status(self, limits: Sequence[Limit]) -> tuple[LimitStatus, ...]:
        await self.seed(limits)
        return self.read_status_seeded(limits)

    def read_status_seeded(self, limits: Sequence[Limit]) -> tuple[LimitStatus, ...]:
        """As `standing`, of limits whose counters are there."""
        now = self.now()
        return _build_statuses(limits, [ClaimPart(self._find_counter(limit, now)) for limit in limits], now)

    async def aclose(self) -> None:
        self._claims.clear()

    def snapshot(self) -> Snapshot:
        """All that is counted now."""
        counters = (
            CounterState(each.limit, each.counter.export_amounts()) for each in self._counters.values()
        )
        claims = (
            ClaimState(
                claim,
                tuple(
                    PartState(each.limit_counter.limit.id, tuple(each.parts), each.is_sized) for each in held
                ),
            )
            for claim, held in self._claims.items()
        )
        return Snapshot(self.now(), tuple(counters), tuple(claims))

    def load(self, snapshot: Snapshot) -> None:
        """Goes on with what another limiter counted, before anything is asked of this one."""
        now = self.now()
        for state in snapshot.counters:
            self._find_counter(state.limit, now).counter.import_amounts(state.places)
        for claim in snapshot.claims:
            held = [
                ClaimPart(self._counters[part.limit], list(part.parts), part.is_sized) for part in claim.held
            ]
            self._claims[claim.id] = held
            for each in held:
                each.limit_counter.claims += 1

    def has_claim(self, claim: str) -> bool:
        """Whether a claim stands."""
        return claim in self._claims

    def is_seeded(self, limits: Sequence[Limit]) -> bool:
        """Whether the counters of all these limits are there."""
        return self._counters.keys() >= {limit.id for limit in limits}

    # --- how it is done ---

    def _require_room(
        self, limits: Sequence[Limit], held: Sequence[ClaimPart], asked: Sequence[int], now: ClockReading
    ) -> None:
        """Raises where one of them has no room."""
        short: list[tuple[int, int]] = []
        for number, amount in enumerate(asked):
            excess = held[number].limit_counter.counter.total(now) + amount - limits[number].amount
            if excess > 0 and amount:
                short.append((number, excess))
        if short:
            refusals = (
                (_build_limit_refusal(limits[place], held[place], asked[place], excess, now), place)
                for place, excess in short
            )
            raise pick_worst(refusals, _build_statuses(limits, held, now))

    def _add_claim(self, claim: str, held: list[ClaimPart], asked: Sequence[int], now: ClockReading) -> None:
        self._claims[claim] = held
        for each, amount in zip(held, asked, strict=True):
            counted = each.limit_counter
            counted.claims += 1
            if amount:
                each.parts.append((counted.counter.add(now, amount), amount))

    def _find_counter(self, limit: Limit, now: ClockReading) -> LimitCounter:
        """The counter of a limit."""
        counted = self._counters.get(limit.id)
        if counted is None:
            counted = self._counters[limit.id] = LimitCounter(limit, make_counter(limit), now.monotonic)
        counted.last_used = now.monotonic
        return counted

    def _drop_one_unused(self, now: ClockReading) -> None:
        """Looks at one counter, each time at another, and drops what nobody asked for in a long time."""
        if not self._counters:
            return
        id_ = next(iter(self._counters))
        counted = self._counters[id_]
        used = counted.counter.total(now)
        if counted.claims or (self._is_only_record and used) or counted.last_used > now.monotonic - UNUSED_NS:
            self._counters.move_to_end(id_)
        else:
            del self._counters[id_]

    async def seed(self, limits: Sequence[Limit]) -> None:
        """Makes the counters that are not there yet. Raises LimitsUnavailable."""
        if self.is_seeded(limits):
            return
        async with self._seeding:
            new = [limit for limit in limits if limit.id not in self._counters]
            if new:
                self._create_counters(new, await self._seed_reader.read(new))

    def _create_counters(self, limits: Sequence[Limit], taken: SeedAmounts) -> None:
        now = self.now()
        for limit in limits:
            if limit.id not in self._counters:
                counter = self._find_counter(limit, now).counter
                for at, amount in taken.get(limit.id, ()):
                    counter.add_past(now, at, amount)

    def now(self) -> ClockReading:
        return ClockReading(int(self._clock.monotonic() * SECOND), self._clock.wall())


def _build_limit_refusal(
    limit: Limit, held: ClaimPart, asked: int, excess: int, now: ClockReading
) -> Refusal:
    """Why a limit has no room for so much, of which `excess` is too much."""
    return build_refusal(
        limit,
        asked,
        held.initial_amount(now),
        held.limit_counter.counter.seconds_until_room(now, excess),
        now.wall,
    )


def _build_statuses(
    limits: Sequence[Limit], held: Sequence[ClaimPart], now: ClockReading
) -> tuple[LimitStatus, ...]:
    found = []
    for limit, each in zip(limits, held, strict=True):
        counter = each.limit_counter.counter
        left = limit.amount - counter.total(now)
        found.append(LimitStatus(limit, max(0, left), counter.seconds_until_reset(now)))
    return tuple(found)


def claim_amount(limit: Limit, amounts: Amounts) -> int:
    """What a new claim takes of a limit."""
    return 1 if limit.measure is Measure.CONCURRENT else amounts.amount_of(limit.measure)
