"""The HTTP process. The supervisor runs it as `python -m antiphon.assembly` and writes its configuration to
standard input (`engines.host.control`)."""

import gc

if __name__ == "__main__":
    gc.disable()  # what imports make stays; looking through it takes an eighth of the start

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import uvloop

from antiphon.assembly.app_state import NodeClients, build_adapters, build_app_state, complete_app_state
from antiphon.assembly.knowledge import add_knowledge, open_knowledge
from antiphon.assembly.models import ModelSources, build_models, connect_engines
from antiphon.assembly.reload import ReloadClient, ServedParts, SettingsReloader, SupervisorInbox
from antiphon.assembly.tenancy import TenancyParts, build_tenancy, open_accounting
from antiphon.assembly.vendors import build_vendors
from antiphon.domain.context import SystemClock, Tracer
from antiphon.engines.base import LoadSpec
from antiphon.engines.host import runtime
from antiphon.engines.host.client import HostTokenEngine
from antiphon.engines.host.control import HttpConfig, Lifeline, StatusPipe
from antiphon.engines.host.supervisor_messages import ReloadOrder
from antiphon.engines.registry import ModelRegistry, ModelRoute
from antiphon.errors import (
    AntiphonError,
    EngineUnavailable,
    LoadError,
    RequestError,
    ServerBusy,
    SettingsError,
    StartupError,
    StoreUnavailable,
    explain_extra,
)
from antiphon.http.application import create_app
from antiphon.http.server import serve
from antiphon.http.server_status import list_own_series
from antiphon.http.state import AppState, ServerFacts
from antiphon.pipeline.adapters import AdapterRegistry
from antiphon.processes.coordinator.client import CoordinatorClient, connect_coordinator
from antiphon.processes.coordinator.coordinator import open_coordinator, open_database
from antiphon.processes.ipc import from_line
from antiphon.rendering.prompt_media import ReadMedia
from antiphon.services.changes import DirectoryChanges
from antiphon.settings.models import list_parked
from antiphon.settings.schema import Settings, decode_settings
from antiphon.settings.server import TracingSettings
from antiphon.task_group import task_group
from antiphon.telemetry.logs import configure, record, record_loop_failure

EXECUTOR_THREADS = 1
"""Threads for the work on large bodies and conversations, which would block the event loop. The work only
computes, so more threads would compete for the interpreter and keep more bodies in memory."""

SWITCH_INTERVAL = 0.001
"""Seconds that a thread of the executor computes before the event loop runs again. Python's default of 5 ms
would delay a request several times, once for each of its system calls."""

STORE_PAUSE_S = 0.5
"""Seconds between two tries while the database does not answer."""


@asynccontextmanager
async def open_tracer(settings: TracingSettings) -> AsyncIterator[Tracer | None]:
    """Yields the tracer while the context lasts; None if no collector is set. Raises SettingsError if the
    extra `otlp` is missing."""
    if settings.endpoint is None:
        yield None
        return
    try:
        from antiphon.telemetry.otlp import create_tracer
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("opentelemetry"):
            raise
        raise SettingsError(f"tracing.endpoint needs the extra otlp: {explain_extra('otlp')}") from None
    tracer = create_tracer(settings)
    try:
        yield tracer
    finally:
        await asyncio.to_thread(tracer.close)


async def run(settings: Settings, config: HttpConfig, lifeline: Lifeline) -> None:
    """Serves requests until a signal arrives or the supervisor ends."""
    clock = SystemClock()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(record_loop_failure)
    loop.set_default_executor(ThreadPoolExecutor(EXECUTOR_THREADS, "antiphon-large"))
    status = StatusPipe(config.status_fd)
    parked_models = list_parked(settings.models)
    async with (
        connect_engines(config.sockets, parked_models, status.ask_load) as hosts,
        AsyncExitStack() as stores,
        AsyncExitStack() as services,
    ):
        inbox = SupervisorInbox(hosts, reloads := ReloadClient(status))
        lifeline.watch(inbox.receive, lambda: _exit_orphaned(config.runtime))
        path = runtime.build_coordinator_path(Path(config.runtime))
        database = open_database(settings)
        open_local = partial(open_coordinator, settings, path, clock, database)
        tenancy = accounting = None
        try:
            vendors = build_vendors(settings, os.environ)
            read_media = await stores.enter_async_context(open_media(settings))
            sources = ModelSources(settings, hosts.engines, vendors, read_media)
            models = build_models(sources, clock)
            coordinator = await stores.enter_async_context(
                connect_coordinator(path, clock, open_local if settings.server.workers == 1 else None)
            )
            if database is not None:
                tenancy = build_tenancy(settings, clock, coordinator, database)
                await _load_directory(tenancy.changes)
                accounting = await stores.enter_async_context(
                    open_accounting(settings, tenancy, clock, coordinator)
                )
            node = await stores.enter_async_context(open_node_clients(settings, config, status, coordinator))
            app_state = build_app_state(settings, models, clock, tenancy, accounting, node)
            _share_metrics(app_state, coordinator, config.removed_models)
            add_facts(app_state.facts, settings, config)
            app_state.facts.deaths = inbox.deaths
            adapters = build_adapters(hosts.engines, app_state, settings, coordinator)
        except (StartupError, StoreUnavailable) as error:
            _exit_with(status, error)
        app_state = complete_app_state(app_state, settings, adapters, reloads.reload)

        app_state = await services.enter_async_context(
            add_knowledge(settings, node.knowledge, app_state, tenancy)
        )
        with socket.socket(fileno=config.listen_fd) as listener:
            hosts_by_model = {
                model.name: [hosts.engines[route.name] for route in model.routes]
                for model in models.list_bases()
                if model.name not in parked_models
            }
            parts = ServedParts(app_state, hosts, adapters, sources, os.environ)
            async with (
                fetch_profiles(hosts.engines, models, parked_models) as profile_tasks,
                follow_reloads(parts, status, inbox.orders),
                report_readiness(status, hosts_by_model, adapters, profile_tasks) as accepting,
            ):
                await serve(create_app(app_state), app_state, listener, accepting, coordinator.close_local)
        await services.aclose()
        await models.aclose()
        await parts.sources.vendors.aclose()
        await _close_stores(stores, tenancy)


