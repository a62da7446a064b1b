"""`antiphon doctor`: checks everything that `antiphon serve` needs, and reports problems with remedies.

It changes nothing. The checks of vendors request each provider's list of models, which costs nothing.
"""

import asyncio
import json
import os
import shutil
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

from antiphon.assembly.vendors import resolve_provider
from antiphon.cli.commands.serve import find_refusals
from antiphon.cli.doctor.checks import (
    check_adapters,
    check_cache,
    check_confinement,
    check_engine,
    check_media,
    check_models,
    check_port,
    check_settings,
    check_sockets,
)
from antiphon.cli.doctor.clients import check_clients
from antiphon.cli.doctor.findings import Finding, FindingSeverity, report_ok, report_problem, to_finding
from antiphon.cli.serve_options import ServeOptions
from antiphon.errors import AntiphonError, ProviderKeyRefused, SettingsError
from antiphon.processes.engine_hosts import build_load_spec
from antiphon.settings.providers import ProviderSettings, is_pattern
from antiphon.settings.schema import Settings

MOST_LISTED_MODELS = 5
"""The most missing models that one finding names."""


SEVERITY_LABELS = {
    FindingSeverity.OK: "ok",
    FindingSeverity.ADVICE: "advice",
    FindingSeverity.BROKEN: "BROKEN",
}
INDENT = 8
NARROWEST, WIDEST = 60, 110
"""The least and the most columns of the text."""


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


def run(serve_options: ServeOptions, load: bool, as_json: bool) -> int:
    """Prints the findings, and returns the exit status: 1 if the server would not start or run."""
    findings = list(run_checks(serve_options, load))
    broken_count = sum(finding.severity is FindingSeverity.BROKEN for finding in findings)
    print(format_json(findings, broken_count) if as_json else format_text(findings, broken_count))
    return 1 if broken_count else 0


def run_checks(serve_options: ServeOptions, load: bool) -> Iterator[Finding]:
    """Yields every finding, in the order of a server's start."""
    settings, finding = check_settings(serve_options)
    yield finding
    yield from (to_finding("settings-refused", error, ": ") for error in find_refusals(settings))
    models, model_findings = check_models(settings)
    yield from check_engine(
        settings, [build_load_spec(sized.model, settings) for sized in models] if load else []
    )
    yield from model_findings
    yield from check_media(settings)
    yield from check_adapters(settings, models)
    yield from check_providers(settings)
    yield check_port(settings.server)
    yield check_cache(settings)
    yield from check_sockets()
    yield check_confinement(settings)
    yield from check_clients(os.environ, Path.home())
    if settings.keys.enabled:
        from antiphon.cli.doctor.checks import check_tenancy

        yield from check_tenancy(settings, os.environ, Path.home())


def format_json(findings: list[Finding], broken_count: int) -> str:
    rows = [
        {"id": row.id, "standing": row.severity, "said": row.message, "remedy": row.remedy}
        for row in findings
    ]
    return json.dumps({"broken": broken_count, "findings": rows}, indent=2)


def format_text(findings: list[Finding], broken_count: int) -> str:
    """Formats a paragraph for each finding with its remedy, and a summary."""
    width = min(WIDEST, max(NARROWEST, shutil.get_terminal_size().columns))
    lines = [line for finding in findings for line in _format_paragraph(finding, width)]
    advice_count = sum(finding.severity is FindingSeverity.ADVICE for finding in findings)
    summary = f"{broken_count} things are broken" if broken_count else "Nothing is broken"
    summary = "1 thing is broken" if broken_count == 1 else summary
    summary += f"; {advice_count} could be better." if advice_count else "."
    summary += " See docs/troubleshooting.md." if broken_count or advice_count else ""
    return "\n".join([*lines, "", summary])


def _format_paragraph(finding: Finding, width: int) -> list[str]:
    """Wraps the text of a finding only at spaces, so that users can copy paths and commands."""
    indented_texts = [(f"{SEVERITY_LABELS[finding.severity]:{INDENT}}", f"{finding.id}: {finding.message}")]
    if finding.remedy:
        indented_texts.append((" " * INDENT, f"-> {finding.remedy}"))
    return [
        line
        for indent, text in indented_texts
        for line in textwrap.wrap(
            text,
            width,
            initial_indent=indent,
            subsequent_indent=" " * INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]
