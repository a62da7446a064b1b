"""The node process: starts a Ray cluster on this machine, or joins one, and ends Ray when it ends itself.

The supervisor runs it as `python -m antiphon.engines.host.ray.node`. Before it starts Ray, it checks the
cluster: its address, its versions of Ray and Python, and its token, without which the cluster must refuse
calls. These are single calls, without a driver. They belong to Ray's internal protocol, which may change with
each version of Ray. After the start it checks that every model's replica fits on a machine. Ray's processes
are one process group, which it ends by its id, because `ray stop` would end every Ray on the machine.
"""

import asyncio
import json
import logging
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress

from antiphon.engines.host.control import Lifeline, StatusPipe
from antiphon.engines.host.ray.config import (
    ClusterAddress,
    NodeConfig,
    Placement,
    require_ray,
    set_ray_environment,
)
from antiphon.errors import AntiphonError, LoadError, StartupError
from antiphon.processes.ipc import FrameError, from_line
from antiphon.task_group import task_group
from antiphon.telemetry.logs import configure, record

CHECK_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"
LIST_NODES = "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"
GET_VALUE = "/ray.rpc.InternalKVGcsService/InternalKVGet"

REPLY_DEADLINE = 10.0
"""Seconds for one reply of a head."""


TOKEN_REFUSAL = "UNAUTHENTICATED InvalidAuthToken"
"""How the refusal of a head begins that gets no token or a wrong one."""

MAX_REFUSAL = 200
"""The most characters of a refusal in a message."""

STARTED = b"Ray runtime started"
"""The line of `ray start` after which drivers can connect."""

OBJECT_STORE_BYTES = 100 * 1024 * 1024
"""Memory for Ray's objects. Nothing here passes objects; Ray would take 30 % of the memory."""

END_DEADLINE = 2.0
"""Seconds that Ray's processes get to end by themselves."""

RETRY_PAUSE = 3.0
"""Seconds between two attempts to reach a cluster that could be reached before."""

SLOW_START = "timed out during startup"
"""The words in the last message of `ray start` if one of Ray's processes started too slowly."""

MAX_STARTS = 3
"""The most starts of Ray. A second start is faster, since Ray's files are in the system's cache."""

ERROR = re.compile(r"([\w.]+\.)?\w*(Error|Exception): ")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")

MAX_LINES = 40
"""The most lines of `ray start` that are kept to tell why it failed."""


