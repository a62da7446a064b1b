"""The objects that the HTTP layer uses. Assembly passes them in."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from antiphon.auth.base import TokenVerifier
from antiphon.auth.sealing import KEY_BYTES, Sealer
from antiphon.dialects.base import Dialect, Endpoint
from antiphon.dialects.services import TokenService
from antiphon.domain.context import Clock, Context, SystemClock, Tracer
from antiphon.domain.events import EventGroup
from antiphon.domain.request import EmbeddingRequest, Embeddings, GenerationRequest, Ranking, RerankRequest
from antiphon.domain.values import Struct, field
from antiphon.engines.registry import ModelRegistry
from antiphon.http.body_budget import BodyBudget
from antiphon.http.in_flight import InFlightRegistry
from antiphon.ledger.base import MonitoredLedger
from antiphon.limits.base import MonitoredLimiter
from antiphon.pipeline.adapters import AdapterRegistry
from antiphon.pipeline.deployments import Deployments
from antiphon.pipeline.documents import DocumentTexts
from antiphon.retrieval.knowledge import KnowledgeTables
from antiphon.services.responses import ResponseKeeper
from antiphon.settings.server import ServerSettings
from antiphon.settings.tenancy import OidcSettings
from antiphon.telemetry.exposition import Totals
from antiphon.telemetry.metrics import Metrics


class Runner(Protocol):
    """The interface of the pipeline for the HTTP layer."""

    @property
    def keeps_records(self) -> bool:
        """Whether the usage of each request is recorded."""

    @property
    def documents(self) -> DocumentTexts | None:
        """Reads documents for models that take none; None refuses them."""

    def run(
        self, request: GenerationRequest, context: Context
    ) -> AbstractAsyncContextManager[AsyncIterator[EventGroup]]:
        """Returns a context of the generation's events. Entering it does no work; reading the iterator runs
        the generation, and leaving the context ends it."""

    async def embed(self, request: EmbeddingRequest, context: Context) -> Embeddings:
        """Returns the vectors of texts. Cancelling ends the work."""

    async def rerank(self, request: RerankRequest, context: Context) -> Ranking:
        """Returns the scores of documents for a query. Cancelling ends the work."""


class Coordination(Protocol):
    """The interface of the coordinator for the HTTP layer."""

    async def ping(self) -> bool:
        """Whether the coordinator answers."""

    async def collect_totals(self) -> tuple[int, Totals]:
        """Returns the number of other HTTP processes, and the sums of their counters. The sums include ended
        processes."""


class ChangeFollower(Protocol):
    """Reads changes of keys, limits and prices from the database."""

    is_lost: bool
    """Whether the database did not answer the last time."""


class CountedDatabase(Protocol):
    """A database that counts its failures."""

    failure_count: int


class ServerFacts(Struct):
    """The facts about the whole server for its metrics."""

    started: float = 0.0
    """When the server started, in Unix seconds."""
    home: Path | None = None
    """The directory of the server's own files."""
    directories: Mapping[str, Path] = field(default_factory=dict)
    """The directories whose disk can become full, by their labels."""
    deaths: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    """Processes that ended unasked, by kind and name of the engine host. The supervisor reports them."""


class AppState(Struct, frozen=True):
    """Everything that the application and its handlers use."""

    pipeline: Runner
    models: ModelRegistry
    dialect: Dialect
    """The dialect of paths without a prefix."""
    settings: ServerSettings
    verifiers: tuple[TokenVerifier, ...] = ()
    """The verifiers of credentials. If there are none, every caller is the local anonymous actor and must be
    on this machine."""
    clock: Clock = field(default_factory=SystemClock)
    in_flight: InFlightRegistry = field(default_factory=InFlightRegistry)
    """The running requests, which shutdown ends."""
    metrics: Metrics = field(default_factory=Metrics)
    """The metrics, shared with the pipeline, which counts generations."""
    limiter: MonitoredLimiter | None = None
    """The limiter, if another process counts the limits. That process can become unavailable."""
    limits_open: bool = False
    """Whether limited requests are accepted while the limiter is unavailable."""
    ledger: MonitoredLedger | None = None
    """The ledger of generations; None if keys are off."""
    feed: ChangeFollower | None = None
    """Follows the database; None if keys are off."""
    database: CountedDatabase | None = None
    """The database; None if keys are off."""
    facts: ServerFacts = field(default_factory=ServerFacts)
    coordinator: Coordination | None = None
    """The coordinator of the server's HTTP processes; None if there is only one process."""
    body_budget: BodyBudget = field(default_factory=BodyBudget)
    """The total size of all request bodies."""
    adapters: AdapterRegistry | None = None
    """The registry that loads and unloads adapters; None if callers cannot do so."""
    deployments: Deployments | None = None
    """Deploys adapters from repositories; None if callers cannot deploy adapters."""
    responses: ResponseKeeper | None = None
    """The kept responses. None keeps them in the memory of this process."""
    sealer: Sealer = field(default_factory=lambda: Sealer(os.urandom(KEY_BYTES)))
    """Seals reasoning that clients carry."""
    tokens: TokenService | None = None
    """The access tokens of users; None if keys are off."""
    knowledge: KnowledgeTables | None = None
    """The knowledge tables; None if the server keeps none."""
    tracer: Tracer | None = None
    """Begins the spans of requests; None without tracing."""
    keys_on: bool = False
    """Whether the server has projects, users and keys."""
    admin_endpoints: tuple[Endpoint, ...] = ()
    """The endpoints of projects, users, keys, limits, prices and usage; empty if keys are off."""
    oidc: OidcSettings = OidcSettings()
    """The issuer at which the console signs users in."""
    prefixed_dialects: tuple[Dialect, ...] = ()
    """The dialects that have a prefix."""

    @property
    def dialects(self) -> tuple[Dialect, ...]:
        """All dialects, the one without a prefix first."""
        return (self.dialect, *self.prefixed_dialects)

    def get_dialect(self, path: str) -> Dialect:
        """Returns the dialect that answers requests to a path, also if the path is unknown."""
        dialects = (dialect for dialect in self.prefixed_dialects if is_under(path, dialect.prefix))
        return next(dialects, self.dialect)


def is_under(path: str, prefix: str) -> bool:
    """Whether a path equals the prefix or is below it."""
    return path.startswith(prefix) and path[len(prefix) :][:1] in ("", "/")
