"""Builds the models of the settings, and reloads them in an HTTP process.

A reload builds the models of new settings, and then replaces all old ones at the same time. A running request
continues with the models, routes and clients that it has found, so a reload ends no stream. Unchanged
providers, models and hosts are not built again.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from antiphon.assembly.app_state import build_adapter_targets
from antiphon.assembly.vendors import RoutedModelBuilder, Vendors, build_vendors
from antiphon.dialects.fireworks.dialect import Fireworks
from antiphon.domain.context import Clock
from antiphon.domain.models import Aliases
from antiphon.domain.values import Struct, field, replace
from antiphon.engines.base import EngineState, LoadSpec
from antiphon.engines.host.child import ReloadOrder, ReloadReply, ReloadStep, SupervisorMessage
from antiphon.engines.host.client import HostTokenEngine
from antiphon.engines.host.connection_state import Parking
from antiphon.engines.host.control import StatusPipe
from antiphon.engines.registry import Model, ModelPattern, ModelRegistry, ModelRoute, RouteState
from antiphon.errors import AntiphonError, InternalError
from antiphon.http.services import AppState
from antiphon.pipeline.adapters import AdapterRegistry, AdapterTarget
from antiphon.processes.ipc import from_line
from antiphon.rendering.renderer import Renderer, RendererOptions
from antiphon.rendering.template.chat_template import NotationFamilies
from antiphon.rendering.template.request_template import TemplateHelper
from antiphon.settings.models import ModelSettings, group_hosts, list_parked
from antiphon.settings.providers import RoutedModelSettings, RouteSettings, is_pattern
from antiphon.settings.schema import ReloadReport, Settings, decode_settings
from antiphon.settings.server import ServerSettings
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
    """Connects to each engine host while the context lasts. `sockets`: the socket of each host, by its name.
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


def build_models(
    hosts: Mapping[str, HostTokenEngine], clock: Clock, settings: Settings, vendors: Vendors = NO_VENDORS
) -> ModelRegistry:
    """Builds the registry of the models of the settings."""
    model_set = build_served_models(ModelSources(settings, hosts, vendors), clock, UnchangedModels())
    return ModelRegistry(model_set.models, model_set.aliases, model_set.patterns)


def build_served_models(sources: ModelSources, clock: Clock, unchanged: UnchangedModels) -> ModelSet:
    """Builds the models that changed, and takes the others from `unchanged`."""
    settings, created = sources.settings, int(clock.wall())
    settings_by_name = {model.name: model for model in settings.models}
    local = {
        name: unchanged.models.get(name)
        or _build_local(name, hosts, settings, settings_by_name.get(name), created)
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
        Aliases({alias.name: alias.model for alias in settings.aliases}, Fireworks.aliases),
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
    settings: Settings,
    model_settings: ModelSettings | None,
    created: int,
) -> Model:
    """Builds a local model, with a route to each of its hosts. `model_settings`: None if the settings do not
    contain the model."""
    options = RendererOptions(
        projects_share=settings.engine.prefix_sharing == "server",
        helper=TemplateHelper() if settings.server.request_templates else None,
        most_logprobs=settings.server.max_logprobs,
    )
    kind = "llama"
    if model_settings is not None:
        options, kind = replace(options, families=find_families(model_settings)), model_settings.engine
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


BUSY_PAUSE_S = 1.0
"""Seconds between two checks whether an engine is still in use, before it is closed."""


class PreparedReload(Struct, frozen=True):
    """What was built from new settings, before it replaces what serves now."""

    sources: ModelSources
    model_set: ModelSet
    targets: Mapping[str, AdapterTarget]
    sockets: Mapping[str, str]
    """The path of the socket of each host, by the host's name."""
    new_engines: Mapping[str, HostTokenEngine]
    """The engines of new hosts, which are connected already, by the host's name."""


