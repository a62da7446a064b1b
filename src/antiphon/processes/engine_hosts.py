"""Starts, watches and ends the engine hosts of one server: one or several for each local model.

A host that is added while the server runs serves nothing until it is ready and `adopt` assigns it to its
model.
"""

import asyncio
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from antiphon.engines.base import EngineInfo, EngineState, KVLayout, LoadSpec
from antiphon.engines.host.child import DEATHS, WINDOW, Child, ChildWatch, start_child
from antiphon.engines.host.control import ChildState, EngineNews, HostConfig, HostOrder, Status
from antiphon.engines.host.news import News
from antiphon.engines.host.ray.config import ClusterAddress
from antiphon.engines.host.runtime import build_socket_path
from antiphon.errors import AntiphonError
from antiphon.processes.cluster import DRIVER, ReplicaEngine, build_driver_config, filter_ray_environment
from antiphon.processes.ipc import to_line
from antiphon.processes.sandbox import INTERPRETER_VARIABLES
from antiphon.settings.models import ModelSettings, choose_devices, list_host_names
from antiphon.settings.schema import Settings, choose_interpreter

MALLOC = "GLIBC_TUNABLES"
LARGE_PAGES = "glibc.malloc.hugetlb=1"
"""Makes glibc request large pages from Linux, if the system leaves this to programs. Each token reads all
weights, and address lookups in 4 KB pages take 5 % of a step. glibc reads the variable at the start of a
process."""

HOST_VARIABLES = INTERPRETER_VARIABLES | {
    "USER",
    "TZ",
    "XDG_RUNTIME_DIR",
    "XDG_CACHE_HOME",
    "PYTHONWARNINGS",
    MALLOC,
}
DEVICE_PREFIXES = ("CUDA_", "NVIDIA_", "HIP_", "ROCR_", "HSA_", "VK_", "MESA_", "MTL_")
"""Prefixes of variables that select and configure the drivers of devices."""
HOST_PREFIXES = ("LC_", "DYLD_", "OMP_", "GOMP_", "KMP_", "GGML_", *DEVICE_PREFIXES)
"""Prefixes of variables for an engine host. It gets the variables of an interpreter, its libraries and their
threads, and no credential."""

VLLM_PREFIXES = ("VLLM_", "NCCL_", "TORCH")
"""Further prefixes for hosts of vLLM."""

VLLM_ENGINE = "antiphon.engines.vllm.engine:create_engine"
"""The token engine of models whose engine is vLLM."""

UNLOAD_REPLY_S = 10.0
"""Seconds in which a host unloads or refuses to. A host that has just loaded its model first waits for a
call."""

BUSY_PAUSE_S = 1.0
"""Seconds after which a host in use gets the order to unload again."""


@dataclass(slots=True, eq=False)
class EngineHost:
    """One engine host. It is restarted when it dies."""

    name: str
    """The model's name, or one of the names of its hosts."""
    model: ModelSettings
    socket: str
    watch: ChildWatch
    news: EngineNews | None = None
    info: EngineInfo | None = None
    """The facts of the loaded engine; None until it is ready for the first time."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the host is ready or has failed to become ready."""
    error: AntiphonError | None = None
    """Why the host never became ready."""
    is_queued: bool = False
    """For a model loaded on request: whether it waits for memory."""
    is_running: bool = False
    """For a model loaded on request: whether its host was started and has not ended."""
    is_ready: bool = False
    """For a model loaded on request: whether its host has loaded it."""
    memory: int = 0
    """For a model loaded on request: its size in memory in bytes."""
    problem: str = ""
    """For a model loaded on request: why its host was given up."""
    end: asyncio.Event = field(default_factory=asyncio.Event)
    """For a model loaded on request: set when its host has ended."""
    reply: "asyncio.Future[Status] | None" = None
    """Gets the report of such a host to an order."""

    @property
    def is_on_request(self) -> bool:
        """Whether the model is loaded on request."""
        return self.model.load == "request"

    async def send_order(self, unload: bool, within: float) -> Status | None:
        """Sends an order to the host and returns its report; None if there is none within `within`
        seconds."""
        reply: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self.reply = reply
        self.watch.send(to_line(HostOrder(unload)))
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                return await reply
        return None

    async def unload_when_idle(self) -> None:
        """Makes the host unload its model when no call needs it, and waits until it is unloaded."""
        while self.watch.is_running:
            report = await self.send_order(True, UNLOAD_REPLY_S)
            if report is not None and report.state is ChildState.UNLOADED:
                return
            await asyncio.sleep(BUSY_PAUSE_S)


