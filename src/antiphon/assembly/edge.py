"""Everything between the socket and the engines."""

from antiphon.assembly.keys import managing
from antiphon.auth.tokens import ServiceKey
from antiphon.dialects.empower.dialect import Empower
from antiphon.dialects.fireworks.dialect import Fireworks
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.domain.context import Clock
from antiphon.engines.registry import Models
from antiphon.http.edge import Edge
from antiphon.pipeline.run import Pipeline
from antiphon.settings import Settings
from antiphon.telemetry.metrics import Metrics


def edge_of(settings: Settings, models: Models, clock: Clock) -> Edge:
    """Everything between the socket and the engines."""
    key, keyed = settings.server.api_key, settings.keys.enabled
    keyring, tenants = managing(settings, clock) if keyed else (None, None)
    metrics = Metrics()
    report = settings.server.unknown_fields == "report"
    return Edge(
        pipeline=Pipeline(models, metrics, settings.engine.restart_patience),
        models=models,
        dialect=OpenAI(report),
        others=(Fireworks(report), Empower(report)),
        settings=settings.server,
        verifiers=(*([ServiceKey(key, alone=not keyed)] if key else []), *([keyring] if keyring else [])),
        tenants=tenants,
        clock=clock,
        metrics=metrics,
    )
