"""The server's implementation of `Services`: generation, models, token ids and adapters. It depends on no
dialect."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from antiphon.dialects.calls import ApplyCall, DetokenizeCall, LoadCall, TokenizeCall
from antiphon.dialects.http_types import Request
from antiphon.dialects.services import (
    DeploymentService,
    ModelEntry,
    PromptTokens,
    ResponseMeta,
    ResponseStore,
)
from antiphon.domain.context import Context, Origin
from antiphon.domain.events import EventGroup
from antiphon.domain.identity import Actor
from antiphon.domain.messages import MediaKind
from antiphon.domain.models import Profile, TokenizerInfo
from antiphon.domain.request import (
    Conversation,
    EmbeddingRequest,
    Embeddings,
    GenerationRequest,
    Ranking,
    RerankRequest,
)
from antiphon.domain.stored_responses import SealedReasoning
from antiphon.domain.values import replace
from antiphon.engines.base import TokenizerEngine
from antiphon.engines.registry import Model
from antiphon.errors import (
    AntiphonError,
    EngineUnavailable,
    FeatureNotServed,
    MissingParameter,
    PermissionDenied,
    UnsupportedParameter,
)
from antiphon.http.state import AppState
from antiphon.pipeline.adapters import AdapterRegistry, AdapterRequest
from antiphon.pipeline.deployments import HUB_ONLY, Deployments, unload_adapter
from antiphon.pipeline.routing import authorize_name, resolve
from antiphon.retrieval.knowledge import KnowledgeTables
from antiphon.services.response_memory import ResponseMemory
from antiphon.services.responses import ResponseKeeper, ResponseLimits
from antiphon.settings.server import is_loopback

T = TypeVar("T")

PROFILE_TIMEOUT = 10.0
"""Seconds that a list waits for its models' profiles. A profile is known within a few seconds of the start
and is then cached. The list includes the other models even if one model is stuck."""

LOADING_IS_OFF = (
    "adapters are loaded and unloaded at run time only where the operator names the directories that they "
    "may come from: set lora.directories (ANTIPHON_LORA_DIRECTORIES) and restart the server, or name the "
    "adapter at its start with --lora NAME=PATH"
)


class ServerServices:
    """The implementation of `Services` for one server."""

    def __init__(self, app_state: AppState) -> None:
        self._app_state = app_state
        self._pipeline = app_state.pipeline
        self._clock = app_state.clock
        self._timeout = app_state.settings.request_timeout
        self.keeps_records = app_state.pipeline.keeps_records
        self.tokens = app_state.tokens
        self.responses: ResponseStore = app_state.responses or ResponseKeeper(
            ResponseMemory(), ResponseLimits(), app_state.clock
        )
        self.deployments: DeploymentService = app_state.deployments or Deployments(app_state.models)

    @property
    def knowledge(self) -> KnowledgeTables:
        if self._app_state.knowledge is None:
            raise FeatureNotServed("knowledge tables: this server keeps none")
        return self._app_state.knowledge

    def seal(self, reasoning: SealedReasoning, actor: Actor) -> str:
        return self._app_state.sealer.seal(reasoning, actor.project)

    def unseal(self, text: str, actor: Actor) -> SealedReasoning | None:
        return self._app_state.sealer.unseal(text, actor.project)

    # --- generation ---

    def create_meta(self, model: str) -> ResponseMeta:
        return ResponseMeta(self._clock.unique(), int(self._clock.wall()), model)

    def build_context(self, request: Request, origin: Origin) -> Context:
        clock = self._clock
        deadline = clock.monotonic() + self._timeout
        return Context(
            request.id,
            request.actor,
            deadline,
            clock,
            origin=origin,
            progress=request.progress,
            span=request.span,
            body=request.body,
        )

    def generate(
        self, request: GenerationRequest, context: Context
    ) -> AbstractAsyncContextManager[AsyncIterator[EventGroup]]:
        return self._pipeline.run(request, context)

    def count_unused(self, dialect: str, names: Sequence[str]) -> None:
        self._app_state.metrics.count_unused(dialect, names)

    async def embed(self, request: EmbeddingRequest, context: Context) -> Embeddings:
        return await self._pipeline.embed(request, context)

    async def rerank(self, request: RerankRequest, context: Context) -> Ranking:
        return await self._pipeline.rerank(request, context)

    async def offload(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)

    # --- models ---

    def list_models(self, actor: Actor) -> list[ModelEntry]:
        return [_build_entry(model) for model in self._app_state.models.list_usable(actor)]

    async def list_profiled_models(self, actor: Actor) -> list[ModelEntry]:
        models = self._app_state.models.list_usable(actor)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(load_entry(model)) for model in models]
        return [task.result() for task in tasks]

    async def load_model(self, name: str, request: Request) -> ModelEntry:
        """Returns the model's entry. It has no profile if the engine is not available."""
        model = self._resolve_model(name, request)
        try:
            entry = _build_entry(model, await model.engine.profile())
        except EngineUnavailable:
            entry = _build_entry(model)
        return entry if entry.name == name else replace(entry, alias=name)

    # --- token ids ---

    async def tokenize(self, call: TokenizeCall, request: Request) -> PromptTokens:
        model = self._resolve_model(call.model, request)
        engine = _require_tokenizer(model)
        try:
            tokens = await engine.encode(call.prompt, request.actor)
        except UnsupportedParameter as error:
            documents, prompt = self._app_state.pipeline.documents, call.prompt
            if error.modality != MediaKind.DOCUMENT or documents is None:
                raise
            if not isinstance(prompt, Conversation):
                raise
            prompt = await documents.write_into_conversation(prompt, request.actor, self._clock)
            tokens = await engine.encode(prompt, request.actor)
        pieces = await engine.spell(tokens) if call.with_texts else None
        info = await engine.describe_tokenizer()
        return PromptTokens(tokens, info.context_length, pieces)

    async def detokenize(self, call: DetokenizeCall, request: Request) -> str:
        return await _require_tokenizer(self._resolve_model(call.model, request)).decode(call.tokens)

    async def apply_template(self, call: ApplyCall, request: Request) -> str:
        return await _require_tokenizer(self._resolve_model(call.model, request)).apply(
            call.conversation, request.actor
        )

    async def load_tokenizer(self, model: str | None, request: Request) -> TokenizerInfo:
        return await _require_tokenizer(self._resolve_model(model, request)).describe_tokenizer()

    # --- adapters ---

    async def load_adapter(self, call: LoadCall, actor: Actor) -> None:
        """Loads an adapter. Raises PermissionDenied if the caller cannot use its name, or if loading is
        off."""
        authorize_name(actor, call.name, "lora_name")
        if actor.adapter_owner is not None:
            raise PermissionDenied(HUB_ONLY, param="lora_path")
        request = AdapterRequest(call.name, call.path, call.base, call.in_place, may_use=actor.may_use)
        await self._require_registry().load(request)

    async def unload_adapter(self, name: str, actor: Actor) -> None:
        """Removes an adapter's name. Raises PermissionDenied if the caller cannot use the name, or if loading
        is off."""
        authorize_name(actor, name, "lora_name")
        await unload_adapter(self._app_state.models, self._require_registry(), name, actor)

    def require_owner(self, request: Request) -> None:
        """Raises PermissionDenied if the server needs no key and a web page or another machine sent the
        request. So neither of the two can change the served models."""
        if self._app_state.verifiers:
            return  # the caller's key has already been verified
        if b"origin" in request.headers:
            raise PermissionDenied(
                "a web page cannot change the served models without a key: set ANTIPHON_API_KEY and send it"
            )
        if request.peer is None or not is_loopback(request.peer):
            raise PermissionDenied(
                "without a key, only callers on this machine can change the served models: set "
                "ANTIPHON_API_KEY and send it"
            )

    def _require_registry(self) -> AdapterRegistry:
        """Returns the registry of adapters. Raises PermissionDenied if callers cannot load adapters."""
        if self._app_state.adapters is None:
            raise PermissionDenied(LOADING_IS_OFF)
        return self._app_state.adapters

    def _resolve_model(self, name: str | None, request: Request) -> Model:
        """Returns the model with the name. If the name is None, returns the only model that the caller can
        use and that is no adapter. Raises MissingParameter if there is not exactly one such model, and
        PermissionDenied for a model that the caller's key excludes."""
        models, actor = self._app_state.models, request.actor
        bases = [model for model in models.list_bases() if actor.may_use(model.name)]
        if name is None and len(bases) != 1:
            names = ", ".join(model.name for model in bases) or "none"
            raise MissingParameter(f"model is missing; this server has: {names}", param="model")
        model = bases[0] if name is None else resolve(models, name, actor)
        request.progress.model = model.name
        return model


def _require_tokenizer(model: Model) -> TokenizerEngine:
    """Returns the model's engine. Raises UnsupportedParameter if the engine does not show token ids."""
    if not isinstance(model.engine, TokenizerEngine):
        raise UnsupportedParameter(f"the engine of {model.name} does not show its token ids", param="model")
    return model.engine


def _build_entry(model: Model, profile: Profile | None = None) -> ModelEntry:
    """Returns the model's entry with the current state of its engine."""
    state = str(model.engine.state())
    return ModelEntry(model.name, model.created, state, profile, model.parent, model.adapter)


async def load_entry(model: Model, max_seconds: float = PROFILE_TIMEOUT) -> ModelEntry:
    """Returns the model's entry, with its profile if the engine answers in time."""
    try:
        async with asyncio.timeout(max_seconds):
            return _build_entry(model, await model.engine.profile())
    except (AntiphonError, TimeoutError):
        return _build_entry(model)
