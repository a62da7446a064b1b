"""Starts, watches and ends every process of one server, and binds its TCP socket.

    supervisor ─┬─ node of a Ray cluster      (python -m antiphon.engines.host.ray.node; `cluster`)
                ├─ engine hosts of each model (python -m antiphon.engines.host; `engine_hosts`)
                ├─ HTTP processes             (python -m antiphon.assembly; `workers`)
                ├─ coordinator                (python -m antiphon.processes.coordinator)
                └─ knowledge process          (python -m antiphon.processes.knowledge; `knowledge.host`)

Only a server in a cluster has a node. Only a server with several HTTP processes has a coordinator process.
The knowledge process starts when a request needs it.

Each child has one end of a pipe, and only this process has the other end. So the children end when the
supervisor is killed. An engine host that dies is restarted immediately. After three deaths in a minute it is
given up, and the HTTP processes are told. HTTP processes are always started again, after a pause if they die
often (`pause_answers`). A host that cannot load its model when the server starts ends the server with the
reason. SIGUSR2 replaces the HTTP processes, one after the other, while the server serves. SIGUSR1 loads the
settings again (`reload`). This module imports no framework and no code that only the children run.
"""

import asyncio
import errno
import os
import resource
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from antiphon.domain.values import Struct
from antiphon.engines.base import EngineInfo
from antiphon.engines.host.child import Child, ChildWatch, start_child
from antiphon.engines.host.confine import find_other_user
from antiphon.engines.host.control import CoordinatorConfig, HttpConfig
from antiphon.engines.host.runtime import build_coordinator_path, create_runtime_directory
from antiphon.engines.host.supervisor_messages import DeathCount, SupervisorMessage
from antiphon.errors import AddressUnavailable, AntiphonError
from antiphon.processes.cluster import ClusterNode, find_cluster
from antiphon.processes.engine_hosts import EngineHost, EngineHosts
from antiphon.processes.ipc import to_line
from antiphon.processes.knowledge.host import KnowledgeHost
from antiphon.processes.model_loads import ModelLoads
from antiphon.processes.pause_answers import answer_pause
from antiphon.processes.reload import (
    HOST_DEADLINE,
    CurrentSettings,
    Reloadable,
    ReloadHooks,
    Reloads,
    digest_key_files,
)
from antiphon.processes.workers import MARGIN, Workers
from antiphon.settings.schema import Settings, encode_settings
from antiphon.telemetry.logs import record

BACKLOG = 2048
"""The most connections that wait to be accepted, also while an HTTP process restarts."""

RESTART_SIGNAL = signal.SIGUSR2
"""Replaces the HTTP processes one after the other: a rolling restart. The supervisor ends each old process
with RETIRE_SIGNAL of `workers`, which has the same number."""

RELOAD_SIGNAL = signal.SIGUSR1
"""Loads the settings again. SIGHUP ends the server, because terminals send it to end a program. SIGUSR1
exists on every platform, unlike real-time signals."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

NODE_DEADLINE = 15.0
"""Seconds in which the node of a cluster must end Ray's processes."""

SECRET_VARIABLES = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
OWN_VARIABLES = "ANTIPHON_"
"""The prefix of variables that HTTP processes and the coordinator do not get. They receive the settings
through a pipe, because settings contain keys, passwords and the pepper. Models are downloaded before these
processes start."""


class Programs(Struct, frozen=True):
    """The programs of the children. Tests and extensions replace the defaults."""

    engine: str = "antiphon.engines.llama.engine:LlamaTokenEngine"
    """`module:attribute` of the token engine."""
    http: str = "antiphon.assembly"
    """The module of an HTTP process."""
    coordinator: str = "antiphon.processes.coordinator"
    """The module of the coordinator."""


class ServingInfo(Struct, frozen=True):
    """The address and the engines of a running server."""

    url: str
    engines: Mapping[str, EngineInfo]
    """The engines, by the names of their hosts."""


