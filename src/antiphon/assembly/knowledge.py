"""Opens the knowledge tables for an HTTP process: the index, and the service over it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from antiphon.assembly.tenancy import TenancyParts
from antiphon.auth.keyring import SERVICE_ACTOR, Keyring
from antiphon.domain.context import Context, Origin
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor, ActorKind, Right
from antiphon.domain.models import Profile
from antiphon.domain.request import EmbeddingRequest, Embeddings, RawPrompt
from antiphon.domain.values import Struct, field, replace
from antiphon.engines.base import Engine, EngineState, TokenizerEngine
from antiphon.engines.host import runtime
from antiphon.engines.host.control import HttpConfig, StatusPipe
from antiphon.engines.registry import Model, ModelRegistry
from antiphon.errors import (
    AntiphonError,
    EngineUnavailable,
    ModelFileError,
    ModelNotLoaded,
    UnsupportedParameter,
)
from antiphon.http.state import AppState, Runner
from antiphon.pipeline.routing import resolve
from antiphon.processes.knowledge.client import connect_knowledge
from antiphon.retrieval.base import IndexLimits, KnowledgeIndex
from antiphon.retrieval.ingest.document_reader import SandboxedReader
from antiphon.retrieval.ingest.documents import DEFAULT_LIMITS
from antiphon.services.knowledge.documents import FindActor, IngestDependencies, run_jobs
from antiphon.services.knowledge.tables import KnowledgeService
from antiphon.services.knowledge.uploads import UPLOADS, Uploader, UploadFolder
from antiphon.services.knowledge.vectors import EmbeddingModelInfo
from antiphon.settings.schema import Settings
from antiphon.weights.gguf import read_header

INGEST_ORIGIN = Origin("antiphon", "knowledge ingest")
"""The origin of the jobs' embedding calls in the ledger."""

PROFILE_TIMEOUT_S = 10.0
"""Seconds that the search for an embedding model waits for the profile of each model."""

LOAD_S = 60.0
"""Seconds that a parked model has to load."""

PAUSE_S = 0.1
"""Seconds between two checks of a model that is being loaded."""

MAX_COUNTED_TEXTS = 64
"""The most texts whose tokens are counted at the same time."""


@asynccontextmanager
async def open_knowledge(
    settings: Settings, config: HttpConfig, status: StatusPipe
) -> AsyncIterator[KnowledgeIndex | None]:
    """Yields the index of knowledge tables while the context lasts; None if the settings name no directory.
    The knowledge process starts at the first call."""
    if settings.knowledge.directory is None:
        yield None
        return
    path = runtime.build_knowledge_path(Path(config.runtime))
    async with connect_knowledge(path, status.ask_knowledge) as index:
        yield index


@asynccontextmanager
async def add_knowledge(
    settings: Settings, index: KnowledgeIndex | None, app_state: AppState, tenancy: TenancyParts | None
) -> AsyncIterator[AppState]:
    """Yields the state with the service of knowledge tables, whose jobs run while the context lasts. Without
    an index the state stays as it is. `tenancy`: None if keys are off."""
    if index is None or settings.knowledge.directory is None:
        yield app_state
        return
    files = {model.name: model.path for model in settings.models}
    models = ServedEmbeddingModels(app_state.models, app_state.pipeline, files)
    parts = IngestDependencies(
        index,
        models,
        SandboxedReader(replace(DEFAULT_LIMITS, file_bytes=settings.knowledge.max_file_bytes)),
        UploadFolder(Path(settings.knowledge.directory) / UPLOADS),
        build_actor_finder(app_state, None if tenancy is None else tenancy.keyring),
        app_state.clock,
        INGEST_ORIGIN,
        build_limits(settings),
    )
    async with run_jobs(parts) as jobs:
        yield replace(app_state, knowledge=KnowledgeService(index, models, jobs))


def build_limits(settings: Settings) -> IndexLimits:
    """Returns the limits of one project's knowledge tables."""
    knowledge = settings.knowledge
    return IndexLimits(
        knowledge.max_tables,
        knowledge.max_documents,
        knowledge.max_chunks,
        knowledge.max_bytes,
        knowledge.max_waiting_files,
    )


