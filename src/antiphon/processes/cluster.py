"""The node process of a Ray cluster, and the configuration of its models' drivers.

The node starts first, so that the server opens its port only if the cluster is usable. Later the node is
always restarted, because the cluster can come back.
"""

import asyncio
import dataclasses
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from antiphon.domain.values import Struct, replace
from antiphon.engines.base import EngineInfo, EngineState, LoadSpec
from antiphon.engines.host.child import Child, ChildWatch, start_child
from antiphon.engines.host.ray.config import (
    AUTH_VARIABLES,
    ClusterAddress,
    DeploymentSpec,
    DriverConfig,
    NodeConfig,
    Placement,
    require_ray,
)
from antiphon.errors import AntiphonError
from antiphon.processes.ipc import to_line
from antiphon.processes.sandbox import INTERPRETER_VARIABLES
from antiphon.settings.cluster import LOCAL, find_token, is_in_cluster
from antiphon.settings.models import ModelSettings
from antiphon.settings.schema import Settings

NODE = "antiphon.engines.host.ray.node"
DRIVER = "antiphon.engines.host.ray"

RAY_VARIABLES = INTERPRETER_VARIABLES | {"USER", "TZ", "XDG_CACHE_HOME", "PYTHONWARNINGS"}
RAY_PREFIXES = (
    "LC_",
    "DYLD_",
    "OMP_",
    "GGML_",
    "CUDA_",
    "NVIDIA_",
    "HIP_",
    "ROCR_",
    "RAY_",
    "VLLM_",
    "HF_HUB_",
)
"""Prefixes of the variables that Ray's processes get, including the replicas of a local cluster. None of them
is a credential; the token is sent through the pipe."""


def find_cluster(settings: Settings) -> ClusterAddress | None:
    """Returns the cluster of the settings; None if there is none. A local cluster gets a free port. A cluster
    without a token gets a random one. Raises SettingsError."""
    cluster = settings.cluster
    if cluster.address is None:
        return None
    require_ray()
    token = find_token(cluster, os.environ) or secrets.token_hex(32)
    if cluster.address != LOCAL:
        return ClusterAddress(cluster.address, token)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return ClusterAddress(f"127.0.0.1:{probe.getsockname()[1]}", token)


def filter_ray_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of the node process and of drivers."""
    return {
        name: value
        for name, value in environ.items()
        if (name in RAY_VARIABLES or name.startswith(RAY_PREFIXES)) and name not in AUTH_VARIABLES
    }


@dataclasses.dataclass(slots=True)
class ClusterNode:
    """The node process of one server. It starts or joins the Ray cluster."""

    settings: Settings
    address: ClusterAddress
    runtime: Path
    """The runtime directory of the server."""
    settled: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    """Set when the node has joined the cluster, or has failed to join."""
    error: AntiphonError | None = None
    """Why the node never joined the cluster."""
    watch: ChildWatch = dataclasses.field(init=False)
    _was_ready: bool = False

    def __post_init__(self) -> None:
        self.watch = ChildWatch("the Ray node", self._start, self._update, always_restart=True)

    async def keep_running(self) -> None:
        """Starts the node, and restarts it until it is stopped. If it never becomes ready, stores the reason
        in `error`."""
        try:
            await self.watch.keep_running()
        except AntiphonError as error:
            self.error = error
        finally:
            self.settled.set()

    def _update(self, state: EngineState, _: EngineInfo | None) -> None:
        """Notes when the node has joined the cluster."""
        if state is EngineState.READY:
            self._was_ready = True
            self.settled.set()

    async def _start(self) -> Child:
        directory = str(self.runtime / "ray")

        def build_configuration(status_fd: int) -> bytes:
            return to_line(
                build_node_config(self.settings, self.address, status_fd, directory, self._was_ready)
            )

        command = [sys.executable, "-P", "-m", NODE]
        return await start_child(command, build_configuration, filter_ray_environment(os.environ))


def build_node_config(
    settings: Settings, address: ClusterAddress, status_fd: int, directory: str, waits: bool
) -> NodeConfig:
    """Returns the configuration of the node process. `waits`: whether the node waits for a cluster that is
    unavailable.

    The node checks that the cluster is large enough for the models. All replicas must fit into a local
    cluster, because its size does not change. Another cluster can lack a machine for a while, so one replica
    of each model must fit.
    """
    cluster = settings.cluster
    is_local = cluster.address == LOCAL
    models = [model for model in settings.models if is_in_cluster(model, cluster)]
    return NodeConfig(
        cluster=address,
        status_fd=status_fd,
        directory=directory,
        placements={model.name: build_placement(model) for model in models},
        replicas={model.name: model.replicas for model in models} if is_local else {},
        is_local=is_local,
        cpus=cluster.cpus,
        grows=cluster.grows,
        waits=waits,
        log_level=settings.log.level,
        log_format=settings.log.format,
    )


class ReplicaEngine(Struct, frozen=True):
    """The engine that each replica of a model runs."""

    factory: str
    """`module:attribute` of a callable that creates the token engine."""
    load: LoadSpec


def build_placement(model: ModelSettings) -> Placement:
    """Returns the resources of each replica of a model."""
    other_resources = dict(resource.split("=", 1) for resource in model.replica_resources)
    cpus = model.replica_cpus if model.replica_cpus is not None else float(model.threads or 1)
    return Placement(
        cpus, model.replica_gpus, {name: float(amount) for name, amount in other_resources.items()}
    )


def build_driver_config(
    model: ModelSettings, settings: Settings, address: ClusterAddress, engine: ReplicaEngine, waits: bool
) -> DriverConfig:
    """Returns the configuration of a model's driver. `waits`: whether the driver waits for a cluster that is
    unavailable."""
    placement, cluster = build_placement(model), settings.cluster
    threads = model.threads or max(1, int(placement.cpus))
    spec = DeploymentSpec(
        name=model.name,
        factory=engine.factory,
        # Other replicas can be on the same machine, and their first threads would share a core.
        load=replace(engine.load, threads=threads, bind_threads=False),
        placement=placement,
        replicas=model.replicas,
        max_replicas=model.max_replicas,
        upscale_delay=cluster.upscale_delay,
        downscale_delay=cluster.downscale_delay,
        drain_timeout=cluster.drain_timeout,
        interpreter=model.interpreter or cluster.interpreter,
    )
    return DriverConfig(address, spec, waits)
