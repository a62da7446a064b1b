"""The composition root of the HTTP process: settings in, a serving application out.

The only importer of implementations. Run by the supervisor as `python -m antiphon.assembly`; what it is
told comes through standard input
(`engines.host.control`).
"""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import uvloop

from antiphon.auth.keyring import Keyring
from antiphon.auth.secrets import given_pepper
from antiphon.auth.tenants import Tenants
from antiphon.auth.tokens import ServiceKey
from antiphon.dialects.empower.dialect import Empower
from antiphon.dialects.fireworks.dialect import Fireworks
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.domain.aliases import Aliases
from antiphon.domain.context import Clock, SystemClock
from antiphon.engines.base import EngineState, LoadSpec
from antiphon.engines.host import runtime
from antiphon.engines.host.client import HostTokenEngine, host_engine
from antiphon.engines.host.control import EngineNews, HttpConfig, Lifeline, StatusPipe
from antiphon.engines.host.frames import from_line
from antiphon.engines.host.tasks import task_group
from antiphon.engines.registry import Model, Models
from antiphon.errors import (
    AntiphonError,
    EngineUnavailable,
    LoadError,
    ModelFileError,
    RequestError,
    StartupError,
    StoreUnavailable,
)
from antiphon.http.app import create_app
from antiphon.http.edge import Edge
from antiphon.http.serve import serve
from antiphon.pipeline.adapters import Adapters, Home
from antiphon.pipeline.deployments import Deployments
from antiphon.pipeline.run import Pipeline
from antiphon.rendering.adapted import AdaptedRenderer
from antiphon.rendering.renderer import Renderer
from antiphon.rendering.templates import BY_TEMPLATE, Families
from antiphon.settings import Settings, decode
from antiphon.settings_lora import LoraSettings
from antiphon.telemetry.logs import configure
from antiphon.telemetry.metrics import Metrics
from antiphon.weights.adapters import read_kept
from antiphon.weights.deploying import HubAdapters
from antiphon.weights.gguf import read_header
from antiphon.weights.keeping import Keeper

THREADS = 1
"""Threads for what would hold the event loop up: large bodies, large conversations. They all compute, and
several would only take the interpreter from the loop in turn, and keep as many bodies in memory at once."""

TURN = 0.001
"""Seconds that such a thread computes before the event loop gets its turn. Python's own 5 ms are added to a
request several times, once for each of its system calls."""


def edge_of(settings: Settings, models: Models, clock: Clock) -> Edge:
    """Everything between the socket and the engines."""
    key, keyed = settings.server.api_key, settings.keys.enabled
    keyring, tenants = managing(settings, clock) if keyed else (None, None)
    metrics = Metrics()
    report = settings.server.unknown_fields == "report"
    return Edge(
        pipeline=Pipeline(models, metrics, settings.engine.restart_patience),
        models=models,
        dialect=OpenAI(report),
        others=(Fireworks(report), Empower(report)),
        settings=settings.server,
        verifiers=(*([ServiceKey(key, alone=not keyed)] if key else []), *([keyring] if keyring else [])),
        tenants=tenants,
        clock=clock,
        metrics=metrics,
    )


def managing(settings: Settings, clock: Clock) -> tuple[Keyring, Tenants]:
    """Keys, and who changes them. The database's library is imported only here."""
    from antiphon.store.database import Database
    from antiphon.store.tenancy import SqlTenancy

    pepper = given_pepper(settings.keys.pepper or "")
    keyring = Keyring(pepper, clock.wall)
    return keyring, Tenants(
        SqlTenancy(Database(settings.keys.store or "", told=False)), keyring, pepper, clock.wall
    )


def adapters_over(hosts: Mapping[str, HostTokenEngine], edge: Edge, settings: Settings) -> Adapters:
    """What gives the models adapters; those of the settings have their names already."""
    lora = settings.lora
    places = [Path(place) for place in lora.directories]
    keeper = Keeper(Path(lora.registry or ""), places, lora.max_bytes, settings.engine.user is not None)
    homes = {}
    for model in settings.models if lends(lora) or settings.adapters else ():
        base = edge.models.get(model.name).engine
        if isinstance(base, Renderer) and _takes_adapters(model.path):
            homes[model.name] = Home(
                hosts[model.name],
                partial(keeper.keep, base=model.path),
                partial(AdaptedRenderer, base, lacks=hosts[model.name].lacks),
            )
    adapters = Adapters(edge.models, homes, edge.clock, edge.metrics)
    for adapter in settings.adapters:
        adapters.declare(adapter.name, adapter.model or "", read_kept(Path(adapter.path)))
    return adapters


def lends(lora: LoraSettings) -> bool:
    """Whether callers may change which adapters there are."""
    return bool(lora.directories or lora.repositories)


def deployments_over(adapters: Adapters, edge: Edge, settings: Settings) -> Deployments:
    """What deploys adapters from the hub and from the operator's directories."""
    lora, hub = settings.lora, settings.hub
    fetching = HubAdapters(
        lora.repositories, Path(lora.registry or ""), lora.max_bytes, hub.endpoint, hub.offline
    )
    return Deployments(edge.models, adapters, fetching, edge.clock)


def _takes_adapters(path: str) -> bool:
    """Whether the model generates. Of one whose file is gone while its engine runs, loading will tell."""
    try:
        return not read_header(Path(path)).embeds
    except ModelFileError:
        return True


@asynccontextmanager
async def engines(sockets: Mapping[str, str]) -> AsyncIterator[dict[str, HostTokenEngine]]:
    """A connection to each engine host, kept while the context lasts."""
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(host_engine(path, name)) for name, path in sockets.items()
        }


