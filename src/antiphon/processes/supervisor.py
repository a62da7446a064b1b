"""Starts, watches and ends every process of one server, and binds its TCP socket.

    supervisor ─┬─ engine host of each model     (python -m antiphon.engines.host)
                ├─ HTTP processes, 1 or several  (python -m antiphon.assembly; `workers`)
                └─ coordinator, of several       (python -m antiphon.processes.coordinator)

Each child holds the end of a pipe whose other end only this process has, so a supervisor that is killed takes
its children with it. An engine host that dies is started again at once; three deaths in a minute stop that,
and the HTTP processes are told so. A host that cannot load at the first start ends the server with its
reason. SIGUSR2 replaces the HTTP processes, one after the other, while the server serves. No framework is
imported here, and nothing of what the children do.
"""

import asyncio
import errno
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from antiphon.engines.base import EngineInfo, EngineState, KVLayout, LoadSpec
from antiphon.engines.host.child import DEATHS, WINDOW, Child, ChildWatch, start_child
from antiphon.engines.host.confine import find_other_user
from antiphon.engines.host.control import CoordinatorConfig, EngineNews, HostConfig, HttpConfig
from antiphon.engines.host.runtime import build_coordinator_path, build_socket_path, create_runtime_directory
from antiphon.errors import AddressUnavailable, AntiphonError
from antiphon.processes.ipc import to_line
from antiphon.processes.sandbox import INTERPRETER_VARIABLES
from antiphon.processes.workers import MARGIN, RETIRE_SIGNAL, Workers
from antiphon.settings.models import ModelSettings
from antiphon.settings.schema import Settings, choose_interpreter, encode_settings
from antiphon.telemetry.logs import record

BACKLOG = 2048
"""Connections that may wait to be accepted, also while an HTTP process restarts."""

HOST_DEADLINE = 5.0
"""Seconds that an engine host or the coordinator gets to end by itself."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

MALLOC = "GLIBC_TUNABLES"
LARGE_PAGES = "glibc.malloc.hugetlb=1"
"""Makes glibc ask Linux for large pages, where the system leaves this to programs. Each token reads all
weights, and address lookups in 4 KB pages take 5 % of a step. glibc reads it at a process's start."""

HOST_VARIABLES = INTERPRETER_VARIABLES | {
    "USER",
    "TZ",
    "XDG_RUNTIME_DIR",
    "XDG_CACHE_HOME",
    "PYTHONWARNINGS",
    MALLOC,
}
HOST_PREFIXES = ("LC_", "DYLD_", "OMP_", "GOMP_", "KMP_", "GGML_", "CUDA_", "HIP_", "ROCR_")
"""Prefixes of variables that an engine host gets. It gets what an interpreter, a library and its threads
need, and no credential."""

SECRET_VARIABLES = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
OWN_VARIABLES = "ANTIPHON_"
"""Prefix of the variables that HTTP processes and the coordinator do not get. They receive the settings
through a pipe, since settings contain keys, passwords and the pepper. Models are fetched before they
start."""


@dataclass(frozen=True, slots=True)
class Programs:
    """What the children run. Tests and extensions replace the defaults."""

    engine: str = "antiphon.engines.llama.engine:LlamaTokenEngine"
    """`module:attribute` of the token engine."""
    http: str = "antiphon.assembly"
    """Module of an HTTP process."""
    coordinator: str = "antiphon.processes.coordinator"
    """Module of the coordinator."""


@dataclass(frozen=True, slots=True)
class ServingInfo:
    """Where a running server is reached, and its engines."""

    url: str
    engines: Mapping[str, EngineInfo]
    """The engines by their models' names."""


def supervise(
    settings: Settings,
    on_serving: Callable[[ServingInfo], None],
    programs: Programs = Programs(),
    on_replaced: Callable[[str | None], None] = lambda _: None,
) -> int:
    """Serves until SIGTERM, SIGINT or SIGHUP. `on_serving` is called once, when every process is ready.
    `on_replaced` is called at the end of each rolling restart, with the reason if the restart failed.

    Returns the exit status. Raises a StartupError when the server cannot start or cannot continue.
    """
    _disable_core_dumps()
    signal.signal(RETIRE_SIGNAL, signal.SIG_IGN)  # replaced once there are HTTP processes
    if settings.engine.user is not None:
        find_other_user(settings.engine.user)  # raises an error before any process is started
    with bind(settings.server.host, settings.server.port) as listener, create_runtime_directory() as runtime:
        return asyncio.run(_Supervisor(settings, listener, runtime, programs, on_replaced).run(on_serving))


