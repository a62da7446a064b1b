"""What the supervisor tells the processes of a Ray cluster, and what a driver tells Ray Serve. All of it
travels as JSON lines, through pipes."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from antiphon.engines.base import LoadSpec
from antiphon.errors import SettingsError

EXTRA = "ray"

AUTH_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Ray's variables about its token. Children get the token through their pipe instead."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The resources that one replica takes, all of one machine."""

    cpus: float = 1.0
    gpus: float = 0.0
    others: dict[str, float] = field(default_factory=dict)

    def list_resources(self) -> dict[str, float]:
        """Returns the resources by Ray's names."""
        named = {"CPU": self.cpus, "GPU": self.gpus, **self.others}
        return {name: amount for name, amount in named.items() if amount}


@dataclass(frozen=True, slots=True)
class DeploymentSpec:
    """One model as an application of Ray Serve."""

    name: str
    """The model's name."""
    factory: str
    """`module:attribute` of a callable without arguments that makes the `TokenEngine` in each replica."""
    load: LoadSpec
    placement: Placement = Placement()
    replicas: int = 1
    max_replicas: int | None = None
    """Above `replicas`, Ray adds and removes replicas. None keeps their number."""
    upscale_delay: float = 10.0
    downscale_delay: float = 300.0
    drain_timeout: float = 600.0
    interpreter: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where the cluster's head is, and the token that every process must have."""

    address: str
    token: str


@dataclass(frozen=True, slots=True)
class DriverConfig:
    """The second line of a driver's configuration. The first one is its `HostConfig`."""

    cluster: ClusterAddress
    deployment: DeploymentSpec
    waits: bool = False
    """Whether the driver waits for a cluster that is not there. Otherwise it ends with the reason."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The configuration of the node process."""

    cluster: ClusterAddress
    status_fd: int
    directory: str
    """Where a local cluster keeps its sockets and logs."""
    placements: dict[str, Placement]
    """What one replica of each model takes, by the model's name."""
    replicas: dict[str, int] = field(default_factory=dict)
    """How many replicas the cluster must hold at once, by the model's name. One, where it is left out."""
    is_local: bool = False
    """Whether to start the cluster here. Otherwise the process joins it."""
    cpus: int | None = None
    """CPUs that a local cluster offers."""
    grows: bool = False
    """Whether the cluster adds machines."""
    waits: bool = False
    """Whether the process waits for a cluster that is not there."""
    log_level: str = "info"
    log_format: Literal["text", "json"] = "text"


def require_ray(find: Callable[[str], str] = version) -> str:
    """Returns the version of the installed Ray, without importing it. Raises SettingsError if it is not
    installed. `find`: returns the version of a package."""
    try:
        installed = find("ray")
        find("ormsgpack")
    except PackageNotFoundError as missing:
        raise SettingsError(
            f"a cluster needs the package {missing.name}: install the extra, pip install 'antiphon[{EXTRA}]' "
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
