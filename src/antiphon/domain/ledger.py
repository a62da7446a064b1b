"""What the ledger keeps: one entry for each generation, whole, cancelled, failed or cut by a crash."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from antiphon.domain.limits import Amounts
from antiphon.domain.usage import UsageSource
from antiphon.domain.values import Value

OK = "ok"
"""Status of a generation that ended by itself."""
CANCELLED = "cancelled"
"""Status of one that its caller left."""
ABORTED = "aborted"
"""Status of a generation whose process ended before it."""

NOTHING: Mapping[str, str] = MappingProxyType({})


class Entry(Value, frozen=True, omit_defaults=True):
    """One generation. As an intent it is what stands in the ledger if nothing more is heard of it."""

    id: str
    """Nobody else has it; the server's own, while callers may choose `request_id`."""
    request_id: str
    at: int
    """Unix milliseconds when it began."""
    project: str
    key: str
    """Id of the actor: a key's, or what a verifier names its caller."""
    user: str | None
    dialect: str
    operation: str
    """Path that was asked."""
    asked: str
    """Model, as the caller spelt it."""
    model: str
    """Name of the one that served."""
    adapter: str | None = None
    """Content digest of the adapter that spoke."""
    engine: str = ""
    """Kind of engine: `llama`, a vendor."""
    attempts: int = 1
    """How often it was tried."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    source: UsageSource = UsageSource.ESTIMATED
    """Where the counts come from."""
    price: str | None = None
    """Id of the price that it was reckoned by."""
    cost: int = 0
    """Nano-units of the currency."""
    currency: str = ""
    status: str = ABORTED
    """`ok`, `cancelled`, `aborted`, or the code of the error that ended it."""
    queue_ms: int | None = None
    """Until it was in the engine's batch."""
    ttft_ms: int | None = None
    """Until the first token."""
    total_ms: int | None = None
    end_user: str | None = None
    """For whom the caller says that it asks: OpenAI's `user` or `safety_identifier`."""
    parent: str | None = None
    """Id of the entry whose request made this one."""
    tags: Mapping[str, str] = NOTHING
    """The caller's own: OpenAI's `metadata`."""


@dataclass(frozen=True, slots=True)
class Used:
    """What entries of one key, user, project and model took together."""

    at: int
    """Unix milliseconds of the latest of them."""
    key: str
    user: str | None
    project: str
    model: str
    amounts: Amounts
