"""The settings of a Ray cluster, and of a model's replicas."""

import pytest

from antiphon.errors import SettingsError
from antiphon.settings.cluster import ClusterSettings, find_token, is_in_cluster
from antiphon.settings.loading import load_settings
from antiphon.settings.schema import Settings

TOKEN = "0123456789abcdef" * 2


def load(model: dict[str, object] | None = None, **cluster: object) -> Settings:
    table: dict[str, object] = {"name": "m", "path": "/m.gguf", **(model or {})}
    return load_settings({"cluster": cluster}, {}, None, [table])


def test_a_cluster_takes_every_model_but_those_that_stay_here():
    settings = load(address="local")
    assert is_in_cluster(settings.models[0], settings.cluster)
    settings = load({"cluster": False}, address="ray-head:6379")
    assert not is_in_cluster(settings.models[0], settings.cluster)
    assert not is_in_cluster(load().models[0], load().cluster)


@pytest.mark.parametrize("address", ["locl", "ray-head", "http://ray-head:6379", "a b:1", ":6379", "a:b"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(SettingsError, match="--cluster takes local, or HOST:PORT"):
        load(address=address)


@pytest.mark.parametrize("address", ["ray-head:6379", "10.0.0.7:6379", "[fd00::1]:6379"])
def test_an_address_names_a_host_and_a_port(address):
    assert load(address=address).cluster.address == address


@pytest.mark.parametrize(
    ("model", "cluster", "reason"),
    [
        ({"replicas": 2}, {}, "replicas of the model m acts only in a cluster"),
        (
            {"replica_gpus": 1.0, "cluster": False},
            {"address": "local"},
            "replica_gpus of the model m acts only",
        ),
        ({"replicas": 3, "max_replicas": 2}, {"address": "local"}, "max_replicas of the model m is 2, less"),
        ({"load": "request"}, {"address": "local"}, 'where load = "request" does not act'),
        (
            {"engine": "vllm", "interpreter": "/p", "tensor_parallel": 2, "replica_gpus": 1.0},
            {"address": "local"},
            "set its replica_gpus to the same number",
        ),
        (
            {"engine": "vllm", "interpreter": "/p", "devices": ["1"], "replica_gpus": 1.0},
            {"address": "local"},
            "devices of the model m does not act in the cluster",
        ),
        ({"replica_resources": ["H100"]}, {"address": "local"}, "replica_resources"),
        ({}, {"cpus": 2}, "cpus of the cluster has no effect without a cluster"),
        ({}, {"token": TOKEN}, "token of the cluster has no effect"),
        ({}, {"address": "ray-head:6379", "cpus": 2}, "cluster.cpus acts only with --cluster local"),
    ],
)
def test_a_setting_that_cannot_act_is_refused(model, cluster, reason):
    with pytest.raises(SettingsError, match=reason):
        load(model, **cluster)


def test_the_token_comes_from_the_settings_or_rays_own_variables(tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}-file\n")
    remote = ClusterSettings(address="ray-head:6379")
    assert find_token(ClusterSettings(address="local", token=TOKEN), {"RAY_AUTH_TOKEN": "x" * 32}) == TOKEN
    assert find_token(remote, {"RAY_AUTH_TOKEN": "x" * 32}) == "x" * 32
    assert find_token(remote, {"RAY_AUTH_TOKEN_PATH": str(file)}) == f"{TOKEN}-file"
    assert find_token(ClusterSettings(address="local"), {}) is None


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({}, "can only be joined with its token: set ANTIPHON_CLUSTER_TOKEN"),
        ({"RAY_AUTH_TOKEN": "short"}, "at least 16 printable characters"),
        ({"RAY_AUTH_TOKEN": "a b" * 16}, "without spaces"),
        ({"RAY_AUTH_TOKEN_PATH": "/nowhere/token"}, "in /nowhere/token cannot be read"),
    ],
)
def test_no_cluster_is_joined_without_a_usable_token(environ, reason):
    with pytest.raises(SettingsError, match=reason):
        find_token(ClusterSettings(address="ray-head:6379"), environ)


def test_the_token_is_never_shown():
    settings = load(address="local", token=TOKEN)
    assert TOKEN not in repr(settings) and "'***'" in repr(settings.cluster)
    with pytest.raises(SettingsError) as refusal:
        load(address="local", token={"value": TOKEN})
    assert TOKEN not in refusal.value.message
