"""Settings that have an effect only together with other settings. A setting without an effect is refused by
name."""

from collections.abc import Callable

from antiphon.domain.values import Struct
from antiphon.errors import SettingsError
from antiphon.settings.schema import Settings, list_settings


class Dependency(Struct, frozen=True):
    """Settings of a section that have an effect only if a condition on other settings is met."""

    section: str
    names: tuple[str, ...]
    is_met: Callable[[Settings], bool]
    reason: str
    """Why the settings have no effect if the condition is not met, and which other setting to change."""


DEPENDENCIES = (
    Dependency(
        "tracing",
        ("service_name", "sample_ratio", "content", "metrics_interval"),
        lambda settings: settings.tracing.endpoint is not None,
        "nothing is traced without a collector; set tracing.endpoint (ANTIPHON_TRACING_ENDPOINT)",
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
        "projects load adapters only from repositories; set lora.repositories (ANTIPHON_LORA_REPOSITORIES)",
    ),
    Dependency(
        "lora",
        ("project_bytes",),
        lambda settings: settings.lora.project_adapters > 0,
        "projects have no adapters; raise lora.project_adapters (ANTIPHON_LORA_PROJECT_ADAPTERS)",
    ),
    Dependency(
        "lora",
        ("max_bytes", "keep_names"),
        lambda settings: bool(settings.lora.directories or settings.lora.repositories),
        "callers cannot load adapters; set lora.directories (ANTIPHON_LORA_DIRECTORIES) or lora.repositories "
        "(ANTIPHON_LORA_REPOSITORIES)",
    ),
    Dependency(
        "limits",
        ("prefix",),
        lambda settings: settings.limits.url is not None,
        "Redis is not used; set limits.url (ANTIPHON_LIMITS_URL)",
    ),
    Dependency(
        "memory",
        ("summary_days",),
        lambda settings: settings.memory.summaries > 0,
        "no summary is stored; raise memory.summaries (ANTIPHON_MEMORY_SUMMARIES), which is 0",
    ),
    Dependency(
        "engine",
        ("memory_budget",),
        lambda settings: any(model.load == "request" for model in settings.models),
        'there is no model with load = "request"; set load = "request" in a [[models]] table',
    ),
    Dependency(
        "server",
        ("allowed_hosts",),
        lambda settings: not settings.keys.enabled and settings.server.api_key is None,
        "a server with keys accepts every host name; leave keys.enabled (ANTIPHON_KEYS) and server.api_key "
        "(ANTIPHON_API_KEY) out",
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
                setting = f"{dependency.section}.{name}"
                raise SettingsError(
                    f"{setting} ({variable}) has no effect: {dependency.reason}, or leave {setting} out"
                )
