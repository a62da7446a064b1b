"""What a server says of a cluster that it cannot join, and of replicas that find no room: one line, before
the port opens."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from antiphon.engines.host.ray.config import ClusterAddress
from antiphon.engines.host.ray.node import CHECK_ALIVE, GET_VALUE, find_free_port, probe_cluster
from antiphon.errors import StartupError
from tests.support.processes import bare_environment

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # as in test_driver
]

TOKEN = "t" * 32


@dataclass
class Head:
    """The calls of a head that the probe makes."""

    requires_token: bool
    versions: dict[str, str] = field(default_factory=dict)
    refusal: str = "InvalidAuthToken: Authentication token is missing or incorrect"
    """The words of Ray."""
    takes: Callable[[str | None], bool] = lambda said: said == f"Bearer {TOKEN}"
    """Which `authorization` it takes."""
    seen: list[str | None] = field(default_factory=list)
    """The `authorization` of each call."""

    def answer(self, method: str, call: Any) -> bytes:
        import grpc
        from ray.core.generated import gcs_service_pb2 as messages

        authorization = dict(call.invocation_metadata()).get("authorization")
        self.seen.append(authorization)
        if self.requires_token and not self.takes(authorization):
            call.abort(grpc.StatusCode.UNAUTHENTICATED, self.refusal)
        if method == GET_VALUE:
            value = json.dumps(self.versions).encode()
            return bytes(messages.InternalKVGetReply(value=value).SerializeToString())
        assert method == CHECK_ALIVE
        return b""


@contextmanager
def serve_head(head: Head) -> Iterator[str]:
    """Serves the calls of a head. Only the environment of Ray's tests has gRPC."""
    import grpc

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda _, call: head.answer(details.method, call))

    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def test_a_cluster_that_requires_no_token_is_refused() -> None:
    with (
        serve_head(Head(requires_token=False)) as address,
        pytest.raises(
            StartupError, match="requires no token or takes any, so everybody who reaches it can run programs"
        ),
    ):
        probe_cluster(ClusterAddress(address, TOKEN))


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (Head(True, refusal="log in first", takes=lambda _: False), "no Ray cluster answers at"),
        (Head(True, takes=lambda said: said is not None), "requires no token or takes any"),
    ],
    ids=["another program", "takes any token"],
)
def test_the_token_goes_to_heads_alone(head: Head, reason: str) -> None:
    with serve_head(head) as address, pytest.raises(StartupError, match=reason):
        probe_cluster(ClusterAddress(address, TOKEN))
    assert head.seen and f"Bearer {TOKEN}" not in head.seen


def test_a_cluster_of_another_version_is_refused() -> None:
    head = Head(requires_token=True, versions={"ray_version": "2.9.0", "python_version": "3.11.0"})
    with (
        serve_head(head) as address,
        pytest.raises(StartupError, match=r"has Ray 2\.9\.0 under Python 3\.11\.0, and this machine Ray "),
    ):
        probe_cluster(ClusterAddress(address, TOKEN))


def serve(
    directory: Path,
    address: str,
    token: str | None,
    cpus: int | None = None,
    model: dict[str, object] | None = None,
) -> str:
    """What `antiphon serve` says on standard error before it ends. `cpus`: those of a local cluster."""
    table = {"name": "m", "path": "cantor", "context_length": 256, "sequences": 1} | (model or {})
    lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    local = [] if cpus is None else ["[cluster]", f"cpus = {cpus}"]
    (directory / "antiphon.toml").write_text("\n".join([*local, "[[models]]", *lines]))
    environ = bare_environment() | {"ANTIPHON_HOME": str(directory)}
    if token is not None:
        environ["ANTIPHON_CLUSTER_TOKEN"] = token
    ended = subprocess.run(
        [sys.executable, "-m", "antiphon", "serve", "--port", "0", "--cluster", address],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=environ,
        cwd=directory,
    )
    assert ended.returncode and "listens on" not in ended.stdout
    return ended.stderr


def test_a_server_says_in_one_line_why_it_cannot_join(cluster: ClusterAddress, tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{find_free_port()}"
    for address, token, reason in (
        (nowhere, TOKEN, f"no Ray cluster answers at {nowhere}: start its head"),
        (cluster.address, None, "can only be joined with its token: set ANTIPHON_CLUSTER_TOKEN"),
        (cluster.address, TOKEN, "does not accept this token: set ANTIPHON_CLUSTER_TOKEN"),
    ):
        (line,) = serve(tmp_path, address, token).splitlines()
        assert line.startswith("antiphon: ") and reason in line


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"replica_cpus": 64}, "no machine of the cluster can hold a replica of m, which takes 64 CPU"),
        ({"replica_resources": ["H100=1"]}, "which takes 1 CPU, 1 H100; they offer 16 CPU"),
    ],
)
def test_a_replica_that_finds_no_room_ends_the_start(
    cluster: ClusterAddress, tmp_path: Path, model: dict[str, object], reason: str
) -> None:
    said = serve(tmp_path, cluster.address, cluster.token, model=model).splitlines()
    assert reason in said[-1] and said[-1].startswith("antiphon: ")


def test_a_local_cluster_without_room_ends_the_start(tmp_path: Path) -> None:
    said = serve(tmp_path, "local", None, cpus=2, model={"replicas": 3}).splitlines()
    assert "(3 of m): they take 3 CPU, and all machines together have 2 CPU" in said[-1]
