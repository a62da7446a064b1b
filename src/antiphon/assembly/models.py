"""Builds the engines' connections, the models over them, and the adapters and deployments."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from antiphon.dialects.fireworks.dialect import Fireworks
from antiphon.domain.context import Clock
from antiphon.domain.models import Aliases
from antiphon.engines.host.client import HostTokenEngine, open_host_engine
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import ModelFileError
from antiphon.http.state import AppState
from antiphon.pipeline.adapters import AdapterRegistry, AdapterTarget
from antiphon.pipeline.deployments import Deployments
from antiphon.processes.coordinator.client import CoordinatorClient
from antiphon.rendering.adapter_renderer import AdapterRenderer
from antiphon.rendering.renderer import Renderer, RendererOptions
from antiphon.rendering.template.chat_template import BY_TEMPLATE, NotationFamilies
from antiphon.rendering.template.request_template import TemplateHelper
from antiphon.settings.models import LoraSettings
from antiphon.settings.schema import Settings
from antiphon.weights.adapters.hub_adapters import HubAdapters
from antiphon.weights.adapters.import_job import read_kept
from antiphon.weights.adapters.registry import AdapterStore
from antiphon.weights.gguf import read_header


@asynccontextmanager
async def connect_engines(sockets: Mapping[str, str]) -> AsyncIterator[dict[str, HostTokenEngine]]:
    """Connects to each engine host while the context lasts."""
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(open_host_engine(path, name))
            for name, path in sockets.items()
        }


def build_models(hosts: Mapping[str, HostTokenEngine], clock: Clock, settings: Settings) -> ModelRegistry:
    """Builds the models in the order of the settings, each with a renderer over its host."""
    created = int(clock.wall())
    rules = RendererOptions(
        projects_share=settings.engine.prefix_sharing == "server",
        helper=TemplateHelper() if settings.server.request_templates else None,
        most_logprobs=settings.server.max_logprobs,
    )
    families = {
        model.name: NotationFamilies(_resolve_family(model.tool_calls), _resolve_family(model.reasoning))
        for model in settings.models
    }
    return ModelRegistry(
        tuple(
            Model(
                name,
                (
                    ModelRoute(
                        _build_renderer(host, replace(rules, families=families.get(name, BY_TEMPLATE))),
                        "llama",
                    ),
                ),
                created,
            )
            for name, host in hosts.items()
        ),
        Aliases({alias.name: alias.model for alias in settings.aliases}, Fireworks.aliases),
    )


def _build_renderer(host: HostTokenEngine, rules: RendererOptions) -> Renderer:
    return Renderer(host, state=host.state, generation=lambda: host.generation, rules=rules)


def _resolve_family(family: str) -> str | None:
    """The notation of a setting; None where the template decides."""
    return None if family == "auto" else family


def build_adapters(
    hosts: Mapping[str, HostTokenEngine],
    edge: AppState,
    settings: Settings,
    names: CoordinatorClient | None = None,
) -> AdapterRegistry:
    """Builds the adapters of all models, with those of the settings declared.

    `names`: shares later changes with the other processes of this server.
    """
    lora = settings.lora
    places = [Path(place) for place in lora.directories]
    keeper = AdapterStore(Path(lora.registry or ""), places, lora.max_bytes, settings.engine.user is not None)
    homes = {}
    for model in settings.models if allows_loading(lora) or settings.adapters else ():
        base = edge.models.get(model.name).engine
        if isinstance(base, Renderer) and _takes_adapters(model.path):
            homes[model.name] = AdapterTarget(
                hosts[model.name],
                partial(keeper.keep, base=model.path),
                partial(AdapterRenderer, base, lacks=hosts[model.name].is_pending_reload),
                hosts[model.name].note_adapters,
                hosts[model.name].note_refused,
            )
    adapters = AdapterRegistry(edge.models, homes, edge.clock, edge.metrics, names)
    for adapter in settings.adapters:
        adapters.declare(adapter.name, adapter.model or "", read_kept(Path(adapter.path)))
    if names is not None:
        names.follow(adapters.update_names)
    return adapters


def allows_loading(lora: LoraSettings) -> bool:
    """Whether callers may load and unload adapters."""
    return bool(lora.directories or lora.repositories)


def build_deployments(adapters: AdapterRegistry, edge: AppState, settings: Settings) -> Deployments:
    """Builds deployments of adapters from the hub and the operator's directories."""
    lora, hub = settings.lora, settings.hub
    fetching = HubAdapters(
        lora.repositories, Path(lora.registry or ""), lora.max_bytes, hub.endpoint, hub.offline
    )
    return Deployments(edge.models, adapters, fetching, edge.clock)


def _takes_adapters(path: str) -> bool:
    """Whether the model generates text. A missing file counts as yes: loading reports it."""
    try:
        return not read_header(Path(path)).embeds
    except ModelFileError:
        return True
