"""Reloads the settings of a running server: checks the file, loads new models, and switches all HTTP
processes to the new settings.

A reload is atomic. An error in the file, in a model, or in one HTTP process refuses all of it, and nothing
changes. So does a process that ends or does not reply. Reloads run one after the other.
"""

import asyncio
import concurrent.futures
import hashlib
import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from antiphon.domain.values import Struct, field, replace
from antiphon.engines.host.supervisor_messages import ReloadOrder, ReloadReply, ReloadStep, SupervisorMessage
from antiphon.errors import AntiphonError, ErrorReport, InternalError, SettingsError
from antiphon.processes.engine_hosts import EngineHost, EngineHosts
from antiphon.processes.ipc import to_line
from antiphon.processes.workers import Workers
from antiphon.regular_files import read_text
from antiphon.settings.changes import (
    ReloadReport,
    compare_settings,
    compare_tables,
    list_removed_models,
)
from antiphon.settings.models import ModelSettings, list_host_names
from antiphon.settings.schema import Settings, encode_settings
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.logs import describe_exception, record

HOST_DEADLINE = 5.0
"""Seconds in which an engine host must end by itself."""

PREPARE_S = 30.0
"""Seconds in which an HTTP process must prepare. It proves the templates of new local models in this time."""

READ_S = 600.0
"""Seconds in which the settings must be read and checked. The check of an environment of vLLM can take two
minutes."""

LOAD_S = 3600.0
"""Seconds in which the engine hosts of new models must have loaded them. Large models on slow disks take many
minutes."""

APPLY_S = 5.0
"""Seconds in which an HTTP process must apply the prepared change. It takes milliseconds."""

T = TypeVar("T")

LoadSettings = Callable[[Settings], tuple[Settings, tuple[str, ...]]]
"""Loads and checks the settings again, from the same sources as at the start. The parameter is the current
settings. Returns the new ones, and the names of settings that only a restart applies. Raises a
StartupError."""


class ReloadHooks(Struct, frozen=True):
    """The functions that the command line supplies."""

    load: LoadSettings
    on_end: Callable[[ReloadReport | None, str | None], None] = lambda *_: None
    """Called at the end of each reload, with its report or the reason of its refusal."""


class CurrentSettings(Struct):
    """The settings of the running server."""

    settings: Settings
    removed_models: tuple[str, ...] = ()
    """The models that reloads have removed, and whose metrics stay."""
    key_digests: Mapping[str, bytes] = field(default_factory=dict)
    """The digests of the providers' key files, by the provider's name."""


def digest_key_files(settings: Settings) -> dict[str, bytes]:
    """Returns the digest of each provider's key file, so that a reload can tell that a key is new. Leaves out
    files that cannot be read: the HTTP processes refuse them."""
    digests: dict[str, bytes] = {}
    for name, provider in settings.providers.items():
        kind, _, path = (provider.key or "").partition(":")
        if kind == "file":
            with suppress(OSError, ValueError, RuntimeError):
                key = read_text(Path(path).expanduser()).strip()
                digests[name] = hashlib.sha256(key.encode()).digest()
    return digests


async def run_in_daemon_thread(read: Callable[[], T]) -> T:
    """Returns the result of `read`. Unlike a thread of asyncio's pool, one that hangs on a dead file system
    does not keep the process from ending."""
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
    outcome.set_running_or_notify_cancel()  # so that a caller who stops waiting does not cancel it

    def run() -> None:
        try:
            outcome.set_result(read())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            outcome.set_exception(error)

    threading.Thread(target=run, name="reload", daemon=True).start()
    return await asyncio.wrap_future(outcome)


class Reloadable(Struct, frozen=True):
    """The state of the supervisor that a reload changes."""

    hosts: EngineHosts
    workers: Workers
    current: CurrentSettings


