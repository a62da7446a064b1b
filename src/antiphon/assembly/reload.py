"""Reloads in an HTTP process: builds the models of new settings, and then replaces the old ones at once.

A request keeps the models, routes and clients that it has found, so a reload ends no stream. Unchanged
providers, models and hosts keep their objects.
"""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from antiphon.assembly.app_state import build_adapter_targets
from antiphon.assembly.models import (
    HostConnections,
    ModelSet,
    ModelSources,
    build_served_models,
    find_unchanged,
)
from antiphon.assembly.vendors import build_vendors
from antiphon.engines.base import EngineState, LoadSpec
from antiphon.engines.host.client import HostTokenEngine
from antiphon.engines.host.control import StatusPipe
from antiphon.engines.host.news import News, ReloadOrder, ReloadReply, ReloadStep
from antiphon.engines.registry import Model
from antiphon.errors import AntiphonError, InternalError
from antiphon.http.state import AppState
from antiphon.pipeline.adapters import AdapterRegistry, AdapterTarget
from antiphon.processes.ipc import from_line
from antiphon.settings.changes import ReloadReport
from antiphon.settings.models import group_hosts, list_parked
from antiphon.settings.schema import Settings, decode_settings
from antiphon.settings.server import ServerSettings

BUSY_PAUSE_S = 1.0
"""Seconds between two checks whether an engine is still in use, before it is closed."""


@dataclass(frozen=True, slots=True)
class PreparedReload:
    """The objects of new settings, before they replace the current ones."""

    sources: ModelSources
    model_set: ModelSet
    targets: Mapping[str, AdapterTarget]
    sockets: Mapping[str, str]
    opened: Mapping[str, HostTokenEngine]
    """Connections to new hosts."""


@dataclass(slots=True)
class ServedParts:
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
        """Carries out each order and answers it."""
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
        """Carries out one step. A process that has just started can get an order to apply without one to
        prepare; it then prepares first."""
        if order.step is ReloadStep.DROP:
            await self._discard_prepared()
            return
        if order.step is ReloadStep.PREPARE or self._prepared is None:
            await self._discard_prepared()
            await self._prepare(decode_settings(order.settings.encode()), order.sockets)
        if order.step is ReloadStep.APPLY and (prepared := self._prepared) is not None:
            before = self._parts.sources
            self._prepared = None
            self._apply(prepared)
            for engine in await self._retire_removed(before):
                group.create_task(self._close_idle(engine, before.settings.server))

    async def _prepare(self, settings: Settings, sockets: Mapping[str, str]) -> None:
        """Builds the objects of new settings, and waits until new local models can serve. Raises an
        AntiphonError if the settings cannot be used."""
        parts, sources_before = self._parts, self._parts.sources
        vendors = build_vendors(settings, parts.environ, sources_before.vendors)
        hosts, opened, parked = parts.hosts, {}, list_parked(settings.models)
        for name, path in sockets.items():
            if hosts.socket_paths.get(name) != path:
                opened[name] = hosts.connect(name, path, name in parked)
        engines = {name: opened.get(name) or hosts.engines[name] for name in sockets}
        sources = ModelSources(settings, engines, vendors)
        unchanged = find_unchanged(sources_before, sources, parts.app_state.models)
        model_set = build_served_models(sources, parts.app_state.clock, unchanged)
        local = {model.name: model for model in model_set.models if not model.is_routed}
        targets = build_adapter_targets(settings, local, engines)
        self._prepared = PreparedReload(sources, model_set, targets, sockets, opened)
        for name, new_hosts in group_hosts(settings.models, opened).items():
            if name in parked:
                continue
            await _wait_until_served(tuple(new_hosts.values()), local[name])
            if name in targets:
                await parts.adapters.prepare_target(name, targets[name])

    def _apply(self, prepared: PreparedReload) -> None:
        """Replaces the serving objects by the prepared ones. Does not wait, so no request sees a mixture."""
        parts = self._parts
        app_state, model_set = parts.app_state, prepared.model_set
        labels = {model.label for model in app_state.models if model.parent is None}
        app_state.models.replace(model_set.models, model_set.aliases, model_set.patterns)
        changed = group_hosts(prepared.sources.settings.models, prepared.opened)
        parts.adapters.replace_targets(prepared.targets, prepared.targets.keys() - changed.keys())
        parts.hosts.replace_serving(prepared.sources.hosts, prepared.sockets)
        parts.sources = prepared.sources
        for label in labels - {model.label for model in app_state.models}:
            app_state.metrics.forget(label)
        for model in app_state.models:
            app_state.metrics.forget_routes(model.label, {route.label for route in model.routes})

    async def _retire_removed(self, sources_before: ModelSources) -> list[HostTokenEngine]:
        """Retires removed clients, and makes the others read their keys again. Returns the engines of removed
        hosts."""
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
        """Discards the prepared objects."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            for engine in prepared.opened.values():
                await self._parts.hosts.close(engine)


async def _wait_until_served(hosts: Sequence[HostTokenEngine], model: Model) -> None:
    """Waits until all hosts of a new local model can serve, and tests its template."""
    for host in hosts:
        await host.load(LoadSpec(model.name))
    for route in model.routes:
        await route.engine.profile()


class NewsInbox:
    """Receives the supervisor's news in this process."""

    def __init__(self, hosts: HostConnections, reloads: "ReloadClient") -> None:
        self._hosts = hosts
        self._reloads = reloads
        self._loop = asyncio.get_running_loop()
        self.orders: asyncio.Queue[ReloadOrder] = asyncio.Queue()
        """Steps of reloads that are not done yet."""

    def receive(self, line: bytes) -> None:
        """Passes a line of news to the event loop. Any thread can call this method."""
        self._loop.call_soon_threadsafe(self._dispatch, from_line(line, News))

    def _dispatch(self, news: News) -> None:
        """Passes a host's state to its engine, queues a reload order, or passes a reply to its caller."""
        engine = news.engine
        host = None if engine is None else self._hosts.engines.get(engine.engine)
        if engine is not None and host is not None:
            host.note_news(engine)
            if engine.state is EngineState.FAILED:
                host.give_up(engine.detail)
        if news.order is not None:
            self.orders.put_nowait(news.order)
        if news.reply is not None:
            self._reloads.receive(news.reply)


@dataclass(slots=True)
class ReloadClient:
    """Asks the supervisor for reloads, for callers of the admin API."""

    status: StatusPipe
    _replies: dict[int, asyncio.Future[ReloadReply]] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def reload(self) -> ReloadReport:
        """Reloads the settings in all processes. Raises the supervisor's error if they cannot be used."""
        number = next(self._numbers)
        answer: asyncio.Future[ReloadReply] = asyncio.get_running_loop().create_future()
        self._replies[number] = answer
        try:
            self.status.ask_reload(number)
            reply = await answer
        finally:
            del self._replies[number]
        if reply.error is not None:
            raise reply.error.to_exception()
        if reply.report is None:
            raise InternalError("the supervisor replied without a report")
        return reply.report

    def receive(self, reply: ReloadReply) -> None:
        """Passes a reply to the call that waits for it."""
        answer = self._replies.get(reply.number)
        if answer is not None and not answer.done():
            answer.set_result(reply)
