"""Settings of a Ray cluster. Its machines run the replicas of local models."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from antiphon.errors import SettingsError
from antiphon.regular_files import read_text
from antiphon.settings.models import (
    ModelSettings,
)
from antiphon.settings.server import (
    AT_LEAST_ZERO,
    describe,
)

LOCAL = "local"
"""The value of `address` that starts a new cluster on this machine."""

ADDRESS = re.compile(r"[^\s/:@\[\]]+:\d{1,5}|\[[0-9a-fA-F:.]+\]:\d{1,5}")

MIN_TOKEN_LENGTH = 16

RAY_TOKEN, RAY_TOKEN_FILE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
"""Ray's own variables for its token. KubeRay sets the first one in its pods."""

CLUSTER_ONLY = ("replicas", "max_replicas", "replica_cpus", "replica_gpus", "replica_resources")
"""Settings of a model that have an effect only in a cluster."""


class ClusterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Ray cluster that runs local models (ray.md). It needs the extra `ray`."""

    address: Annotated[
        str | None,
        describe(
            "ANTIPHON_CLUSTER",
            "The Ray cluster that runs the models: `local` starts one on this machine, HOST:PORT "
            "joins one. None runs models in processes of this server.",
            example="ray-head:6379",
        ),
    ] = None
    token: Annotated[
        str | None,
        describe(
            "ANTIPHON_CLUSTER_TOKEN",
            "The token of the Ray cluster. None takes Ray's own variables RAY_AUTH_TOKEN and "
            "RAY_AUTH_TOKEN_PATH. A local cluster without a token gets a new one.",
        ),
    ] = None
    interpreter: Annotated[
        str | None,
        describe(
            "ANTIPHON_CLUSTER_INTERPRETER",
            "Python that runs replicas, at the same path on all machines. None means the one that "
            "runs Ray there. The interpreter of a model comes first.",
        ),
    ] = None
    cpus: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        describe(
            "ANTIPHON_CLUSTER_CPUS",
            "CPUs that replicas of a local cluster can take together. None means all.",
        ),
    ] = None
    grows: Annotated[
        bool,
        describe(
            "ANTIPHON_CLUSTER_GROWS",
            "Whether the cluster can add machines. If not, the server does not start with a model "
            "that no machine can run.",
        ),
    ] = False
    upscale_delay: Annotated[
        float,
        describe(
            "ANTIPHON_CLUSTER_UPSCALE_DELAY",
            "A replica is added after there were more sequences than places for this many seconds.",
        ),
        AT_LEAST_ZERO,
    ] = 10.0
    downscale_delay: Annotated[
        float,
        describe(
            "ANTIPHON_CLUSTER_DOWNSCALE_DELAY",
            "A replica is removed after fewer were enough for this many seconds.",
        ),
        AT_LEAST_ZERO,
    ] = 300.0
    drain_timeout: Annotated[
        float,
        describe(
            "ANTIPHON_CLUSTER_DRAIN_TIMEOUT",
            "Seconds in which the sequences of a removed replica can finish.",
        ),
        AT_LEAST_ZERO,
    ] = 600.0

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Returns the settings without the token. `repr` and logs show this form."""
        values = msgspec.structs.asdict(self)
        return [(name, "***" if name == "token" and value else value) for name, value in values.items()]

    def __repr__(self) -> str:
        return f"ClusterSettings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


def is_in_cluster(model: ModelSettings, cluster: ClusterSettings) -> bool:
    """Whether a model runs in the cluster, and not on this machine."""
    return cluster.address is not None and model.cluster


