"""Builds the state of the application: dialects, verifiers, the pipeline and the admin API."""

import asyncio

from antiphon.assembly.tenancy import TenancyParts, build_single_sign_on
from antiphon.auth.base import TokenVerifier
from antiphon.auth.keyring import ServiceKey
from antiphon.dialects.base import Endpoint
from antiphon.dialects.empower.dialect import Empower
from antiphon.dialects.fireworks.dialect import Fireworks
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.domain.context import Clock
from antiphon.engines.registry import ModelRegistry
from antiphon.http.admin.keys import KeyResource
from antiphon.http.admin.limits import LimitResource
from antiphon.http.admin.model_warnings import ModelWarnings
from antiphon.http.admin.prices import PriceResource
from antiphon.http.admin.recording import RecordingResource
from antiphon.http.admin.tenants import TenantResource
from antiphon.http.admin.usage import UsageResource
from antiphon.http.in_flight import InFlightRegistry
from antiphon.http.state import AppState
from antiphon.ledger.base import MonitoredLedger
from antiphon.limits.base import MonitoredLimiter
from antiphon.pipeline.reserve import Accounting
from antiphon.pipeline.run import Pipeline
from antiphon.processes.coordinator.client import CoordinatorClient
from antiphon.services.limits import LimitService
from antiphon.settings.schema import Settings
from antiphon.telemetry.metrics import Metrics


def build_app_state(
    settings: Settings,
    models: ModelRegistry,
    clock: Clock,
    managed: TenancyParts | None = None,
    accounting: Accounting | None = None,
    coordinator: CoordinatorClient | None = None,
) -> AppState:
    """Builds the application's state. `managed` and `accounting` are given where keys are on."""
    key = settings.server.api_key
    verifiers: list[TokenVerifier] = [ServiceKey(key, is_only_key=managed is None)] if key else []
    verifiers += [managed.keyring] if managed else []
    issuer = build_single_sign_on(settings.oidc, managed, clock) if managed else None
    verifiers += [issuer] if issuer else []
    metrics = Metrics()
    report = settings.server.unknown_fields == "report"
    strict = settings.server.schema_keywords == "strict"
    return AppState(
        pipeline=Pipeline(models, metrics, settings.engine.restart_patience, accounting),
        models=models,
        dialect=OpenAI(report, strict),
        others=(Fireworks(report, strict), Empower(report, strict)),
        settings=settings.server,
        verifiers=tuple(verifiers),
        keys_on=managed is not None,
        admin=() if managed is None else list_admin_endpoints(managed, accounting, models, clock),
        limiter=accounting.limiter
        if accounting and isinstance(accounting.limiter, MonitoredLimiter)
        else None,
        limits_open=settings.limits.url is not None and settings.limits.unavailable == "open",
        ledger=accounting.ledger if accounting and isinstance(accounting.ledger, MonitoredLedger) else None,
        clock=clock,
        coordinator=coordinator,
        metrics=metrics,
        ongoing=InFlightRegistry() if managed is None else _watch_keys(managed),
    )


def _watch_keys(managed: TenancyParts) -> InFlightRegistry:
    """Work that ends with the keys it came with. To be called in the event loop."""
    ongoing, loop = InFlightRegistry(managed.keyring.accepts), asyncio.get_running_loop()
    managed.watchers.append(lambda: loop.call_soon_threadsafe(ongoing.end_unaccepted))
    return ongoing


def list_admin_endpoints(
    managed: TenancyParts, accounting: Accounting | None, models: ModelRegistry, clock: Clock
) -> tuple[Endpoint, ...]:
    """Lists the endpoints of all resources of the admin API."""
    from antiphon.store.tenancy import SqlRules

    warnings = ModelWarnings(models, managed.pricing)
    endpoints = [
        *TenantResource(managed.tenants).endpoints(),
        *KeyResource(managed.tenants, warnings).endpoints(),
        *PriceResource(managed.pricing, warnings).endpoints(),
        *RecordingResource(managed.recordings).endpoints(),
        *UsageResource(managed.reading, clock).endpoints(),
    ]
    if accounting is not None:
        limiting = LimitService(managed.changes, SqlRules(managed.database), accounting.limiter)
        endpoints += LimitResource(limiting, models, warnings).endpoints()
    return tuple(endpoints)
