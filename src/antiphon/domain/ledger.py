"""The ledger's entry: one for each generation, whether it was complete, cancelled, failed, or cut by a
crash."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from antiphon.domain.events import UsageSource
from antiphon.domain.limits import Amounts
from antiphon.domain.values import Value

OK = "ok"
"""Status of a generation that was complete."""
CANCELLED = "cancelled"
"""Status of a generation whose caller left."""
ABORTED = "aborted"
"""Status of a generation whose process died."""

NOTHING: Mapping[str, str] = MappingProxyType({})


class Entry(Value, frozen=True, omit_defaults=True):
    """One generation. An intent is the entry that remains if the process dies."""

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
    """The model name in the request."""
    model: str
    """Name of the model that served it."""
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
    """`ok`, `cancelled`, `aborted`, or the code of the error that ended it."""
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


@dataclass(frozen=True, slots=True)
class UsedAmounts:
    """What the entries of one key, user, project and model used together."""

    at: int
    """Unix milliseconds of the latest entry."""
    key: str
    user: str | None
    project: str
    model: str
    amounts: Amounts
