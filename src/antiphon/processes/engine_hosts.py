"""Starts, watches and ends the engine hosts of one server: one or several for each local model.

A host that is added while the server runs serves nothing until it is ready and `assign` gives it to its
model.
"""

import asyncio
import itertools
import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from antiphon.domain.values import Struct, field, replace
from antiphon.engines.base import DraftMode, EngineInfo, EngineState, KVLayout, LoadSpec, RefusedMedium
from antiphon.engines.host.child import DEATHS, WINDOW, Child, ChildWatch, start_child
from antiphon.engines.host.control import ChildState, EngineStateNotice, HostConfig, HostOrder, Status
from antiphon.engines.host.ray.config import ClusterAddress
from antiphon.engines.host.runtime import build_socket_path
from antiphon.engines.host.supervisor_messages import SupervisorMessage
from antiphon.errors import AntiphonError, StartupError
from antiphon.processes.cluster import DRIVER, ReplicaEngine, build_driver_config, filter_ray_environment
from antiphon.processes.ipc import to_line
from antiphon.processes.sandbox import INTERPRETER_VARIABLES
from antiphon.settings.models import ModelSettings, choose_devices, list_host_names
from antiphon.settings.schema import Settings, choose_interpreter
from antiphon.telemetry.logs import describe_exception, record

PROJECTOR_HINT = (
    ": it was reading its weights, or encoding a test image with the projector {}; check that both files "
    "belong together and are whole"
)

KEYED_QUEUE_PER_ACTOR = 256
"""The most choices of one caller that may wait for a model, unless the settings have another number."""

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

REFUSED_SECONDS = 3600.0
"""Seconds in which a medium that has ended an engine host is refused."""

MOST_SUSPECTS = 256
"""The most media that are remembered because of that. The oldest are forgotten."""

KILLED = "signal SIGKILL"
"""The end of a process that something outside has killed, such as the system when memory is short."""

BUSY_PAUSE_S = 1.0
"""Seconds after which a host in use gets the order to unload again."""


class EngineHost(Struct, eq=False):
    """One engine host. It is restarted when it dies."""

    name: str
    """The model's name, or one of the names of its hosts."""
    model: ModelSettings
    socket: str
    watch: ChildWatch
    latest_state: EngineStateNotice | None = None
    """The latest state, as reported to the HTTP processes; None before the first report."""
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
    is_unloaded: bool = False
    """For a model loaded on request: whether its host has unloaded it, and ends now."""
    memory: int = 0
    """For a model loaded on request: its size in memory in bytes."""
    problem: str = ""
    """For a model loaded on request: why its host was given up."""
    end: asyncio.Event = field(default_factory=asyncio.Event)
    """For a model loaded on request: set when its host has ended."""
    order_reply: "asyncio.Future[Status] | None" = None
    """Receives the host's report on its latest order."""
    encoding: str = ""
    """The digest of the medium that the host encodes now; empty if it encodes none."""

    @property
    def is_on_request(self) -> bool:
        """Whether the model is loaded on request."""
        return self.model.load == "request"

    async def send_order(self, unload: bool, timeout_s: float) -> Status | None:
        """Orders the host to unload its model if no call needs it, or only to report its use. Returns the
        host's report; None if there is none within `timeout_s` seconds."""
        order_reply: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self.order_reply = order_reply
        self.watch.send(to_line(HostOrder(unload)))
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                return await order_reply
        return None

    async def unload_when_idle(self) -> None:
        """Makes the host unload its model when no call needs it, and waits until it is unloaded."""
        while self.watch.is_running:
            report = await self.send_order(True, UNLOAD_REPLY_S)
            if report is not None and report.state is ChildState.UNLOADED:
                return
            await asyncio.sleep(BUSY_PAUSE_S)


class Suspect(Struct, frozen=True):
    """A medium during whose encode an engine host has ended."""

    model: str
    digest: str
    until: float
    """The Unix time at which it is forgotten."""
    is_refused: bool