@asynccontextmanager
async def open_node_clients(
    settings: Settings, config: HttpConfig, status: StatusPipe, coordinator: CoordinatorClient
) -> AsyncIterator[NodeClients]:
    """Yields the connections of this process to other processes, while the context lasts. Raises
    StartupError."""
    async with open_knowledge(settings, config, status) as index, open_tracer(settings.tracing) as tracer:
        yield NodeClients(coordinator, index, tracer)


@asynccontextmanager
async def open_media(settings: Settings) -> AsyncIterator[ReadMedia | None]:
    """Yields what decodes callers' images and recordings, while the context lasts; None without the extra
    `media`. For models that take them, starts the process that decodes now. Raises SettingsError if it does
    not start."""
    from antiphon.media.decoder import MediaDecoder, has_extra
    from antiphon.media.reader import MediaReader

    if not has_extra():
        yield None
        return
    async with AsyncExitStack() as parts:
        decoder = MediaDecoder()
        parts.push_async_callback(decoder.aclose)
        if any(model.mmproj is not None for model in settings.models):
            try:
                await decoder.start()
            except ServerBusy as error:
                raise SettingsError(f"images cannot be decoded: {error.cause}") from None
        fetch = None
        if settings.media.fetch:
            from antiphon.engines.vendors.media_fetch import MediaFetcher

            fetcher = MediaFetcher(settings.media.fetch, settings.media.fetch_private)
            parts.push_async_callback(fetcher.aclose)
            fetch = fetcher.fetch
        yield MediaReader(decoder, fetch).read


def _share_metrics(
    app_state: AppState, coordinator: CoordinatorClient, removed_models: tuple[str, ...]
) -> None:
    """Shares the metrics of this process with the other ones. `removed_models`: the models that reloads have
    removed before this process started, and whose metrics stay."""
    app_state.metrics.removed_models = removed_models
    coordinator.set_series(partial(list_own_series, app_state))


def add_facts(facts: ServerFacts, settings: Settings, config: HttpConfig) -> None:
    """Adds what the configuration of this process tells about the server."""
    facts.started = config.started
    facts.home = None if config.home is None else Path(config.home)
    named = {
        "home": config.home,
        "spool": settings.ledger.spool,
        "knowledge": settings.knowledge.directory,
    }
    facts.directories = {label: Path(path) for label, path in named.items() if path is not None}


async def _close_stores(stores: AsyncExitStack, tenancy: TenancyParts | None) -> None:
    """Closes the ledger, the coordinator and the database. Call it after all requests have ended."""
    await stores.aclose()
    if tenancy is not None:
        tenancy.close()


async def _load_directory(changes: DirectoryChanges) -> None:
    """Loads the directory, and retries while the database does not answer.

    It does not give up: if this process replaces a dead one, its end would end the whole server.
    """
    is_unavailable = False
    while True:
        try:
            return await changes.load()
        except StoreUnavailable:
            if not is_unavailable:
                record("store_away", logging.WARNING)
            is_unavailable = True
            await asyncio.sleep(STORE_PAUSE_S)


