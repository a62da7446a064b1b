"""The limiter of one process: exact, in memory.

An amount counts from its reservation until its window has passed, or until the claim is settled with less. A
new counter starts with the past usage from the ledger. No method waits, except to read the ledger. Call all
methods in one event loop. A file stores the state of the limiter during a restart.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

import antiphon
from antiphon.domain.context import Clock
from antiphon.domain.limits import Amounts, Limit, LimitStatus, Measure
from antiphon.domain.values import Struct
from antiphon.errors import BudgetExceeded
from antiphon.limits.budget_watch import BudgetWatch
from antiphon.limits.refusals import Refusal, build_refusal, pick_longest
from antiphon.limits.seeding import Seeder, SeedReader
from antiphon.limits.windows import SECOND_NS, ClockReading, UsageCounter, create_counter
from antiphon.processes.ipc import FrameError, from_line, to_line

MAX_AGE_S = 60.0
"""The age in seconds above which a file is not used. By then its sliding windows have passed, and the ledger
has the usage of longer windows."""

MAX_DRIFT_S = 1.0
"""Seconds. If more than this passed on one clock but not on the other since the file was written, the machine
was restarted or its clock was set. The file is then not used."""

UNUSED_NS = 24 * 3600 * SECOND_NS
"""Nanoseconds after which an unused counter is dropped. Its usage can be read from the ledger again."""


class CounterState(Struct, frozen=True):
    """A limit and the amounts of its counter."""

    limit: Limit
    amounts_by_slot: Mapping[int, int]
    """The amounts by window slot; see `limits.windows`."""


class PartState(Struct, frozen=True):
    """The amounts that a claim has reserved in one limit."""

    limit: str
    """Id of the limit."""
    additions: tuple[tuple[int, int], ...]
    """Pairs of a window slot and the amount that counts there, the oldest first."""
    is_extended: bool


class ClaimState(Struct, frozen=True):
    """An open claim."""

    id: str
    parts: tuple[PartState, ...]


class Snapshot(Struct, frozen=True):
    """All counters and open claims of a limiter at one moment."""

    at: ClockReading
    """When the snapshot was made."""
    counters: tuple[CounterState, ...] = ()
    claims: tuple[ClaimState, ...] = ()
    release: str = antiphon.__version__
    """The version of Antiphon that made the snapshot."""


def save_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Writes a file that only this user can read. Raises OSError."""
    new_path = path.with_suffix(".new")
    with os.fdopen(os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(to_line(snapshot))
    new_path.replace(path)


def pop_snapshot(path: Path, now: ClockReading) -> Snapshot | None:
    """Reads the file and deletes it. Returns None if the file is missing, too old or damaged, or from another
    version."""
    try:
        content = path.read_bytes()
        path.unlink()
        snapshot = from_line(content, Snapshot)
    except (OSError, FrameError):
        return None
    age = now.wall - snapshot.at.wall
    monotonic_age = (now.monotonic - snapshot.at.monotonic) / SECOND_NS
    is_usable = 0 <= age <= MAX_AGE_S and abs(age - monotonic_age) <= MAX_DRIFT_S
    return snapshot if is_usable and snapshot.release == antiphon.__version__ else None


class LimitCounter(Struct):
    """The counter of one limit, with the limit as the latest request had it."""

    limit: Limit
    counter: UsageCounter
    last_used: int
    """Monotonic nanoseconds."""
    open_claims: int = 0
    """Number of open claims."""
    reserved: int = 0
    """The sum of the amounts of open claims, including amounts whose window has passed."""
    is_budget: bool = False
    """Whether its usage is reported to the budget watch."""


class ClaimPart(Struct):
    """The amounts that one claim has reserved in one limit."""

    limit_counter: LimitCounter
    additions: list[tuple[int, int]]
    """Pairs of a window slot (see `limits.windows`) and the amount that counts there, the oldest first."""
    amount: int = 0
    """The sum of all additions."""
    is_extended: bool = False
    """Whether the claim was extended after its first reservation."""

    def count_initial(self, now: ClockReading) -> int:
        """Returns the amount of the first reservation that still counts. Returns 0 if the claim was extended,
        because the size of the request then includes the first reservation."""
        if self.is_extended:
            return 0
        counter = self.limit_counter.counter
        return sum(amount for window_slot, amount in self.additions if counter.is_current(now, window_slot))

    def settle(self, now: ClockReading, used: int) -> None:
        """Changes the claim's amount to the used amount. If less was used than reserved, subtracts the
        difference from the counter, the newest addition first. If more was used, adds the difference."""
        additions, counter, excess = self.additions, self.limit_counter.counter, self.amount - used
        self.limit_counter.reserved -= self.amount
        self.amount = used
        if excess < 0:
            additions.append((counter.add(now, -excess), -excess))
        while excess > 0:
            window_slot, amount = additions.pop()
            counter.subtract(window_slot, min(amount, excess))
            excess -= amount


class LocalLimiter:
    """A `Limiter` for one process."""

    def __init__(self, clock: Clock, seeder: Seeder | None = None, fails_open: bool = False) -> None:
        """`fails_open`: whether counters start at 0 if the ledger cannot be read. If not, every request is
        refused until it can be read."""
        self._clock = clock
        self.seed_reader = SeedReader(seeder, clock, fails_open)
        self._has_no_ledger = seeder is None
        """Whether past usage cannot be read from a ledger, so that a counter with usage must not be
        dropped."""
        self._counters: OrderedDict[str, LimitCounter] = OrderedDict()
        self._claims: dict[str, list[ClaimPart]] = {}
        self._seeding = asyncio.Lock()
        self.watch: BudgetWatch | None = None
        """Receives the usage of budgets; None if budget warnings are off."""

    async def reserve(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        await self.seed(limits)
        return self.reserve_seeded(claim, limits, amounts)

    def reserve_seeded(
        self, claim: str, limits: Sequence[Limit], amounts: Amounts
    ) -> tuple[LimitStatus, ...]:
        """Like `reserve`, for limits whose counters exist."""
        if claim in self._claims:
            raise ValueError(f"claim {claim} is already open")
        now, counters, parts = self.now(), self._counters, []
        for limit in limits:
            limit_counter = counters.get(limit.id) or self._create_counter(limit, now)
            limit_counter.limit, limit_counter.last_used = limit, now.monotonic
            parts.append(ClaimPart(limit_counter, []))
        statuses = self._count(limits, parts, amounts.index_by_measure(concurrent=1), now)
        self._open_claim(claim, parts)
        self._drop_one_unused(now)
        return statuses

    async def extend(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        return self.extend_seeded(claim, limits, amounts)

    def extend_seeded(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        """Like `extend`, but not asynchronous. The counters of an open claim exist."""
        by_id = {part.limit_counter.limit.id: part for part in self._claims.get(claim, ())}
        limits = [limit for limit in limits if limit.id in by_id]
        parts = [by_id[limit.id] for limit in limits]
        statuses = self._count(limits, parts, amounts.index_by_measure(), self.now())
        for part in parts:
            part.is_extended = True
        return statuses

    def settle(self, claim: str, amounts: Amounts, ended_ms: int | None = None) -> None:
        now, used = self.now(), amounts.index_by_measure()
        for part in self._claims.pop(claim, ()):
            limit_counter = part.limit_counter
            limit_counter.open_claims -= 1
            part.settle(now, used[limit_counter.limit.measure])
            if limit_counter.is_budget and self.watch is not None:
                self._report_usage(limit_counter, now)

    def release_place(self, claim: str) -> None:
        now = self.now()
        for part in self._claims.get(claim, ()):
            if part.limit_counter.limit.measure is Measure.CONCURRENT:
                part.settle(now, 0)

    def abandon(self, claim: str) -> None:
        """Ends a claim whose holder is gone. Everything that it reserved counts as used."""
        now = self.now()
        for part in self._claims.pop(claim, []):
            is_concurrency = part.limit_counter.limit.measure is Measure.CONCURRENT
            part.settle(now, 0 if is_concurrency else part.amount)
            part.limit_counter.open_claims -= 1
            if part.limit_counter.is_budget:
                self._report_usage(part.limit_counter, now)

    def _report_usage(
        self, limit_counter: LimitCounter, now: ClockReading, is_exhausted: bool = False
    ) -> None:
        """Reports the usage of a budget to the watch, without the amounts of open claims. `is_exhausted`:
        whether the budget refused a request."""
        if self.watch is not None:
            used = limit_counter.counter.total(now) - limit_counter.reserved
            self.watch.observe(limit_counter.limit, max(0, used), now.wall, is_exhausted)

    async def restore(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> None:
        """Counts a claim that a process already had open before this limiter started. Refuses nothing. Raises
        LimitsUnavailable."""
        await self.seed(limits)
        if claim not in self._claims:
            now, claimed, parts = self.now(), amounts.index_by_measure(concurrent=1), []
            for limit in limits:
                limit_counter, amount = self._find_counter(limit, now), claimed[limit.measure]
                limit_counter.reserved += amount
                additions = [(limit_counter.counter.add(now, amount), amount)] if amount else []
                parts.append(ClaimPart(limit_counter, additions, amount))
            self._open_claim(claim, parts)

    async def read_status(self, limits: Sequence[Limit]) -> tuple[LimitStatus, ...]:
        await self.seed(limits)
        return self.read_status_seeded(limits)

    def read_status_seeded(self, limits: Sequence[Limit]) -> tuple[LimitStatus, ...]:
        """Like `read_status`, for limits whose counters exist."""
        now = self.now()
        parts = [ClaimPart(self._find_counter(limit, now), []) for limit in limits]
        return self._count(limits, parts, Amounts().index_by_measure(), now)

    async def aclose(self) -> None:
        self._claims.clear()

    def build_snapshot(self) -> Snapshot:
        """Returns the current counters and open claims, for a limiter that replaces this one."""
        counters = (
            CounterState(counter.limit, counter.counter.export_amounts())
            for counter in self._counters.values()
        )
        claims = (
            ClaimState(
                claim,
                tuple(
                    PartState(part.limit_counter.limit.id, tuple(part.additions), part.is_extended)
                    for part in parts
                ),
            )
            for claim, parts in self._claims.items()
        )
        return Snapshot(self.now(), tuple(counters), tuple(claims))

    def load(self, snapshot: Snapshot) -> None:
        """Takes over the counters and claims of the limiter that made the snapshot. Call it before any
        request."""
        now = self.now()
        for state in snapshot.counters:
            self._find_counter(state.limit, now).counter.import_amounts(state.amounts_by_slot)
        for claim in snapshot.claims:
            parts = [
                ClaimPart(
                    self._counters[part.limit],
                    list(part.additions),
                    sum(amount for _, amount in part.additions),
                    part.is_extended,
                )
                for part in claim.parts
            ]
            self._claims[claim.id] = parts
            for part in parts:
                part.limit_counter.open_claims += 1
                part.limit_counter.reserved += part.amount

    def has_claim(self, claim: str) -> bool:
        """Whether a claim is open."""
        return claim in self._claims

    def is_seeded(self, limits: Sequence[Limit]) -> bool:
        """Whether every limit has a counter."""
        counters = self._counters
        for limit in limits:  # noqa: SIM110 - a generator for each request takes longer
            if limit.id not in counters:
                return False
        return True

    # --- helpers ---

    def _count(
        self,
        limits: Sequence[Limit],
        parts: Sequence[ClaimPart],
        needed: Mapping[Measure, int],
        now: ClockReading,
    ) -> tuple[LimitStatus, ...]:
        """Adds the `needed` amounts to the parts and counts them, and returns the status of each limit. If
        limits have no room, counts nothing and raises the refusal that lasts longest."""
        totals, has_room = [], True
        for limit, part in zip(limits, parts, strict=True):
            amount = needed[limit.measure]
            total = part.limit_counter.counter.total(now) + amount
            if total > limit.amount and amount:
                has_room = False
            totals.append(total)
        if not has_room:
            raise self._build_refusal(limits, parts, needed, totals, now)
        statuses = []
        for limit, part, total in zip(limits, parts, totals, strict=True):
            limit_counter, amount = part.limit_counter, needed[limit.measure]
            counter = limit_counter.counter
            if amount:
                limit_counter.reserved += amount
                part.amount += amount
                part.additions.append((counter.add(now, amount), amount))
            remaining = limit.amount - total if total < limit.amount else 0
            statuses.append(LimitStatus(limit, remaining, counter.seconds_until_reset(now)))
        return tuple(statuses)

    def _build_refusal(
        self,
        limits: Sequence[Limit],
        parts: Sequence[ClaimPart],
        needed: Mapping[Measure, int],
        totals: Sequence[int],
        now: ClockReading,
    ) -> Refusal:
        """Builds the refusal that lasts longest, and reports the budgets that refuse to the watch. `totals`:
        the used amount of each limit, with the `needed` one."""
        refusals, statuses = [], []
        for index, (limit, part, total) in enumerate(zip(limits, parts, totals, strict=True)):
            counter, amount = part.limit_counter.counter, needed[limit.measure]
            if amount and total > limit.amount:
                wait_s = counter.seconds_until_room(now, total - limit.amount)
                refusal = build_refusal(limit, amount, part.count_initial(now), wait_s, now.wall)
                refusals.append((refusal, index))
                if isinstance(refusal, BudgetExceeded):
                    self._report_usage(part.limit_counter, now, is_exhausted=True)
            remaining = max(0, limit.amount - (total - amount))
            statuses.append(LimitStatus(limit, remaining, counter.seconds_until_reset(now)))
        return pick_longest(refusals, tuple(statuses))

    def _open_claim(self, claim: str, parts: list[ClaimPart]) -> None:
        self._claims[claim] = parts
        for part in parts:
            part.limit_counter.open_claims += 1

    def _find_counter(self, limit: Limit, now: ClockReading) -> LimitCounter:
        """Returns the counter of a limit, and records when it was used. Creates the counter if it is
        missing."""
        limit_counter = self._counters.get(limit.id) or self._create_counter(limit, now)
        limit_counter.limit, limit_counter.last_used = limit, now.monotonic
        return limit_counter

    def _create_counter(self, limit: Limit, now: ClockReading) -> LimitCounter:
        counter = LimitCounter(limit, create_counter(limit), now.monotonic, is_budget=limit.is_budget)
        self._counters[limit.id] = counter
        return counter

    def _drop_one_unused(self, now: ClockReading) -> None:
        """Drops the counter at the front of the order if it was unused for UNUSED_NS. Moves it to the end if
        not. So several calls check all counters."""
        if not self._counters:
            return
        id_ = next(iter(self._counters))
        limit_counter = self._counters[id_]
        is_recent = limit_counter.last_used > now.monotonic - UNUSED_NS
        is_needed = self._has_no_ledger and not is_recent and limit_counter.counter.total(now) > 0
        if limit_counter.open_claims or is_needed or is_recent:
            self._counters.move_to_end(id_)
        else:
            del self._counters[id_]

    async def seed(self, limits: Sequence[Limit]) -> None:
        """Creates the missing counters of these limits, with the past usage from the ledger. Raises
        LimitsUnavailable."""
        if self.is_seeded(limits):
            return
        async with self._seeding:
            new_limits = [limit for limit in limits if limit.id not in self._counters]
            if not new_limits:
                return
            seeds = await self.seed_reader.read(new_limits)
            now = self.now()
            for limit in new_limits:
                if limit.id not in self._counters:
                    counter = self._find_counter(limit, now).counter
                    for at, amount in seeds.get(limit.id, ()):
                        counter.add_past(now, at, amount)

    def now(self) -> ClockReading:
        """Returns the current time on both clocks."""
        return ClockReading(int(self._clock.monotonic() * SECOND_NS), self._clock.wall())
