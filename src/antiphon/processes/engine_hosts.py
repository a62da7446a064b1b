"""The engine hosts of one server, one for each local model: starts, watches and ends them.

A host that is added while the server runs serves nothing until it is ready and `adopt` makes it the model's.
"""

import asyncio
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from antiphon.engines.base import EngineInfo, EngineState, KVLayout, LoadSpec
from antiphon.engines.host.child import DEATHS, WINDOW, Child, ChildWatch, start_child
from antiphon.engines.host.control import EngineNews, HostConfig, News
from antiphon.engines.host.runtime import build_socket_path
from antiphon.errors import AntiphonError
from antiphon.processes.ipc import to_line
from antiphon.processes.sandbox import INTERPRETER_VARIABLES
from antiphon.settings.models import ModelSettings
from antiphon.settings.schema import Settings, choose_interpreter

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


@dataclass(slots=True, eq=False)
class EngineHost:
    """One engine host, which is started again when it dies."""

    model: ModelSettings
    socket: str
    watch: ChildWatch
    news: EngineNews | None = None
    info: EngineInfo | None = None
    """The facts of the loaded engine; None until it is ready for the first time."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the host is ready, or has failed to become ready."""
    error: AntiphonError | None = None
    """The reason why the host never became ready."""


class EngineHosts:
    """All engine hosts."""

    def __init__(
        self,
        settings: Settings,
        runtime: Path,
        factory: str,
        tell: Callable[[bytes], None],
        on_change: Callable[[], None],
    ) -> None:
        """`factory`: `module:attribute` of the token engine. `tell`: sends a line to all HTTP processes.
        `on_change`: called when a host becomes ready or stops being ready."""
        self._settings = settings
        self._runtime = runtime
        self._factory = factory
        self._tell = tell
        self._on_change = on_change
        self._numbers = itertools.count()
        self._serving = {model.name: self.make(model) for model in settings.models}
        self._others: set[EngineHost] = set()
        """Hosts that are not a model's yet, or not any more."""

    @property
    def sockets(self) -> dict[str, str]:
        """The path of each model's socket."""
        return {name: host.socket for name, host in self._serving.items()}

    @property
    def infos(self) -> Mapping[str, EngineInfo]:
        """The facts of each engine that was ready once."""
        return {name: host.info for name, host in self._serving.items() if host.info is not None}

    @property
    def are_loaded(self) -> bool:
        """Whether every engine was ready once."""
        return all(host.info is not None for host in self._serving.values())

    def list_serving(self) -> tuple[EngineHost, ...]:
        """Returns the hosts of all models."""
        return tuple(self._serving.values())

    def list_watches(self) -> list[ChildWatch]:
        """Returns the watches of all hosts."""
        return [host.watch for host in (*self._serving.values(), *self._others)]

    def list_news(self) -> Iterable[bytes]:
        """Yields the latest news of each host, for a new HTTP process."""
        return (to_line(News(engine=host.news)) for host in self._serving.values() if host.news is not None)

    def make(self, model: ModelSettings) -> EngineHost:
        """Makes the host of a model, without starting it."""
        watch = ChildWatch(
            f"the engine of {model.name}",
            lambda: self._start(host),
            lambda state, info: self._update(host, state, info),
        )
        host = EngineHost(model, build_socket_path(self._runtime, next(self._numbers)), watch)
        return host

    async def keep(self, host: EngineHost) -> None:
        """Keeps a host running. If it never becomes ready, notes its reason."""
        try:
            await host.watch.keep_running()
        except AntiphonError as error:
            host.error = error
        finally:
            host.settled.set()

    # --- reload ---------------------------------------------------------------------------------------------

    def add(self, models: Iterable[ModelSettings]) -> list[EngineHost]:
        """Makes hosts that belong to no model yet. The caller runs `keep` of each."""
        hosts = [self.make(model) for model in models]
        self._others.update(hosts)
        return hosts

    def adopt(self, added: Iterable[EngineHost], names: Iterable[str]) -> list[EngineHost]:
        """Makes added hosts the hosts of their models. Returns the hosts that no model has any more. `names`:
        all local models, in order."""
        before, new = self._serving, {host.model.name: host for host in added}
        self._serving = {name: new.get(name) or before[name] for name in names}
        gone = [host for name, host in before.items() if self._serving.get(name) is not host]
        self._others.difference_update(new.values())
        self._others.update(gone)
        return gone

    async def stop(self, hosts: Iterable[EngineHost], deadline: float) -> None:
        """Ends hosts that belong to no model. They are killed after `deadline` seconds."""
        for host in hosts:
            await host.watch.stop(deadline)
            self._others.discard(host)

    # --- one host -------------------------------------------------------------------------------------------

    async def _start(self, host: EngineHost) -> Child:
        settings, model = self._settings, host.model

        def configuration(status_fd: int) -> bytes:
            return to_line(
                HostConfig(
                    name=model.name,
                    factory=self._factory,
                    load=build_load_spec(model, settings),
                    socket=host.socket,
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

    def _update(self, host: EngineHost, state: EngineState, info: EngineInfo | None) -> None:
        """Keeps the state of a host. If the host serves a model, tells all HTTP processes."""
        name = host.model.name
        failed = f"the engine of {name} died {DEATHS} times within {WINDOW:g} s and was given up"
        host.news = EngineNews(name, state, failed if state is EngineState.FAILED else "")
        if info is not None:
            host.info = info
            host.settled.set()
        if self._serving.get(name) is host:
            self._tell(to_line(News(engine=host.news)))
            self._on_change()


def filter_host_environment(environ: Mapping[str, str], wait_policy: str) -> dict[str, str]:
    """Returns the environment of an engine host: the allowed variables of `environ`, and defaults for OpenMP
    and glibc unless the user has set them. All other variables are dropped."""
    passed_on = {
        name: value
        for name, value in environ.items()
        if name in HOST_VARIABLES or name.startswith(HOST_PREFIXES)
    }
    return {"OMP_WAIT_POLICY": wait_policy, MALLOC: LARGE_PAGES} | passed_on


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
