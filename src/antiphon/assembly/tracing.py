"""Opens the tracer of an HTTP process, where the settings name a collector."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon.domain.tracing import Tracer
from antiphon.errors import SettingsError, explain_extra
from antiphon.settings.server import TracingSettings


@asynccontextmanager
async def open_tracer(settings: TracingSettings) -> AsyncIterator[Tracer | None]:
    """Yields the tracer while the context lasts; None if no collector is set. Raises SettingsError if the
    extra `otlp` is missing."""
    if settings.endpoint is None:
        yield None
        return
    try:
        from antiphon.telemetry.otlp import create_tracer
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("opentelemetry"):
            raise
        raise SettingsError(f"tracing.endpoint needs the extra otlp: {explain_extra('otlp')}") from None
    tracer = create_tracer(settings)
    try:
        yield tracer
    finally:
        await asyncio.to_thread(tracer.close)
