"""Builds the routed models, and the clients of their providers.

The clients' code is imported only if there is a provider, because the import takes a fifth of an HTTP
process's start.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from antiphon.assembly.providers import ResolvedProvider, resolve_provider
from antiphon.domain.models import STAR
from antiphon.domain.values import Struct, field
from antiphon.engines.profiles.base import VendorProfile, build_profile, merge_profile
from antiphon.engines.profiles.presets import ProviderPreset
from antiphon.engines.profiles.table import find_profile
from antiphon.engines.registry import Model, ModelPattern, ModelRoute
from antiphon.engines.route_state import RouteState
from antiphon.engines.vendors.base import UpstreamDialect, VendorModel
from antiphon.errors import SettingsError
from antiphon.settings.providers import ProfileSettings, RoutedModelSettings, RouteSettings, is_pattern
from antiphon.settings.schema import Settings

if TYPE_CHECKING:
    from antiphon.engines.vendors.engine import VendorEngine
    from antiphon.engines.vendors.provider import Provider


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
    upstream = build_upstream(preset.kind)
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
        proxy=settings.proxy,
        ca_file=settings.ca_file,
        connections=settings.connections,
        connect_timeout=settings.connect_timeout,
        first_byte_timeout=settings.first_byte_timeout,
        chunk_timeout=settings.chunk_timeout,
        timeout=settings.timeout,
    )
    return Provider(options, upstream, provider.read_key)


def build_upstream(kind: str) -> UpstreamDialect:
    """Builds the upstream dialect of a kind of provider."""
    from antiphon.engines.vendors.anthropic.dialect import AnthropicUpstream
    from antiphon.engines.vendors.gemini.dialect import GeminiUpstream
    from antiphon.engines.vendors.openai.dialect import OpenAIUpstream

    upstreams: Mapping[str, type[UpstreamDialect]] = {
        "anthropic": AnthropicUpstream,
        "gemini": GeminiUpstream,
        "openai": OpenAIUpstream,
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
    """The states of routes before a reload, by the names of the model and the route."""

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
