"""Builds the application's state, and the registry of adapters."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from antiphon.assembly.dialects import create_dialects
from antiphon.assembly.tenancy import TenancyParts, build_single_sign_on
from antiphon.auth.base import TokenVerifier
from antiphon.auth.keyring import SettingsKey
from antiphon.auth.sealing import KEY_BYTES, Sealer, derive_key
from antiphon.dialects.base import DialectOptions, Endpoint
from antiphon.domain.context import Clock, Tracer
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import Engine
from antiphon.engines.host.client import HostGroup, HostTokenEngine
from antiphon.engines.registry import Model, ModelRegistry
from antiphon.errors import ModelFileError
from antiphon.http.admin.keys import KeyResource
from antiphon.http.admin.knowledge import KnowledgeResource
from antiphon.http.admin.limits import LimitResource
from antiphon.http.admin.model_warnings import ModelWarnings
from antiphon.http.admin.prices import PriceResource
from antiphon.http.admin.recording import RecordingResource
from antiphon.http.admin.reload import ReloadResource
from antiphon.http.admin.tenants import TenantResource
from antiphon.http.admin.usage import UsageResource
from antiphon.http.in_flight import InFlightRegistry
from antiphon.http.state import AppState
from antiphon.ledger.base import MonitoredLedger
from antiphon.limits.base import MonitoredLimiter
from antiphon.memory.summaries import ProcessSummaries, StoredSummaries, SummaryCache
from antiphon.pipeline.adapters import AdapterRegistry, AdapterTarget, ProjectQuota
from antiphon.pipeline.deployments import Deployments
from antiphon.pipeline.documents import DocumentTexts
from antiphon.pipeline.rules import Accounting
from antiphon.pipeline.run import Pipeline
from antiphon.processes.coordinator.client import CoordinatorClient
from antiphon.processes.coordinator.responses import SharedResponses
from antiphon.rendering.renderer import AdapterRenderer, Renderer
from antiphon.retrieval.base import KnowledgeIndex
from antiphon.services.knowledge.tables import KnowledgeErasure
from antiphon.services.knowledge.uploads import UPLOADS, UploadFolder
from antiphon.services.limits import LimitService
from antiphon.services.response_memory import ResponseMemory
from antiphon.services.responses import ResponseKeeper, ResponseLimits
from antiphon.settings.changes import ReloadReport
from antiphon.settings.models import LoraSettings, list_host_names
from antiphon.settings.schema import MemorySettings, Settings
from antiphon.store.base import ResponseBackend
from antiphon.telemetry.metrics import Metrics
from antiphon.weights.adapter_import import read_stored_adapter
from antiphon.weights.adapter_store import AdapterStore, KeptNamesFile, compute_fingerprint
from antiphon.weights.gguf import read_header
from antiphon.weights.hub.adapters import HubAdapters


def build_adapter_targets(
    settings: Settings, models: Mapping[str, Model], hosts: Mapping[str, HostTokenEngine]
) -> dict[str, AdapterTarget]:
    """Returns the local models that take adapters, as targets of the adapter registry, by the model's name.
    `models`: all local models by name. `hosts`: all engine hosts by name."""
    lora, targets = settings.lora, {}
    directories = [Path(directory) for directory in lora.directories]
    store = AdapterStore(
        Path(lora.registry or ""), directories, lora.max_bytes, settings.engine.user is not None
    )
    for model in settings.models if allows_loading(lora) or settings.adapters else ():
        model_hosts = [hosts[name] for name in list_host_names(model)]
        renderers = [
            route.engine for route in models[model.name].routes if isinstance(route.engine, Renderer)
        ]
        if len(renderers) == len(model_hosts) and _takes_adapters(model.path):
            group = HostGroup(model_hosts)
            targets[model.name] = AdapterTarget(
                group,
                partial(store.store, base=model.path),
                partial(_build_adapter_engines, renderers, model_hosts),
                group.note_adapters,
                group.note_refused,
                compute_fingerprint(Path(model.path)),
            )
    return targets


def _build_adapter_engines(
    renderers: Sequence[Renderer], hosts: Sequence[HostTokenEngine], digest: str
) -> tuple[Engine, ...]:
    """Builds the engines that compute with an adapter, one for each host. `renderers`: the engines of the
    base model, in the order of `hosts`. `digest`: the adapter's."""
    return tuple(
        AdapterRenderer(renderer, digest, lacks_adapter=host.is_pending_reload)
        for renderer, host in zip(renderers, hosts, strict=True)
    )