def build_actor_finder(app_state: AppState, keyring: Keyring | None) -> FindActor:
    """Returns a function that finds the current actor of an uploader. It returns None if the uploader can no
    longer upload."""

    def find(uploader: Uploader) -> Actor | None:
        if uploader.kind == ActorKind.ANONYMOUS:
            return None if app_state.verifiers else LOCAL_ANONYMOUS
        if uploader.key == SERVICE_ACTOR.id:  # the key of the settings, which no keyring has
            return SERVICE_ACTOR if app_state.verifiers else None
        actor = None if keyring is None else keyring.find_actor(uploader.key, uploader.project, uploader.user)
        return actor if actor is not None and Right.GENERATE in actor.rights else None

    return find


class ServedEmbeddingModels(Struct, frozen=True):
    """The `EmbeddingModels` of one HTTP process."""

    models: ModelRegistry
    pipeline: Runner
    files: Mapping[str, str] = field(default_factory=dict)
    """The files of local models, by name. A parked model's file tells whether it makes vectors."""

    async def find(self, name: str, actor: Actor) -> EmbeddingModelInfo:
        model = resolve(self.models, name, actor)
        info = self._describe(model, await load_profile(model.engine))
        if info is None:
            raise UnsupportedParameter(f"{name} makes no vectors; name an embedding model", param="model")
        return info

    async def find_first(self, actor: Actor) -> EmbeddingModelInfo | None:
        for model in self.models.list_usable(actor):
            try:
                profile = await self._find_profile(model)
            except (AntiphonError, TimeoutError):
                continue
            if profile.embedding is not None and not profile.embedding.ranks:
                return self._describe(model, profile)
        return None

    async def _find_profile(self, model: Model) -> Profile:
        """Returns the profile of a model. Loads a parked model only if its file is of an embedding model."""
        file = self.files.get(model.name)
        if model.engine.state() is EngineState.PARKED and file and await asyncio.to_thread(_embeds, file):
            return await load_profile(model.engine)
        async with asyncio.timeout(PROFILE_TIMEOUT_S):
            return await model.engine.profile()

    def _describe(self, model: Model, profile: Profile) -> EmbeddingModelInfo | None:
        """Returns the facts about an embedding model; None for a model that certainly makes no vectors. It is
        unknown whether a vendor's model without a profile makes vectors."""
        counts_tokens = isinstance(model.engine, TokenizerEngine)
        if profile.embedding is None and counts_tokens:  # a local model, so the profile is complete
            return None
        if profile.embedding is not None and profile.embedding.ranks:
            return None
        return EmbeddingModelInfo(model.name, profile.context_length, counts_tokens)

    async def count_tokens(self, model: str, texts: Sequence[str], actor: Actor) -> list[int]:
        engine = resolve(self.models, model, actor).engine
        if not isinstance(engine, TokenizerEngine):
            raise UnsupportedParameter(f"the tokens of {model} cannot be counted here", param="model")
        counts: list[int] = []
        for start in range(0, len(texts), MAX_COUNTED_TEXTS):
            prompts = [
                RawPrompt(text, add_special=False) for text in texts[start : start + MAX_COUNTED_TEXTS]
            ]
            token_lists = await asyncio.gather(*(engine.encode(prompt, actor) for prompt in prompts))
            counts += map(len, token_lists)
        return counts

    async def embed(self, request: EmbeddingRequest, context: Context) -> Embeddings:
        return await self.pipeline.embed(request, context)


async def load_profile(engine: Engine) -> Profile:
    """Returns the profile of an engine, and loads the engine if it is parked. Raises ModelNotLoaded if the
    load is refused, and EngineUnavailable if it takes too long."""
    try:
        async with asyncio.timeout(LOAD_S):
            while (profile := await _try_profile(engine)) is None:
                await _request_load(engine)
                await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        raise EngineUnavailable(
            f"the embedding model was not loaded within {LOAD_S:g} seconds; try again", retry_after=PAUSE_S
        ) from None
    return profile


async def _try_profile(engine: Engine) -> Profile | None:
    """Returns the profile of an engine; None while the engine is parked or loading."""
    try:
        return await engine.profile()
    except EngineUnavailable:
        if engine.state() not in (EngineState.PARKED, EngineState.LOADING):
            raise
        return None


async def _request_load(engine: Engine) -> None:
    """Tokenizes a word, which makes a parked engine load its model. Raises ModelNotLoaded if the load is
    refused."""
    if not isinstance(engine, TokenizerEngine):
        return
    try:
        await engine.encode(RawPrompt("word"))
    except ModelNotLoaded:
        raise
    except EngineUnavailable:
        return


def _embeds(file: str) -> bool:
    """Whether a file contains an embedding model."""
    try:
        return read_header(Path(file)).embeds
    except ModelFileError:
        return False