def probe_cluster(cluster: ClusterAddress) -> None:
    """Checks that the cluster can be joined. Raises StartupError with the remedy.

    The token is sent only to a server that refuses a call without a token and one with a random token, both
    in the words of Ray's head. Another program that listens at the address by mistake does not get it.
    """
    installed = require_ray()
    replies = [
        ask_head(cluster.address, CHECK_ALIVE, b"", token) for token in (None, secrets.token_urlsafe(32))
    ]
    if any(isinstance(reply, bytes) for reply in replies):
        raise StartupError(
            f"the Ray cluster at {cluster.address} requires no token or takes any, so everybody who reaches "
            "it can run programs on its machines: start all of it with RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        )
    if not all(isinstance(reply, str) and reply.startswith(TOKEN_REFUSAL) for reply in replies):
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


def ask_head(address: str, path: str, request: bytes, token: str | None) -> bytes | str:
    """Calls a head once. Returns its reply, or the status and words of its refusal or of the failed
    connection."""
    import grpc

    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(path, request_serializer=None, response_deserializer=None)
        try:
            reply: bytes = call(request, timeout=REPLY_DEADLINE, metadata=metadata)
        except grpc.RpcError as problem:
            return f"{problem.code().name} {problem.details()}"[:MAX_REFUSAL]
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


def main() -> None:
    """Runs the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lifeline = Lifeline()
    try:
        config = from_line(lifeline.read_line(), NodeConfig)
    except (EOFError, FrameError) as problem:
        sys.exit(f"a node is started by the supervisor, with its configuration on stdin: {problem}")
    configure(config.log_level, config.log_format)
    status = StatusPipe(config.status_fd)
    node = RayNode(config, status)
    lifeline.watch(lambda _: None, node.exit_at_once)
    sys.exit(asyncio.run(node.run()))


class RayNode:
    """Ray's processes on this machine."""

    def __init__(self, config: NodeConfig, status: StatusPipe) -> None:
        self._config = config
        self._status = status
        self._stop = asyncio.Event()
        self._process_group: int | None = None
        """The process group of Ray's processes."""

    async def run(self) -> int:
        """Runs from start to end, and returns the exit status."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop.set)
        self._status.report_loading()
        set_ray_environment(self._config.cluster.token)
        try:
            require_ray()
            if not self._config.is_local:
                await self._wait_for_cluster()
            if self._stop.is_set():
                return 0
            return await self._run_with_retries()
        except AntiphonError as error:
            self._status.report_failure(error)
            return 1
        finally:
            await self._end_ray()

    async def _wait_for_cluster(self) -> None:
        """Checks that the cluster can be joined. If it cannot, raises StartupError at the first start. After
        an earlier start (`waits` is set), waits until it can, or until this process must end."""
        while not self._stop.is_set():
            try:
                await asyncio.to_thread(probe_cluster, self._config.cluster)
            except StartupError as problem:
                if not self._config.waits:
                    raise
                record("cluster_away", logging.WARNING, problem=problem.message)
            else:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_PAUSE):
                    await self._stop.wait()

    async def _run_with_retries(self) -> int:
        """Runs Ray until this process must end, and returns the exit status. Raises StartupError if Ray ends
        by itself. Starts Ray again if its start was too slow: Ray gives each of its processes 30 s, which a
        loaded machine can exceed."""
        for attempt in range(1, MAX_STARTS + 1):
            status, lines = await self._run_ray()
            if self._stop.is_set():
                return 0
            reason = "" if lines is None else f": {find_reason(lines)}"
            if SLOW_START not in reason or attempt == MAX_STARTS:
                raise StartupError(f"Ray ended with status {status} on this machine{reason}")
            record("ray_starts_again", logging.WARNING, attempt=attempt)
            self._signal(signal.SIGKILL)
        return 1

    async def _run_ray(self) -> tuple[int, list[str] | None]:
        """Runs Ray from its start to its end. Returns its exit status, and the last lines of its output if
        its start failed."""
        process, output = await self._start_ray()
        async with task_group() as group:
            tasks = [group.create_task(self._end_when_stopped())]
            lines = await self._read_start_output(output)
            if lines is None:
                await self._report_ready()
                tasks.append(group.create_task(self._status.report_alive_until(self._stop)))
                await drain_output(output)
            status = await process.wait()
            for task in tasks:
                task.cancel()
        return status, lines

    async def _start_ray(self) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader]:
        """Starts Ray's processes. Returns the process that watches them, and its output."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *self.list_options()]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self._process_group = process.pid
        if process.stdout is None:
            raise StartupError("the output of Ray cannot be read")
        return process, process.stdout

    async def _report_ready(self) -> None:
        """Reports that drivers can connect. First checks that all replicas fit into the cluster, unless the
        cluster adds machines itself, or the node was ready before (`waits` is set)."""
        config = self._config
        if not config.grows and not config.waits:
            await asyncio.to_thread(require_resources, config.cluster, config.placements, config.replicas)
        self._status.report_ready()

    async def _read_start_output(self, output: asyncio.StreamReader) -> list[str] | None:
        """Reads the output of `ray start`. Returns None once Ray runs. Returns the last lines if the output
        ends before."""
        lines: list[str] = []
        while line := await output.readline():
            if STARTED in line:
                return None
            lines = [*lines[-MAX_LINES:], line.decode(errors="replace").strip()]
            record("ray_says", logging.DEBUG, line=lines[-1])
        return lines

    def list_options(self) -> list[str]:
        """Returns the options of `ray start`."""
        config = self._config
        common_options = [
            "--disable-usage-stats",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--min-worker-port=0",  # any free port, so that several nodes can run on one machine
            "--max-worker-port=0",
            "--dashboard-agent-listen-port=0",
            "--include-log-monitor=false",  # drivers read no logs of replicas
        ]
        if not config.is_local:
            return [f"--address={config.cluster.address}", "--num-cpus=0", "--num-gpus=0", *common_options]
        _, _, port = config.cluster.address.rpartition(":")
        cpus = [] if config.cpus is None else [f"--num-cpus={config.cpus}"]
        options = ["--head", f"--port={port}", "--include-dashboard=false"]
        options.append("--no-monitor")  # it would add machines
        options.append(f"--ray-client-server-port={find_free_port()}")  # 10001 may be taken
        return [*options, f"--temp-dir={config.directory}", *cpus, *common_options]

    async def _end_when_stopped(self) -> None:
        """Ends Ray when this process must end."""
        await self._stop.wait()
        self._signal(signal.SIGTERM)
        await asyncio.sleep(END_DEADLINE)
        self._signal(signal.SIGKILL)

    async def _end_ray(self) -> None:
        """Kills the remaining processes of Ray."""
        self._stop.set()
        self._signal(signal.SIGKILL)

    def _signal(self, signal_number: signal.Signals) -> None:
        """Sends a signal to Ray's processes."""
        if self._process_group is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process_group, signal_number)

    def exit_at_once(self) -> None:
        """Ends Ray and this process at once, because the supervisor is gone."""
        self._signal(signal.SIGKILL)
        os._exit(1)


async def drain_output(output: asyncio.StreamReader) -> None:
    """Reads and drops the output until it ends."""
    while await output.read(65536):
        pass


def find_free_port() -> int:
    """Returns a TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def find_reason(lines: list[str]) -> str:
    """Returns the line of `ray start` that tells why it failed: the last error, or the last line."""
    plain_lines = [COLOUR.sub("", line) for line in lines if line]
    errors = [line for line in plain_lines if ERROR.match(line)]
    return (errors or plain_lines or ["it printed nothing"])[-1][:300]


if __name__ == "__main__":
    main()
