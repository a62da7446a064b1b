"""Reloads in an HTTP process: builds the models of new settings, and then replaces all old ones at the same
time.

A running request continues with the models, routes and clients that it has found, so a reload ends no stream.
Unchanged providers, models and hosts are not built again.
"""

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

from antiphon.assembly.app_state import build_adapter_targets
from antiphon.assembly.models import (
    HostConnections,
    ModelSet,
    ModelSources,
    build_served_models,
    find_unchanged,
)
from antiphon.assembly.vendors import build_vendors
from antiphon.domain.values import Struct, field
from antiphon.engines.base import EngineState, LoadSpec
from antiphon.engines.host.client import HostTokenEngine, Retirement
from antiphon.engines.host.control import StatusPipe
from antiphon.engines.host.supervisor_messages import ReloadOrder, ReloadReply, ReloadStep, SupervisorMessage
from antiphon.engines.registry import Model
from antiphon.engines.route_state import RouteState
from antiphon.errors import AntiphonError, InternalError
from antiphon.http.state import AppState
from antiphon.pipeline.adapters import AdapterRegistry, AdapterTarget
from antiphon.processes.ipc import from_line
from antiphon.settings.changes import ReloadReport
from antiphon.settings.models import group_hosts, list_parked
from antiphon.settings.schema import Settings, decode_settings
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.logs import describe_exception, record

BUSY_PAUSE_S = 1.0
"""Seconds between two checks whether an engine is still in use, before it is closed."""


