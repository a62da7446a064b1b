"""What is asked of the ledger, and what it answers: sums over its entries, by whatever tells them apart."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType

from antiphon.domain.ledger import Entry


class EntryField(StrEnum):
    """What an entry says of itself; named as in `domain.ledger.Entry`."""

    PROJECT = "project"
    USER = "user"
    KEY = "key"
    MODEL = "model"
    ASKED = "asked"
    ADAPTER = "adapter"
    ENGINE = "engine"
    DIALECT = "dialect"
    OPERATION = "operation"
    STATUS = "status"
    SOURCE = "source"
    PRICE = "price"
    CURRENCY = "currency"
    END_USER = "end_user"
    REQUEST_ID = "request_id"
    PARENT = "parent"


class Bucket(StrEnum):
    """A stretch of time in UTC, named by the Unix second in which it begins."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    """From Monday."""
    MONTH = "month"


TAG = "tag:"
"""What the name of a tag follows, where it is one dimension among others."""


@dataclass(frozen=True, slots=True)
class Tag:
    """One of the caller's own tags."""

    name: str

    def __str__(self) -> str:
        return TAG + self.name


Dimension = EntryField | Bucket | Tag


def parse_dimension(text: str) -> Dimension | None:
    """The one of that name: `model`, `day`, `tag:team`. None where there is none."""
    if text.startswith(TAG):
        return Tag(text.removeprefix(TAG)) if len(text) > len(TAG) else None
    return DIMENSIONS.get(text)


DIMENSIONS: Mapping[str, EntryField | Bucket] = MappingProxyType(
    {each.value: each for each in (*EntryField, *Bucket)}
)
"""By name; tags are beside them."""


@dataclass(frozen=True, slots=True)
class Condition:
    """That an entry says this; None or empty: that it says nothing."""

    of: EntryField | Tag
    value: str | None


@dataclass(frozen=True, slots=True)
class EntrySelection:
    """Entries that began in a time and satisfy every condition."""

    since: int
    """Unix milliseconds."""
    until: int
    """Unix milliseconds; what began then is no more in it."""
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Mean:
    """An average that can be added to another."""

    sum: int = 0
    count: int = 0

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.sum + other.sum, self.count + other.count)

    @property
    def value(self) -> float | None:
        """None where nothing was measured."""
        return self.sum / self.count if self.count else None


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Sums over entries."""

    requests: int = 0
    """Entries: generations, also those that a request's own work asked for."""
    ok: int = 0
    cancelled: int = 0
    aborted: int = 0
    failed: int = 0
    """That ended with an error."""
    unpriced: int = 0
    """For which no price held: their cost is not known, and counts as none."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost: int = 0
    """Nano-units of the currency."""
    queue_ms: Mean = field(default_factory=Mean)
    ttft_ms: Mean = field(default_factory=Mean)
    total_ms: Mean = field(default_factory=Mean)

    def __add__(self, other: "UsageTotals") -> "UsageTotals":
        return UsageTotals(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True)
class ReportGroup:
    """The totals of the entries that say the same."""

    values: tuple[str | int | None, ...]
    """One for each dimension; of a bucket the Unix second in which it begins."""
    totals: UsageTotals


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """Totals of a selection, and of its groups: the earliest bucket first, then the most requests."""

    total: UsageTotals
    """Of all, also of groups that are not listed."""
    groups: tuple[ReportGroup, ...] = ()
    more: bool = False
    """Whether there are groups that are not listed."""


@dataclass(frozen=True, slots=True)
class EntryPosition:
    """Where a list of entries goes on: after the one that began at this time and has this id."""

    at: int
    id: str

    @staticmethod
    def of(entry: Entry) -> "EntryPosition":
        return EntryPosition(entry.at, entry.id)
