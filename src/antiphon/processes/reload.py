"""Reloads the settings of a running server: checks the file, loads new models, and has all HTTP processes
change over.

A reload is whole. What is wrong in the file, in a model, or in one HTTP process refuses all of it, and
everything is as before. Reloads happen one after the other.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from antiphon.engines.host.control import News, ReloadOrder, ReloadReply, ReloadStep
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
"""Seconds that an engine host gets to end by itself."""

PREPARE_S = 30.0
"""Seconds in which an HTTP process prepares. It proves the templates of new local models meanwhile."""

APPLY_S = 5.0
"""Seconds in which an HTTP process applies what it has prepared. It takes milliseconds."""

LoadSettings = Callable[[Settings], tuple[Settings, tuple[str, ...]]]
"""Loads and checks the settings again, by the same sources as at the start. Takes the settings that act.
Returns the new ones, and the names of those that only a restart applies. Raises a StartupError."""


@dataclass(frozen=True, slots=True)
class ReloadHooks:
    """What the command line supplies."""

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
    """All reloads of one server. `keep` runs as long as the server does."""

    parts: Reloadable
    hooks: ReloadHooks | None
    tasks: asyncio.TaskGroup
    """Keeps new engine hosts running, until the server has ended them."""
    _waiting: asyncio.Queue[Callable[[ReloadReply], None]] = field(default_factory=asyncio.Queue)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def request(self) -> None:
        """Requests a reload."""
        self._waiting.put_nowait(lambda _: None)

    def request_for(self, number: int, send: Callable[[bytes], None]) -> None:
        """Requests a reload for an HTTP process, which gets the reply to its question by `send`."""
        self._waiting.put_nowait(lambda reply: send(to_line(News(reply=replace(reply, number=number)))))

    async def keep(self) -> None:
        """Does one reload after the other."""
        async with asyncio.TaskGroup() as group:
            while True:
                answer = await self._waiting.get()
                answer(await self._reload(group))

    async def _reload(self, group: asyncio.TaskGroup) -> ReloadReply:
        """Does one reload, and returns its report or its refusal."""
        report = problem = None
        try:
            report = await self._change(group)
            record("reloaded", changes=report.describe())
        except AntiphonError as refused:
            problem = ErrorReport.from_error(refused)
            record("reload_refused", logging.ERROR, error=refused.message)
        if self.hooks is not None:
            self.hooks.on_end(report, None if problem is None else problem.message)
        return ReloadReply(0, report, problem)

    async def _change(self, group: asyncio.TaskGroup) -> ReloadReport:
        """Loads the settings, and makes the server serve by them. Raises the refusal."""
        if self.hooks is None:
            raise SettingsError("this server was started without a way to load its settings again")
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
        """Starts the hosts of new models and waits until all are loaded. Raises the reason of one that is
        not. Models that are loaded on request are not loaded now."""
        added = [host for host in added if not host.is_on_request]
        for host in added:
            self.tasks.create_task(self.parts.hosts.keep(host))
        for host in added:
            await host.settled.wait()
            if host.info is None:
                reason = host.error.message if host.error else "it ended"
                raise SettingsError(f"the model {host.name} cannot be loaded: {reason}")

    async def _prepare(self, after: Settings, added: Sequence[EngineHost]) -> None:
        """Has all HTTP processes build what the settings name. Raises the refusal of one of them."""
        order = self._make_order(ReloadStep.PREPARE, after, added)
        refusals, _ = await self.parts.workers.ask(to_line(News(order=order)), order.number, PREPARE_S)
        if refusals:
            dropped = self._make_order(ReloadStep.DROP, after, added)
            await self.parts.workers.ask(to_line(News(order=dropped)), dropped.number, APPLY_S)
            raise refusals[0].to_exception()

    async def _apply(
        self, after: Settings, added: Sequence[EngineHost], group: asyncio.TaskGroup
    ) -> tuple[str, ...]:
        """Has all HTTP processes serve by the settings. Returns the names of those that do not confirm it in
        time. Hosts of removed models end after their last requests."""
        order = self._make_order(ReloadStep.APPLY, after, added)
        names = [name for model in after.models for name in list_host_names(model)]
        gone = self.parts.hosts.adopt(added, names)
        self.parts.set_settings(after)  # from here on, new HTTP processes start with these
        for host in gone:
            group.create_task(self._end_host(host, after.server))
        _, late = await self.parts.workers.ask(to_line(News(order=order)), order.number, APPLY_S)
        return late

    async def _end_host(self, host: EngineHost, times: ServerSettings) -> None:
        """Ends a host when no call needs it, or after the retire timeout. Requests that have not reached it
        yet have the drain timeout."""
        host.watch.forbid_restart()
        await asyncio.sleep(times.drain_timeout)
        with suppress(TimeoutError):
            async with asyncio.timeout(times.retire_timeout):
                await host.unload_when_idle()
        await self.parts.hosts.stop([host], HOST_DEADLINE)

    def _make_order(self, step: ReloadStep, after: Settings, added: Sequence[EngineHost]) -> ReloadOrder:
        """Makes the order of a step, with the sockets as they are after the reload."""
        new = {host.name: host.socket for host in added}
        sockets = self.parts.hosts.sockets | new
        served = {name: sockets[name] for model in after.models for name in list_host_names(model)}
        return ReloadOrder(next(self._numbers), step, encode_settings(after).decode(), served)