def build_adapters(
    hosts: Mapping[str, HostTokenEngine],
    app_state: AppState,
    settings: Settings,
    coordinator: CoordinatorClient | None = None,
) -> AdapterRegistry:
    """Builds the registry of adapters. It has the adapters of the settings, and those that callers loaded
    before the restart.

    `coordinator` shares later changes with the other processes of this server.
    """
    models = {model.name: model for model in app_state.models.list_bases()}
    targets = build_adapter_targets(settings, models, hosts)
    lora = settings.lora
    kept_names = KeptNamesFile(Path(lora.registry or ""), lora.keep_names) if allows_loading(lora) else None
    adapters = AdapterRegistry(
        app_state.models, targets, app_state.clock, app_state.metrics, coordinator, kept_names
    )
    adapters.quota = ProjectQuota(lora.project_adapters if lora.repositories else 0, lora.project_bytes)
    for adapter in settings.adapters:
        adapters.declare(adapter.name, adapter.model or "", read_stored_adapter(Path(adapter.path)))
    adapters.restore_kept()
    if coordinator is not None:
        coordinator.subscribe_names(adapters.update_names)
    return adapters


def allows_loading(lora: LoraSettings) -> bool:
    """Whether callers can load and unload adapters."""
    return bool(lora.directories or lora.repositories)


def complete_app_state(
    app_state: AppState,
    settings: Settings,
    adapters: AdapterRegistry,
    reload: Callable[[], Awaitable[ReloadReport]],
) -> AppState:
    """Adds the parts that need the other parts of the state: adapters, if callers can load adapters, and
    reloads by the admin API, if keys are on."""
    if allows_loading(settings.lora):
        app_state = replace(
            app_state, adapters=adapters, deployments=build_deployments(adapters, app_state, settings)
        )
    return (
        replace(app_state, admin_endpoints=(*app_state.admin_endpoints, *ReloadResource(reload).endpoints()))
        if app_state.keys_on
        else app_state
    )


def build_deployments(adapters: AdapterRegistry, app_state: AppState, settings: Settings) -> Deployments:
    """Builds deployments of adapters from the hub and the operator's directories."""
    lora, hub = settings.lora, settings.hub
    source = HubAdapters(
        lora.repositories, Path(lora.registry or ""), lora.max_bytes, hub.endpoint, hub.offline
    )
    return Deployments(app_state.models, adapters, source, app_state.clock)


def _takes_adapters(path: str) -> bool:
    """Whether a model can use adapters, because it generates text. True also for a missing or damaged file,
    because the load reports that error."""
    if Path(path).is_dir():  # a folder of vLLM, whose models all generate
        return True
    try:
        return not read_header(Path(path)).embeds
    except ModelFileError:
        return True


class NodeClients(Struct, frozen=True):
    """The connections of an HTTP process to other processes of the node, and its tracer."""

    coordinator: CoordinatorClient | None = None
    knowledge: KnowledgeIndex | None = None
    tracer: Tracer | None = None


NO_CLIENTS = NodeClients()
"""The connections of a process without other processes."""


def build_app_state(
    settings: Settings,
    models: ModelRegistry,
    clock: Clock,
    tenancy: TenancyParts | None = None,
    accounting: Accounting | None = None,
    node: NodeClients = NO_CLIENTS,
) -> AppState:
    """Builds the application's state. `tenancy` and `accounting` are None if keys are off."""
    key, coordinator = settings.server.api_key, node.coordinator
    verifiers: list[TokenVerifier] = [SettingsKey(key, is_only_key=tenancy is None)] if key else []
    verifiers += [tenancy.keyring] if tenancy else []
    issuer = build_single_sign_on(settings.oidc, tenancy, clock) if tenancy else None
    verifiers += [issuer] if issuer else []
    metrics = Metrics()
    dialect, *prefixed_dialects = create_dialects(
        DialectOptions(
            settings.server.unknown_fields == "report",
            settings.server.schema_keywords == "strict",
            tenancy is not None,
            settings.knowledge.max_file_bytes,
            settings.server.hosted_tools == "refuse",
        )
    )
    return AppState(
        pipeline=Pipeline(
            models,
            metrics,
            settings.engine.restart_patience,
            accounting,
            None if coordinator is None else coordinator.limits,
            build_summary_cache(settings.memory, clock, tenancy),
            node.knowledge,
            DocumentTexts(read_document),
        ),
        models=models,
        dialect=dialect,
        prefixed_dialects=tuple(prefixed_dialects),
        settings=settings.server,
        verifiers=tuple(verifiers),
        responses=build_response_keeper(settings, clock, coordinator, tenancy),
        sealer=build_sealer(settings),
        tokens=None if tenancy is None else tenancy.tokens,
        keys_on=tenancy is not None,
        oidc=settings.oidc,
        admin_endpoints=()
        if tenancy is None
        else list_admin_endpoints(
            tenancy, accounting, models, clock, build_erasure(settings, tenancy, node.knowledge)
        ),
        limiter=accounting.limiter
        if accounting and isinstance(accounting.limiter, MonitoredLimiter)
        else None,
        limits_open=settings.limits.unavailable == "open",
        ledger=accounting.ledger if accounting and isinstance(accounting.ledger, MonitoredLedger) else None,
        feed=None if tenancy is None else tenancy.feed,
        database=None if tenancy is None else tenancy.database,
        clock=clock,
        coordinator=coordinator,
        metrics=metrics,
        tracer=node.tracer,
        in_flight=InFlightRegistry() if tenancy is None else _watch_keys(tenancy),
    )


