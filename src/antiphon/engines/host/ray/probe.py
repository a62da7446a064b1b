"""Checks a cluster's head before this machine joins the cluster. It makes single calls, and starts no driver.

The calls belong to Ray's internal protocol, which may change with each version of Ray.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from antiphon.engines.host.ray.config import ClusterAddress, Placement, require_ray
from antiphon.errors import LoadError, StartupError

if TYPE_CHECKING:
    import grpc

CHECK_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"
LIST_NODES = "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"
GET_VALUE = "/ray.rpc.InternalKVGcsService/InternalKVGet"

DEADLINE = 10.0
"""Seconds for one reply of a head."""


def probe_cluster(cluster: ClusterAddress) -> None:
    """Checks that the cluster can be joined. Raises StartupError with the remedy."""
    import grpc

    installed = require_ray()
    reply = ask_head(cluster.address, CHECK_ALIVE, b"", token=None)
    if isinstance(reply, bytes):
        raise StartupError(
            f"the Ray cluster at {cluster.address} requires no token, so everybody who reaches it can run "
            "programs on its machines: start all of it with RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        )
    if reply != grpc.StatusCode.UNAUTHENTICATED:
        raise StartupError(
            f"no Ray cluster answers at {cluster.address}: start its head with `ray start --head`, or "
            "correct --cluster"
        )
    if not isinstance(ask_head(cluster.address, CHECK_ALIVE, b"", cluster.token), bytes):
        raise StartupError(
            f"the Ray cluster at {cluster.address} does not accept this token: set ANTIPHON_CLUSTER_TOKEN to "
            "the one that its head was started with (RAY_AUTH_TOKEN)"
        )
    require_versions(fetch_versions(cluster), installed, cluster.address)


def ask_head(address: str, path: str, request: bytes, token: str | None) -> "bytes | grpc.StatusCode":
    """Calls a head once. Returns its reply, or the status of its refusal or of the failed connection."""
    import grpc

    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(path, request_serializer=None, response_deserializer=None)
        try:
            reply: bytes = call(request, timeout=DEADLINE, metadata=metadata)
        except grpc.RpcError as problem:
            status: grpc.StatusCode = problem.code()
            return status
        return reply


def require_versions(cluster: Mapping[str, str], installed: str, address: str) -> None:
    """Raises StartupError unless the cluster has the same Ray and the same Python. `cluster`: the
    versions of its head."""
    python = ".".join(map(str, sys.version_info[:3]))
    cluster_versions = cluster.get("ray_version", "unknown"), cluster.get("python_version", "unknown")
    if cluster_versions != (installed, python):
        raise StartupError(
            f"the cluster at {address} has Ray {cluster_versions[0]} under Python {cluster_versions[1]}, "
            f"and this machine Ray {installed} under Python {python}: "
            "install the same of both on all machines"
        )


def fetch_versions(cluster: ClusterAddress) -> dict[str, str]:
    """Returns the versions of Ray and Python that the head was started with. Raises StartupError."""
    from ray.core.generated import gcs_service_pb2 as messages

    request = messages.InternalKVGetRequest(key=b"CLUSTER_METADATA", namespace=b"cluster")
    reply = ask_head(cluster.address, GET_VALUE, request.SerializeToString(), cluster.token)
    if isinstance(reply, bytes):
        value = messages.InternalKVGetReply.FromString(reply).value
        metadata = json.loads(value or b"{}")
        return (
            {name: str(version) for name, version in metadata.items()} if isinstance(metadata, dict) else {}
        )
    raise StartupError(f"the Ray cluster at {cluster.address} does not tell its version: {reply}")


def require_resources(
    cluster: ClusterAddress, placements: Mapping[str, Placement], replicas: Mapping[str, int]
) -> None:
    """Raises LoadError if a replica needs more than any machine of the cluster has, or all replicas together
    need more than all machines together have. `replicas`: how many replicas of each model must run; a model
    that is left out needs one."""
    machines = fetch_machines(cluster)
    for name, placement in placements.items():
        needed_resources = placement.list_resources()
        if not any(has_resources(machine, needed_resources) for machine in machines):
            # The machines of servers offer nothing: each server joins with a machine of its own.
            offers = (
                "; ".join(describe_resources(each) for each in machines if list_resources(each)) or "nothing"
            )
            raise LoadError(
                f"no machine of the cluster can hold a replica of {name}, which takes "
                f"{describe_resources(needed_resources)}; they offer {offers}. Add a machine, "
                "lower replica_cpus and replica_gpus of the model, or set cluster.grows if the cluster "
                "adds machines itself"
            )
    all_needed = sum_resources(
        each.list_resources() for name, each in placements.items() for _ in range(replicas.get(name, 1))
    )
    if not has_resources(all_offered := sum_resources(machines), all_needed):
        counts = ", ".join(f"{replicas.get(name, 1)} of {name}" for name in placements)
        raise LoadError(
            f"the cluster cannot hold all replicas that must run ({counts}): they take "
            f"{describe_resources(all_needed)}, and all machines together have "
            f"{describe_resources(all_offered)}. Add a machine, lower replicas, replica_cpus or "
            "replica_gpus, or set cluster.grows if the cluster adds machines itself"
        )


def sum_resources(amounts_of_each: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Returns the sum of several machines' or replicas' resources, by name."""
    total: dict[str, float] = {}
    for amounts in amounts_of_each:
        for name, amount in amounts.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def has_resources(machine: Mapping[str, float], needed_resources: Mapping[str, float]) -> bool:
    """Whether a machine has all needed resources."""
    return all(machine.get(name, 0.0) >= amount for name, amount in needed_resources.items())


def describe_resources(resources: Mapping[str, float]) -> str:
    """Describes resources for people: `2 CPU, 1 GPU`."""
    amounts = sorted(list_resources(resources).items())
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts) or "no CPU"


def list_resources(machine: Mapping[str, float]) -> dict[str, float]:
    """Returns the resources that a replica can take: those of a machine without its name and its memory."""
    hidden = ("node:", "memory", "object_")
    return {name: amount for name, amount in machine.items() if not name.startswith(hidden)}


def fetch_machines(cluster: ClusterAddress) -> list[dict[str, float]]:
    """Returns the resources of each living machine. Raises StartupError."""
    from ray.core.generated import gcs_pb2
    from ray.core.generated import gcs_service_pb2 as messages

    reply = ask_head(
        cluster.address, LIST_NODES, messages.GetAllNodeInfoRequest().SerializeToString(), cluster.token
    )
    if not isinstance(reply, bytes):
        raise StartupError(f"the Ray cluster at {cluster.address} does not tell its machines: {reply}")
    nodes = messages.GetAllNodeInfoReply.FromString(reply).node_info_list
    alive = gcs_pb2.GcsNodeInfo.GcsNodeState.ALIVE
    return [dict(node.resources_total) for node in nodes if node.state == alive]