def models_over(hosts: Mapping[str, HostTokenEngine], clock: Clock, settings: Settings) -> Models:
    """The models in the order of the settings, each rendered over its host."""
    created = int(clock.wall())
    projects_share = settings.engine.prefix_sharing == "server"
    families = {
        model.name: Families(_said(model.tool_calls), _said(model.reasoning)) for model in settings.models
    }
    return Models(
        tuple(
            Model(name, _rendered(host, projects_share, families.get(name, BY_TEMPLATE)), created)
            for name, host in hosts.items()
        ),
        Aliases({alias.name: alias.model for alias in settings.aliases}, Fireworks.aliases),
    )


def _rendered(host: HostTokenEngine, projects_share: bool, families: Families) -> Renderer:
    return Renderer(
        host,
        state=host.state,
        generation=lambda: host.generation,
        projects_share=projects_share,
        families=families,
    )


def _said(family: str) -> str | None:
    """What a setting says of a notation; None: it is told by the template."""
    return None if family == "auto" else family


async def run(settings: Settings, config: HttpConfig, lifeline: Lifeline) -> None:
    """Serves until told to stop, by a signal or by the end of the supervisor."""
    clock = SystemClock()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS, "antiphon-large"))
    status = StatusPipe(config.status_fd)
    async with engines(config.sockets) as hosts:
        models = models_over(hosts, clock, settings)
        edge = edge_of(settings, models, clock)
        try:
            adapters = adapters_over(hosts, edge, settings)
            if edge.tenants is not None:
                await edge.tenants.load()
        except (StartupError, StoreUnavailable) as refused:
            _refuse(status, refused)
        if lends(settings.lora):
            deployments = deployments_over(adapters, edge, settings)
            edge = replace(edge, adapters=adapters, deployments=deployments)

        def told(line: bytes) -> None:
            loop.call_soon_threadsafe(_heed, hosts, from_line(line, EngineNews))

        lifeline.watch(told, lambda: _abandoned(config.runtime))
        with socket.socket(fileno=config.listen_fd) as listener:
            async with learning(hosts, models), reporting(status, hosts, adapters) as accepting:
                await serve(create_app(edge), edge, listener, accepting)
        await models.aclose()
        if edge.tenants is not None:
            edge.tenants.close()


@asynccontextmanager
async def learning(hosts: Mapping[str, HostTokenEngine], models: Models) -> AsyncIterator[None]:
    """Learns about every model as soon as its host is there, while the context lasts."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_learn(host, models.get(name))) for name, host in hosts.items()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


@asynccontextmanager
async def reporting(
    status: StatusPipe, hosts: Mapping[str, HostTokenEngine], adapters: Adapters
) -> AsyncIterator[Callable[[], None]]:
    """Shows the supervisor that the event loop turns, while the context lasts, and once that all is ready.

    Gives what is to be called when connections are accepted.
    """
    accepts, over = asyncio.Event(), asyncio.Event()
    async with task_group() as group:
        group.create_task(status.pulse(over))
        ready = group.create_task(_report_ready(status, hosts, adapters, accepts))
        try:
            yield accepts.set
        finally:
            over.set()
            ready.cancel()


async def _report_ready(
    status: StatusPipe,
    hosts: Mapping[str, HostTokenEngine],
    adapters: Adapters,
    accepts: asyncio.Event,
) -> None:
    """Only now that every engine is reached, and has its adapters, does the panel invite a first request,
    whatever it asks."""
    await accepts.wait()
    for name, host in hosts.items():
        with suppress(AntiphonError):
            await host.load(LoadSpec(name))
            await _adapted(host, name, adapters, status)
    status.ready()


async def _adapted(host: HostTokenEngine, name: str, adapters: Adapters, status: StatusPipe) -> None:
    """Gives an engine the adapters of the settings; ends the server where it refuses one, as a model that it
    cannot load does."""
    while True:
        try:
            return await adapters.restore(name)
        except EngineUnavailable:
            await host.load(LoadSpec(name))  # it is starting again
        except RequestError as refused:
            _refuse(status, LoadError(f"{refused.message}; name another file with --lora, or leave it out"))


def _refuse(status: StatusPipe, error: AntiphonError) -> NoReturn:
    """Ends this process with what the supervisor is to say. Nothing has been served yet."""
    status.failed(error)
    os._exit(1)


async def _learn(host: HostTokenEngine, model: Model) -> None:
    """Has the model's facts fetched and its template proved before the first request asks for them."""
    with suppress(AntiphonError):  # the first request will meet it again, and say it to somebody
        await host.load(LoadSpec(model.name))  # only waits: the supervisor told the host what to load
        await model.engine.profile()


def _heed(hosts: Mapping[str, HostTokenEngine], news: EngineNews) -> None:
    """An engine that was given up is not waited for any longer."""
    if news.state is EngineState.FAILED:
        hosts[news.engine].give_up(news.detail)


def _abandoned(directory: str) -> None:
    """The supervisor is gone: nobody would stop this process, or start what it needs."""
    runtime.leave(Path(directory))
    os._exit(1)


def main() -> None:
    """The HTTP process."""
    lifeline = Lifeline()
    try:
        settings = decode(lifeline.line())
        config = from_line(lifeline.line(), HttpConfig)
    except EOFError:
        sys.exit(1)
    configure(settings.log.level, settings.log.format)
    sys.setswitchinterval(TURN)
    uvloop.run(run(settings, config, lifeline))


if __name__ == "__main__":
    main()