async def read_document(data: bytes, media_type: str) -> str:
    """Returns the text of a document in a message. Most servers read none, so the reader is imported late."""
    from antiphon.retrieval.ingest.document_reader import extract_text

    return await extract_text(data, media_type)


def build_summary_cache(settings: MemorySettings, clock: Clock, tenancy: TenancyParts | None) -> SummaryCache:
    """Returns the cache of summaries. It is in the database if keys are on, and in memory if not."""
    if tenancy is None:
        return ProcessSummaries(settings.summaries, settings.summary_days, clock)
    from antiphon.store.request_log import SqlSummaries

    store = SqlSummaries(tenancy.database)
    return StoredSummaries(store, settings.summaries, settings.summary_days, clock)


def build_response_keeper(
    settings: Settings, clock: Clock, coordinator: CoordinatorClient | None, tenancy: TenancyParts | None
) -> ResponseKeeper:
    """Returns the keeper of responses. They are in the database if keys are on, and in the coordinator's
    memory if not."""
    kept = settings.responses
    backend: ResponseBackend | None = None
    if kept.store and tenancy is not None:
        backend = tenancy.responses
    elif kept.store:
        backend = ResponseMemory() if coordinator is None else SharedResponses(coordinator)
    limits = ResponseLimits(kept.days, kept.max_bytes, settings.server.max_body_bytes)
    return ResponseKeeper(backend, limits, clock)


def build_sealer(settings: Settings) -> Sealer:
    """Returns the sealer of reasoning, with the installation's key."""
    secret = settings.responses.seal_secret or settings.keys.pepper
    return Sealer(os.urandom(KEY_BYTES) if secret is None else derive_key(bytes.fromhex(secret)))


def _watch_keys(tenancy: TenancyParts) -> InFlightRegistry:
    """Returns a registry of running requests that ends requests whose key is no longer accepted. Call this
    function in the event loop."""
    in_flight, loop = InFlightRegistry(tenancy.keyring.accepts), asyncio.get_running_loop()
    tenancy.watchers.append(lambda: loop.call_soon_threadsafe(in_flight.end_unaccepted))
    return in_flight


def build_erasure(
    settings: Settings, tenancy: TenancyParts, index: KnowledgeIndex | None
) -> KnowledgeErasure | None:
    """Returns the service that removes all knowledge tables of a project; None if the server has no
    knowledge tables."""
    from antiphon.store.tenancy import SqlTenancy

    if index is None or settings.knowledge.directory is None:
        return None
    uploads = UploadFolder(Path(settings.knowledge.directory) / UPLOADS)
    return KnowledgeErasure(tenancy.changes, SqlTenancy(tenancy.database), index, uploads)


def list_admin_endpoints(
    tenancy: TenancyParts,
    accounting: Accounting | None,
    models: ModelRegistry,
    clock: Clock,
    erasure: KnowledgeErasure | None = None,
) -> tuple[Endpoint, ...]:
    """Lists the endpoints of all resources of the admin API."""
    from antiphon.store.tenancy import SqlRules

    warnings = ModelWarnings(models, tenancy.pricing)
    endpoints = [
        *TenantResource(tenancy.tenants).endpoints(),
        *KeyResource(tenancy.tenants, warnings).endpoints(),
        *PriceResource(tenancy.pricing, warnings).endpoints(),
        *RecordingResource(tenancy.recordings).endpoints(),
        *UsageResource(tenancy.usage, clock).endpoints(),
    ]
    if erasure is not None:
        endpoints += KnowledgeResource(erasure).endpoints()
    if accounting is not None:
        limiting = LimitService(tenancy.changes, SqlRules(tenancy.database), accounting.limiter)
        endpoints += LimitResource(limiting, models, warnings).endpoints()
    return tuple(endpoints)