def require_cluster(cluster: ClusterSettings, models: tuple[ModelSettings, ...]) -> None:
    """Raises SettingsError for settings of the cluster that would have no effect."""
    if cluster.address is None:
        unused = [name for name, value in msgspec.structs.asdict(cluster).items() if value != DEFAULTS[name]]
        if unused:
            raise SettingsError(
                f"{unused[0]} of the cluster has no effect without a cluster: name a cluster with --cluster "
                f"(ANTIPHON_CLUSTER), or leave {unused[0]} out"
            )
    elif cluster.address != LOCAL and not ADDRESS.fullmatch(cluster.address):
        raise SettingsError(
            f"--cluster takes {LOCAL}, or HOST:PORT of a Ray cluster's head, not {cluster.address!r}"
        )
    if cluster.cpus is not None and cluster.address != LOCAL:
        raise SettingsError(
            f"cluster.cpus acts only with --cluster {LOCAL}; for other machines, give the CPUs to `ray start`"
        )
    for model in models:
        _require_replicas(model, cluster)


def _require_replicas(model: ModelSettings, cluster: ClusterSettings) -> None:
    """Raises SettingsError for settings of a model's replicas that would have no effect."""
    if not is_in_cluster(model, cluster):
        changed = [name for name in CLUSTER_ONLY if getattr(model, name) != getattr(DEFAULT_MODEL, name)]
        if changed:
            raise SettingsError(
                f"{changed[0]} of the model {model.name} acts only in a cluster: "
                f"name a cluster with --cluster, or leave {changed[0]} out"
            )
        return
    if model.mmproj is not None:
        raise SettingsError(
            f"mmproj of the model {model.name} acts only on this machine, and the model runs in the cluster; "
            "leave mmproj out, or keep the model here with cluster = false"
        )
    if model.hosts > 1:
        raise SettingsError(
            f"hosts of the model {model.name} acts only on this machine, and the model runs in the cluster; "
            "set replicas instead of hosts, or keep the model here with cluster = false"
        )
    if model.max_replicas is not None and model.max_replicas < model.replicas:
        raise SettingsError(
            f"max_replicas of the model {model.name} is {model.max_replicas}, less than its "
            f"{model.replicas} replicas; raise max_replicas, or leave it out"
        )
    if model.engine == "vllm" and model.devices:
        raise SettingsError(
            f"devices of the model {model.name} does not act in the cluster, where Ray gives each replica of "
            "vLLM its GPUs; set replica_gpus instead"
        )
    if model.tensor_parallel > 1 and model.replica_gpus != model.tensor_parallel:
        raise SettingsError(
            f"tensor_parallel of the model {model.name} is {model.tensor_parallel}: set its replica_gpus to "
            "the same number, so that each replica gets the devices"
        )
    if model.load == "request":
        raise SettingsError(
            f'the model {model.name} runs in the cluster, where load = "request" does not act; leave load '
            "out, or keep the model on this machine with cluster = false"
        )


DEFAULTS = msgspec.structs.asdict(ClusterSettings())

DEFAULT_MODEL = ModelSettings(name="-", path="-")


def find_token(cluster: ClusterSettings, environ: Mapping[str, str]) -> str | None:
    """Returns the token of the cluster; None if a local cluster needs a new one. Raises SettingsError if the
    token is missing or unusable."""
    token = cluster.token or environ.get(RAY_TOKEN) or _read_token(environ.get(RAY_TOKEN_FILE))
    if token is None:
        if cluster.address == LOCAL:
            return None
        raise SettingsError(
            f"the cluster at {cluster.address} can only be joined with its token: set ANTIPHON_CLUSTER_TOKEN "
            "to the token that its machines were started with (RAY_AUTH_TOKEN)"
        )
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError(
            f"the token of the cluster must be at least {MIN_TOKEN_LENGTH} printable "
            "characters without spaces; make one with: openssl rand -hex 32"
        )
    return token


def _read_token(path: str | None) -> str | None:
    """Reads the token from a file. Raises SettingsError."""
    if not path:
        return None
    try:
        return read_text(path).strip() or None
    except (OSError, UnicodeDecodeError) as problem:
        raise SettingsError(f"the token of the cluster in {path} cannot be read: {problem}") from None
