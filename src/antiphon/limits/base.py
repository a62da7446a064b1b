"""The interface of limiters. A limiter counts usage for all processes that must agree on it."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from antiphon.domain.limits import Amounts, Limit, LimitStatus


class Limiter(Protocol):
    """Admits requests within their limits, exactly. A reserved amount counts as used until the request is
    settled.

    Each amount counts from the moment it was reserved. No 60 seconds ever count more than a limit per minute
    allows. No day, week or month counts more than a budget allows.
    """

    async def reserve(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        """Takes the amounts out of every limit, and one request out of each limit of concurrent requests. It
        takes all of them or none. `claim` is an id that nobody else uses. Returns the status of each limit,
        in their order.

        Raises RateLimited or BudgetExceeded, with the limit that has no room, or LimitsUnavailable if nobody
        can tell.
        """

    async def extend(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        """Takes more for a claim that is open. `limits` are the limits of the claim that still exist, as they
        are now; a removed limit refuses nothing. Returns their status, in their order. Raises as `reserve`
        does, and then changes nothing."""

    def settle(self, claim: str, amounts: Amounts, at: int | None = None) -> None:
        """Ends a claim and returns at once. The amounts that were really used count, whether they are less or
        more than what was reserved. An unknown claim is ignored. `at` is the end of the request in the
        ledger, in Unix milliseconds, or None if the ledger has no entry."""

    async def read_status(self, limits: Sequence[Limit]) -> tuple[LimitStatus, ...]:
        """The status of each limit, in their order. Takes nothing. Raises LimitsUnavailable."""

    async def aclose(self) -> None:
        """Releases all resources, after it has sent what was settled."""


@runtime_checkable
class MonitoredLimiter(Protocol):
    """A limiter that depends on another process, which can be unavailable."""

    @property
    def available(self) -> bool:
        """Whether the other process answers now."""
