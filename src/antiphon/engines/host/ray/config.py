"""The configurations of the processes of a Ray cluster, and of the deployments in it. The supervisor sends
them as JSON lines through pipes."""

import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from antiphon.domain.values import Struct, field
from antiphon.engines.base import LoadSpec
from antiphon.errors import SettingsError

EXTRA = "ray"

AUTH_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Ray's variables about its token. The supervisor's children get the token through their pipe instead."""


class Placement(Struct, frozen=True):
    """The resources that one replica takes on its machine."""

    cpus: float = 1.0
    gpus: float = 0.0
    custom_resources: dict[str, float] = field(default_factory=dict)
    """The amounts of the operator's own resources, by name."""

    def list_resources(self) -> dict[str, float]:
        """Returns the resources by Ray's names."""
        amounts = {"CPU": self.cpus, "GPU": self.gpus, **self.custom_resources}
        return {name: amount for name, amount in amounts.items() if amount}


class DeploymentSpec(Struct, frozen=True):
    """One model as an application of Ray Serve."""

    name: str
    """The model's name."""
    factory: str
    """`module:attribute` of a callable without arguments that makes the `TokenEngine` in each replica."""
    load: LoadSpec
    placement: Placement = Placement()
    replicas: int = 1
    max_replicas: int | None = None
    """The most replicas. Ray adds and removes replicas between `replicas` and this number. None keeps
    `replicas`."""
    upscale_delay: float = 10.0
    downscale_delay: float = 300.0
    drain_timeout: float = 600.0
    interpreter: str | None = None


class ClusterAddress(Struct, frozen=True):
    """The address of the cluster's head, and the token that every process must have."""

    address: str
    token: str


class DriverConfig(Struct, frozen=True):
    """The second line of a driver's configuration. The first one is its `HostConfig`."""

    cluster: ClusterAddress
    deployment: DeploymentSpec
    waits: bool = False
    """Whether the driver waits while the cluster cannot be reached, or no replica can load. The supervisor
    sets it if the driver was ready before. If it is not set, the driver ends with the error."""


class NodeConfig(Struct, frozen=True):
    """The configuration of the node process."""

    cluster: ClusterAddress
    status_fd: int
    directory: str
    """The directory in which a local cluster keeps its sockets and logs."""
    placements: dict[str, Placement]
    """The resources that one replica of each model takes, by the model's name."""
    replicas: dict[str, int] = field(default_factory=dict)
    """How many replicas the cluster must hold at once, by the model's name. A missing entry means one."""
    is_local: bool = False
    """Whether the process starts the cluster on this machine. If not, it joins a running cluster."""
    cpus: int | None = None
    """The number of CPUs that a local cluster offers."""
    grows: bool = False
    """Whether the cluster adds machines by itself when they are needed."""
    waits: bool = False
    """Whether the process waits while the cluster cannot be reached. The supervisor sets it if the process
    was ready before. If it is not set, the process ends with the error."""
    log_level: str = "info"
    log_format: Literal["text", "json"] = "text"


def require_ray(get_version: Callable[[str], str] = version) -> str:
    """Returns the version of the installed Ray, without importing it. Raises SettingsError if it is not
    installed. `get_version`: returns the version of a package."""
    try:
        installed = get_version("ray")
        get_version("ormsgpack")
    except PackageNotFoundError as error:
        raise SettingsError(
            f"a cluster needs the package {error.name}: install the extra, pip install 'antiphon[{EXTRA}]' "
            f"or make serve EXTRAS={EXTRA}, or leave --cluster out"
        ) from None
    return installed


def set_ray_environment(token: str) -> None:
    """Sets the variables that Ray reads when it is imported and when it starts other processes."""
    for name in AUTH_VARIABLES:
        os.environ.pop(name, None)
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
