"""The interface of limiters. A limiter counts usage for all processes that must agree on it."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from antiphon.domain.limits import Amounts, Limit, LimitStatus


class Limiter(Protocol):
    """Admits a request only if all its limits have room. A request reserves amounts under a claim, which is
    an id of its own. A reserved amount counts as used until the claim is settled.

    Each amount counts from the moment it was reserved. No period of 60 seconds exceeds a limit per minute,
    and no day, week or month exceeds a budget.
    """

    async def reserve(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        """Reserves the amounts in every limit, and one request in each limit of concurrent requests. It
        reserves in all limits or in none. `claim`: an id that no other request uses. Returns the status of
        each limit, in their order.

        Raises RateLimited or BudgetExceeded with the limit that has no room, LargerThanLimit with the limit
        that the amounts exceed even unused, or LimitsUnavailable if the usage cannot be read.
        """

    async def extend(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        """Reserves more for an open claim. `limits`: the claim's limits that still exist, in their current
        form. A removed limit refuses nothing. Returns the status of the limits, in their order. Raises the
        same errors as `reserve`. After an error nothing is changed."""

    def settle(self, claim: str, amounts: Amounts, ended_ms: int | None = None) -> None:
        """Ends a claim, and returns without waiting. `amounts`: the used amounts, which count even if they
        exceed the reserved ones. Ignores an unknown claim. `ended_ms`: the end of the request in the ledger,
        in Unix milliseconds; None if the ledger has no entry."""

    def release_place(self, claim: str) -> None:
        """Ends what an open claim counts in limits of concurrent requests, and returns without waiting. Its
        other amounts stay reserved until `settle`. Ignores an unknown claim."""

    async def read_status(self, limits: Sequence[Limit]) -> tuple[LimitStatus, ...]:
        """Returns the status of each limit, in their order. Reserves nothing. Raises LimitsUnavailable."""

    async def aclose(self) -> None:
        """Sends the settled claims that wait to be sent, and then releases all resources."""


@runtime_checkable
class MonitoredLimiter(Protocol):
    """A limiter that depends on another process, which can be unavailable."""

    @property
    def available(self) -> bool:
        """Whether the other process answered the last call."""
