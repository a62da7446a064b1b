"""The limits of an HTTP process, counted by the coordinator in this process or in another one.

It keeps the process's open and recently ended claims, and restates them to a new coordinator. Settlements are
sent in order, and nothing waits for them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from antiphon.domain.context import Clock
from antiphon.domain.limits import Amounts, Limit, LimitStatus
from antiphon.errors import AntiphonError, BudgetExceeded, LargerThanLimit, LimitsUnavailable, RateLimited
from antiphon.limits.local import LocalLimiter
from antiphon.processes.coordinator.frames import (
    AskLimits,
    Ended,
    Extend,
    LimitsReply,
    Question,
    Refused,
    Reply,
    Reserve,
    Restore,
    Settle,
    ToCoordinator,
)

RECENT_S = 10.0
"""Seconds for which an ended claim is kept, since a coordinator's death may be noticed late."""

PATIENCE_S = 3.0
"""Seconds that a request waits for an absent coordinator. A new one starts within one or two."""

RETRY_AFTER = 1.0
"""Seconds that callers are told to wait."""

NOTHING = Amounts()


@dataclass(slots=True)
class Claim:
    """A reservation of this process that is not settled."""

    limits: tuple[Limit, ...]
    amounts: Amounts

    def add(self, more: Amounts) -> None:
        """Adds a further reservation."""
        self.amounts = Amounts(
            self.amounts.requests + more.requests,
            self.amounts.input_tokens + more.input_tokens,
            self.amounts.output_tokens + more.output_tokens,
            self.amounts.cost + more.cost,
        )


@dataclass(frozen=True, slots=True)
class EndedClaim:
    """A settled reservation of this process."""

    message: Ended
    told: int | None
    """The start time of the coordinator that was told about the end; None if there was none."""
    settled: float
    """Monotonic seconds at which the claim was settled."""


class Caller(Protocol):
    """Sends messages to the coordinator."""

    @property
    def is_reachable(self) -> bool: ...
    def send(self, message: ToCoordinator) -> None: ...
    async def call(self, make: Callable[[int], Question]) -> Reply: ...


class SharedLimiter:
    """A `Limiter` over the coordinator."""

    def __init__(self, caller: Caller, clock: Clock, patience: float = PATIENCE_S) -> None:
        self._caller = caller
        self._clock = clock
        self._patience = patience
        self.local: LocalLimiter | None = None
        """The limiter of a coordinator in this process, which is called without messages."""
        self._claims: dict[str, Claim] = {}
        self._ended: deque[EndedClaim] = deque()
        self._told: int | None = None

    @property
    def available(self) -> bool:
        """Whether the coordinator can answer now."""
        return self._caller.is_reachable

    def restate(self, began: int) -> Iterator[Restore | Ended]:
        """Yields the claims that a new coordinator must count before anything else. `began`: the
        coordinator's start, by which it is known."""
        self._told = began
        for id_, claim in self._claims.items():
            yield Restore(id_, claim.limits, claim.amounts)
        for ended in self._ended:
            if ended.told != began:
                yield ended.message

    def lose(self) -> None:
        """Notes that the coordinator is gone."""
        self._told = self.local = None

    # --- the seam -------------------------------------------------------------------------------------------

    async def reserve(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        applied = tuple(limits)
        if self.local is not None and self.local.is_seeded(applied):
            standings = self.local.reserve_seeded(claim, applied, amounts)
        else:
            try:
                standings = await self._ask(lambda call: Reserve(call, claim, applied, amounts))
            except (asyncio.CancelledError, LimitsUnavailable):
                self._caller.send(Settle(claim, NOTHING))  # it may be reserved by now
                raise
        self._claims[claim] = Claim(applied, amounts)
        return standings

    async def extend(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        applied = tuple(limits)
        if self.local is not None:
            standings = self.local.extend_seeded(claim, applied, amounts)
        else:
            standings = await self._ask(lambda call: Extend(call, claim, applied, amounts))
        if (held := self._claims.get(claim)) is not None:
            held.add(amounts)
        return standings

    def settle(self, claim: str, amounts: Amounts, ended_ms: int | None = None) -> None:
        held = self._claims.pop(claim, None)
        if held is None:
            return
        if self.local is not None:
            self.local.settle(claim, amounts)
            return
        self._caller.send(Settle(claim, amounts))
        now, message = self._clock.monotonic(), Ended(claim, held.limits, held.amounts, amounts, ended_ms)
        self._ended.append(EndedClaim(message, self._told, now))
        while self._told is not None and self._ended[0].settled < now - RECENT_S:
            self._ended.popleft()

    async def read_status(self, limits: Sequence[Limit]) -> tuple[LimitStatus, ...]:
        applied = tuple(limits)
        return await self._ask(lambda call: AskLimits(call, applied))

    async def aclose(self) -> None:
        """Does nothing: the connection belongs to the caller."""

    async def _ask(self, make: Callable[[int], Question]) -> tuple[LimitStatus, ...]:
        """Asks the coordinator, and returns its reply. Asks a new coordinator again, since the old one's
        counts are lost. Raises LimitsUnavailable when the time is over."""
        try:
            async with asyncio.timeout(self._patience):
                reply = await self._caller.call(make)
        except TimeoutError:
            raise LimitsUnavailable(
                "the process that keeps the limits is away; try again", retry_after=RETRY_AFTER
            ) from None
        if isinstance(reply, Refused):
            raise _to_error(reply)
        if not isinstance(reply, LimitsReply):
            raise LimitsUnavailable("the coordinator answered out of turn")
        return reply.standings


def _to_error(refused: Refused) -> AntiphonError:
    """Rebuilds the error with which the coordinator refused."""
    error = refused.error.to_exception()
    if isinstance(error, RateLimited | BudgetExceeded | LargerThanLimit):
        error.limit, error.statuses = refused.limit, refused.standings
    return error
