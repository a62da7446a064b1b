"""Checks of `antiphon doctor` for vendors. They request each provider's list of models, which costs
nothing."""

import asyncio
import os
import time
from collections.abc import Iterator

from antiphon.assembly.providers import resolve_provider
from antiphon.cli.doctor.findings import Finding, FindingSeverity, report_ok, report_problem, to_finding
from antiphon.errors import AntiphonError, ProviderKeyRefused, SettingsError
from antiphon.settings.providers import ProviderSettings, is_pattern
from antiphon.settings.schema import Settings

MOST_LISTED_MODELS = 5
"""The most missing models that one finding names."""


def check_providers(settings: Settings) -> Iterator[Finding]:
    """Checks that each provider accepts the key and has the models of the routes."""
    for name, provider in settings.providers.items():
        model_names = list_route_models(settings, name)
        yield from _check_provider(name, provider, model_names)


def list_route_models(settings: Settings, provider: str) -> list[str]:
    """Returns the models of a provider to which the settings have a route. Ignores routes of patterns."""
    model_names = {
        route.model or model.name: None
        for model in settings.routed_models
        for route in model.list_routes()
        if route.provider == provider and not is_pattern(model.name)
    }
    return list(model_names)


def _check_provider(name: str, settings: ProviderSettings, model_names: list[str]) -> Iterator[Finding]:
    try:
        start = time.monotonic()
        models = asyncio.run(_fetch_models(name, settings))
        milliseconds = (time.monotonic() - start) * 1000
    except SettingsError as error:
        yield to_finding("provider-invalid", error)
    except ProviderKeyRefused as error:
        yield report_problem("provider-key-refused", error.message)
    except AntiphonError as error:
        cause = f" ({error.cause})" if error.cause else ""
        yield report_problem("provider-unreachable", error.message + cause)
    else:
        message = f"{name} accepts the key, has {len(models)} models and answers in {milliseconds:.0f} ms"
        yield report_ok("provider", message)
        missing = [model for model in model_names if model not in models][:MOST_LISTED_MODELS]
        if missing and models:
            message = f"{name} does not list {', '.join(missing)}"
            yield report_problem("provider-model-missing", message, FindingSeverity.ADVICE)


async def _fetch_models(name: str, settings: ProviderSettings) -> tuple[str, ...]:
    """Fetches the names of a provider's models. Raises SettingsError or a ProviderError."""
    from antiphon.assembly.vendors import build_client

    client = build_client(resolve_provider(name, settings, os.environ))
    try:
        return await client.fetch_models()
    finally:
        await client.aclose()