class EngineHosts:
    """The engine hosts of one server. A host is assigned to a model when the settings name the model and the
    host serves it."""

    def __init__(
        self,
        settings: Settings,
        runtime: Path,
        factory: str,
        tell: Callable[[bytes], None],
        on_change: Callable[[], None],
        on_death: Callable[[str], None],
        cluster: ClusterAddress | None = None,
    ) -> None:
        """`factory`: `module:attribute` of the token engine. `tell` sends a line to all HTTP processes.
        `on_change` is called each time after `tell` has sent the state of a host. `on_death` is
        called with the name of a host whose process has ended unasked. `cluster`: the cluster in which models
        run, if there is one."""
        self._settings = settings
        self._runtime = runtime
        self._factory = factory
        self._tell = tell
        self._on_change = on_change
        self._on_death = on_death
        self._cluster = cluster
        self._socket_numbers = itertools.count()
        self._suspects: list[Suspect] = []
        self._assigned = {
            name: self.create_host(model, name)
            for model in settings.models
            for name in list_host_names(model)
        }
        self._unassigned: set[EngineHost] = set()
        """New hosts that are not assigned to a model yet, and old ones that are not any more."""

    @property
    def sockets(self) -> dict[str, str]:
        """The path of each host's socket, by the host's name."""
        return {name: host.socket for name, host in self._assigned.items()}

    @property
    def infos(self) -> Mapping[str, EngineInfo]:
        """The facts of each engine that was ready at least once."""
        return {name: host.info for name, host in self._assigned.items() if host.info is not None}

    @property
    def are_loaded(self) -> bool:
        """Whether every engine was ready at least once, except models loaded on request."""
        return all(host.info is not None or host.is_on_request for host in self._assigned.values())

    def list_assigned(self) -> tuple[EngineHost, ...]:
        """Returns the hosts that are assigned to models."""
        return tuple(self._assigned.values())

    def find(self, name: str) -> EngineHost | None:
        """Returns the assigned host with this name; None if there is none."""
        return self._assigned.get(name)

    def list_running(self) -> list[EngineHost]:
        """Returns the running hosts of models loaded on request."""
        return [host for host in (*self._assigned.values(), *self._unassigned) if host.is_running]

    def list_watches(self) -> list[ChildWatch]:
        """Returns the watches of all hosts."""
        return [host.watch for host in (*self._assigned.values(), *self._unassigned)]

    def list_state_lines(self) -> Iterable[bytes]:
        """Yields a line with the latest state of each assigned host, for a new HTTP process. Leaves out why a
        load failed, so that a request of the new process can try again at once."""
        states = (host.latest_state for host in self._assigned.values() if host.latest_state is not None)
        return (
            to_line(
                SupervisorMessage(
                    engine=replace(state, detail="") if state.state is EngineState.PARKED else state
                )
            )
            for state in states
        )

    def create_host(self, model: ModelSettings, name: str) -> EngineHost:
        """Creates a host of a model. Does not start it."""
        watch = self._create_watch(model, name, lambda: host)
        host = EngineHost(name, model, build_socket_path(self._runtime, next(self._socket_numbers)), watch)
        return host

    def prepare_restart(self, host: EngineHost) -> None:
        """Prepares the host of a parked model for its next start."""
        host.watch = self._create_watch(host.model, host.name, lambda: host)
        host.error, host.problem = None, ""
        host.is_running, host.is_ready, host.is_unloaded = True, False, False
        host.end.clear()

    def _create_watch(
        self, model: ModelSettings, name: str, get_host: Callable[[], EngineHost]
    ) -> ChildWatch:
        """Creates the watch of one host. `get_host` returns the host, which is created after its watch."""
        return ChildWatch(
            f"the engine of {name}",
            lambda: self._start(get_host()),
            lambda state, info: self._update(get_host(), state, info),
            always_restart=self._is_driver(model),  # a lost cluster can always come back
            on_report=lambda status: self._receive(get_host(), status),
            on_death=lambda: self._note_death(get_host()),
            start_hint="" if model.mmproj is None else PROJECTOR_HINT.format(Path(model.mmproj).name),
        )

    def _is_driver(self, model: ModelSettings) -> bool:
        """Whether the host of a model is a driver of the cluster."""
        return self._cluster is not None and model.cluster

    def _receive(self, host: EngineHost, status: Status) -> None:
        """Notes what a host encodes, and passes its other reports to `send_order`. A host that has unloaded
        is not restarted."""
        if status.state is ChildState.ENCODING:
            host.encoding = status.digest
            return
        if status.state is ChildState.UNLOADED:
            host.is_unloaded = True
            host.watch.forbid_restart()
        if host.order_reply is not None and not host.order_reply.done():
            host.order_reply.set_result(status)

    def _note_death(self, host: EngineHost) -> None:
        """Refuses the medium whose encode has ended a host, to all hosts of the model. A host that was killed
        from outside may be innocent of its end, so its medium is tried once more."""
        self._on_death(host.name)
        digest, host.encoding = host.encoding, ""
        if not digest:
            return
        now, model, ending = time.time(), host.model.name, host.watch.latest_end
        suspects = [suspect for suspect in self._suspects if suspect.until > now]
        is_second = any(suspect.model == model and suspect.digest == digest for suspect in suspects)
        suspect = Suspect(model, digest, now + REFUSED_SECONDS, is_second or ending != KILLED)
        self._suspects = [*suspects, suspect][-MOST_SUSPECTS:]
        record("encode_killed", logging.ERROR, model=model, how=ending, refused=suspect.is_refused)
        if not suspect.is_refused:
            return
        order = to_line(HostOrder(refused=RefusedMedium(digest, suspect.until)))
        for other in (*self._assigned.values(), *self._unassigned):
            if other is not host and other.model.name == model:
                other.watch.send(order)

    def _list_refused(self, model: str) -> tuple[RefusedMedium, ...]:
        """Returns the media that new hosts of a model refuse."""
        return tuple(
            RefusedMedium(suspect.digest, suspect.until)
            for suspect in self._suspects
            if suspect.is_refused and suspect.model == model
        )

    async def keep_running(self, host: EngineHost) -> None:
        """Starts a host, and restarts it until it is stopped or given up. If it never becomes ready, stores
        the reason in `error`."""
        try:
            await host.watch.keep_running()
        except AntiphonError as error:
            host.error = error
        except Exception as defect:  # noqa: BLE001 - a host that cannot start must not end the server
            host.error = StartupError(f"{host.watch.name} cannot be started: {describe_exception(defect)}")
        finally:
            host.settled.set()

    # --- reload ---------------------------------------------------------------------------------------------

    def add(self, models: Iterable[ModelSettings]) -> list[EngineHost]:
        """Creates hosts without assigning them to their models. The caller runs `keep_running` for each."""
        hosts = [self.create_host(model, name) for model in models for name in list_host_names(model)]
        self._unassigned.update(hosts)
        return hosts

    def add_for_failed(self, models: Collection[ModelSettings]) -> list[EngineHost]:
        """Creates, without assigning it, a host for each that was given up and whose model is one of these.
        The caller runs `keep_running` for each."""
        hosts = [
            self.create_host(host.model, host.name)
            for host in self._assigned.values()
            if host.latest_state is not None
            and host.latest_state.state is EngineState.FAILED
            and host.model in models
        ]
        self._unassigned.update(hosts)
        return hosts

    def assign(self, added: Iterable[EngineHost], names: Iterable[str]) -> list[EngineHost]:
        """Assigns added hosts to their models. Returns the hosts that no model uses any more. `names`: the
        names of the hosts of all local models, in order."""
        old_hosts, new_hosts = self._assigned, {host.name: host for host in added}
        self._assigned = {name: new_hosts.get(name) or old_hosts[name] for name in names}
        unused = [host for name, host in old_hosts.items() if self._assigned.get(name) is not host]
        self._unassigned.difference_update(new_hosts.values())
        self._unassigned.update(unused)
        return unused

    async def stop(self, hosts: Iterable[EngineHost], deadline: float) -> None:
        """Ends hosts that are not assigned to a model. Kills them after `deadline` seconds."""
        for host in hosts:
            await host.watch.stop(deadline)
            self._unassigned.discard(host)

    # --- one host -------------------------------------------------------------------------------------------

    async def _start(self, host: EngineHost) -> Child:
        settings, model = self._settings, host.model
        cluster = self._cluster if model.cluster else None
        # The first threads of several engines would be bound to the same core.
        is_only_engine = {each.name for each in (*self._assigned.values(), *self._unassigned)} == {host.name}
        load = replace(
            build_load_spec(model, settings, host.name), bind_threads=model.bind_threads and is_only_engine
        )
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
                    refused=self._list_refused(model.name),
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
        failure = f"the engine of {name} died {DEATHS} times within {WINDOW:g} s and was given up"
        if state is EngineState.FAILED and host.is_on_request:
            host.problem = failure  # a later request tries again
            return
        if host.is_ready:
            for medium in self._list_refused(host.model.name):  # a host that loads its model misses orders
                host.watch.send(to_line(HostOrder(refused=medium)))
        if info is not None:
            host.info = info
            host.settled.set()
        self.report_state(host, state, failure if state is EngineState.FAILED else "")

    def report_state(
        self, host: EngineHost, state: EngineState, detail: str = "", retry_after: float = 0.0
    ) -> None:
        """Stores the state of a host. If the host is assigned to a model, tells all HTTP processes.
        `detail` and `retry_after`: see `EngineStateNotice`."""
        host.latest_state = EngineStateNotice(host.name, state, detail, retry_after)
        self.repeat_state(host)

    def repeat_state(self, host: EngineHost) -> None:
        """Sends the latest state of a host to all HTTP processes, if the host is assigned to a model."""
        if host.latest_state is not None and self._assigned.get(host.name) is host:
            self._tell(to_line(SupervisorMessage(engine=host.latest_state)))
            self._on_change()


