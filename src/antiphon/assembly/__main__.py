"""The HTTP process. The supervisor runs it as `python -m antiphon.assembly` and writes its configuration to
standard input (`engines.host.control`)."""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import uvloop

from antiphon.assembly.app_state import (
    NodeClients,
    build_adapters,
    build_app_state,
    complete_app_state,
)
from antiphon.assembly.knowledge import add_knowledge, open_knowledge
from antiphon.assembly.models import ModelSources, build_models, connect_engines
from antiphon.assembly.reload import NewsInbox, ReloadClient, ServedParts, SettingsReloader
from antiphon.assembly.tenancy import TenancyParts, build_tenancy, open_accounting
from antiphon.assembly.tracing import open_tracer
from antiphon.assembly.vendors import build_vendors
from antiphon.domain.context import SystemClock
from antiphon.engines.base import LoadSpec
from antiphon.engines.host import runtime
from antiphon.engines.host.client import HostTokenEngine
from antiphon.engines.host.control import HttpConfig, Lifeline, ReloadOrder, StatusPipe
from antiphon.engines.registry import ModelRegistry, ModelRoute
from antiphon.errors import (
    AntiphonError,
    EngineUnavailable,
    LoadError,
    RequestError,
    StartupError,
    StoreUnavailable,
)
from antiphon.http.application import create_app
from antiphon.http.serve import serve
from antiphon.http.server_status import list_own_series
from antiphon.pipeline.adapters import AdapterRegistry
from antiphon.processes.coordinator.assemble import open_coordinator, open_database
from antiphon.processes.coordinator.client import CoordinatorClient, connect_coordinator
from antiphon.processes.ipc import from_line
from antiphon.services.tenancy import TenancyService
from antiphon.settings.models import list_parked
from antiphon.settings.schema import Settings, decode_settings
from antiphon.task_group import task_group
from antiphon.telemetry.logs import configure, record, record_loop_failure

THREADS = 1
"""Threads for large bodies and conversations, which would block the event loop. All of them compute, so
more threads would only compete for the interpreter and keep more bodies in memory."""

TURN = 0.001
"""Seconds that such a thread computes before the event loop runs again. Python's default of 5 ms would
delay a request several times, once for each of its system calls."""

STORE_PAUSE = 0.5
"""Seconds after which the process asks a database again that did not answer."""


async def run(settings: Settings, config: HttpConfig, lifeline: Lifeline) -> None:
    """Serves requests until a signal arrives or the supervisor ends."""
    clock = SystemClock()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(record_loop_failure)
    loop.set_default_executor(ThreadPoolExecutor(THREADS, "antiphon-large"))
    status = StatusPipe(config.status_fd)
    parked = list_parked(settings.models)
    async with (
        connect_engines(config.sockets, parked, status.ask_load) as hosts,
        AsyncExitStack() as keeping,
        AsyncExitStack() as working,
    ):
        inbox = NewsInbox(hosts, reloads := ReloadClient(status))
        lifeline.watch(inbox.receive, lambda: _exit_orphaned(config.runtime))
        path = runtime.build_coordinator_path(Path(config.runtime))
        database = open_database(settings)
        begin = partial(open_coordinator, settings, path, clock, database)
        managed = accounting = None
        try:
            vendors = build_vendors(settings, os.environ)
            models = build_models(hosts.engines, clock, settings, vendors)
            coordinator = await keeping.enter_async_context(
                connect_coordinator(path, clock, begin if settings.server.workers == 1 else None)
            )
            if database is not None:
                managed = build_tenancy(settings, clock, coordinator, database)
                await _load_tenants(managed.tenants)
                accounting = await keeping.enter_async_context(
                    open_accounting(settings, managed, clock, coordinator)
                )
            node = await keeping.enter_async_context(open_node_clients(settings, config, status, coordinator))
            app_state = build_app_state(settings, models, clock, managed, accounting, node)
            coordinator.set_series(partial(list_own_series, app_state))
            adapters = build_adapters(hosts.engines, app_state, settings, coordinator)
        except (StartupError, StoreUnavailable) as refused:
            _exit_with(status, refused)
        app_state = complete_app_state(app_state, settings, adapters, reloads.reload)

        app_state = await working.enter_async_context(
            add_knowledge(settings, node.knowledge, app_state, managed)
        )
        with socket.socket(fileno=config.listen_fd) as listener:
            sources = ModelSources(settings, hosts.engines, vendors)
            loaded = {
                model.name: [hosts.engines[route.name] for route in model.routes]
                for model in models.list_bases()
                if model.name not in parked
            }
            parts = ServedParts(app_state, hosts, adapters, sources, os.environ)
            async with (
                learn_models(hosts.engines, models),
                follow_reloads(parts, status, inbox.orders),
                report_readiness(status, loaded, adapters) as accepting,
            ):
                await serve(create_app(app_state), app_state, listener, accepting, coordinator.leave)
        await working.aclose()
        await models.aclose()
        await parts.sources.vendors.aclose()
        await _close_stores(keeping, managed)