@asynccontextmanager
async def fetch_profiles(
    hosts: Mapping[str, HostTokenEngine], models: ModelRegistry, parked: Collection[str]
) -> AsyncIterator[Sequence[asyncio.Task[None]]]:
    """Fetches the profile of every local model from each of its hosts, while the context lasts. Waits until
    the host is ready. Yields the tasks of the models that are not in `parked`."""
    async with asyncio.TaskGroup() as group:
        tasks = {
            route: group.create_task(_fetch_profile(hosts[route.name], route))
            for model in models.list_bases()
            for route in model.routes
        }
        try:
            yield [
                tasks[route]
                for model in models.list_bases()
                if model.name not in parked
                for route in model.routes
            ]
        finally:
            for task in tasks.values():
                task.cancel()


@asynccontextmanager
async def follow_reloads(
    parts: ServedParts, status: StatusPipe, orders: asyncio.Queue[ReloadOrder]
) -> AsyncIterator[None]:
    """Carries out the supervisor's reload orders while the context lasts. `orders`: the queue of orders."""
    async with asyncio.TaskGroup() as group:
        reload_task = group.create_task(SettingsReloader(parts, status).follow(orders))
        try:
            yield
        finally:
            reload_task.cancel()


@asynccontextmanager
async def report_readiness(
    status: StatusPipe,
    hosts: Mapping[str, Sequence[HostTokenEngine]],
    adapters: AdapterRegistry,
    profile_tasks: Sequence[asyncio.Task[None]],
) -> AsyncIterator[Callable[[], None]]:
    """Reports to the supervisor again and again that the event loop runs, and once that all models can serve.
    `hosts`: the hosts of each model, by the model's name.

    Yields a function that the caller must call when connections are accepted.
    """
    is_accepting, is_over = asyncio.Event(), asyncio.Event()
    async with task_group() as group:
        group.create_task(status.report_alive_until(is_over))
        readiness_task = group.create_task(
            _report_ready(status, hosts, adapters, profile_tasks, is_accepting)
        )
        try:
            yield is_accepting.set
        finally:
            is_over.set()
            readiness_task.cancel()


async def _report_ready(
    status: StatusPipe,
    hosts: Mapping[str, Sequence[HostTokenEngine]],
    adapters: AdapterRegistry,
    profile_tasks: Sequence[asyncio.Task[None]],
    is_accepting: asyncio.Event,
) -> None:
    """Reports readiness when connections are accepted, and every engine is connected and has its adapters.
    Waits for the profiles too, so that the first request does not wait for the test of a chat template."""
    await is_accepting.wait()
    for name, model_hosts in hosts.items():
        with suppress(AntiphonError):
            await _wait_for_hosts(model_hosts, name)
            await _restore_adapters(model_hosts, name, adapters, status)
    with suppress(AntiphonError):  # for example a full disk; the next process publishes the names instead
        await adapters.publish_settings()
    if profile_tasks:
        await asyncio.wait(profile_tasks)
    status.report_ready()


async def _wait_for_hosts(hosts: Sequence[HostTokenEngine], name: str) -> None:
    """Waits until all hosts of a model have loaded it. The supervisor has ordered the load."""
    for host in hosts:
        await host.load(LoadSpec(name))


async def _restore_adapters(
    hosts: Sequence[HostTokenEngine], name: str, adapters: AdapterRegistry, status: StatusPipe
) -> None:
    """Loads the adapters that the settings declare into the hosts of a model. Ends the process, and so the
    server, if a host refuses an adapter."""
    while True:
        try:
            return await adapters.restore(name)
        except EngineUnavailable:
            await _wait_for_hosts(hosts, name)  # a host restarts
        except RequestError as error:
            _exit_with(status, LoadError(f"{error.message}; name another file with --lora, or leave it out"))


def _exit_with(status: StatusPipe, error: AntiphonError) -> NoReturn:
    """Ends this process with an error, which the supervisor prints. No request has been served yet."""
    status.report_failure(error)
    os._exit(1)


async def _fetch_profile(host: HostTokenEngine, route: ModelRoute) -> None:
    """Fetches a model's profile from one host before the first request needs it. This also tests the chat
    template."""
    with suppress(AntiphonError):  # the first request will get and report the same error
        await host.load(LoadSpec(route.name))  # only waits, because the supervisor has ordered the load
        await route.engine.profile()


def _exit_orphaned(directory: str) -> None:
    """Ends this process after the supervisor has died, because nobody else would stop it. `directory`: the
    runtime directory."""
    runtime.remove_unused_directory(Path(directory))
    os._exit(1)


def main() -> None:
    """Runs the HTTP process."""
    gc.enable()
    lifeline = Lifeline()
    try:
        settings = decode_settings(lifeline.read_line())
        config = from_line(lifeline.read_line(), HttpConfig)
    except EOFError:
        sys.exit(1)
    configure(settings.log.level, settings.log.format)
    sys.setswitchinterval(SWITCH_INTERVAL)
    uvloop.run(run(settings, config, lifeline))


if __name__ == "__main__":
    main()
