"""Builds the routed models, and the clients of their providers.

Providers are completed from presets, and their keys are found, without opening a connection. The clients'
code is imported only if there is a provider, because the import takes a fifth of an HTTP process's start.
"""

import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from antiphon.domain.models import STAR
from antiphon.domain.values import Struct, field
from antiphon.engines.registry import Model, ModelPattern, ModelRoute
from antiphon.engines.route_state import RouteState
from antiphon.engines.vendors.base import UpstreamDialect, VendorModel
from antiphon.engines.vendors.caller_extras import COUNTED_FIELDS
from antiphon.engines.vendors.parameters import PART_PARAMETERS, list_names
from antiphon.engines.vendors.profiles import (
    ProviderPreset,
    VendorProfile,
    build_profile,
    find_preset,
    find_profile,
    list_presets,
    merge_profile,
)
from antiphon.errors import SettingsError
from antiphon.regular_files import open_regular, read_text
from antiphon.settings.loading import suggest_nearest
from antiphon.settings.providers import (
    ProfileSettings,
    ProviderSettings,
    RoutedModelSettings,
    RouteSettings,
    WireFormat,
    is_pattern,
)
from antiphon.settings.schema import Settings

if TYPE_CHECKING:
    from antiphon.engines.vendors.engine import VendorEngine
    from antiphon.engines.vendors.provider import Provider


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
    if settings.api == "responses" and preset.kind != "openai":
        raise SettingsError(
            f'providers.{name}.api: only the kind openai has the API "responses"; leave it out'
        )
    if settings.pass_hosted_tools and preset.kind != "anthropic":
        raise SettingsError(
            f"providers.{name}.pass_hosted_tools: only the kind anthropic has such tools; leave it out"
        )
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
            open_regular(path).close()
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
            f"the provider {name} needs a kind ({', '.join(get_args(WireFormat))}) or a preset "
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
        return read_text(Path(path).expanduser()).strip()
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not a text file"
        raise SettingsError(f"the key of the provider {name} cannot be read from {path}: {reason}") from None


class Vendors(Struct, frozen=True):
    """All providers and their clients, by the provider's name."""

    resolved: Mapping[str, ResolvedProvider]
    clients: "Mapping[str, Provider]"

    async def aclose(self) -> None:
        """Closes every connection."""
        for client in self.clients.values():
            await client.aclose()


def build_vendors(settings: Settings, environ: Mapping[str, str], before: Vendors | None = None) -> Vendors:
    """Builds the clients of all providers. They connect when they are used. `before`: the providers before a
    reload. A provider whose settings are unchanged gets its client from there. Raises SettingsError."""
    resolved = {
        name: resolve_provider(name, provider, environ) for name, provider in settings.providers.items()
    }
    unchanged_clients = (
        {}
        if before is None
        else {
            name: before.clients[name]
            for name, provider in resolved.items()
            if name in before.resolved and before.resolved[name].settings == provider.settings
        }
    )
    return Vendors(
        resolved,
        {name: unchanged_clients.get(name) or build_client(provider) for name, provider in resolved.items()},
    )


def build_client(provider: ResolvedProvider) -> "Provider":
    """Builds the client of a provider. Raises SettingsError for a private address that is not allowed, and
    for a header that callers could set beside the server's own."""
    from antiphon.engines.vendors.provider import Provider, ProviderOptions

    settings, preset = provider.settings, provider.preset
    upstream = build_upstream(preset.kind, settings.api)
    default_header, default_prefix = upstream.credential_header
    prefix = default_prefix if preset.key_prefix is None else preset.key_prefix
    own_headers = {name.lower() for name, _ in upstream.headers}
    for name in settings.extra_headers:
        if name.lower() in own_headers:
            raise SettingsError(
                f"providers.{provider.name}.extra_headers cannot have "
                f"{name!r}: this server sets it; leave it out"
            )
    options = ProviderOptions(
        name=provider.name,
        base_url=provider.base_url,
        credential_header=(preset.key_header or default_header, prefix),
        headers=settings.headers,
        allows_private=provider.allows_private,
        reports_fields=preset.reports_fields,
        proxy=settings.proxy,
        ca_file=settings.ca_file,
        connections=settings.connections,
        connect_timeout=settings.connect_timeout,
        first_byte_timeout=settings.first_byte_timeout,
        chunk_timeout=settings.chunk_timeout,
        timeout=settings.timeout,
        max_answer_bytes=settings.max_answer_bytes,
    )
    return Provider(options, upstream, provider.read_key)


def build_upstream(kind: WireFormat, api: str) -> UpstreamDialect:
    """Builds the upstream dialect of a kind of provider. `api`: that of OpenAI's chats."""
    from antiphon.engines.vendors.anthropic.dialect import AnthropicUpstream
    from antiphon.engines.vendors.gemini.dialect import GeminiUpstream
    from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
    from antiphon.engines.vendors.responses.dialect import ResponsesUpstream

    upstreams: Mapping[WireFormat, type[UpstreamDialect]] = {
        "anthropic": AnthropicUpstream,
        "gemini": GeminiUpstream,
        "openai": ResponsesUpstream if api == "responses" else OpenAIUpstream,
    }
    return upstreams[kind]()