def bind(host: str, port: int) -> socket.socket:
    """Binds a listening TCP socket and returns it. Raises AddressUnavailable with the remedy."""
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
        listener.listen(BACKLOG)
    except OSError as problem:
        listener.close()
        raise AddressUnavailable(_explain_bind_error(problem, host, port)) from None
    return listener


def _explain_bind_error(problem: OSError, host: str, port: int) -> str:
    """Returns the reason and the remedy for an address that cannot be bound."""
    match problem.errno:
        case errno.EADDRINUSE:
            return (
                f"port {port} of {host} is taken; stop what listens there, or choose another port with --port"
            )
        case errno.EACCES:
            return f"port {port} needs rights that this user lacks; choose one above 1023 with --port"
        case errno.EADDRNOTAVAIL:
            return f"{host} is not an address of this machine; try --host 127.0.0.1"
        case code:
            return f"cannot listen on port {port} of {host}: {os.strerror(code or 0)}"


def format_url(listener: socket.socket) -> str:
    """Returns the URL of a socket, with the port that was bound."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def filter_host_environment(environ: Mapping[str, str], wait_policy: str) -> dict[str, str]:
    """Returns the environment of an engine host: the allowed variables of `environ`, and defaults for OpenMP
    and glibc unless the user has set them. All other variables are dropped."""
    passed_on = {
        name: value
        for name, value in environ.items()
        if name in HOST_VARIABLES or name.startswith(HOST_PREFIXES)
    }
    return {"OMP_WAIT_POLICY": wait_policy, MALLOC: LARGE_PAGES} | passed_on


def filter_http_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of an HTTP process and of the coordinator."""
    return {
        name: value
        for name, value in environ.items()
        if name not in SECRET_VARIABLES and not name.startswith(OWN_VARIABLES)
    }


