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
from antiphon.limits.seeding import Asking, Seeds, Taken
from antiphon.limits.snapshot import ClaimState, CounterState, PartState, Snapshot
from antiphon.limits.windows import SECOND, Counter, Moment, counter_of
from antiphon.limits.wording import Refusal, refusal, worst

KEPT = 24 * 3600 * SECOND
"""Nanoseconds after which a counter that nobody asked for is dropped; the ledger knows what it counted."""


@dataclass(slots=True)
class Counted:
    """A limit, as it was said first, with its counter. What is too much is judged by how it is said with each
    call."""

    limit: Limit
    counter: Counter
    touched: int
    claims: int = 0
    """How many stand."""


@dataclass(slots=True)
class Held:
    """What a claim has taken of one limit: the places and amounts, the oldest first."""

    counted: Counted
    parts: list[tuple[int, int]] = field(default_factory=list)
    sized: bool = False
    """Whether more was taken after the first."""

    @property
    def amount(self) -> int:
        """All of it."""
        return sum(amount for _, amount in self.parts)

    def begun(self, now: Moment) -> int:
        """What counts now of what was taken before the request's size was known; nothing, once it is."""
        parts = () if self.sized else self.parts
        return sum(amount for place, amount in parts if self.counted.counter.holds(now, place))

    def take(self, now: Moment, amount: int) -> None:
        """Takes more."""
        if amount:
            self.parts.append((self.counted.counter.take(now, amount), amount))

    def end_at(self, now: Moment, used: int) -> None:
        """Gives back what was taken last beyond what was used, or takes what is missing."""
        parts, counter = self.parts, self.counted.counter
        counter.used(now)  # what has passed is taken out before anything is given back
        excess = -used
        for _, amount in parts:
            excess += amount
        if excess < 0:
            parts.append((counter.take(now, -excess), -excess))
        while excess > 0:
            place, amount = parts.pop()
            counter.give(place, min(amount, excess))
            excess -= amount


