"""Settings that have an effect only together with other settings. A setting without an effect is refused by
name."""

from collections.abc import Callable
from dataclasses import dataclass

from antiphon.errors import SettingsError
from antiphon.settings.schema import Settings, list_settings


@dataclass(frozen=True, slots=True)
class Dependency:
    """Settings of a section that have an effect only under a condition."""

    section: str
    names: tuple[str, ...]
    is_met: Callable[[Settings], bool]
    reason: str
    """Why the settings have no effect otherwise, and what to do."""


DEPENDENCIES = (
    Dependency(
        "tracing",
        ("service_name", "sample_ratio", "content", "metrics_interval"),
        lambda settings: settings.tracing.endpoint is not None,
        "nothing is traced without tracing.endpoint (ANTIPHON_TRACING_ENDPOINT); set it",
    ),
    Dependency(
        "lora",
        ("project_adapters",),
        lambda settings: settings.keys.enabled,
        "there are no projects without keys; set keys.enabled (ANTIPHON_KEYS=true)",
    ),
    Dependency(
        "lora",
        ("project_adapters",),
        lambda settings: bool(settings.lora.repositories),
        "projects load adapters only from lora.repositories (ANTIPHON_LORA_REPOSITORIES); name some",
    ),
    Dependency(
        "lora",
        ("project_bytes",),
        lambda settings: settings.lora.project_adapters > 0,
        "projects have no adapters without lora.project_adapters (ANTIPHON_LORA_PROJECT_ADAPTERS); set it",
    ),
    Dependency(
        "lora",
        ("max_bytes", "keep_names"),
        lambda settings: bool(settings.lora.directories or settings.lora.repositories),
        "callers load no adapters without lora.directories (ANTIPHON_LORA_DIRECTORIES) or lora.repositories "
        "(ANTIPHON_LORA_REPOSITORIES); name some",
    ),
    Dependency(
        "limits",
        ("prefix",),
        lambda settings: settings.limits.url is not None,
        "Redis is not used without limits.url (ANTIPHON_LIMITS_URL); set it",
    ),
    Dependency(
        "memory",
        ("summary_days",),
        lambda settings: settings.memory.summaries > 0,
        "no summary is kept while memory.summaries (ANTIPHON_MEMORY_SUMMARIES) is 0; raise it",
    ),
    Dependency(
        "engine",
        ("memory_budget",),
        lambda settings: any(model.load == "request" for model in settings.models),
        'it bounds only models of load = "request", and there is none; give one of [[models]] that setting',
    ),
    Dependency(
        "server",
        ("allowed_hosts",),
        lambda settings: not settings.keys.enabled and settings.server.api_key is None,
        "a server with keys or ANTIPHON_API_KEY accepts every host name; turn them off",
    ),
)


def require_dependencies(settings: Settings) -> None:
    """Raises SettingsError for a setting without an effect."""
    for dependency in DEPENDENCIES:
        if dependency.is_met(settings):
            continue
        section = getattr(settings, dependency.section)
        for name, variable, _, default in list_settings(dependency.section):
            if name in dependency.names and getattr(section, name) != default:
                raise SettingsError(
                    f"{dependency.section}.{name} ({variable}) has no effect: {dependency.reason}, or leave "
                    "it out"
                )
