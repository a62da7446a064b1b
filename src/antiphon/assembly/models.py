"""Builds the models of the settings. A reload builds only the models that changed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial

from antiphon.assembly.dialects import ALIASES
from antiphon.assembly.vendors import RoutedModelBuilder, Vendors
from antiphon.domain.context import Clock
from antiphon.domain.models import Aliases
from antiphon.domain.request import SamplingOptions
from antiphon.domain.values import Struct, field, replace
from antiphon.engines.host.client import HostTokenEngine
from antiphon.engines.host.parking import Parking
from antiphon.engines.registry import Model, ModelPattern, ModelRegistry, ModelRoute
from antiphon.engines.route_state import RouteState
from antiphon.errors import SettingsError, explain_extra
from antiphon.rendering.prompt_media import ReadMedia
from antiphon.rendering.renderer import Renderer, RendererOptions
from antiphon.rendering.template.chat_template import NotationFamilies
from antiphon.rendering.template.request_template import TemplateHelper
from antiphon.settings.models import ModelSettings, group_hosts
from antiphon.settings.providers import RoutedModelSettings, RouteSettings, is_pattern
from antiphon.settings.schema import Settings
from antiphon.task_group import task_group

NO_VENDORS = Vendors({}, {})


class HostConnections:
    """The connections of this process to the engine hosts. A task of the group maintains each connection."""

    def __init__(self, group: asyncio.TaskGroup, ask_load: Callable[[str], None] = lambda _: None) -> None:
        """`ask_load`: asks the supervisor to load a model."""
        self._group = group
        self._ask_load = ask_load
        self._connection_tasks: dict[HostTokenEngine, asyncio.Task[None]] = {}
        self.engines: dict[str, HostTokenEngine] = {}
        """The engine of each host, by the host's name."""
        self.socket_paths: dict[str, str] = {}
        """The path of each host's socket."""

    def connect(self, name: str, path: str, is_parked: bool = False) -> HostTokenEngine:
        """Returns an engine that connects to a host, and connects again after the host died. `path`: of its
        socket. `is_parked`: whether the model is loaded on request."""
        parking = Parking(name, partial(self._ask_load, name)) if is_parked else None
        engine = HostTokenEngine(path, name, parking=parking)
        self._connection_tasks[engine] = self._group.create_task(engine.keep_connected())
        return engine

    def replace_serving(
        self, engines: Mapping[str, HostTokenEngine], socket_paths: Mapping[str, str]
    ) -> None:
        """Sets the engines and socket paths of the hosts that serve from now on."""
        self.engines, self.socket_paths = dict(engines), dict(socket_paths)

    async def close(self, engine: HostTokenEngine) -> None:
        """Ends the connection of an engine, and with it all its running generations."""
        await engine.aclose()
        if (task := self._connection_tasks.pop(engine, None)) is not None:
            task.cancel()

    async def aclose(self) -> None:
        """Ends all connections."""
        for engine in tuple(self._connection_tasks):
            await self.close(engine)