class PreparedReload(Struct, frozen=True):
    """What was built from new settings, before it replaces what serves now."""

    sources: ModelSources
    model_set: ModelSet
    kept_states: frozenset[RouteState]
    """The states of the routes whose source is the same."""
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
        cancelled. Raises the error of a change that could not be applied: the process then ends, and the
        supervisor starts it again with the new settings."""
        async with asyncio.TaskGroup() as group:
            while True:
                order = await orders.get()
                try:
                    await self._carry_out(order, group)
                    self._status.answer_step(order.number)
                except Exception as problem:  # whatever it is, it refuses the reload
                    if order.step is ReloadStep.APPLY:
                        raise
                    await self._discard_prepared()
                    self._status.answer_step(order.number, _explain(problem))

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
            self._apply(prepared, order.removed_models)
            for engine in await self._retire_removed(sources_before):
                group.create_task(self._close_idle(engine, sources_before.settings.server))

    async def _prepare(self, settings: Settings, sockets: Mapping[str, str]) -> None:
        """Builds the models of new settings, and waits until new local models can serve. Raises an
        AntiphonError if the settings cannot be used."""
        parts, sources_before = self._parts, self._parts.sources
        vendors = build_vendors(settings, parts.environ, sources_before.vendors)
        hosts, parked_models = parts.hosts, list_parked(settings.models)
        new_engines: dict[str, HostTokenEngine] = {}
        try:
            for name, path in sockets.items():
                if hosts.socket_paths.get(name) != path:
                    new_engines[name] = hosts.connect(name, path, name in parked_models)
            engines = {name: new_engines.get(name) or hosts.engines[name] for name in sockets}
            sources = ModelSources(settings, engines, vendors, sources_before.read_media)
            unchanged = find_unchanged(sources_before, sources, parts.app_state.models)
            model_set = build_served_models(sources, parts.app_state.clock, unchanged)
            local = {model.name: model for model in model_set.models if not model.is_routed}
            targets = build_adapter_targets(settings, local, engines)
        except BaseException:
            for engine in new_engines.values():
                await hosts.close(engine)
            raise
        kept_states = frozenset(unchanged.states.values())
        self._prepared = PreparedReload(sources, model_set, kept_states, targets, sockets, new_engines)
        for name, new_hosts in group_hosts(settings.models, new_engines).items():
            if name in parked_models:
                continue
            await _wait_until_served(tuple(new_hosts.values()), local[name])
            if name in targets:
                await parts.adapters.prepare_target(name, targets[name])

    def _apply(self, prepared: PreparedReload, removed_models: tuple[str, ...]) -> None:
        """Replaces the models that serve by the prepared ones. Does not wait, so no request gets some old and
        some new ones. `removed_models`: the removed models whose metrics stay."""
        parts = self._parts
        app_state, model_set = parts.app_state, prepared.model_set
        labels_before = {model.label for model in app_state.models if model.parent is None}
        labels_before.update(app_state.metrics.removed_models)
        failed_before: dict[tuple[str, str], RouteState] = {}
        for model in app_state.models.list_routed():
            for route in model.routes:
                if route.state not in prepared.kept_states:
                    route.state.is_replaced = True
                    if route.state.failed_at is not None:
                        failed_before[model.label, route.label] = route.state
        app_state.models.replace(model_set.models, model_set.aliases, model_set.patterns)
        changed_models = group_hosts(prepared.sources.settings.models, prepared.new_engines)
        parts.adapters.replace_targets(prepared.targets, prepared.targets.keys() - changed_models.keys())
        parts.hosts.replace_serving(prepared.sources.hosts, prepared.sockets)
        parts.sources = prepared.sources
        served_labels = {model.label for model in app_state.models}
        app_state.metrics.keep_removed(removed_models, labels_before - served_labels - {*removed_models})
        for model in app_state.models:
            app_state.metrics.forget_routes(model.label, {route.label for route in model.routes})
            # A route with a new source begins without a rest, so the log tells the end of the old rest.
            for label in sorted({route.label for route in model.routes}):
                if (state := failed_before.get((model.label, label))) and state.failed_at is not None:
                    seconds = round(app_state.clock.monotonic() - state.failed_at, 1)
                    names = {"model": model.label, "route": label, "cause": "reload"}
                    record("route_serves_again", logging.INFO, **names, seconds=seconds)
                    state.failed_at = None

    async def _retire_removed(self, sources_before: ModelSources) -> list[HostTokenEngine]:
        """Retires the clients of removed and changed providers, and makes the other clients read their keys
        again. Tells the engines of removed hosts that they end, and returns them."""
        sources, app_state = self._parts.sources, self._parts.app_state
        for name, client in sources_before.vendors.clients.items():
            if sources.vendors.clients.get(name) is client:
                client.renew_key()
            else:
                await client.retire()
        for routed_model in app_state.models.list_routed():
            for route in routed_model.routes:
                route.state.end_key_rest(app_state.clock.monotonic())
        models = {model.name for model in sources.settings.models}
        retired = []
        for model, hosts in group_hosts(sources_before.settings.models, sources_before.hosts).items():
            for name, engine in hosts.items():
                if sources.hosts.get(name) is not engine:
                    engine.retire(Retirement(model, is_removed=model not in models))
                    retired.append(engine)
        return retired

    async def _close_idle(self, engine: HostTokenEngine, settings: ServerSettings) -> None:
        """Closes an engine when no call uses it, or after the retire timeout. Waits for the retire delay
        first, because requests that found the engine may not have called it yet. The retire timeout includes
        this wait."""
        with suppress(TimeoutError):
            async with asyncio.timeout(settings.retire_timeout):
                await asyncio.sleep(settings.retire_delay)
                while engine.is_busy():  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(BUSY_PAUSE_S)
        await self._parts.hosts.close(engine)

    async def _discard_prepared(self) -> None:
        """Drops what was prepared, and closes the connections to new hosts."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            for engine in prepared.new_engines.values():
                await self._parts.hosts.close(engine)


def _explain(problem: Exception) -> AntiphonError:
    """Returns the error that the supervisor gets. Logs the place of a defect."""
    if isinstance(problem, AntiphonError):
        return problem
    record("reload_defect", logging.ERROR, problem=describe_exception(problem))
    return InternalError(f"{type(problem).__name__} stopped the reload; the log says where")


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
        self.deaths: dict[tuple[str, ...], int] = {}
        """The latest counts of processes that ended unasked, by kind and name of the engine host."""

    def receive(self, line: bytes) -> None:
        """Passes a message to the event loop. `line`: the encoded message. Any thread can call this
        method."""
        self._loop.call_soon_threadsafe(self._dispatch, from_line(line, SupervisorMessage))

    def _dispatch(self, message: SupervisorMessage) -> None:
        """Passes a host's state to its engine, queues a reload order, passes a reply to its caller, or stores
        counts of deaths."""
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
        if message.deaths is not None:
            self.deaths.clear()
            self.deaths.update({(each.process, each.model): each.count for each in message.deaths})


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
