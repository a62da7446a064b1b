"""What the edge uses, handed to it by assembly."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import Scope

from antiphon.auth.base import TokenVerifier
from antiphon.dialects.base import Dialect, Endpoint
from antiphon.domain.context import Clock, Context, SystemClock
from antiphon.domain.embedding import EmbeddingRequest, Embeddings
from antiphon.domain.events import Event
from antiphon.domain.request import GenerationRequest
from antiphon.engines.registry import ModelRegistry
from antiphon.http.body_budget import BodyBudget
from antiphon.http.in_flight import InFlightRegistry
from antiphon.ledger.base import MonitoredLedger
from antiphon.limits.base import MonitoredLimiter
from antiphon.pipeline.adapters import AdapterRegistry
from antiphon.pipeline.deployments import Deployments
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.exposition import Totals
from antiphon.telemetry.metrics import Metrics


class Runner(Protocol):
    """The pipeline, as far as the edge knows it."""

    @property
    def keeps_records(self) -> bool:
        """Whether each request's usage is written down."""

    def run(
        self, request: GenerationRequest, context: Context
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Entering is cheap; the work runs as the iterator is read; leaving ends it."""

    async def embed(self, request: EmbeddingRequest, context: Context) -> Embeddings:
        """Vectors of texts; cancelling ends the work."""


class Coordination(Protocol):
    """The coordinator, as far as the edge knows it."""

    async def ping(self) -> bool:
        """Whether it is there and answers."""

    async def collect_totals(self) -> tuple[int, Totals]:
        """How many other HTTP processes there are, and what they count, those that ended included."""


@dataclass(frozen=True, slots=True)
class AppState:
    """Everything that the application and its handlers use."""

    pipeline: Runner
    models: ModelRegistry
    dialect: Dialect
    """The server's own."""
    settings: ServerSettings
    verifiers: tuple[TokenVerifier, ...] = ()
    """None of them: every caller is the local anonymous actor, and must come from this machine."""
    clock: Clock = field(default_factory=SystemClock)
    ongoing: InFlightRegistry = field(default_factory=InFlightRegistry)
    """The generations that run now; shutdown ends them."""
    metrics: Metrics = field(default_factory=Metrics)
    """Shared with the pipeline, which counts generations."""
    limiter: MonitoredLimiter | None = None
    """Who counts limits, where that is another process, which may be away."""
    limits_open: bool = False
    """Whether requests pass whose limits nobody can count."""
    ledger: MonitoredLedger | None = None
    """Where generations are written down; None, where keys are off."""
    coordinator: Coordination | None = None
    """What the HTTP processes of the server share; None, where there is no other."""
    bodies: BodyBudget = field(default_factory=BodyBudget)
    """What all request bodies together hold."""
    adapters: AdapterRegistry | None = None
    """What loads and unloads them; None, where the operator does not let callers do so."""
    deployments: Deployments | None = None
    """What deploys adapters by the names of repositories; None, where callers may not."""
    keys_on: bool = False
    """Whether there are projects, users and keys."""
    admin: tuple[Endpoint, ...] = ()
    """The endpoints of projects, users, keys, limits, prices and usage, where keys are on."""
    others: tuple[Dialect, ...] = ()
    """The dialects that lie under a prefix."""

    @property
    def dialects(self) -> tuple[Dialect, ...]:
        """All of them, the server's own first."""
        return (self.dialect, *self.others)

    def get_dialect(self, path: str) -> Dialect:
        """The one that answers whatever is asked at a path, whether there is something or not."""
        return next((other for other in self.others if is_under(path, other.prefix)), self.dialect)


def is_under(path: str, prefix: str) -> bool:
    """Whether a path is the prefix or goes on below it."""
    return path.startswith(prefix) and path[len(prefix) :][:1] in ("", "/")


def group_headers(scope: Scope) -> dict[bytes, list[bytes]]:
    """The headers of a scope by name."""
    headers: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name, []).append(value)
    return headers