class RoutedModelBuilder(Struct, frozen=True):
    """Builds routed models."""

    vendors: Vendors
    local: Mapping[str, Model]
    """The local models by their names."""
    created: int
    """Unix time in seconds."""
    states: Mapping[tuple[str, str], RouteState] = field(default_factory=dict)
    """Maps (model name, route name) to the state of the route before a reload."""

    def build_model(self, settings: RoutedModelSettings) -> Model:
        """Builds a model of the settings."""
        return self._build(settings, settings.name, settings.name)

    def build_pattern(self, settings: RoutedModelSettings) -> ModelPattern:
        """Builds a pattern of models. Lists show the pattern as one model."""
        return ModelPattern(self._build(settings, settings.name, STAR), partial(self._build, settings))

    def _build(self, settings: RoutedModelSettings, name: str, vendor_model: str) -> Model:
        """Builds a routed model with this name. `vendor_model`: the vendor's model for routes whose settings
        name none."""
        routes = tuple(
            model_route
            for route in settings.list_routes()
            for model_route in (
                self._build_local_routes(route, name)
                if route.provider is None
                else (self._build_vendor_route(route, settings, (name, vendor_model)),)
            )
        )
        return Model(
            name,
            routes,
            self.created,
            label=settings.name,
            is_routed=True,
            prefers_prefix=settings.prefer_prefix,
        )

    def _build_local_routes(self, route: RouteSettings, model_name: str) -> Iterator[ModelRoute]:
        """Yields a route to each host of a local model. The hosts share the weight, and the label by which
        requests in flight are counted. `model_name`: the routed model's name."""
        model = self.local[route.engine or ""]
        for host in model.routes:
            yield ModelRoute(
                host.engine,
                host.kind,
                price=model.name,
                name=host.name,
                label=model.name,
                weight=route.weight / len(model.routes),
                order=route.order,
                in_flight_limit=route.in_flight,
                state=self.states.get((model_name, host.name)) or RouteState(),
            )

    def _build_vendor_route(
        self, route: RouteSettings, settings: RoutedModelSettings, names: tuple[str, str]
    ) -> ModelRoute:
        """Builds a route to a vendor's model. `names`: the model's name, and the vendor's model if the
        settings of the route name none."""
        model_name, default_model = names
        model = name_vendor_model(route, settings, default_model)
        resolved = self.vendors.resolved[route.provider or ""]
        name = f"{resolved.name}/{model}"
        return ModelRoute(
            self._build_engine(resolved, model, settings.profile),
            resolved.name,
            price=name,
            name=name,
            label=f"{resolved.name}/{route.model or STAR}" if is_pattern(settings.name) else name,
            provider=resolved.trace_name,
            weight=route.weight,
            order=route.order,
            in_flight_limit=route.in_flight,
            state=self.states.get((model_name, name)) or RouteState(),
        )

    def _build_engine(
        self, provider: ResolvedProvider, model: str, profile_settings: ProfileSettings
    ) -> "VendorEngine":
        """Builds the engine of a vendor's model."""
        from antiphon.engines.vendors.engine import VendorEngine

        settings, preset = provider.settings, provider.preset
        profile_model, deployment = split_deployment(preset, model)
        profile = find_vendor_profile(provider, profile_model, profile_settings)
        vendor_model = VendorModel(
            deployment,
            provider.name,
            profile,
            extra_parameters=frozenset((*preset.takes, *settings.takes)),
            refused_parameters=frozenset((*preset.refuses, *settings.refuses)),
            token_limit_name=profile.token_limit or preset.token_limit,
            asks_usage=preset.asks_usage,
            reasoning_field=preset.reasoning_field,
            renames=preset.renames,
            body=preset.body,
            passes_addresses=settings.pass_addresses,
            passes_hosted_tools=settings.pass_hosted_tools,
            extra_fields=frozenset(settings.extra_params),
            extra_headers=frozenset(header.lower() for header in settings.extra_headers),
        )
        public_profile = build_profile(profile, provider.name, preset.kind, vendor_model.refused_parameters)
        return VendorEngine(self.vendors.clients[provider.name], vendor_model, public_profile)


def split_deployment(preset: ProviderPreset, model: str) -> tuple[str, str]:
    """Returns the model whose profile applies, and the name that is sent to the vendor. These are different
    only if the vendor has deployments and `model` is written as MODEL/DEPLOYMENT."""
    profile_model, _, deployment = model.rpartition("/")
    is_deployment = preset.has_deployments and profile_model and deployment
    return (profile_model, deployment) if is_deployment else (model, model)


def name_vendor_model(route: RouteSettings, settings: RoutedModelSettings, vendor_model: str) -> str:
    """Returns the vendor's name of the model of a route. `vendor_model`: the name if the route names none,
    and what replaces `*` in the route's name if the model is a pattern."""
    if route.model is None:
        return vendor_model
    return route.model.replace("*", vendor_model) if is_pattern(settings.name) else route.model


def find_vendor_profile(
    provider: ResolvedProvider, model: str, profile_settings: ProfileSettings
) -> VendorProfile:
    """Returns the profile of a model. The operator's values come first, then the table's, then the provider's
    defaults."""
    settings, preset = provider.settings, provider.preset
    profile = find_profile(provider.table, model)
    if profile is None:
        profile = VendorProfile(
            context_length=settings.context_length or preset.context_length,
            max_output=settings.max_output or preset.max_output,
            modalities=preset.modalities,
            reasoning=True if preset.reasoning_field is not None else None,
        )
    return merge_profile(profile, profile_settings)