class Reloads(Struct):
    """The reloads of one server. `run` must run in a task."""

    server_state: Reloadable
    hooks: ReloadHooks | None
    tasks: asyncio.TaskGroup
    """Runs new engine hosts until the server ends."""
    _waiting: asyncio.Queue[Callable[[ReloadReply], None]] = field(default_factory=asyncio.Queue)
    """For each requested reload, the function that sends its reply."""
    _order_numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def request(self) -> None:
        """Requests a reload. Does not wait."""
        self._waiting.put_nowait(lambda _: None)

    def request_for(self, number: int, send_line: Callable[[bytes], None]) -> None:
        """Requests a reload for an HTTP process. `number`: the process's number for its request, which the
        reply repeats. `send_line` sends the reply to the process."""
        self._waiting.put_nowait(
            lambda reply: send_line(to_line(SupervisorMessage(reply=replace(reply, number=number))))
        )

    async def run(self) -> None:
        """Runs the requested reloads, one after the other."""
        async with asyncio.TaskGroup() as group:
            while True:
                send_reply = await self._waiting.get()
                send_reply(await self._reload(group))

    async def _reload(self, group: asyncio.TaskGroup) -> ReloadReply:
        """Runs one reload, and returns its report or its refusal."""
        report = problem = None
        try:
            report = await self._switch_settings(group)
            record("reloaded", changes=report.describe())
        except AntiphonError as error:
            problem = ErrorReport.from_error(error)
            record("reload_refused", logging.ERROR, error=error.message)
        except Exception as defect:  # noqa: BLE001 - whatever stops a reload, the server continues
            message = f"{type(defect).__name__} stopped the reload; the log says where"
            problem = ErrorReport.from_error(InternalError(message))
            record("reload_refused", logging.ERROR, error=message, problem=describe_exception(defect))
        if self.hooks is not None:
            self.hooks.on_end(report, None if problem is None else problem.message)
        return ReloadReply(0, report, problem)

    async def _switch_settings(self, group: asyncio.TaskGroup) -> ReloadReport:
        """Loads the settings, and switches the server to them. Raises the error that refuses the reload."""
        if self.hooks is None:
            raise SettingsError(
                "this server was started without a function that loads its settings again; restart it"
            )
        old_settings = self.server_state.current.settings
        load = self.hooks.load
        try:
            async with asyncio.timeout(READ_S):
                new_settings, restart_only = await run_in_daemon_thread(lambda: load(old_settings))
                new_digests = await run_in_daemon_thread(lambda: digest_key_files(new_settings))
        except TimeoutError:
            raise SettingsError(
                f"the settings were not read and checked within {READ_S:g} s; a file does not answer"
            ) from None
        hosts = self.server_state.hosts
        restarted, failed = await self._restart_failed(new_settings.models)
        added = hosts.add([model for model in new_settings.models if model not in old_settings.models])
        try:
            await self._load_models(added)
            await self._prepare(new_settings, [*restarted, *added])
        except BaseException:
            await hosts.stop([*restarted, *added], HOST_DEADLINE)
            raise
        late_processes = await self._apply(new_settings, [*restarted, *added], group)
        old_digests = self.server_state.current.key_digests
        self.server_state.current.key_digests = new_digests
        return replace(
            compare_settings(old_settings, new_settings, restart_only),
            new_keys=compare_tables(old_digests, new_digests).changed,
            restarted_engines=tuple(host.name for host in restarted),
            failed_engines=failed,
            unconfirmed_processes=late_processes,
        )

    async def _restart_failed(
        self, models: Sequence[ModelSettings]
    ) -> tuple[list[EngineHost], tuple[str, ...]]:
        """Loads the models of hosts that were given up in new hosts. Returns these, and the names of those
        whose model cannot be loaded, which refuses no other change."""
        hosts = self.server_state.hosts
        restarted, failed = hosts.add_for_failed(models), []
        try:
            for host in tuple(restarted):
                try:
                    await self._load_models([host])
                except SettingsError as error:
                    record("engine_not_restarted", logging.WARNING, model=host.name, error=error.message)
                    restarted.remove(host)
                    failed.append(host.name)
                    await hosts.stop([host], HOST_DEADLINE)
        except BaseException:
            await hosts.stop(restarted, HOST_DEADLINE)
            raise
        return restarted, tuple(failed)

    async def _load_models(self, added: Sequence[EngineHost]) -> None:
        """Starts the hosts of new models and waits until all are loaded. Raises SettingsError if one cannot
        be loaded. Does not load models with load = "request"."""
        added = [host for host in added if not host.is_on_request]
        for host in added:
            self.tasks.create_task(self.server_state.hosts.keep_running(host))
        with suppress(TimeoutError):
            async with asyncio.timeout(LOAD_S):
                for host in added:
                    await host.settled.wait()
        for host in added:
            if not host.settled.is_set():
                raise SettingsError(f"the model {host.name} was not loaded within {LOAD_S:g} s")
            if host.info is None:
                reason = host.error.message if host.error else "its process ended"
                raise SettingsError(f"the model {host.name} cannot be loaded: {reason}")

    async def _prepare(self, new_settings: Settings, added: Sequence[EngineHost]) -> None:
        """Makes all HTTP processes build the objects of the new settings. If a process refuses, ends or does
        not reply, makes all of them drop these objects, and raises the error."""
        order = self._build_order(ReloadStep.PREPARE, new_settings, added)
        problems = await self.server_state.workers.ask(
            to_line(SupervisorMessage(order=order)), order.number, PREPARE_S
        )
        if problems:
            drop_order = self._build_order(ReloadStep.DROP, new_settings, added)
            await self.server_state.workers.ask(
                to_line(SupervisorMessage(order=drop_order)), drop_order.number, APPLY_S
            )
            raise next(iter(problems.values())).to_exception()

    async def _apply(
        self, new_settings: Settings, added: Sequence[EngineHost], group: asyncio.TaskGroup
    ) -> tuple[str, ...]:
        """Makes all HTTP processes use the new settings. Returns the names of the processes that do not
        confirm this in time. Hosts of removed models end after their last requests. Their time begins when
        all processes have replied, so each process ends its calls before the host ends."""
        order = self._build_order(ReloadStep.APPLY, new_settings, added)
        names = [name for model in new_settings.models for name in list_host_names(model)]
        unused = self.server_state.hosts.assign(added, names)
        current = self.server_state.current  # new HTTP processes now start with these
        current.settings, current.removed_models = new_settings, order.removed_models
        problems = await self.server_state.workers.ask(
            to_line(SupervisorMessage(order=order)), order.number, APPLY_S
        )
        for host in unused:
            group.create_task(self._end_host(host, new_settings.server))
        return tuple(problems)

    async def _end_host(self, host: EngineHost, server: ServerSettings) -> None:
        """Waits for the retire delay, for requests that have not reached the host yet. Then ends the host
        when no call needs it. Ends it after the retire timeout, which includes the first wait."""
        host.watch.forbid_restart()
        with suppress(TimeoutError):
            async with asyncio.timeout(server.retire_timeout):
                await asyncio.sleep(server.retire_delay)
                await host.unload_when_idle()
        await self.server_state.hosts.stop([host], HOST_DEADLINE)

    def _build_order(
        self, step: ReloadStep, new_settings: Settings, added: Sequence[EngineHost]
    ) -> ReloadOrder:
        """Builds the order of a step, with the sockets and the removed models after the reload."""
        current = self.server_state.current
        new_sockets = {host.name: host.socket for host in added}
        sockets = self.server_state.hosts.sockets | new_sockets
        served_sockets = {
            name: sockets[name] for model in new_settings.models for name in list_host_names(model)
        }
        return ReloadOrder(
            next(self._order_numbers),
            step,
            encode_settings(new_settings).decode(),
            served_sockets,
            list_removed_models(current.settings, new_settings, current.removed_models),
        )
