"""A knowledge service over an index of its own and a scripted embedding model `e`."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from antiphon.assembly.knowledge import INGEST, ServedEmbeddingModels
from antiphon.domain.context import Context, SystemClock
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor, ActorKind
from antiphon.engines.base import Engine
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.pipeline.run import Pipeline
from antiphon.rendering.renderer import Renderer
from antiphon.retrieval.base import IndexLimits, KnowledgeIndex
from antiphon.retrieval.ingest.reader import SandboxedReader
from antiphon.retrieval.sqlite.index import SqliteIndex
from antiphon.services.knowledge.documents import DocumentJobs, IngestParts, run_jobs
from antiphon.services.knowledge.tables import KnowledgeService
from antiphon.services.knowledge.uploads import Uploader, UploadFolder
from antiphon.telemetry.metrics import Metrics
from antiphon.testing import EmbeddingScript, ScriptedEmbeddingEngine, ScriptedEngine

ALICE = Actor(ActorKind.SERVICE_KEY, "key_alice", "alpha")
BOB = Actor(ActorKind.SERVICE_KEY, "key_bob", "bravo")
PLAIN = EmbeddingScript()
LIMITS = IndexLimits()
LOOK_S = 0.3
"""Seconds between two looks of a process for files on which nobody works."""


class KnownActors:
    """The callers whose keys have not ended."""

    def __init__(self, *actors: Actor) -> None:
        self.actors = {actor.id: actor for actor in actors}
        self.find_any = False
        """Whether every uploader is known."""

    def find(self, uploader: Uploader) -> Actor | None:
        if self.find_any:
            return Actor(ActorKind(uploader.kind), uploader.key, uploader.project)
        return self.actors.get(uploader.key)


@dataclass(frozen=True)
class Knowledge:
    """A service and what is under it."""

    service: KnowledgeService
    index: KnowledgeIndex
    jobs: DocumentJobs
    uploads: UploadFolder
    directory: Path
    engine: ScriptedEmbeddingEngine
    callers: KnownActors
    models: ModelRegistry

    def list_uploads(self) -> list[str]:
        """The names of files that are not read yet."""
        folder = self.directory / "uploads"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def act(actor: Actor = ALICE) -> Context:
    """The circumstances of a request."""
    return Context("req-1", actor)


def build_models(engine: ScriptedEmbeddingEngine, names: Sequence[str] = ("e",)) -> ModelRegistry:
    """A generating model `m`, and embedding models."""
    engines: dict[str, Engine] = {"m": ScriptedEngine()} | {name: Renderer(engine) for name in names}
    return ModelRegistry(tuple(Model(name, (ModelRoute(each),), 1) for name, each in engines.items()))


@asynccontextmanager
async def open_service(
    directory: Path,
    script: EmbeddingScript = PLAIN,
    *,
    names: Sequence[str] = ("e",),
    limits: IndexLimits = LIMITS,
    index: KnowledgeIndex | None = None,
    context_length: int = 512,
) -> AsyncIterator[Knowledge]:
    """A service whose files are in a directory. `index`: another one, which stays open."""
    engine = ScriptedEmbeddingEngine(script, context_length=context_length)
    models = build_models(engine, names)
    embedding = ServedEmbeddingModels(models, Pipeline(models, Metrics(), restart_patience=0.0))
    own = None if index else SqliteIndex(directory / "index", SystemClock(), limits)
    opened = index or own
    assert opened is not None
    uploads, callers = UploadFolder(directory / "uploads"), KnownActors(ALICE, BOB, LOCAL_ANONYMOUS)
    passing = (opened, embedding, SandboxedReader(), uploads, callers.find, SystemClock(), INGEST)
    parts = IngestParts(*passing, pause=0.01, search_interval=LOOK_S)
    try:
        async with run_jobs(parts) as jobs:
            service = KnowledgeService(opened, embedding, jobs, limits)
            yield Knowledge(service, opened, jobs, uploads, directory, engine, callers, models)
    finally:
        if own is not None:
            await own.aclose()