def filter_host_environment(
    environ: Mapping[str, str], wait_policy: str, prefixes: tuple[str, ...] = ()
) -> dict[str, str]:
    """Returns the environment of an engine host: the allowed variables of `environ`, and defaults for OpenMP
    and glibc. `prefixes`: further allowed prefixes."""
    allowed = {
        name: value
        for name, value in environ.items()
        if name in HOST_VARIABLES or name.startswith(HOST_PREFIXES + prefixes)
    }
    return {"OMP_WAIT_POLICY": wait_policy, MALLOC: LARGE_PAGES} | allowed


def build_load_spec(model: ModelSettings, settings: Settings, host_name: str | None = None) -> LoadSpec:
    """Builds the description of the model that an engine host loads. `host_name`: the name of the host; None
    means the model's first host."""
    queue_per_actor = model.queue_per_actor
    if queue_per_actor is None:
        # Callers without a key cannot be told apart.
        queue_per_actor = KEYED_QUEUE_PER_ACTOR if settings.keys.enabled else model.queue
    return LoadSpec(
        model=model.path,
        context_length=model.context_length,
        sequences=model.sequences,
        threads=model.threads,
        exact=model.exact,
        kv_type=model.kv_type,
        gpu_layers=None if model.gpu_layers == "auto" else model.gpu_layers,
        devices=choose_devices(model, host_name),
        hosts=model.hosts,
        tensor_split=model.tensor_split,
        library=settings.engine.library,
        layout=KVLayout(model.layout),
        cells=model.cells,
        step_latency=model.step_latency,
        queue=model.queue,
        queue_per_actor=queue_per_actor,
        keep_prefixes=model.keep_prefixes,
        weights_in_memory=model.weights == "memory",
        adapter_memory=settings.lora.memory_bytes,
        dtype=model.dtype,
        memory_share=model.memory_share,
        tensor_parallel=model.tensor_parallel,
        adapters=can_use_adapters(model, settings),
        drafts=DraftMode(model.drafts),
        mmproj=model.mmproj,
        image_max_tokens=model.image_max_tokens,
        image_min_tokens=model.image_min_tokens,
    )


def can_use_adapters(model: ModelSettings, settings: Settings) -> bool:
    """Whether the settings give the model an adapter, or callers can load adapters."""
    lora = settings.lora
    return bool(lora.directories or lora.repositories) or any(
        adapter.model == model.name for adapter in settings.adapters
    )