class ServedParts(Struct):
    """The parts of this process that a reload changes."""

    app_state: AppState
    hosts: HostConnections
    adapters: AdapterRegistry
    sources: ModelSources
    """The sources of the models that serve now."""
    environ: Mapping[str, str]


class SettingsReloader:
    """Carries out the supervisor's orders, one after the other."""

    def __init__(self, parts: ServedParts, status: StatusPipe) -> None:
        self._parts = parts
        self._status = status
        self._prepared: PreparedReload | None = None

    async def follow(self, orders: asyncio.Queue[ReloadOrder]) -> None:
        """Carries out each order, and reports to the supervisor whether it succeeded. Runs until
        cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                order = await orders.get()
                try:
                    await self._carry_out(order, group)
                    self._status.answer_step(order.number)
                except AntiphonError as error:
                    await self._discard_prepared()
                    self._status.answer_step(order.number, error)

    async def _carry_out(self, order: ReloadOrder, group: asyncio.TaskGroup) -> None:
        """Carries out one step of a reload. A process that has just started can get an order to apply without
        an order to prepare before. In this case it prepares first."""
        if order.step is ReloadStep.DROP:
            await self._discard_prepared()
            return
        if order.step is ReloadStep.PREPARE or self._prepared is None:
            await self._discard_prepared()
            await self._prepare(decode_settings(order.settings.encode()), order.sockets)
        if order.step is ReloadStep.APPLY and (prepared := self._prepared) is not None:
            sources_before = self._parts.sources
            self._prepared = None
            self._apply(prepared)
            for engine in await self._retire_removed(sources_before):
                group.create_task(self._close_idle(engine, sources_before.settings.server))

    async def _prepare(self, settings: Settings, sockets: Mapping[str, str]) -> None:
        """Builds the models of new settings, and waits until new local models can serve. Raises an
        AntiphonError if the settings cannot be used."""
        parts, sources_before = self._parts, self._parts.sources
        vendors = build_vendors(settings, parts.environ, sources_before.vendors)
        hosts, new_engines, parked_models = parts.hosts, {}, list_parked(settings.models)
        for name, path in sockets.items():
            if hosts.socket_paths.get(name) != path:
                new_engines[name] = hosts.connect(name, path, name in parked_models)
        engines = {name: new_engines.get(name) or hosts.engines[name] for name in sockets}
        sources = ModelSources(settings, engines, vendors)
        unchanged = find_unchanged(sources_before, sources, parts.app_state.models)
        model_set = build_served_models(sources, parts.app_state.clock, unchanged)
        local = {model.name: model for model in model_set.models if not model.is_routed}
        targets = build_adapter_targets(settings, local, engines)
        self._prepared = PreparedReload(sources, model_set, targets, sockets, new_engines)
        for name, new_hosts in group_hosts(settings.models, new_engines).items():
            if name in parked_models:
                continue
            await _wait_until_served(tuple(new_hosts.values()), local[name])
            if name in targets:
                await parts.adapters.prepare_target(name, targets[name])

    def _apply(self, prepared: PreparedReload) -> None:
        """Replaces the models that serve by the prepared ones. Does not wait, so no request gets some old and
        some new ones."""
        parts = self._parts
        app_state, model_set = parts.app_state, prepared.model_set
        labels = {model.label for model in app_state.models if model.parent is None}
        app_state.models.replace(model_set.models, model_set.aliases, model_set.patterns)
        changed_models = group_hosts(prepared.sources.settings.models, prepared.new_engines)
        parts.adapters.replace_targets(prepared.targets, prepared.targets.keys() - changed_models.keys())
        parts.hosts.replace_serving(prepared.sources.hosts, prepared.sockets)
        parts.sources = prepared.sources
        for label in labels - {model.label for model in app_state.models}:
            app_state.metrics.forget(label)
        for model in app_state.models:
            app_state.metrics.forget_routes(model.label, {route.label for route in model.routes})

    async def _retire_removed(self, sources_before: ModelSources) -> list[HostTokenEngine]:
        """Retires the clients of removed and changed providers, and makes the other clients read their keys
        again. Returns the engines of removed hosts."""
        sources = self._parts.sources
        for name, client in sources_before.vendors.clients.items():
            if sources.vendors.clients.get(name) is client:
                client.renew_key()
            else:
                await client.retire()
        return [
            engine for name, engine in sources_before.hosts.items() if sources.hosts.get(name) is not engine
        ]

    async def _close_idle(self, engine: HostTokenEngine, settings: ServerSettings) -> None:
        """Closes an engine when no call uses it, or after the retire timeout. Waits for the drain timeout
        first, because requests that found the engine may not have called it yet."""
        await asyncio.sleep(settings.drain_timeout)
        with suppress(TimeoutError):
            async with asyncio.timeout(settings.retire_timeout):
                while engine.is_busy():  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(BUSY_PAUSE_S)
        await self._parts.hosts.close(engine)

    async def _discard_prepared(self) -> None:
        """Drops what was prepared, and closes the connections to new hosts."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            for engine in prepared.new_engines.values():
                await self._parts.hosts.close(engine)