def supervise(
    settings: Settings,
    on_serving: Callable[[ServingInfo], None],
    programs: Programs = Programs(),
    on_replaced: Callable[[str | None], None] = lambda _: None,
    reload: ReloadHooks | None = None,
    home: Path | None = None,
) -> int:
    """Serves until SIGTERM, SIGINT or SIGHUP. `on_serving` is called once, when every process is ready.
    `on_replaced` is called at the end of each rolling restart, with the reason if it failed. Without `reload`
    the settings cannot be loaded again. `home`: the directory of the server's own files, for its metrics.

    Returns the exit status. Raises a StartupError if the server cannot start or cannot continue.
    """
    _disable_core_dumps()
    for signal_number in (RESTART_SIGNAL, RELOAD_SIGNAL):
        signal.signal(signal_number, signal.SIG_IGN)  # until there are HTTP processes
    if settings.engine.user is not None:
        find_other_user(settings.engine.user)  # raises an error before any process is started
    cluster = find_cluster(settings)  # raises an error before any process is started
    with bind(settings.server.host, settings.server.port) as listener, create_runtime_directory() as runtime:
        node = None if cluster is None else ClusterNode(settings, cluster, runtime)
        if node is None:
            open_port(listener)
        supervisor = _Supervisor(settings, listener, runtime, programs, on_replaced, node, home)
        return asyncio.run(supervisor.run(on_serving, reload))


def bind(host: str, port: int) -> socket.socket:
    """Binds a TCP socket and returns it. `open_port` makes it listen. Raises AddressUnavailable with the
    remedy."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError):
        raise AddressUnavailable(
            f"cannot listen on {host!r}: it is not an address; try --host 127.0.0.1"
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as problem:
        listener.close()
        raise AddressUnavailable(_explain_bind_error(problem, host, port)) from None
    return listener


def open_port(listener: socket.socket) -> None:
    """Makes a bound socket listen. Raises AddressUnavailable with the remedy."""
    try:
        listener.listen(BACKLOG)
    except OSError as problem:
        host, port = listener.getsockname()[:2]
        raise AddressUnavailable(_explain_bind_error(problem, host, port)) from None


def _explain_bind_error(problem: OSError, host: str, port: int) -> str:
    """Returns the message for an address that cannot be bound, with the remedy."""
    match problem.errno:
        case errno.EADDRINUSE:
            return (
                f"port {port} of {host} is taken; stop the program that listens there, "
                "or choose another port with --port"
            )
        case errno.EACCES:
            return f"port {port} needs rights that this user lacks; choose one above 1023 with --port"
        case errno.EADDRNOTAVAIL:
            return f"{host} is not an address of this machine; try --host 127.0.0.1"
        case code:
            return f"cannot listen on port {port} of {host}: {os.strerror(code or 0)}"


def format_url(listener: socket.socket) -> str:
    """Returns the URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def filter_http_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of HTTP processes and of the coordinator."""
    return {
        name: value
        for name, value in environ.items()
        if name not in SECRET_VARIABLES and not name.startswith(OWN_VARIABLES)
    }


def _disable_core_dumps() -> None:
    """Disables core dumps of all children, so that a crash writes no key or prompt to a file."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