@asynccontextmanager
async def connect_engines(
    sockets: Mapping[str, str],
    parked: Collection[str] = (),
    ask_load: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[HostConnections]:
    """Connects to each engine host while the context lasts. `sockets`: maps each host's name to its socket.
    `parked`: the models that are loaded on request. `ask_load`: asks the supervisor to load a model."""
    async with task_group() as group:
        hosts = HostConnections(group, ask_load)
        engines = {name: hosts.connect(name, path, name in parked) for name, path in sockets.items()}
        hosts.replace_serving(engines, sockets)
        try:
            yield hosts
        finally:
            await hosts.aclose()


class ModelSources(Struct, frozen=True):
    """The settings, hosts and vendors that models are built from."""

    settings: Settings
    hosts: Mapping[str, HostTokenEngine]
    """The engine of each host of a local model, by the host's name."""
    vendors: Vendors = NO_VENDORS
    read_media: ReadMedia | None = None
    """Decodes callers' images and recordings; None without the extra `media`."""


class ModelSet(Struct, frozen=True):
    """All models of the settings: first the local models, then the routed ones, each in the order of the
    settings."""

    models: tuple[Model, ...]
    aliases: Aliases
    patterns: tuple[ModelPattern, ...] = ()


class UnchangedModels(Struct, frozen=True):
    """The models that a reload leaves as they are, and the states of routes whose source is the same."""

    models: Mapping[str, Model] = field(default_factory=dict)
    patterns: Mapping[str, ModelPattern] = field(default_factory=dict)
    states: Mapping[tuple[str, str], RouteState] = field(default_factory=dict)
    """By the names of the model and of the route."""


def build_models(sources: ModelSources, clock: Clock) -> ModelRegistry:
    """Builds the registry of the models of the settings."""
    model_set = build_served_models(sources, clock, UnchangedModels())
    return ModelRegistry(model_set.models, model_set.aliases, model_set.patterns)


def build_served_models(sources: ModelSources, clock: Clock, unchanged: UnchangedModels) -> ModelSet:
    """Builds the models that changed, and takes the others from `unchanged`. Raises SettingsError for a model
    that takes images, if nothing decodes them."""
    settings, created = sources.settings, int(clock.wall())
    settings_by_name = {model.name: model for model in settings.models}
    local = {
        name: unchanged.models.get(name)
        or _build_local(name, hosts, sources, settings_by_name.get(name), created)
        for name, hosts in group_hosts(settings.models, sources.hosts).items()
    }
    builder = RoutedModelBuilder(sources.vendors, local, created, unchanged.states)
    routed = [
        model_settings for model_settings in settings.routed_models if not is_pattern(model_settings.name)
    ]
    patterns = [
        model_settings for model_settings in settings.routed_models if is_pattern(model_settings.name)
    ]
    return ModelSet(
        (
            *local.values(),
            *(
                unchanged.models.get(model_settings.name) or builder.build_model(model_settings)
                for model_settings in routed
            ),
        ),
        Aliases({alias.name: alias.model for alias in settings.aliases}, ALIASES),
        tuple(
            unchanged.patterns.get(model_settings.name) or builder.build_pattern(model_settings)
            for model_settings in patterns
        ),
    )


def find_unchanged(before: ModelSources, after: ModelSources, registry: ModelRegistry) -> UnchangedModels:
    """Returns the models whose settings, providers and hosts a reload does not change, and the states of
    unchanged routes."""
    routed_before = {model.name: model for model in before.settings.routed_models}
    hosts_before = group_hosts(before.settings.models, before.hosts)
    unchanged_local = {
        name
        for name, hosts in group_hosts(after.settings.models, after.hosts).items()
        if hosts == hosts_before.get(name)
    }

    def has_same_source(route: RouteSettings) -> bool:
        if route.provider is None:
            return route.engine in unchanged_local
        return before.vendors.clients.get(route.provider) is after.vendors.clients.get(route.provider)

    def is_same(model: RoutedModelSettings) -> bool:
        return model == routed_before.get(model.name) and all(map(has_same_source, model.list_routes()))

    unchanged_names = {model.name for model in after.settings.routed_models if is_same(model)}
    unchanged_names |= unchanged_local
    unchanged_providers = {
        name for name, client in after.vendors.clients.items() if before.vendors.clients.get(name) is client
    }
    states = {
        (model.name, route.name): route.state
        for model in registry.list_routed()
        for route in model.routes
        if route.kind in unchanged_providers or route.label in unchanged_names
    }
    models = {
        model.name: model for model in registry if model.name in unchanged_names and model.parent is None
    }
    patterns = {
        pattern.model.name: pattern
        for pattern in registry.list_patterns()
        if pattern.model.name in unchanged_names
    }
    return UnchangedModels(models, patterns, states)


def _build_local(
    name: str,
    hosts: Mapping[str, HostTokenEngine],
    sources: ModelSources,
    model_settings: ModelSettings | None,
    created: int,
) -> Model:
    """Builds a local model, with a route to each of its hosts. `model_settings`: None if the settings do not
    contain the model."""
    settings = sources.settings
    options = RendererOptions(
        projects_share=settings.engine.prefix_sharing == "server",
        helper=TemplateHelper() if settings.server.request_templates else None,
        most_logprobs=settings.server.max_logprobs,
        read_media=sources.read_media,
    )
    kind = "llama"
    if model_settings is not None:
        if model_settings.mmproj is not None and sources.read_media is None:
            raise SettingsError(
                f"the model {name} has mmproj, and images are decoded by the extra media: "
                f"{explain_extra('media')}"
            )
        kind = model_settings.engine
        options = replace(
            options,
            families=find_families(model_settings),
            charges_predictions=model_settings.charge_rejected_predictions,
            sampling=SamplingOptions(
                temperature=model_settings.temperature,
                top_p=model_settings.top_p,
                top_k=model_settings.top_k,
                min_p=model_settings.min_p,
            ),
        )
    routes = tuple(
        ModelRoute(_build_renderer(host, options), kind, name=host_name) for host_name, host in hosts.items()
    )
    return Model(name, routes, created, prefers_prefix=True)


def _build_renderer(host: HostTokenEngine, options: RendererOptions) -> Renderer:
    """Builds the renderer of one host. It reads the state and the generation of the host, so that it notices
    restarts."""
    return Renderer(
        host,
        state=host.state,
        generation=lambda: host.generation,
        request_load=host.request_load,
        options=options,
    )


def find_families(model: ModelSettings) -> NotationFamilies:
    """Returns the notations of tool calls and of reasoning that a model's settings name."""
    return NotationFamilies(_resolve_family(model.tool_calls), _resolve_family(model.reasoning))


def _resolve_family(family: str) -> str | None:
    """Returns the notation that a setting names; None for `auto`, with which the chat template decides."""
    return None if family == "auto" else family
