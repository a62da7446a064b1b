"""What a limiter that ends leaves to the one that goes on in another process of the machine: every counter
as it stands, and the claims that stand. Values only; places are of the machine's monotonic clock."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from antiphon.domain.limits import Limit


@dataclass(frozen=True, slots=True)
class LeftCounter:
    """A limit with what its counter holds."""

    limit: Limit
    places: Mapping[int, int]
    """Amounts by their places, as of `limits.windows`."""


@dataclass(frozen=True, slots=True)
class LeftPart:
    """What a claim took of one limit."""

    limit: str
    """Its id."""
    parts: tuple[tuple[int, int], ...]
    """Places and amounts, the oldest first."""
    is_sized: bool


@dataclass(frozen=True, slots=True)
class LeftClaim:
    """A claim that stands."""

    id: str
    held: tuple[LeftPart, ...]


@dataclass(frozen=True, slots=True)
class Estate:
    """All of it, or a part: counters come before the claims on them."""

    counters: tuple[LeftCounter, ...] = ()
    claims: tuple[LeftClaim, ...] = ()

    def parts(self, size: int) -> Iterator["Estate"]:
        """The same in pieces of so many counters or claims."""
        for at in range(0, len(self.counters), size):
            yield Estate(self.counters[at : at + size])
        for at in range(0, len(self.claims), size):
            yield Estate((), self.claims[at : at + size])