@asynccontextmanager
async def open_node_clients(
    settings: Settings, config: HttpConfig, status: StatusPipe, coordinator: CoordinatorClient
) -> AsyncIterator[NodeClients]:
    """Yields the connections of this process while the context lasts. Raises StartupError."""
    async with open_knowledge(settings, config, status) as index, open_tracer(settings.tracing) as tracer:
        yield NodeClients(coordinator, index, tracer)


async def _close_stores(keeping: AsyncExitStack, managed: TenancyParts | None) -> None:
    """Closes what keeps records, after all requests have ended."""
    await keeping.aclose()
    if managed is not None:
        managed.close()


async def _load_tenants(tenants: TenancyService) -> None:
    """Loads the directory, and waits while the database does not answer.

    The database answered at the server's start. If a replacement of a dead process gave up, the whole server
    would end.
    """
    away = False
    while True:
        try:
            return await tenants.load()
        except StoreUnavailable:
            if not away:
                record("store_away", logging.WARNING)
            away = True
            await asyncio.sleep(STORE_PAUSE)


@asynccontextmanager
async def learn_models(hosts: Mapping[str, HostTokenEngine], models: ModelRegistry) -> AsyncIterator[None]:
    """Fetches every model's profile from each of its hosts once the host is ready, while the context
    lasts."""
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_learn_model(hosts[route.name], route))
            for model in models.list_bases()
            for route in model.routes
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


@asynccontextmanager
async def follow_reloads(
    parts: ServedParts, status: StatusPipe, orders: asyncio.Queue[ReloadOrder]
) -> AsyncIterator[None]:
    """Carries out the supervisor's reloads while the context lasts."""
    async with asyncio.TaskGroup() as group:
        following = group.create_task(SettingsReloader(parts, status).follow(orders))
        try:
            yield
        finally:
            following.cancel()


@asynccontextmanager
async def report_readiness(
    status: StatusPipe, hosts: Mapping[str, Sequence[HostTokenEngine]], adapters: AdapterRegistry
) -> AsyncIterator[Callable[[], None]]:
    """Reports to the supervisor that the event loop runs, and once that everything is ready. `hosts`: by
    their models' names.

    Yields a function that the caller must call when connections are accepted.
    """
    accepts, over = asyncio.Event(), asyncio.Event()
    async with task_group() as group:
        group.create_task(status.report_alive_until(over))
        ready = group.create_task(_report_ready(status, hosts, adapters, accepts))
        try:
            yield accepts.set
        finally:
            over.set()
            ready.cancel()


async def _report_ready(
    status: StatusPipe,
    hosts: Mapping[str, Sequence[HostTokenEngine]],
    adapters: AdapterRegistry,
    accepts: asyncio.Event,
) -> None:
    """Reports readiness once every engine is connected and has its adapters. After that, any first request
    works."""
    await accepts.wait()
    for name, own in hosts.items():
        with suppress(AntiphonError):
            await _wait_for_hosts(own, name)
            await _restore_adapters(own, name, adapters, status)
    with suppress(AntiphonError):  # a full disk: the next process starts as this process did
        await adapters.publish_settings()
    status.report_ready()


async def _wait_for_hosts(hosts: Sequence[HostTokenEngine], name: str) -> None:
    """Waits until all hosts of a model have loaded it. The supervisor told them what to load."""
    for host in hosts:
        await host.load(LoadSpec(name))


async def _restore_adapters(
    hosts: Sequence[HostTokenEngine], name: str, adapters: AdapterRegistry, status: StatusPipe
) -> None:
    """Loads the adapters of the settings into the hosts of a model. Ends the server if one refuses one of
    them."""
    while True:
        try:
            return await adapters.restore(name)
        except EngineUnavailable:
            await _wait_for_hosts(hosts, name)  # one of them starts again
        except RequestError as refused:
            _exit_with(
                status, LoadError(f"{refused.message}; name another file with --lora, or leave it out")
            )


def _exit_with(status: StatusPipe, error: AntiphonError) -> NoReturn:
    """Ends this process with an error, which the supervisor prints. No request has been served yet."""
    status.report_failure(error)
    os._exit(1)


async def _learn_model(host: HostTokenEngine, route: ModelRoute) -> None:
    """Fetches a model's profile from one host and proves its template, before the first request needs
    them."""
    with suppress(AntiphonError):  # the first request gets the same error and reports it
        await host.load(LoadSpec(route.name))  # only waits: the supervisor told the host what to load
        await route.engine.profile()


def _exit_orphaned(directory: str) -> None:
    """Ends this process if the supervisor is gone, since nothing else would stop it."""
    runtime.leave_directory(Path(directory))
    os._exit(1)


def main() -> None:
    """Runs the HTTP process."""
    lifeline = Lifeline()
    try:
        settings = decode_settings(lifeline.read_line())
        config = from_line(lifeline.read_line(), HttpConfig)
    except EOFError:
        sys.exit(1)
    configure(settings.log.level, settings.log.format)
    sys.setswitchinterval(TURN)
    uvloop.run(run(settings, config, lifeline))


if __name__ == "__main__":
    main()