class LocalLimiter:
    """A `Limiter` for everybody in this process."""

    def __init__(self, clock: Clock, seeds: Seeds | None = None, opens: bool = False) -> None:
        """`opens`: whether counters begin at nothing where the ledger cannot be read; else nothing passes
        then."""
        self._clock = clock
        self._asking = Asking(seeds, clock, opens)
        self._keeps = seeds is None
        """Whether nobody else knows what was counted."""
        self._counted: OrderedDict[str, Counted] = OrderedDict()
        self._claims: dict[str, list[Held]] = {}
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
        asked = [asked_of(limit, amounts) for limit in limits]
        held = [Held(self._counter(limit, now)) for limit in limits]
        self._refuse(limits, held, asked, now)
        self._hold(claim, held, asked, now)
        self._tidy(now)
        return _standings(limits, held, now)

    async def extend(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        return self.extend_seeded(claim, limits, amounts)

    def extend_seeded(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        """As `extend`, which waits for nothing here."""
        by_id = {each.counted.limit.id: each for each in self._claims.get(claim, ())}
        limits = [limit for limit in limits if limit.id in by_id]
        held = [by_id[limit.id] for limit in limits]
        now = self.now()
        asked = [amounts.of(limit.measure) for limit in limits]
        self._refuse(limits, held, asked, now)
        for each, amount in zip(held, asked, strict=True):
            each.take(now, amount)
            each.sized = True
        return _standings(limits, held, now)

    def settle(self, claim: str, amounts: Amounts, at: int | None = None) -> None:
        now = self.now()
        for held in self._claims.pop(claim, ()):
            counted = held.counted
            counted.claims -= 1
            held.end_at(now, amounts.of(counted.limit.measure))

    def abandon(self, claim: str) -> None:
        """Ends a claim whose holder is gone: what it reserved counts as used."""
        now = self.now()
        for held in self._claims.pop(claim, []):
            at_once = held.counted.limit.measure is Measure.CONCURRENT
            held.end_at(now, 0 if at_once else held.amount)
            held.counted.claims -= 1

    async def restore(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> None:
        """Counts a claim that stands already, as its holder says; refuses nothing. Raises
        LimitsUnavailable."""
        await self.seed(limits)
        if claim not in self._claims:
            now = self.now()
            held = [Held(self._counter(limit, now)) for limit in limits]
            self._hold(claim, held, [asked_of(limit, amounts) for limit in limits], now)

    async def standing(self, limits: Sequence[Limit]) -> tuple[LimitStatus, ...]:
        await self.seed(limits)
        return self.standing_seeded(limits)

    def standing_seeded(self, limits: Sequence[Limit]) -> tuple[LimitStatus, ...]:
        """As `standing`, of limits whose counters are there."""
        now = self.now()
        return _standings(limits, [Held(self._counter(limit, now)) for limit in limits], now)

    async def aclose(self) -> None:
        self._claims.clear()

    def snapshot(self) -> Snapshot:
        """All that is counted now."""
        counters = (CounterState(each.limit, each.counter.places()) for each in self._counted.values())
        claims = (
            ClaimState(
                claim, tuple(PartState(each.counted.limit.id, tuple(each.parts), each.sized) for each in held)
            )
            for claim, held in self._claims.items()
        )
        return Snapshot(self.now(), tuple(counters), tuple(claims))

    def load(self, snapshot: Snapshot) -> None:
        """Goes on with what another limiter counted, before anything is asked of this one."""
        now = self.now()
        for state in snapshot.counters:
            self._counter(state.limit, now).counter.put(state.places)
        for claim in snapshot.claims:
            held = [Held(self._counted[part.limit], list(part.parts), part.is_sized) for part in claim.held]
            self._claims[claim.id] = held
            for each in held:
                each.counted.claims += 1

    def holds(self, claim: str) -> bool:
        """Whether a claim stands."""
        return claim in self._claims

    def is_seeded(self, limits: Sequence[Limit]) -> bool:
        """Whether the counters of all these limits are there."""
        return self._counted.keys() >= {limit.id for limit in limits}

    # --- how it is done ---

    def _refuse(
        self, limits: Sequence[Limit], held: Sequence[Held], asked: Sequence[int], now: Moment
    ) -> None:
        """Raises where one of them has no room."""
        short: list[tuple[int, int]] = []
        for number, amount in enumerate(asked):
            excess = held[number].counted.counter.used(now) + amount - limits[number].amount
            if excess > 0 and amount:
                short.append((number, excess))
        if short:
            refusals = (
                (_refusal(limits[place], held[place], asked[place], excess, now), place)
                for place, excess in short
            )
            raise worst(refusals, _standings(limits, held, now))

    def _hold(self, claim: str, held: list[Held], asked: Sequence[int], now: Moment) -> None:
        self._claims[claim] = held
        for each, amount in zip(held, asked, strict=True):
            counted = each.counted
            counted.claims += 1
            if amount:
                each.parts.append((counted.counter.take(now, amount), amount))

    def _counter(self, limit: Limit, now: Moment) -> Counted:
        """The counter of a limit."""
        counted = self._counted.get(limit.id)
        if counted is None:
            counted = self._counted[limit.id] = Counted(limit, counter_of(limit), now.monotonic)
        counted.touched = now.monotonic
        return counted

    def _tidy(self, now: Moment) -> None:
        """Looks at one counter, each time at another, and drops what nobody asked for in a long time."""
        if not self._counted:
            return
        id_ = next(iter(self._counted))
        counted = self._counted[id_]
        used = counted.counter.used(now)
        if counted.claims or (self._keeps and used) or counted.touched > now.monotonic - KEPT:
            self._counted.move_to_end(id_)
        else:
            del self._counted[id_]

    async def seed(self, limits: Sequence[Limit]) -> None:
        """Makes the counters that are not there yet. Raises LimitsUnavailable."""
        if self.is_seeded(limits):
            return
        async with self._seeding:
            new = [limit for limit in limits if limit.id not in self._counted]
            if new:
                self._begin(new, await self._asking.taken(new))

    def _begin(self, limits: Sequence[Limit], taken: Taken) -> None:
        now = self.now()
        for limit in limits:
            if limit.id not in self._counted:
                counter = self._counter(limit, now).counter
                for at, amount in taken.get(limit.id, ()):
                    counter.remember(now, at, amount)

    def now(self) -> Moment:
        return Moment(int(self._clock.monotonic() * SECOND), self._clock.wall())


def _refusal(limit: Limit, held: Held, asked: int, excess: int, now: Moment) -> Refusal:
    """Why a limit has no room for so much, of which `excess` is too much."""
    return refusal(limit, asked, held.begun(now), held.counted.counter.wait(now, excess), now.wall)


def _standings(limits: Sequence[Limit], held: Sequence[Held], now: Moment) -> tuple[LimitStatus, ...]:
    found = []
    for limit, each in zip(limits, held, strict=True):
        counter = each.counted.counter
        left = limit.amount - counter.used(now)
        found.append(LimitStatus(limit, max(0, left), counter.reset(now)))
    return tuple(found)


def asked_of(limit: Limit, amounts: Amounts) -> int:
    """What a new claim takes of a limit."""
    return 1 if limit.measure is Measure.CONCURRENT else amounts.of(limit.measure)