async def _wait_until_served(hosts: Sequence[HostTokenEngine], model: Model) -> None:
    """Waits until all hosts of a new local model can serve, and tests its template."""
    for host in hosts:
        await host.load(LoadSpec(model.name))
    for route in model.routes:
        await route.engine.profile()


class SupervisorInbox:
    """Receives the supervisor's messages: states of hosts, orders to reload, and replies to requests for a
    reload."""

    def __init__(self, hosts: HostConnections, reloads: "ReloadClient") -> None:
        self._hosts = hosts
        self._reloads = reloads
        self._loop = asyncio.get_running_loop()
        self.orders: asyncio.Queue[ReloadOrder] = asyncio.Queue()
        """Orders of the supervisor that are not carried out yet."""

    def receive(self, line: bytes) -> None:
        """Passes a message to the event loop. `line`: the encoded message. Any thread can call this
        method."""
        self._loop.call_soon_threadsafe(self._dispatch, from_line(line, SupervisorMessage))

    def _dispatch(self, message: SupervisorMessage) -> None:
        """Passes a host's state to its engine, queues a reload order, or passes a reply to its caller."""
        engine_report = message.engine
        host = None if engine_report is None else self._hosts.engines.get(engine_report.engine)
        if engine_report is not None and host is not None:
            host.note_state(engine_report)
            if engine_report.state is EngineState.FAILED:
                host.give_up(engine_report.detail)
        if message.order is not None:
            self.orders.put_nowait(message.order)
        if message.reply is not None:
            self._reloads.receive(message.reply)


class ReloadClient(Struct):
    """Asks the supervisor for reloads, for callers of the admin API."""

    status: StatusPipe
    _pending_replies: dict[int, asyncio.Future[ReloadReply]] = field(default_factory=dict)
    """The replies that calls wait for, by the number of the request."""
    _request_numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def reload(self) -> ReloadReport:
        """Reloads the settings in all processes. Raises the supervisor's error if they cannot be used."""
        number = next(self._request_numbers)
        pending_reply: asyncio.Future[ReloadReply] = asyncio.get_running_loop().create_future()
        self._pending_replies[number] = pending_reply
        try:
            self.status.ask_reload(number)
            reply = await pending_reply
        finally:
            del self._pending_replies[number]
        if reply.error is not None:
            raise reply.error.to_exception()
        if reply.report is None:
            raise InternalError("the supervisor replied without a report")
        return reply.report

    def receive(self, reply: ReloadReply) -> None:
        """Passes a reply to the call that waits for it."""
        pending_reply = self._pending_replies.get(reply.number)
        if pending_reply is not None and not pending_reply.done():
            pending_reply.set_result(reply)
