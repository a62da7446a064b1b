"""The ledger's entries, and sums over them. There is one entry for each generation: complete, cancelled,
failed, or ended by a crash."""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType

from antiphon.domain.events import UsageSource
from antiphon.domain.limits import Amounts
from antiphon.domain.values import Struct, Value, field, fields

OK = "ok"
"""Status of a generation that was complete."""
CANCELLED = "cancelled"
"""Status of a generation whose caller left."""
ABORTED = "aborted"
"""Status of a generation whose process died."""

NOTHING: Mapping[str, str] = MappingProxyType({})

MAX_NAMES = 1024
"""The most route names whose JSON is cached."""

TAG = "tag:"
"""The prefix that marks the name of a dimension as a tag, as in `tag:team`."""


class RouteTry(Value, frozen=True):
    """One route that a request tried."""

    route: str
    error: str | None
    """The code of the error that ended the try; None for the try that served the request."""
    ms: int
    """Milliseconds until the route's first event, or until the error."""


def encode_tries(tries: Sequence[RouteTry], status: str) -> str:
    """Encodes the tries as JSON. `status`: the status of the request: `ok`, `cancelled` or an error code,
    which contain no character that JSON escapes. The try without an error gets it too."""
    texts = []
    for route_try in tries:
        outcome = route_try.error or status
        error = "null" if outcome == OK else f'"{outcome}"'
        texts.append(f'{{"route":{_encode_name(route_try.route)},"error":{error},"ms":{route_try.ms}}}')
    return f"[{','.join(texts)}]" if texts else ""


@lru_cache(MAX_NAMES)
def _encode_name(name: str) -> str:
    """Encodes a route's name as JSON."""
    return json.dumps(name.encode(errors="replace").decode())


class Entry(Value, frozen=True, omit_defaults=True):
    """The record of one generation. Its intent is written first, and remains as the entry if the process
    dies."""

    id: str
    """Unique, and made by the server. Callers can choose `request_id`."""
    request_id: str
    at: int
    """Unix milliseconds of the beginning."""
    project: str
    key: str
    """Id of the actor: of a key, or of the user that a token names."""
    user: str | None
    dialect: str
    operation: str
    """Path of the request."""
    asked: str
    """The model name as the caller wrote it."""
    model: str
    """Name of the model that served the request."""
    adapter: str | None = None
    """Content digest of the adapter."""
    engine: str = ""
    """Kind of engine: `llama`, or a vendor."""
    attempts: int = 1
    """How often an engine was tried."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    source: UsageSource = UsageSource.ESTIMATED
    """Who counted the tokens."""
    price: str | None = None
    """Id of the price that the cost was computed with."""
    cost: int = 0
    """Nano-units of the currency."""
    currency: str = ""
    status: str = ABORTED
    """`ok`, `cancelled`, `aborted`, or the code of the error that ended the generation."""
    queue_ms: int | None = None
    """Milliseconds until the request joined the engine's batch."""
    ttft_ms: int | None = None
    """Milliseconds until the first token."""
    total_ms: int | None = None
    end_user: str | None = None
    """The caller's end user: OpenAI's `user` or `safety_identifier`."""
    parent: str | None = None
    """Id of the entry of the request that caused this one."""
    tags: Mapping[str, str] = NOTHING
    """The caller's tags: OpenAI's `metadata`."""
    routes: str = ""
    """The routes that were tried, in order, as JSON: `route`, `error` and `ms` of each."""


def build_entry_id(started_ms: int, unique: str) -> str:
    """Builds the id of an entry: 12 hexadecimal digits of its start, then 20 of `unique`. So a database adds
    an entry next to the latest ones. Random ids would change another page of its index for each entry."""
    return f"{started_ms:012x}{unique[12:]}"


class UsedAmounts(Struct, frozen=True):
    """The amounts that all entries with the same key, user, project and model used together."""

    at: int
    """Unix milliseconds of the latest entry."""
    key: str
    user: str | None
    project: str
    model: str
    amounts: Amounts


class EntryField(StrEnum):
    """A field of `Entry` by which reports group and select entries."""

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
    """A period in UTC, named by its first Unix second."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    """From Monday."""
    MONTH = "month"


class Tag(Struct, frozen=True):
    """One of the caller's own tags."""

    name: str

    def __str__(self) -> str:
        return TAG + self.name


Dimension = EntryField | Bucket | Tag


def parse_dimension(text: str) -> Dimension | None:
    """Returns the dimension of a name such as `model`, `day` or `tag:team`; None for an unknown name."""
    if text.startswith(TAG):
        return Tag(text.removeprefix(TAG)) if len(text) > len(TAG) else None
    return DIMENSIONS.get(text)


DIMENSIONS: Mapping[str, EntryField | Bucket] = MappingProxyType(
    {dimension.value: dimension for dimension in (*EntryField, *Bucket)}
)
"""All dimensions except tags, by name."""


class Condition(Struct, frozen=True):
    """Selects the entries whose field or tag has this value. None or an empty value selects the entries
    without a value."""

    dimension: EntryField | Tag
    value: str | None


class EntrySelection(Struct, frozen=True):
    """The entries that began in a period and satisfy every condition."""

    since: int
    """Unix milliseconds."""
    until: int
    """Unix milliseconds, exclusive."""
    conditions: tuple[Condition, ...] = ()


class Mean(Struct, frozen=True):
    """The sum and the number of values, from which the average is computed. Two can be added."""

    sum: int = 0
    count: int = 0

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.sum + other.sum, self.count + other.count)

    @property
    def value(self) -> float | None:
        """The average; None if nothing was measured."""
        return self.sum / self.count if self.count else None


class UsageTotals(Struct, frozen=True):
    """Sums over entries."""

    requests: int = 0
    """Number of entries. These include generations that the work on another request started."""
    ok: int = 0
    cancelled: int = 0
    aborted: int = 0
    failed: int = 0
    """Entries that ended with an error."""
    unpriced: int = 0
    """Entries without a price: their cost is unknown and counts as 0."""
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
        return UsageTotals(
            *(getattr(self, total.name) + getattr(other, total.name) for total in fields(self))
        )


class ReportGroup(Struct, frozen=True):
    """The totals of the entries with equal values."""

    values: tuple[str | int | None, ...]
    """One value for each dimension. The value of a time period is its first Unix second."""
    totals: UsageTotals


class LedgerReport(Struct, frozen=True):
    """Totals of all selected entries and of their groups. The groups of the earliest period come first, then
    those with the most requests."""

    total: UsageTotals
    """Totals of all selected entries, including those in groups that are not listed."""
    groups: tuple[ReportGroup, ...] = ()
    has_more_groups: bool = False
    """Whether there are groups that are not listed."""


class EntryPosition(Struct, frozen=True):
    """A position in a list of entries: directly after the entry with this start and id."""

    at: int
    id: str

    @staticmethod
    def from_entry(entry: Entry) -> "EntryPosition":
        return EntryPosition(entry.at, entry.id)
