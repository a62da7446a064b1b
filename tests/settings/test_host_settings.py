"""Several engine hosts of one model, in the settings."""

from collections.abc import Mapping

import pytest

from antiphon.errors import SettingsError
from antiphon.settings.loading import load_settings
from antiphon.settings.models import ModelSettings, choose_devices, group_hosts, list_host_names

LLAMA = {"name": "m", "path": "/m.gguf", "hosts": 2}
VLLM = {"name": "m", "path": "/m", "engine": "vllm", "interpreter": "/python", "hosts": 2}
OTHER = {"name": "m/2", "path": "/m.gguf"}


def load(*tables: Mapping[str, object], **flags: Mapping[str, object]) -> None:
    load_settings(flags, {}, None, [dict(table) for table in tables])


def test_hosts_are_named_by_their_model():
    one, two = ModelSettings("m", "/m"), ModelSettings("n", "/n", hosts=2)
    assert (list_host_names(one), list_host_names(two)) == (("m",), ("n/1", "n/2"))
    grouped = group_hosts((one, two), {"m": 1, "n/1": 2, "n/2": 3, "unknown": 4})
    assert grouped == {"m": {"m": 1}, "n": {"n/1": 2, "n/2": 3}, "unknown": {"unknown": 4}}


def test_hosts_share_out_the_devices():
    model = ModelSettings("m", "/m", hosts=2, devices=("A", "B", "C", "D"))
    assert [choose_devices(model, name) for name in list_host_names(model)] == [("A", "B"), ("C", "D")]
    assert choose_devices(model, None) == ("A", "B"), "the first host's"
    assert choose_devices(ModelSettings("m", "/m", devices=("A", "B")), "m") == ("A", "B")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (LLAMA | {"load": "request"}, 'load = "request" allows only one'),
        (LLAMA | {"devices": ("CUDA0",)}, "cannot share 1 devices evenly"),
        (VLLM | {"devices": ("0",)}, "devices of the model m must name 2"),
        (VLLM | {"devices": ("0", "1"), "tensor_parallel": 2}, "must name 4 devices: its 2 hosts"),
        (VLLM | {"memory_share": 0.8}, "memory_share = 0.8 of each is more than there is"),
    ],
    ids=["load", "devices", "vllm-devices", "vllm-parallel", "memory-share"],
)
def test_hosts_that_cannot_be_served_are_refused(table, message):
    with pytest.raises(SettingsError, match=message):
        load(table)


@pytest.mark.parametrize(
    "table",
    [
        LLAMA | {"devices": ("CUDA0", "CUDA1")},
        VLLM | {"devices": ("0", "1"), "memory_share": 0.8},
        VLLM | {"memory_share": 0.5},
    ],
    ids=["devices", "vllm-devices", "memory-share"],
)
def test_hosts_that_can_be_served_are_taken(table):
    load(table)


def test_a_name_of_a_host_is_taken():
    with pytest.raises(SettingsError, match="'m/2' is the name of a host of the model m"):
        load(LLAMA, OTHER)
    load(LLAMA | {"hosts": 1}, OTHER)


def test_a_model_of_the_cluster_has_replicas_instead():
    cluster = {"cluster": {"address": "local"}}
    with pytest.raises(SettingsError, match="set replicas instead"):
        load(LLAMA, **cluster)
    load(LLAMA | {"cluster": False}, **cluster)
