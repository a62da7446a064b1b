"""The seam of limits: who counts what is used up, for all processes that must agree on it."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from antiphon.domain.limits import Amounts, Limit, LimitStatus


class Limiter(Protocol):
    """Admits requests within their limits, exactly: what is reserved counts as used until it is settled.

    A request's amounts count from the moment at which each of them was reserved. In no 60 seconds is more
    counted than a limit of a minute allows, and in no day, week or month more than a budget allows.
    """

    async def reserve(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        """Takes the amounts out of every limit, and one of each that counts requests at once; of all or of
        none. Says how each stands then, in their order. `claim` is an id that nobody else has.

        Raises RateLimited or BudgetExceeded, with the limit that says no, and LimitsUnavailable where nobody
        can say.
        """

    async def extend(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[LimitStatus, ...]:
        """Takes more for a reservation that stands. `limits`: those it was reserved of that still hold, in
        their order and as they are now; one that was removed refuses nothing. Says how they stand then.
        Raises as `reserve` does; nothing has changed then."""

    def settle(self, claim: str, amounts: Amounts, at: int | None = None) -> None:
        """Ends a reservation: what was really used counts, what was reserved beyond it is there again at
        once, and what was used beyond the reservation counts too. Waits for nothing; of an unknown claim it
        does nothing. `at`: when it ended as the ledger has it, in Unix milliseconds; None where the ledger
        has no entry."""

    async def read_status(self, limits: Sequence[Limit]) -> tuple[LimitStatus, ...]:
        """How limits stand, in their order; takes nothing. Raises LimitsUnavailable."""

    async def aclose(self) -> None:
        """Lets go of everything; what is settled is told before."""


@runtime_checkable
class MonitoredLimiter(Protocol):
    """A limiter that asks somebody else, who may be away."""

    @property
    def available(self) -> bool:
        """Whether it can be asked now."""
