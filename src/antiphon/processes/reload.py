"""Reloads the settings of a running server: checks the file, loads new models, and switches all HTTP
processes to the new settings.

A reload is atomic. An error in the file, in a model, or in one HTTP process refuses all of it, and nothing
changes. Reloads run one after the other.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from antiphon.engines.host.news import News, ReloadOrder, ReloadReply, ReloadStep
from antiphon.errors import AntiphonError, ErrorReport, SettingsError
from antiphon.processes.engine_hosts import EngineHost, EngineHosts
from antiphon.processes.ipc import to_line
from antiphon.processes.workers import Workers
from antiphon.settings.changes import ReloadReport, compare_settings
from antiphon.settings.models import list_host_names
from antiphon.settings.schema import Settings, encode_settings
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.logs import record

HOST_DEADLINE = 5.0
"""Seconds in which an engine host must end by itself."""

PREPARE_S = 30.0
"""Seconds in which an HTTP process must prepare. It proves the templates of new local models in this time."""

APPLY_S = 5.0
"""Seconds in which an HTTP process must apply the prepared change. It takes milliseconds."""

LoadSettings = Callable[[Settings], tuple[Settings, tuple[str, ...]]]
"""Loads and checks the settings again, from the same sources as at the start. The parameter is the current
settings. Returns the new ones, and the names of settings that only a restart applies. Raises a
StartupError."""


@dataclass(frozen=True, slots=True)
class ReloadHooks:
    """The functions that the command line supplies."""

    load: LoadSettings
    on_end: Callable[[ReloadReport | None, str | None], None] = lambda *_: None
    """Called at the end of each reload, with its report or the reason of its refusal."""


@dataclass(frozen=True, slots=True)
class Reloadable:
    """The parts of the supervisor that a reload changes."""

    hosts: EngineHosts
    workers: Workers
    get_settings: Callable[[], Settings]
    set_settings: Callable[[Settings], None]


@dataclass(slots=True)
class Reloads:
    """The reloads of one server. `keep` must run in a task."""

    parts: Reloadable
    hooks: ReloadHooks | None
    tasks: asyncio.TaskGroup
    """Runs new engine hosts until the server ends."""
    _waiting: asyncio.Queue[Callable[[ReloadReply], None]] = field(default_factory=asyncio.Queue)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def request(self) -> None:
        """Requests a reload. Does not wait."""
        self._waiting.put_nowait(lambda _: None)

    def request_for(self, number: int, send: Callable[[bytes], None]) -> None:
        """Requests a reload for an HTTP process. `send` sends the reply to its question with this number."""
        self._waiting.put_nowait(lambda reply: send(to_line(News(reply=replace(reply, number=number)))))

    async def keep(self) -> None:
        """Runs the requested reloads, one after the other."""
        async with asyncio.TaskGroup() as group:
            while True:
                answer = await self._waiting.get()
                answer(await self._reload(group))

    async def _reload(self, group: asyncio.TaskGroup) -> ReloadReply:
        """Runs one reload, and returns its report or its refusal."""
        report = problem = None
        try:
            report = await self._change(group)
            record("reloaded", changes=report.describe())
        except AntiphonError as error:
            problem = ErrorReport.from_error(error)
            record("reload_refused", logging.ERROR, error=error.message)
        if self.hooks is not None:
            self.hooks.on_end(report, None if problem is None else problem.message)
        return ReloadReply(0, report, problem)

    async def _change(self, group: asyncio.TaskGroup) -> ReloadReport:
        """Loads the settings, and switches the server to them. Raises the error that refuses the reload."""
        if self.hooks is None:
            raise SettingsError("this server was started without a function that loads its settings again")
        before = self.parts.get_settings()
        after, restart = await asyncio.to_thread(self.hooks.load, before)
        added = self.parts.hosts.add([model for model in after.models if model not in before.models])
        try:
            await self._load_models(added)
            await self._prepare(after, added)
        except BaseException:
            await self.parts.hosts.stop(added, HOST_DEADLINE)
            raise
        late = await self._apply(after, added, group)
        return replace(compare_settings(before, after, restart), late=late)

    async def _load_models(self, added: Sequence[EngineHost]) -> None:
        """Starts the hosts of new models and waits until all are loaded. Raises SettingsError if one cannot
        be loaded. Does not load models with load = "request"."""
        added = [host for host in added if not host.is_on_request]
        for host in added:
            self.tasks.create_task(self.parts.hosts.keep(host))
        for host in added:
            await host.settled.wait()
            if host.info is None:
                reason = host.error.message if host.error else "it ended"
                raise SettingsError(f"the model {host.name} cannot be loaded: {reason}")

    async def _prepare(self, after: Settings, added: Sequence[EngineHost]) -> None:
        """Makes all HTTP processes build the objects of the new settings. Raises the error of one that
        refuses."""
        order = self._build_order(ReloadStep.PREPARE, after, added)
        refusals, _ = await self.parts.workers.ask(to_line(News(order=order)), order.number, PREPARE_S)
        if refusals:
            drop_order = self._build_order(ReloadStep.DROP, after, added)
            await self.parts.workers.ask(to_line(News(order=drop_order)), drop_order.number, APPLY_S)
            raise refusals[0].to_exception()

    async def _apply(
        self, after: Settings, added: Sequence[EngineHost], group: asyncio.TaskGroup
    ) -> tuple[str, ...]:
        """Makes all HTTP processes use the new settings. Returns the names of those that do not confirm this
        in time. Hosts of removed models end after their last requests."""
        order = self._build_order(ReloadStep.APPLY, after, added)
        names = [name for model in after.models for name in list_host_names(model)]
        unused = self.parts.hosts.adopt(added, names)
        self.parts.set_settings(after)  # new HTTP processes now start with these
        for host in unused:
            group.create_task(self._end_host(host, after.server))
        _, late = await self.parts.workers.ask(to_line(News(order=order)), order.number, APPLY_S)
        return late

    async def _end_host(self, host: EngineHost, server: ServerSettings) -> None:
        """Ends a host when no call needs it, or after the retire timeout. First waits for the drain timeout,
        for requests that have not reached the host yet."""
        host.watch.forbid_restart()
        await asyncio.sleep(server.drain_timeout)
        with suppress(TimeoutError):
            async with asyncio.timeout(server.retire_timeout):
                await host.unload_when_idle()
        await self.parts.hosts.stop([host], HOST_DEADLINE)

    def _build_order(self, step: ReloadStep, after: Settings, added: Sequence[EngineHost]) -> ReloadOrder:
        """Builds the order of a step, with the sockets after the reload."""
        new_sockets = {host.name: host.socket for host in added}
        sockets = self.parts.hosts.sockets | new_sockets
        served_sockets = {name: sockets[name] for model in after.models for name in list_host_names(model)}
        return ReloadOrder(next(self._numbers), step, encode_settings(after).decode(), served_sockets)
