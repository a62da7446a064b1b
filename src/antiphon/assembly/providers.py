"""Completes the operator's providers from presets, and finds their keys. It opens no connection."""

import ssl
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from antiphon.domain.values import Struct
from antiphon.engines.profiles.presets import ProviderPreset, find_preset, list_presets
from antiphon.engines.vendors.caller_extras import COUNTED_FIELDS
from antiphon.engines.vendors.parameters import PART_PARAMETERS, list_names
from antiphon.errors import SettingsError
from antiphon.settings.loading import suggest_nearest
from antiphon.settings.providers import ProviderSettings
from antiphon.settings.schema import Settings

MAX_KEY_LENGTH = 16_384
"""The most characters of a key. Some keys are signed tokens, which are long."""


class ResolvedProvider(Struct, frozen=True):
    """A provider whose missing settings come from a preset."""

    name: str
    settings: ProviderSettings
    preset: ProviderPreset
    table: str
    """The name of its table of model profiles: that of a preset, or of a wire format."""
    base_url: str
    read_key: Callable[[], str | None]
    """Reads the key. Raises SettingsError if it cannot be read."""

    @property
    def trace_name(self) -> str:
        """The vendor in traces, as OpenTelemetry's conventions name it."""
        return self.preset.trace_name or self.table

    @property
    def allows_private(self) -> bool:
        """Whether the address may be a private one."""
        private = self.settings.private
        return self.preset.is_private if private is None else private


def resolve_provider(name: str, settings: ProviderSettings, environ: Mapping[str, str]) -> ResolvedProvider:
    """Completes a provider's settings, and checks that its key can be read. Raises SettingsError."""
    table, preset = _choose_preset(name, settings)
    base_url = settings.base_url or preset.base_url
    if base_url is None:
        raise SettingsError(f"the provider {name} has no address: write base_url into [providers.{name}]")
    read_key = partial(_read_key, name, settings, preset, environ)
    read_key()
    return ResolvedProvider(name, settings, preset, table, base_url, read_key)


def require_providers(settings: Settings, environ: Mapping[str, str]) -> None:
    """Raises SettingsError for a provider without an address or a key, and for presets, parameters and
    certificates that do not exist."""
    for name, provider in settings.providers.items():
        resolve_provider(name, provider, environ)
        _require_parameters((*provider.takes, *provider.refuses), f"providers.{name}")
        _require_extra_params(provider.extra_params, f"providers.{name}.extra_params")
        _require_certificates(name, provider.ca_file)
    for model in settings.routed_models:
        _require_parameters(model.profile.refused or (), f"the profile of the model {model.name}")


def _require_parameters(names: Iterable[str], where: str) -> None:
    """Raises SettingsError for a name that is no parameter, because it would have no effect. `where`: the
    setting, for the error."""
    parameters = list_names() | PART_PARAMETERS
    for name in names:
        if name not in parameters:
            raise SettingsError(f"{where}: there is no parameter {name!r}{suggest_nearest(name, parameters)}")


def _require_extra_params(names: Iterable[str], where: str) -> None:
    """Raises SettingsError for a field that is a parameter of this server, or that this server sets
    itself."""
    parameters = list_names()
    for name in names:
        if name in parameters:
            raise SettingsError(
                f"{where} cannot have {name!r}, which is a parameter of "
                "this server: write it into `takes` instead"
            )
        if name in COUNTED_FIELDS:
            raise SettingsError(
                f"{where} cannot have {name!r}: this server sets this field itself; leave it out"
            )


def _require_certificates(name: str, path: str | None) -> None:
    """Raises SettingsError if a file of certificates cannot be used."""
    try:
        if path is not None:
            ssl.create_default_context(cafile=path)
    except OSError as problem:
        reason = "it has no certificate" if isinstance(problem, ssl.SSLError) else problem.strerror
        raise SettingsError(f"providers.{name}.ca_file: {path} cannot be used: {reason}") from None


def _choose_preset(name: str, settings: ProviderSettings) -> tuple[str, ProviderPreset]:
    """Returns the preset of a provider, and the name of its table of models: the named preset, the one of the
    provider's own name, or an empty one of its kind. Raises SettingsError."""
    if settings.preset is not None:
        return settings.preset, _find_named_preset(name, settings.preset, settings.kind)
    preset = find_preset(name)
    if preset is not None and settings.kind in (None, preset.kind):
        return name, preset
    if settings.kind is None:
        raise SettingsError(
            f"the provider {name} needs a kind (openai, anthropic or gemini) or a preset "
            f"({', '.join(list_presets())})"
        )
    return settings.kind, ProviderPreset(kind=settings.kind, key_variable="", needs_key=False)


def _find_named_preset(name: str, preset: str, kind: str | None) -> ProviderPreset:
    """Returns the preset that a provider names. Raises SettingsError."""
    named_preset = find_preset(preset)
    if named_preset is None:
        raise SettingsError(
            f"the provider {name} has no known preset {preset!r}{suggest_nearest(preset, list_presets())}; "
            f"there is: {', '.join(list_presets())}"
        )
    if kind not in (None, named_preset.kind):
        raise SettingsError(
            f"the provider {name} has the preset {preset}, which speaks {named_preset.kind} and not {kind}; "
            "leave out preset or kind"
        )
    return named_preset


def _read_key(
    name: str, settings: ProviderSettings, preset: ProviderPreset, environ: Mapping[str, str]
) -> str | None:
    """Reads the key of a provider; None if it needs none. Raises SettingsError."""
    key_setting = settings.key
    if key_setting is None and not (preset.key_variable and environ.get(preset.key_variable)):
        if preset.needs_key:
            raise SettingsError(
                f'the provider {name} needs a key: set {preset.key_variable}, or write key = "env:NAME" or '
                f'"file:PATH" into [providers.{name}]'
            )
        return None
    kind, _, location = (key_setting or f"env:{preset.key_variable}").partition(":")
    key = environ.get(location, "") if kind == "env" else _read_file(name, location)
    if not key:
        raise SettingsError(f"the key of the provider {name} is missing: {location} is empty or not set")
    if len(key) > MAX_KEY_LENGTH or not key.isascii() or not key.isprintable():
        raise SettingsError(
            f"the key of the provider {name} in {location} must be printable ASCII, on one line"
        )
    return key


def _read_file(name: str, path: str) -> str:
    """Reads a key from a file. Raises SettingsError."""
    try:
        return Path(path).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not a text file"
        raise SettingsError(f"the key of the provider {name} cannot be read from {path}: {reason}") from None
