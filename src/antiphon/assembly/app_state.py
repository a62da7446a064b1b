"""Builds the application's state, the registry of adapters, and the parts that exist only if keys are
enabled.

Those parts are the directory, the ledger, the limits and single sign-on. The libraries of the database, of
Redis and of tokens are imported only for them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.auth.base import TokenVerifier
from antiphon.auth.keyring import Keyring, SettingsKey
from antiphon.auth.secrets import parse_pepper
from antiphon.dialects.base import Endpoint
from antiphon.dialects.empower.dialect import Empower
from antiphon.dialects.fireworks.dialect import Fireworks
from antiphon.dialects.jamai.dialect import Jamai
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.dialects.sgp.dialect import Sgp
from antiphon.domain.context import Clock, Tracer
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import Engine
from antiphon.engines.host.client import HostGroup, HostTokenEngine
from antiphon.engines.registry import Model, ModelRegistry
from antiphon.errors import ModelFileError, SettingsError, StartupError, explain_extra
from antiphon.http.admin.keys import KeyResource
from antiphon.http.admin.knowledge import KnowledgeResource
from antiphon.http.admin.limits import LimitResource
from antiphon.http.admin.prices import PriceResource
from antiphon.http.admin.recording import RecordingResource
from antiphon.http.admin.reload import ReloadResource
from antiphon.http.admin.resource import ModelWarnings
from antiphon.http.admin.tenants import TenantResource
from antiphon.http.admin.usage import UsageResource
from antiphon.http.running_requests import InFlightRegistry
from antiphon.http.services import AppState
from antiphon.ledger.base import MonitoredLedger
from antiphon.ledger.recorder import StoreRecorder
from antiphon.ledger.spool import Spool
from antiphon.limits.base import Limiter, MonitoredLimiter
from antiphon.limits.counters import LedgerSeeder
from antiphon.memory import ProcessSummaries, StoredSummaries, SummaryCache
from antiphon.pipeline.adapters import AdapterRegistry, AdapterTarget, ProjectQuota
from antiphon.pipeline.deployments import Deployments
from antiphon.pipeline.reserve import Accounting, LimitIndex
from antiphon.pipeline.run import Pipeline
from antiphon.processes.budget_alerts import open_budget_watch
from antiphon.processes.coordinator.client import CoordinatorClient
from antiphon.processes.coordinator.coordinator import FINAL_DRAIN_S, open_seeder
from antiphon.rendering.renderer import AdapterRenderer, Renderer
from antiphon.retrieval.base import KnowledgeIndex
from antiphon.services.changes import DirectoryChanges
from antiphon.services.knowledge.tables import KnowledgeErasure
from antiphon.services.knowledge.uploads import UPLOADS, UploadFolder
from antiphon.services.limits import LimitService
from antiphon.services.prices import PriceService
from antiphon.services.tenancy import AccessTokens, TenancyService
from antiphon.services.usage import RequestLog, UsageService
from antiphon.settings.models import LoraSettings, list_host_names
from antiphon.settings.schema import MemorySettings, ReloadReport, Settings
from antiphon.settings.tenancy import OidcSettings
from antiphon.store.base import Directory
from antiphon.task_group import task_group
from antiphon.telemetry.metrics import Metrics
from antiphon.weights.adapter_import import read_stored_adapter
from antiphon.weights.adapter_store import AdapterStore, HubAdapters, KeptNamesFile, compute_fingerprint
from antiphon.weights.gguf import read_header

if TYPE_CHECKING:
    from antiphon.limits.redis import RedisLimiter
    from antiphon.store.database import Database


class TenancyParts(Struct, frozen=True):
    """What an HTTP process has if keys are on: keys, limits and prices in memory, and the services that
    change them."""

    database: "Database"
    """The database of projects, keys, limits, prices and the ledger."""
    changes: DirectoryChanges
    """Passes each new directory to the keyring and the limit index."""
    keyring: Keyring
    limit_index: LimitIndex
    tenants: TenancyService
    tokens: AccessTokens
    pricing: PriceService
    usage: UsageService
    recorder: StoreRecorder
    recordings: RequestLog
    watchers: list[Callable[[], object]]
    """Functions that are called in a thread after each change of the keyring."""

    def close(self) -> None:
        """Closes the services and the database. Call it after all requests have ended."""
        self.usage.close()
        self.tenants.close()


def build_tenancy(
    settings: Settings, clock: Clock, coordinator: CoordinatorClient, database: "Database"
) -> TenancyParts:
    """Builds all parts. Does not read the database: call `tenants.load`."""
    from antiphon.store.directory import SqlFeed
    from antiphon.store.ledger import SqlRecords, SqlUsage
    from antiphon.store.tenancy import SqlRules, SqlTenancy

    tenancy_store = SqlTenancy(database)
    pepper = parse_pepper(settings.keys.pepper or "")
    keyring, limit_index = Keyring(pepper, clock.wall), LimitIndex()
    records = SqlRecords(database)
    recorder = StoreRecorder(records, clock.wall)

    watchers: list[Callable[[], object]] = []

    def distribute(directory: Directory) -> None:
        """Passes a new directory to all parts that have a copy in memory, and reports its revision."""
        limit_index.update(directory.limits, directory.prices, directory.build_families())
        recorder.update_projects(directory)
        keyring.replace_directory(directory)  # last: when a new key is accepted, its limits are known
        for watcher in watchers:
            watcher()
        coordinator.report_revision(directory.revision)

    feed = SqlFeed(database, coordinator.wait_for_revision)
    changes = DirectoryChanges(tenancy_store, [distribute], clock.wall, feed, coordinator.announce)
    tenants = TenancyService(changes, tenancy_store, pepper)
    recordings = RequestLog(changes, tenancy_store, records)
    tokens = AccessTokens(tenants, changes, pepper)
    pricing, usage = PriceService(changes, SqlRules(database)), UsageService(changes, SqlUsage(database))
    recording_parts = (recorder, recordings, watchers)
    directory_parts = (changes, keyring, limit_index, tenants, tokens)
    return TenancyParts(database, *directory_parts, pricing, usage, *recording_parts)


@asynccontextmanager
async def open_accounting(
    settings: Settings, tenancy: TenancyParts, clock: Clock, coordinator: CoordinatorClient
) -> AsyncIterator[Accounting]:
    """Opens the spool and the limiter, and yields them as the accounting while the context lasts. Raises
    StartupError if the spool cannot be used."""
    from antiphon.store.ledger import SqlEntries
    from antiphon.store.tenancy import SqlTenancy, SqlWarnings

    spool = Spool(
        Path(settings.ledger.spool or ""), settings.ledger.spool_bytes, settings.ledger.sync_interval
    )
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(spool.start)
        limiter: Limiter = coordinator.limits
        if settings.limits.url is not None:
            entries, tenancy_store = SqlEntries(tenancy.database), SqlTenancy(tenancy.database)
            local = coordinator.local_coordinator
            drain = None if local is None else local.drain
            seeds = await stack.enter_async_context(open_seeder(entries, tenancy_store, drain, clock))
            redis = await stack.enter_async_context(
                _connect_redis(settings, settings.limits.url, seeds, clock)
            )
            warnings, add_totals = SqlWarnings(tenancy.database), coordinator.add_totals
            redis.watch = await stack.enter_async_context(
                open_budget_watch(settings.limits, warnings, clock, add_totals)
            )
            limiter = redis
        stack.push_async_callback(asyncio.to_thread, spool.close)
        tenancy.recorder.start()
        stack.push_async_callback(asyncio.to_thread, tenancy.recorder.stop, FINAL_DRAIN_S)
        yield Accounting(
            limiter, spool, tenancy.limit_index, settings.limits.reserve_tokens, tenancy.recorder
        )


@asynccontextmanager
async def _connect_redis(
    settings: Settings, url: str, seeds: LedgerSeeder, clock: Clock
) -> "AsyncIterator[RedisLimiter]":
    """Connects to Redis, and yields its limiter while the context lasts. The library of Redis is imported
    only here. Raises SettingsError."""
    try:
        from antiphon.limits.redis import RedisLimiter
    except ModuleNotFoundError:
        raise SettingsError(f"limits.url needs an extra: {explain_extra('redis')}") from None
    fails_open = settings.limits.unavailable == "open"
    limiter = RedisLimiter(url, clock, seeds, fails_open, settings.limits.prefix)
    async with task_group() as group:
        connection_task = group.create_task(limiter.keep_connected())
        try:
            yield limiter
        finally:
            connection_task.cancel()
            await limiter.aclose()


def build_single_sign_on(oidc: OidcSettings, tenancy: TenancyParts, clock: Clock) -> TokenVerifier | None:
    """Returns the verifier of the issuer's tokens, or None if no issuer is set. Raises StartupError if the
    library is missing."""
    if oidc.issuer is None:
        return None
    try:
        from antiphon.auth.single_sign_on import (
            ClaimReader,
            SigningKeys,
            SingleSignOn,
            TokenRequirements,
            TokenVerificationCache,
            fetch,
            parse_group_rules,
        )
    except ModuleNotFoundError:
        raise StartupError(f"single sign-on needs an extra: {explain_extra('oidc')}") from None

    requirements = TokenRequirements(oidc.issuer, oidc.audience or "", oidc.algorithms, oidc.leeway)
    keys = SigningKeys(oidc.issuer, oidc.keys_url, fetch, clock.monotonic)
    reader = ClaimReader(oidc.user_claim, oidc.groups_claim, parse_group_rules(oidc.groups))
    token_cache = TokenVerificationCache(requirements, keys, reader, clock.wall)
    return SingleSignOn(
        token_cache,
        reader.group_projects,
        tenancy.keyring,
        tenancy.tenants,
        lambda: tenancy.changes.directory,
        oidc.add_users,
    )


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
    reports_unknown = settings.server.unknown_fields == "report"
    is_strict = settings.server.schema_keywords == "strict"
    return AppState(
        pipeline=Pipeline(
            models,
            metrics,
            settings.engine.restart_patience,
            accounting,
            None if coordinator is None else coordinator.limits,
            build_summary_cache(settings.memory, clock, tenancy),
            node.knowledge,
        ),
        models=models,
        dialect=OpenAI(reports_unknown, is_strict),
        prefixed_dialects=(
            Fireworks(reports_unknown, is_strict),
            Empower(reports_unknown, is_strict),
            Sgp(reports_unknown, is_strict),
            Jamai(reports_unknown, is_strict, tenancy is not None, settings.knowledge.max_file_bytes),
        ),
        settings=settings.server,
        verifiers=tuple(verifiers),
        tokens=None if tenancy is None else tenancy.tokens,
        keys_on=tenancy is not None,
        admin_endpoints=()
        if tenancy is None
        else list_admin_endpoints(
            tenancy, accounting, models, clock, build_erasure(settings, tenancy, node.knowledge)
        ),
        limiter=accounting.limiter
        if accounting and isinstance(accounting.limiter, MonitoredLimiter)
        else None,
        limits_open=settings.limits.url is not None and settings.limits.unavailable == "open",
        ledger=accounting.ledger if accounting and isinstance(accounting.ledger, MonitoredLedger) else None,
        clock=clock,
        coordinator=coordinator,
        metrics=metrics,
        tracer=node.tracer,
        in_flight=InFlightRegistry() if tenancy is None else _watch_keys(tenancy),
    )


def build_summary_cache(settings: MemorySettings, clock: Clock, tenancy: TenancyParts | None) -> SummaryCache:
    """Returns the cache of summaries. It is in the database if keys are on, and in memory if not."""
    if tenancy is None:
        return ProcessSummaries(settings.summaries, settings.summary_days, clock)
    from antiphon.store.ledger import SqlSummaries

    store = SqlSummaries(tenancy.database)
    return StoredSummaries(store, settings.summaries, settings.summary_days, clock)


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