def _disable_core_dumps() -> None:
    """Disables core dumps for all children, so that no key or prompt is written to a file in a crash."""
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
        replaced: Callable[[str | None], None],
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._runtime = runtime
        self._programs = programs
        self._sockets = {
            model.name: build_socket_path(runtime, index) for index, model in enumerate(settings.models)
        }
        self._hosts = [self._make_host_watch(model) for model in settings.models]
        self._workers = Workers(
            settings.server.workers,
            settings.server.retire_timeout,
            self._start_http,
            self._note_progress,
            self._fail,
            replaced,
        )
        self._coordinator = ChildWatch(
            "the coordinator", self._start_coordinator, lambda *_: None, paced=True
        )
        self._has_coordinator = settings.server.workers > 1
        self._news: dict[str, EngineNews] = {}
        self._infos: dict[str, EngineInfo] = {}
        self._up = asyncio.Event()
        self._stop = asyncio.Event()
        self._failure: AntiphonError | None = None

    async def run(self, serving: Callable[[ServingInfo], None]) -> int:
        """Runs the server from its start to its end, and returns the exit status. Raises the error that ended
        the server."""
        for number in STOP_SIGNALS:
            if (
                signal.getsignal(number) is not signal.SIG_IGN
            ):  # nohup makes the process ignore SIGHUP; that stays
                asyncio.get_running_loop().add_signal_handler(number, self._request_stop)
        asyncio.get_running_loop().add_signal_handler(RETIRE_SIGNAL, self._workers.replace)
        async with asyncio.TaskGroup() as group:
            announcing = group.create_task(self._announce(serving))
            for watch in self._list_watches():
                group.create_task(self._guard(watch))
            group.create_task(self._workers.keep())
            await self._stop.wait()
            announcing.cancel()
            await self._end_all()
        if self._failure is not None:
            raise self._failure
        return 0

    async def _announce(self, serving: Callable[[ServingInfo], None]) -> None:
        """Waits until every process is ready, then reports the server's address and engines."""
        await self._up.wait()
        with suppress(OSError):  # the panel may have no reader
            serving(ServingInfo(format_url(self._listener), self._infos))

    def _list_watches(self) -> list[ChildWatch]:
        """Returns the watches of all children except the HTTP processes."""
        return [*self._hosts, self._coordinator] if self._has_coordinator else self._hosts

    async def _guard(self, watch: ChildWatch) -> None:
        """Keeps a child running. If the child was never ready, ends the server with the child's reason."""
        try:
            await watch.keep_running()
        except AntiphonError as error:
            self._fail(error)

    def _fail(self, error: AntiphonError) -> None:
        """Ends the server. The first error becomes the server's error."""
        self._failure = self._failure or error
        self._stop.set()

    def _request_stop(self) -> None:
        """Ends the server. The first signal lets requests finish; the second ends everything at once."""
        record("asked_to_stop")
        if self._stop.is_set():
            self._workers.kill()
            for watch in self._list_watches():
                watch.kill()
        self._stop.set()

    async def _end_all(self) -> None:
        """Ends new connections first; then the HTTP processes, which finish their requests; then the engine
        hosts; and last the coordinator, which receives the usage."""
        self._listener.close()
        await self._workers.stop(self._settings.server.drain_timeout + MARGIN)
        async with asyncio.TaskGroup() as group:
            for watch in self._list_watches():
                group.create_task(watch.stop(HOST_DEADLINE))

    # --- engine hosts ---------------------------------------------------------------------------------------

    def _make_host_watch(self, model: ModelSettings) -> ChildWatch:
        """Makes the watch of a model's engine host."""
        return ChildWatch(
            f"the engine of {model.name}",
            lambda: self._start_host(model),
            lambda state, info: self._update_host(model.name, state, info),
        )

    async def _start_host(self, model: ModelSettings) -> Child:
        settings = self._settings

        def configuration(status_fd: int) -> bytes:
            return to_line(
                HostConfig(
                    name=model.name,
                    factory=self._programs.engine,
                    load=build_load_spec(model, settings),
                    socket=self._sockets[model.name],
                    status_fd=status_fd,
                    log_level=settings.log.level,
                    log_format=settings.log.format,
                    user=settings.engine.user,
                )
            )

        command = [choose_interpreter(settings), "-P", "-m", "antiphon.engines.host"]
        return await start_child(
            command, configuration, filter_host_environment(os.environ, settings.engine.wait_policy)
        )

    def _update_host(self, name: str, state: EngineState, info: EngineInfo | None) -> None:
        """Keeps the state of a model's engine, and sends it to all HTTP processes."""
        failed = f"the engine of {name} died {DEATHS} times within {WINDOW:g} s and was given up"
        news = EngineNews(name, state, failed if state is EngineState.FAILED else "")
        self._news[name] = news
        self._workers.tell(to_line(news))
        if info is not None:
            self._infos[name] = info
        self._note_progress()

    # --- the HTTP processes and the coordinator ------------------------------------------------------------

    async def _start_http(self) -> Child:
        listen_fd = self._listener.fileno()

        def configuration(status_fd: int) -> bytes:
            wiring = HttpConfig(listen_fd, status_fd, str(self._runtime), self._sockets)
            news = b"".join(to_line(news) for news in self._news.values())
            return encode_settings(self._settings) + b"\n" + to_line(wiring) + news

        command = [sys.executable, "-P", "-m", self._programs.http]
        return await start_child(command, configuration, filter_http_environment(os.environ), [listen_fd])

    async def _start_coordinator(self) -> Child:
        def configuration(status_fd: int) -> bytes:
            wiring = CoordinatorConfig(build_coordinator_path(self._runtime), status_fd)
            return encode_settings(self._settings) + b"\n" + to_line(wiring)

        command = [sys.executable, "-P", "-m", self._programs.coordinator]
        return await start_child(command, configuration, filter_http_environment(os.environ))

    def _note_progress(self) -> None:
        """Notes that the server is ready once all HTTP processes and engines are."""
        if self._workers.are_ready and len(self._infos) == len(self._settings.models):
            self._up.set()


def build_load_spec(model: ModelSettings, settings: Settings) -> LoadSpec:
    """Builds the description of what a model's engine host loads."""
    return LoadSpec(
        model=model.path,
        context_length=model.context_length,
        sequences=model.sequences,
        threads=model.threads,
        exact=model.exact,
        kv_type=model.kv_type,
        library=settings.engine.library,
        layout=KVLayout(model.layout),
        cells=model.cells,
        step_latency=model.step_latency,
        queue=model.queue,
        queue_per_actor=model.queue_per_actor,
        keep_prefixes=model.keep_prefixes,
        weights_in_memory=model.weights == "memory",
        adapter_memory=settings.lora.memory_bytes,
    )