class EngineHosts:
    """All engine hosts."""

    def __init__(
        self,
        settings: Settings,
        runtime: Path,
        factory: str,
        tell: Callable[[bytes], None],
        on_change: Callable[[], None],
        cluster: ClusterAddress | None = None,
    ) -> None:
        """`factory`: `module:attribute` of the token engine. `tell` sends a line to all HTTP processes.
        `on_change` is called when a host becomes ready or stops being ready. `cluster`: the cluster in which
        models run, if there is one."""
        self._settings = settings
        self._runtime = runtime
        self._factory = factory
        self._tell = tell
        self._on_change = on_change
        self._cluster = cluster
        self._numbers = itertools.count()
        self._serving = {
            name: self.make(model, name) for model in settings.models for name in list_host_names(model)
        }
        self._others: set[EngineHost] = set()
        """Hosts that are not yet, or no longer, assigned to a model."""

    @property
    def sockets(self) -> dict[str, str]:
        """The path of each host's socket, by the host's name."""
        return {name: host.socket for name, host in self._serving.items()}

    @property
    def infos(self) -> Mapping[str, EngineInfo]:
        """The facts of each engine that was ready at least once."""
        return {name: host.info for name, host in self._serving.items() if host.info is not None}

    @property
    def are_loaded(self) -> bool:
        """Whether every engine was ready at least once, except models loaded on request."""
        return all(host.info is not None or host.is_on_request for host in self._serving.values())

    def list_serving(self) -> tuple[EngineHost, ...]:
        """Returns the hosts that are assigned to models."""
        return tuple(self._serving.values())

    def find(self, name: str) -> EngineHost | None:
        """Returns the host with this name; None if there is none."""
        return self._serving.get(name)

    def list_running(self) -> list[EngineHost]:
        """Returns the running hosts of models loaded on request."""
        return [host for host in (*self._serving.values(), *self._others) if host.is_running]

    def list_watches(self) -> list[ChildWatch]:
        """Returns the watches of all hosts."""
        return [host.watch for host in (*self._serving.values(), *self._others)]

    def list_news(self) -> Iterable[bytes]:
        """Yields the latest news of each host, for a new HTTP process. The reason of a failed load is left
        out."""
        known_news = (host.news for host in self._serving.values() if host.news is not None)
        return (
            to_line(News(engine=replace(news, detail="") if news.state is EngineState.PARKED else news))
            for news in known_news
        )

    def make(self, model: ModelSettings, name: str) -> EngineHost:
        """Creates a host of a model. Does not start it."""
        watch = self._create_watch(model, name, lambda: host)
        host = EngineHost(name, model, build_socket_path(self._runtime, next(self._numbers)), watch)
        return host

    def prepare_restart(self, host: EngineHost) -> None:
        """Prepares the host of a parked model for its next start."""
        host.watch = self._create_watch(host.model, host.name, lambda: host)
        host.error, host.problem, host.is_ready, host.is_running = None, "", False, True
        host.end.clear()

    def _create_watch(self, model: ModelSettings, name: str, find: Callable[[], EngineHost]) -> ChildWatch:
        """Creates the watch of one host. `find` returns the host."""
        return ChildWatch(
            f"the engine of {name}",
            lambda: self._start(find()),
            lambda state, info: self._update(find(), state, info),
            always_restart=self._is_driver(model),  # a lost cluster can always come back
            on_report=lambda status: self._receive(find(), status),
        )

    def _is_driver(self, model: ModelSettings) -> bool:
        """Whether the host of a model is a driver of the cluster."""
        return self._cluster is not None and model.cluster

    def _receive(self, host: EngineHost, status: Status) -> None:
        """Passes a host's report to `send_order`. A host that has unloaded is not restarted."""
        if status.state is ChildState.UNLOADED:
            host.watch.forbid_restart()
        if host.reply is not None and not host.reply.done():
            host.reply.set_result(status)

    async def keep(self, host: EngineHost) -> None:
        """Keeps a host running. If it never becomes ready, stores the reason in `error`."""
        try:
            await host.watch.keep_running()
        except AntiphonError as error:
            host.error = error
        finally:
            host.settled.set()

    # --- reload ---------------------------------------------------------------------------------------------

    def add(self, models: Iterable[ModelSettings]) -> list[EngineHost]:
        """Creates hosts without assigning them to their models. The caller runs `keep` for each."""
        hosts = [self.make(model, name) for model in models for name in list_host_names(model)]
        self._others.update(hosts)
        return hosts

    def adopt(self, added: Iterable[EngineHost], names: Iterable[str]) -> list[EngineHost]:
        """Assigns added hosts to their models. Returns the hosts that no model uses any more. `names`: the
        hosts of all local models, in order."""
        before, new = self._serving, {host.name: host for host in added}
        self._serving = {name: new.get(name) or before[name] for name in names}
        unused = [host for name, host in before.items() if self._serving.get(name) is not host]
        self._others.difference_update(new.values())
        self._others.update(unused)
        return unused

    async def stop(self, hosts: Iterable[EngineHost], deadline: float) -> None:
        """Ends hosts that are not assigned to a model. Kills them after `deadline` seconds."""
        for host in hosts:
            await host.watch.stop(deadline)
            self._others.discard(host)

    # --- one host -------------------------------------------------------------------------------------------

    async def _start(self, host: EngineHost) -> Child:
        settings, model = self._settings, host.model
        cluster = self._cluster if model.cluster else None
        load = build_load_spec(model, settings, host.name)
        factory = VLLM_ENGINE if model.engine == "vllm" else self._factory

        def build_configuration(status_fd: int) -> bytes:
            host_line = to_line(
                HostConfig(
                    name=host.name,
                    factory=factory,
                    load=load,
                    socket=host.socket,
                    status_fd=status_fd,
                    log_level=settings.log.level,
                    log_format=settings.log.format,
                    user=settings.engine.user if cluster is None else None,
                    keep_alive=model.keep_alive,
                )
            )
            if cluster is None:
                return host_line
            engine = ReplicaEngine(factory, load)
            return host_line + to_line(
                build_driver_config(model, settings, cluster, engine, waits=host.info is not None)
            )

        if cluster is not None:
            environment = filter_ray_environment(os.environ)
            return await start_child([sys.executable, "-P", "-m", DRIVER], build_configuration, environment)

        command = [model.interpreter or choose_interpreter(settings), "-P", "-m", "antiphon.engines.host"]
        prefixes = VLLM_PREFIXES if model.engine == "vllm" else ()
        environment = filter_host_environment(os.environ, settings.engine.wait_policy, prefixes)
        return await start_child(command, build_configuration, environment)

    def _update(self, host: EngineHost, state: EngineState, info: EngineInfo | None) -> None:
        """Stores the state of a host. If the host is assigned to a model, tells all HTTP processes."""
        name = host.name
        host.is_ready = state is EngineState.READY
        failed = f"the engine of {name} died {DEATHS} times within {WINDOW:g} s and was given up"
        if state is EngineState.FAILED and host.is_on_request:
            host.problem = failed  # a later request tries again
            return
        if info is not None:
            host.info = info
            host.settled.set()
        self.report_state(host, state, failed if state is EngineState.FAILED else "")

    def report_state(
        self, host: EngineHost, state: EngineState, detail: str = "", retry_after: float = 0.0
    ) -> None:
        """Stores the news of a host. If the host is assigned to a model, tells all HTTP processes."""
        host.news = EngineNews(host.name, state, detail, retry_after)
        self.repeat_news(host)

    def repeat_news(self, host: EngineHost) -> None:
        """Sends the latest news of a host to all HTTP processes, if it is assigned to a model."""
        if host.news is not None and self._serving.get(host.name) is host:
            self._tell(to_line(News(engine=host.news)))
            self._on_change()


