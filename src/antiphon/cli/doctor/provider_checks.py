"""Checks of `antiphon doctor` for vendors: each provider is asked for its models, which costs nothing."""

import asyncio
import os
import time
from collections.abc import Iterator

from antiphon.assembly.providers import resolve_provider
from antiphon.cli.doctor.findings import Finding, FindingSeverity, report_ok, report_problem, to_finding
from antiphon.errors import AntiphonError, ProviderKeyRefused, SettingsError
from antiphon.settings.providers import ProviderSettings, is_pattern
from antiphon.settings.schema import Settings

MAX_SHOWN = 5
"""The most models that one finding names."""


def check_providers(settings: Settings) -> Iterator[Finding]:
    """Asks each provider whether it accepts the key and has the models of the routes."""
    for name, provider in settings.providers.items():
        model_names = find_wanted_models(settings, name)
        yield from _check_provider(name, provider, model_names)


def find_wanted_models(settings: Settings, provider: str) -> list[str]:
    """Returns the vendor's models that routes name. A pattern names none."""
    model_names = {
        route.model or model.name: None
        for model in settings.routed_models
        for route in model.list_routes()
        if route.provider == provider and not is_pattern(model.name)
    }
    return list(model_names)


def _check_provider(name: str, settings: ProviderSettings, model_names: list[str]) -> Iterator[Finding]:
    """Checks one provider."""
    try:
        began = time.monotonic()
        models = asyncio.run(_fetch_models(name, settings))
        milliseconds = (time.monotonic() - began) * 1000
    except SettingsError as error:
        yield to_finding("provider-invalid", error)
    except ProviderKeyRefused as error:
        yield report_problem("provider-key-refused", error.message)
    except AntiphonError as error:
        why = f" ({error.cause})" if error.cause else ""
        yield report_problem("provider-unreachable", error.message + why)
    else:
        message = f"{name} accepts the key, has {len(models)} models and answers in {milliseconds:.0f} ms"
        yield report_ok("provider", message)
        missing = [model for model in model_names if model not in models][:MAX_SHOWN]
        if missing and models:
            message = f"{name} does not list {', '.join(missing)}"
            yield report_problem("provider-model-missing", message, FindingSeverity.ADVICE)


async def _fetch_models(name: str, settings: ProviderSettings) -> tuple[str, ...]:
    """Asks a provider for the names of its models. Raises SettingsError or a ProviderError."""
    from antiphon.assembly.vendors import build_client

    client = build_client(resolve_provider(name, settings, os.environ))
    try:
        return await client.fetch_models()
    finally:
        await client.aclose()