class _Supervisor:
    """The running server, with a watch for each child."""

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        runtime: Path,
        programs: Programs,
        on_replaced: Callable[[str | None], None],
        node: ClusterNode | None,
        home: Path | None,
    ) -> None:
        self._current = CurrentSettings(settings, key_digests=digest_key_files(settings))
        self._listener = listener
        self._runtime = runtime
        self._programs = programs
        self._home = home
        self._started = time.time()
        self._deaths: Counter[tuple[str, str]] = Counter()
        """The deaths of processes, by kind and by the name of the engine host."""
        self._workers = Workers(
            settings.server.workers,
            settings.server.retire_timeout,
            self._start_http,
            self._note_progress,
            self._fail,
            on_replaced,
            partial(self._count_death, "http"),
        )
        self._node = node
        self._hosts = EngineHosts(
            settings,
            runtime,
            programs.engine,
            self._workers.tell,
            self._note_progress,
            partial(self._count_death, "engine"),
            None if node is None else node.address,
        )
        self._coordinator = ChildWatch(
            "the coordinator",
            self._start_coordinator,
            lambda *_: None,
            always_restart=True,
            on_death=partial(self._count_death, "coordinator"),
        )
        self._has_coordinator = settings.server.workers > 1
        self._knowledge: KnowledgeHost | None = None
        self._is_ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._failure: AntiphonError | None = None

    async def run(self, on_serving: Callable[[ServingInfo], None], reload: ReloadHooks | None) -> int:
        """Runs the server until it ends, and returns the exit status. Raises the error that ended the
        server."""
        self._watch_signals()
        async with asyncio.TaskGroup() as group:
            await self._join_cluster(group)
            reloads = Reloads(Reloadable(self._hosts, self._workers, self._current), reload, group)
            self._workers.on_reload_request = reloads.request_for
            loads = ModelLoads(self._hosts, self._current.settings.engine.memory_budget, group)
            self._workers.on_load = loads.request
            self._knowledge = KnowledgeHost(
                self._current.settings, self._runtime, group, partial(self._count_death, "knowledge")
            )
            self._workers.on_knowledge = self._knowledge.request
            self._workers.on_pause = lambda seconds, end: group.create_task(
                answer_pause(self._listener, seconds, end)
            )
            service_tasks = [
                group.create_task(self._announce_ready(on_serving, reloads)),
                group.create_task(reloads.run()),
            ]
            load_task = group.create_task(loads.run())
            if not self._stop.is_set():
                self._start_children(group)
            await self._stop.wait()
            for task in service_tasks:
                task.cancel()
            self._listener.close()
            # First the HTTP processes, because their last requests need all others: engines, which such a
            # request can still load, and the coordinator, which gets their usage.
            server = self._current.settings.server
            await self._workers.stop(server.drain_delay + server.drain_timeout + MARGIN)
            load_task.cancel()
            await self._end_others()
        if self._failure is not None:
            raise self._failure
        return 0

    def _start_children(self, group: asyncio.TaskGroup) -> None:
        """Starts the engine hosts, the coordinator and the HTTP processes."""
        for host in self._hosts.list_assigned():
            if not host.is_on_request:
                group.create_task(self._run_host(host))
        if self._has_coordinator:
            group.create_task(self._coordinator.keep_running())
        group.create_task(self._workers.run())

    async def _join_cluster(self, group: asyncio.TaskGroup) -> None:
        """Starts or joins the cluster, if there is one, and then opens the port. Ends the server if the
        cluster is unusable."""
        node = self._node
        if node is None:
            return
        group.create_task(node.keep_running())
        stopping, settling = group.create_task(self._stop.wait()), group.create_task(node.settled.wait())
        await asyncio.wait((stopping, settling), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        settling.cancel()
        try:
            if node.error is not None:
                raise node.error
            open_port(self._listener)
        except AntiphonError as error:
            self._fail(error)

    def _watch_signals(self) -> None:
        """Installs the handlers of the signals that end the server or replace its HTTP processes."""
        loop = asyncio.get_running_loop()
        for signal_number in STOP_SIGNALS:
            if signal.getsignal(signal_number) is not signal.SIG_IGN:  # nohup makes programs ignore SIGHUP
                loop.add_signal_handler(signal_number, self._request_stop)
        loop.add_signal_handler(RESTART_SIGNAL, self._workers.replace)

    async def _announce_ready(self, on_serving: Callable[[ServingInfo], None], reloads: Reloads) -> None:
        """Waits until every process is ready, then reports the server's address and engines. From then on,
        SIGUSR1 reloads the settings."""
        await self._is_ready.wait()
        asyncio.get_running_loop().add_signal_handler(RELOAD_SIGNAL, reloads.request)
        with suppress(OSError):  # standard output can be closed
            on_serving(ServingInfo(format_url(self._listener), self._hosts.infos))

    def _list_watches(self) -> list[ChildWatch]:
        """Returns the watches of all children except the HTTP processes."""
        watches = self._hosts.list_watches()
        return [*watches, self._coordinator] if self._has_coordinator else watches

    async def _run_host(self, host: EngineHost) -> None:
        """Runs a host that starts with the server. If it never becomes ready, ends the server with its
        error."""
        await self._hosts.keep_running(host)
        if host.error is not None:
            self._fail(host.error)

    def _fail(self, error: AntiphonError) -> None:
        """Ends the server with this error, unless another error was first."""
        self._failure = self._failure or error
        self._stop.set()

    def _request_stop(self) -> None:
        """Ends the server. At the first signal, running requests can finish; the second signal kills all
        processes."""
        record("asked_to_stop")
        if self._stop.is_set():
            self._workers.kill()
            for watch in self._list_watches():
                watch.kill()
            if self._knowledge is not None:
                self._knowledge.watch.kill()
            if self._node is not None:
                self._node.watch.kill()
        self._stop.set()

    async def _end_others(self) -> None:
        """Ends the engine hosts, the coordinator and the knowledge process, and then the node."""
        async with asyncio.TaskGroup() as group:
            for watch in self._list_watches():
                group.create_task(watch.stop(HOST_DEADLINE))
            if self._knowledge is not None:
                group.create_task(self._knowledge.stop(HOST_DEADLINE))
        if self._node is not None:  # after the drivers, because Ray would end them
            await self._node.watch.stop(NODE_DEADLINE)

    # --- the HTTP processes and the coordinator ------------------------------------------------------------

    async def _start_http(self) -> Child:
        listen_fd = self._listener.fileno()

        def build_configuration(status_fd: int) -> bytes:
            sockets, removed_models = self._hosts.sockets, self._current.removed_models
            config = HttpConfig(
                listen_fd,
                status_fd,
                str(self._runtime),
                sockets,
                removed_models,
                self._started,
                None if self._home is None else str(self._home),
            )
            states = b"".join((*self._hosts.list_state_lines(), self._build_deaths_line()))
            return encode_settings(self._current.settings) + b"\n" + to_line(config) + states

        command = [sys.executable, "-P", "-m", self._programs.http]
        return await start_child(
            command, build_configuration, filter_http_environment(os.environ), [listen_fd]
        )

    async def _start_coordinator(self) -> Child:
        def build_configuration(status_fd: int) -> bytes:
            config = CoordinatorConfig(build_coordinator_path(self._runtime), status_fd)
            return encode_settings(self._current.settings) + b"\n" + to_line(config)

        command = [sys.executable, "-P", "-m", self._programs.coordinator]
        return await start_child(command, build_configuration, filter_http_environment(os.environ))

    def _count_death(self, process: str, model: str = "") -> None:
        """Counts a process that ended unasked, and tells the HTTP processes, which have the metrics."""
        self._deaths[process, model] += 1
        self._workers.tell(self._build_deaths_line())

    def _build_deaths_line(self) -> bytes:
        """Returns the line with all counts, from 0 on: Prometheus must see the first death as an increase."""
        kinds = [("http", ""), ("knowledge", ""), *(("engine", name) for name in self._hosts.sockets)]
        kinds += [("coordinator", "")] if self._has_coordinator else []
        counts = tuple(DeathCount(*kind, self._deaths[kind]) for kind in kinds)
        return to_line(SupervisorMessage(deaths=counts))

    def _note_progress(self) -> None:
        """Ends the wait for readiness when all HTTP processes and engines are ready."""
        if self._workers.are_ready and self._hosts.are_loaded:
            self._is_ready.set()
