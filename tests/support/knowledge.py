"""A knowledge service with its own index and a scripted embedding model `e`."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.assembly.knowledge import INGEST_ORIGIN, ServedEmbeddingModels
from antiphon.domain.context import Context, SystemClock
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor, ActorKind
from antiphon.domain.values import asdict
from antiphon.engines.base import Engine
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.pipeline.run import Pipeline
from antiphon.processes.sandbox import Limits, run_job
from antiphon.rendering.renderer import Renderer
from antiphon.retrieval.base import (
    DocumentInfo,
    DocumentState,
    IndexLimits,
    KnowledgeIndex,
)
from antiphon.retrieval.ingest.document_reader import SandboxedReader
from antiphon.retrieval.ingest.documents import ExtractedDocument, ExtractionLimits
from antiphon.retrieval.ingest.reading_job import read_document
from antiphon.retrieval.sqlite.index import SqliteIndex
from antiphon.services.knowledge.documents import DocumentJobs, IngestDependencies, run_jobs
from antiphon.services.knowledge.tables import KnowledgeService
from antiphon.services.knowledge.uploads import Uploader, UploadFolder
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import EmbeddingScript, ScriptedEmbeddingEngine, ScriptedEngine
from tests.support.jobs import let_jobs_start
from tests.support.waiting import PATIENCE

ALICE = Actor(ActorKind.SERVICE_KEY, "key_alice", "alpha")
BOB = Actor(ActorKind.SERVICE_KEY, "key_bob", "bravo")
PLAIN = EmbeddingScript()
LIMITS = IndexLimits()
LOOK_S = 0.3
"""Seconds between searches of a process for files that no process reads."""


class KnownActors:
    """The callers whose keys are valid."""

    def __init__(self, *actors: Actor) -> None:
        self.actors = {actor.id: actor for actor in actors}
        self.find_any = False
        """Whether `find` accepts every uploader."""

    def find(self, uploader: Uploader) -> Actor | None:
        if self.find_any:
            return Actor(ActorKind(uploader.kind), uploader.key, uploader.project)
        return self.actors.get(uploader.key)


@dataclass(frozen=True)
class Knowledge:
    """A service and its parts."""

    service: KnowledgeService
    index: KnowledgeIndex
    jobs: DocumentJobs
    uploads: UploadFolder
    directory: Path
    engine: ScriptedEmbeddingEngine
    callers: KnownActors
    models: ModelRegistry

    def list_uploads(self) -> list[str]:
        """Returns the names of uploaded files that are not read yet."""
        folder = self.directory / "uploads"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def build_context(actor: Actor = ALICE) -> Context:
    """Builds the context of a request."""
    return Context("req-1", actor)


def build_models(engine: ScriptedEmbeddingEngine, names: Sequence[str] = ("e",)) -> ModelRegistry:
    """Builds a registry with a generating model `m` and embedding models."""
    engines: dict[str, Engine] = {"m": ScriptedEngine()} | {name: Renderer(engine) for name in names}
    return ModelRegistry(tuple(Model(name, (ModelRoute(engine),), 1) for name, engine in engines.items()))


async def read_here(
    _job: str, payload: Mapping[str, Any], _limits: Limits, _variables: Mapping[str, str]
) -> object:
    """Reads a document in a thread. The sandbox's job gives up connections and processes for ever."""

    def read() -> ExtractedDocument:
        data, limits = Path(payload["path"]).read_bytes(), ExtractionLimits(**payload["limits"])
        return read_document(data, payload["file_name"], payload["media_type"], limits)

    return json.loads(json.dumps(asdict(await asyncio.to_thread(read))))


@asynccontextmanager
async def open_service(
    directory: Path,
    script: EmbeddingScript = PLAIN,
    *,
    names: Sequence[str] = ("e",),
    limits: IndexLimits = LIMITS,
    index: KnowledgeIndex | None = None,
    context_length: int = 512,
    isolated: bool = False,
) -> AsyncIterator[Knowledge]:
    """Runs a service whose files are in a directory. `index`: an index to use, which is not closed.
    `isolated`: reads files in sandbox processes, as in production, which costs 0.3 CPU seconds for each."""
    engine = ScriptedEmbeddingEngine(script, context_length=context_length)
    models = build_models(engine, names)
    embedding = ServedEmbeddingModels(models, Pipeline(models, Metrics(), restart_patience=0.0))
    own_index = None if index else SqliteIndex(directory / "index", SystemClock(), limits)
    opened_index = index or own_index
    assert opened_index is not None
    uploads, callers = UploadFolder(directory / "uploads"), KnownActors(ALICE, BOB, LOCAL_ANONYMOUS)
    ingest_dependencies = (
        opened_index,
        embedding,
        SandboxedReader(run=run_job if isolated else read_here),
        uploads,
        callers.find,
        SystemClock(),
        INGEST_ORIGIN,
        limits,
    )
    parts = IngestDependencies(*ingest_dependencies, pause=0.01, search_interval=LOOK_S)
    try:
        with let_jobs_start():
            async with run_jobs(parts) as jobs:
                service = KnowledgeService(opened_index, embedding, jobs)
                yield Knowledge(service, opened_index, jobs, uploads, directory, engine, callers, models)
    finally:
        if own_index is not None:
            await own_index.aclose()


async def wait_for(at: Knowledge, state: DocumentState) -> DocumentInfo:
    """The table's only document, once it is in a state."""
    async with asyncio.timeout(PATIENCE):
        while True:
            (document,) = (await at.service.list_documents(ALICE, "t")).items
            if document.state is state:
                return document
            await asyncio.sleep(0.01)


async def list_texts(at: Knowledge) -> list[str]:
    texts: list[str] = []
    while True:
        page = await at.index.list_chunks(ALICE.project, "t", None, len(texts), 1000)
        texts += [chunk.text for chunk in page.items]
        if len(texts) >= page.total:
            return texts
