"""The limits of an HTTP process. The coordinator counts them.

This module stores the process's open and recently settled claims, and repeats them to a new coordinator.
Settlements are sent in order, and have no reply.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from antiphon.domain.context import Clock
from antiphon.domain.limits import Amounts, Limit, LimitStatus, Measure
from antiphon.domain.values import Struct
from antiphon.errors import AntiphonError, BudgetExceeded, LargerThanLimit, LimitsUnavailable, RateLimited
from antiphon.limits.local import LocalLimiter
from antiphon.processes.coordinator.frames import (
    AskLimits,
    Ended,
    Extend,
    LimitsReply,
    Question,
    Refused,
    ReleasePlace,
    Reply,
    Reserve,
    Restore,
    Settle,
    ToCoordinator,
)

RECENT_S = 10.0
"""Seconds for which a settled claim is stored, because the death of a coordinator can be noticed late."""

PATIENCE_S = 3.0
"""Seconds that a request waits for a missing coordinator. A new one starts within one or two seconds."""

RETRY_AFTER = 1.0
"""The retry delay for callers in seconds."""

NOTHING = Amounts()


class Claim(Struct):
    """An unsettled reservation of this process."""

    limits: tuple[Limit, ...]
    amounts: Amounts

    def add(self, added: Amounts) -> None:
        """Adds a further reservation."""
        self.amounts = Amounts(
            self.amounts.requests + added.requests,
            self.amounts.input_tokens + added.input_tokens,
            self.amounts.output_tokens + added.output_tokens,
            self.amounts.cost + added.cost,
        )


class EndedClaim(Struct, frozen=True):
    """A settled reservation of this process."""

    message: Ended
    coordinator_start_ms: int | None
    """The start of the coordinator to which the settlement was sent; None if there was no coordinator."""
    settled_at_s: float
    """Monotonic seconds at which the claim was settled."""


class Caller(Protocol):
    """The methods of `CoordinatorClient` that the limiter uses."""

    @property
    def is_reachable(self) -> bool: ...
    @property
    def can_read_limits(self) -> bool: ...
    def send(self, message: ToCoordinator) -> None: ...
    async def call(self, build_question: Callable[[int], Question]) -> Reply: ...


class SharedLimiter:
    """A `Limiter` that asks the coordinator."""

    def __init__(self, caller: Caller, clock: Clock, patience: float = PATIENCE_S) -> None:
        self._caller = caller
        self._clock = clock
        self._patience = patience
        self.local: LocalLimiter | None = None
        """The limiter of the coordinator, if it runs in this process. It is called without messages."""
        self._claims: dict[str, Claim] = {}
        self._ended_claims: deque[EndedClaim] = deque()
        self._coordinator_start_ms: int | None = None

    @property
    def available(self) -> bool:
        """Whether the coordinator can answer now, and can read the usage of all limits."""
        return self._caller.is_reachable and self._caller.can_read_limits

    def repeat_claims(self, coordinator_start_ms: int) -> Iterator[Restore | Ended]:
        """Yields the claims that a new coordinator must count before other requests. `coordinator_start_ms`:
        the start of the coordinator, which identifies it."""
        self._coordinator_start_ms = coordinator_start_ms
        for id_, claim in self._claims.items():
            yield Restore(id_, claim.limits, claim.amounts)
        for ended in self._ended_claims:
            if ended.coordinator_start_ms != coordinator_start_ms:
                yield ended.message

    def forget_coordinator(self) -> None:
        """Handles the loss of the coordinator."""
        self._coordinator_start_ms = self.local = None

    # --- Limiter --------------------------------------------------------------------------------------------

    async def reserve(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        limit_tuple = tuple(limits)
        if self.local is not None and self.local.is_seeded(limit_tuple):
            statuses = self.local.reserve_seeded(claim, limit_tuple, amounts)
        else:
            try:
                statuses = await self._ask(lambda call: Reserve(call, claim, limit_tuple, amounts))
            except (asyncio.CancelledError, LimitsUnavailable):
                self._caller.send(Settle(claim, NOTHING))  # the coordinator can have reserved it
                raise
        self._claims[claim] = Claim(limit_tuple, amounts)
        return statuses

    async def extend(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        limit_tuple = tuple(limits)
        if self.local is not None:
            # An open claim has its counters.
            statuses = self.local.extend_seeded(claim, limit_tuple, amounts)
        else:
            statuses = await self._ask(lambda call: Extend(call, claim, limit_tuple, amounts))
        if (open_claim := self._claims.get(claim)) is not None:
            open_claim.add(amounts)
        return statuses

    def settle(self, claim: str, amounts: Amounts, ended_ms: int | None = None) -> None:
        open_claim = self._claims.pop(claim, None)
        if open_claim is None:
            return
        if self.local is not None:
            self.local.settle(claim, amounts)
            return
        self._caller.send(Settle(claim, amounts))
        now = self._clock.monotonic()
        message = Ended(claim, open_claim.limits, open_claim.amounts, amounts, ended_ms)
        self._ended_claims.append(EndedClaim(message, self._coordinator_start_ms, now))
        while self._coordinator_start_ms is not None and self._ended_claims[0].settled_at_s < now - RECENT_S:
            self._ended_claims.popleft()

    def release_place(self, claim: str) -> None:
        open_claim = self._claims.get(claim)
        if open_claim is None:
            return
        limits = tuple(limit for limit in open_claim.limits if limit.measure is not Measure.CONCURRENT)
        if limits == open_claim.limits:
            return
        open_claim.limits = limits  # a new coordinator must not count the place again
        if self.local is not None:
            self.local.release_place(claim)
        else:
            self._caller.send(ReleasePlace(claim))

    async def read_status(self, limits: Sequence[Limit]) -> tuple[LimitStatus, ...]:
        limit_tuple = tuple(limits)
        return await self._ask(lambda call: AskLimits(call, limit_tuple))

    async def aclose(self) -> None:
        """Does nothing: the connection belongs to the caller."""

    async def _ask(self, build_question: Callable[[int], Question]) -> tuple[LimitStatus, ...]:
        """Asks the coordinator and returns its reply. If the coordinator is lost, asks the next one,
        because that does not know the request. Raises LimitsUnavailable if there is no reply in time."""
        try:
            async with asyncio.timeout(self._patience):
                reply = await self._caller.call(build_question)
        except TimeoutError:
            raise LimitsUnavailable(
                "the process that counts the limits is unavailable; try again", retry_after=RETRY_AFTER
            ) from None
        if isinstance(reply, Refused):
            raise _to_error(reply)
        if not isinstance(reply, LimitsReply):
            raise LimitsUnavailable("the coordinator sent a wrong reply")
        return reply.statuses


def _to_error(refused: Refused) -> AntiphonError:
    """Converts a refusal of the coordinator to its error."""
    error = refused.error.to_exception()
    if isinstance(error, RateLimited | BudgetExceeded | LargerThanLimit):
        error.limit, error.statuses = refused.limit, refused.statuses
    return error
