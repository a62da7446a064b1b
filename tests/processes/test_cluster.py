"""What the processes of a Ray cluster are told, and what is refused before any of them starts."""

import sys
from importlib.metadata import PackageNotFoundError

import pytest

from antiphon.engines.base import LoadSpec
from antiphon.engines.host.ray.config import ClusterAddress, DriverConfig, NodeConfig, Placement, require_ray
from antiphon.engines.host.ray.deployment import build_actor_options, build_deployment_name, build_scaling
from antiphon.engines.host.ray.node import (
    describe_resources,
    find_reason,
    has_resources,
    list_resources,
    require_versions,
)
from antiphon.errors import SettingsError, StartupError
from antiphon.processes.cluster import (
    ReplicaEngine,
    build_driver_config,
    build_node_config,
    build_placement,
    filter_ray_environment,
    find_cluster,
)
from antiphon.processes.ipc import from_line, to_line
from antiphon.settings.cluster import ClusterSettings
from antiphon.settings.models import ModelSettings
from antiphon.settings.schema import Settings

HERE = ClusterAddress("127.0.0.1:6379", "t" * 32)
ENGINE = ReplicaEngine(
    "antiphon_testing:ScriptedTokenEngine", LoadSpec("/m.gguf", sequences=4, bind_threads=True)
)
LOCAL_CLUSTER = ClusterSettings("local")


def describe(model: ModelSettings, cluster: ClusterSettings = LOCAL_CLUSTER) -> DriverConfig:
    settings = Settings(cluster=cluster, models=(model,))
    return build_driver_config(model, settings, HERE, ENGINE, waits=False)


@pytest.mark.parametrize("missing", ["ray", "ormsgpack"])
def test_an_environment_without_ray_is_told_what_to_install(missing):
    def find(name: str) -> str:
        if name == missing:
            raise PackageNotFoundError(name)
        return "2.60.0"

    with pytest.raises(SettingsError, match=rf"needs the package {missing}: .*pip install 'antiphon\[ray\]'"):
        require_ray(find)


def test_without_a_cluster_nothing_is_looked_for():
    assert find_cluster(Settings()) is None


def test_ray_gets_no_credential_by_its_environment():
    environ = {
        "PATH": "/bin",
        "RAY_AUTH_TOKEN": "secret",
        "RAY_AUTH_TOKEN_PATH": "/secret",
        "RAY_TMPDIR": "/tmp",
        "CUDA_VISIBLE_DEVICES": "0",
        "OPENAI_API_KEY": "secret",
        "HF_TOKEN": "secret",
        "ANTIPHON_CLUSTER_TOKEN": "secret",
    }
    assert filter_ray_environment(environ).keys() == {"PATH", "RAY_TMPDIR", "CUDA_VISIBLE_DEVICES"}


def test_a_replica_takes_its_threads_as_cpus():
    assert build_placement(ModelSettings("m", "/m")) == Placement(1.0)
    assert build_placement(ModelSettings("m", "/m", threads=6)) == Placement(6.0)
    model = ModelSettings("m", "/m", replica_cpus=2.5, replica_gpus=1, replica_resources=("H100=0.5",))
    assert build_placement(model).list_resources() == {"CPU": 2.5, "GPU": 1, "H100": 0.5}
    assert describe(model).deployment.load.threads == 2


def test_replicas_bind_no_threads_because_they_can_share_a_machine():
    assert not describe(ModelSettings("m", "/m", threads=2, replicas=2)).deployment.load.bind_threads


def test_a_driver_is_told_everything_on_one_line():
    model = ModelSettings("m", "/m", replicas=2, max_replicas=5, interpreter="/vllm/python")
    delays = ClusterSettings(
        "local", upscale_delay=1, downscale_delay=2, drain_timeout=3, interpreter="/python"
    )
    config = describe(model, delays)
    spec = config.deployment
    assert (spec.replicas, spec.max_replicas, spec.interpreter) == (2, 5, "/vllm/python")
    assert (spec.upscale_delay, spec.downscale_delay, spec.drain_timeout) == (1, 2, 3)
    assert from_line(to_line(config), DriverConfig) == config
    assert build_actor_options(spec)["runtime_env"] == {"py_executable": "/vllm/python"}


def test_sequences_that_run_and_wait_scale_the_replicas():
    fixed, scaling = (
        build_scaling(describe(ModelSettings("m", "/m", replicas=2, max_replicas=most)).deployment)
        for most in (None, 4)
    )
    assert fixed == {"num_replicas": 2}
    auto = scaling["autoscaling_config"]
    assert isinstance(auto, dict)
    assert (auto["min_replicas"], auto["max_replicas"], auto["target_ongoing_requests"]) == (2, 4, 4)


def test_another_number_of_replicas_is_the_same_deployment():
    models = (
        ModelSettings("m", "/m"),
        ModelSettings("m", "/m", replicas=3, max_replicas=5),
        ModelSettings("m", "/m", replica_cpus=2),
    )
    one, many, other = (build_deployment_name(describe(model).deployment) for model in models)
    assert one == many != other


def test_versions_must_be_equal_to_the_patch_level():
    python = ".".join(map(str, sys.version_info[:3]))
    require_versions({"ray_version": "2.60.0", "python_version": python}, "2.60.0", "head:1")
    for theirs in ({"ray_version": "2.59.0", "python_version": python}, {"ray_version": "2.60.0"}, {}):
        with pytest.raises(StartupError, match="install the same of both on all machines"):
            require_versions(theirs, "2.60.0", "head:1")


def test_one_machine_must_have_room_for_a_replica():
    machine = {"CPU": 8.0, "GPU": 1.0, "memory": 9e9, "node:10.0.0.1": 1.0}
    assert has_resources(machine, {"CPU": 8, "GPU": 1})
    assert not has_resources(machine, {"GPU": 2}) and not has_resources(machine, {"H100": 1})
    assert describe_resources(machine) == "8 CPU, 1 GPU" and describe_resources({}) == "no CPU"
    assert not list_resources({"memory": 9e9, "node:10.0.0.2": 1.0}), "as a server that joined a cluster has"


@pytest.mark.parametrize(("address", "replicas"), [("local", {"m": 3}), ("ray-head:6379", {})])
def test_a_local_cluster_must_hold_every_replica(address, replicas):
    models = (
        ModelSettings("m", "/m", replicas=3, replica_cpus=2),
        ModelSettings("here", "/h", cluster=False),
    )
    settings = Settings(cluster=ClusterSettings(address), models=models)
    config = build_node_config(settings, HERE, 3, "/ray", waits=False)
    assert (config.placements, config.replicas) == ({"m": Placement(2.0)}, replicas)
    assert from_line(to_line(config), NodeConfig) == config


def test_the_reason_of_ray_is_its_last_error():
    lines = [
        "start",
        "\x1b[31mValueError: port 1 is taken\x1b[39m",
        "  at line",
        "ray.exceptions.RpcError: x",
    ]
    assert find_reason(lines) == "ray.exceptions.RpcError: x"
    assert find_reason(lines[:2]) == "ValueError: port 1 is taken"
    assert find_reason(["start"]) == "start" and find_reason([]) == "it printed nothing"