def filter_host_environment(
    environ: Mapping[str, str], wait_policy: str, prefixes: tuple[str, ...] = ()
) -> dict[str, str]:
    """Returns the environment of an engine host: the allowed variables of `environ`, and defaults for OpenMP
    and glibc. `prefixes`: further allowed prefixes."""
    passed_on = {
        name: value
        for name, value in environ.items()
        if name in HOST_VARIABLES or name.startswith(HOST_PREFIXES + prefixes)
    }
    return {"OMP_WAIT_POLICY": wait_policy, MALLOC: LARGE_PAGES} | passed_on


def build_load_spec(model: ModelSettings, settings: Settings, host: str | None = None) -> LoadSpec:
    """Builds the description of the model that an engine host loads. `host`: its name; None means the first
    host."""
    return LoadSpec(
        model=model.path,
        context_length=model.context_length,
        sequences=model.sequences,
        threads=model.threads,
        exact=model.exact,
        kv_type=model.kv_type,
        gpu_layers=None if model.gpu_layers == "auto" else model.gpu_layers,
        devices=choose_devices(model, host),
        hosts=model.hosts,
        tensor_split=model.tensor_split,
        library=settings.engine.library,
        layout=KVLayout(model.layout),
        cells=model.cells,
        step_latency=model.step_latency,
        queue=model.queue,
        queue_per_actor=model.queue_per_actor,
        keep_prefixes=model.keep_prefixes,
        weights_in_memory=model.weights == "memory",
        adapter_memory=settings.lora.memory_bytes,
        dtype=model.dtype,
        memory_share=model.memory_share,
        tensor_parallel=model.tensor_parallel,
        adapters=takes_adapters(model, settings),
    )


def takes_adapters(model: ModelSettings, settings: Settings) -> bool:
    """Whether the model has adapters, or callers can load some."""
    lora = settings.lora
    return bool(lora.directories or lora.repositories) or any(
        adapter.model == model.name for adapter in settings.adapters
    )
