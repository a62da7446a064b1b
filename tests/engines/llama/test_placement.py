"""Which layers go to which device, as plain numbers."""

import pytest

from antiphon.engines.base import LoadSpec
from antiphon.engines.llama.libllama.placement import (
    RESERVED_BYTES,
    Device,
    LayerPlacement,
    choose_devices,
    place_layers,
    reduce_placement,
    require_offload,
)
from antiphon.errors import DeviceMemoryExceeded, LoadError

MB = 1_000_000
NEEDS = (100 * MB,) * 10 + (300 * MB,)
"""Ten layers and the output."""


def device(name: str, room: int, *, integrated: bool = False) -> Device:
    """A device whose memory has this much room beside the reserve."""
    return Device(name, f"product of {name}", RESERVED_BYTES + room * MB, 8000 * MB, integrated)


def place(*devices: Device, layers: int | None = None, split: tuple[float, ...] = ()) -> tuple[int, ...]:
    spec = LoadSpec("m.gguf", gpu_layers=layers, tensor_split=split)
    return place_layers(spec, devices, NEEDS, "m.gguf").counts


def test_auto_takes_all_layers_that_fit_from_the_last():
    assert place(device("A", 1300)) == (11,)
    assert place(device("A", 1299)) == (10,)
    assert place(device("A", 300)) == (1,), "the output alone"
    assert place(device("A", 299)) == (0,)


def test_auto_leaves_everything_to_the_processor_when_full():
    assert place(Device("A", "full", 0, 8000 * MB)) == (0,)


def test_one_device_is_used_where_it_is_enough():
    assert place(device("A", 1400), device("B", 2000)) == (0, 11)
    assert place(device("A", 1400), device("B", 1299)) == (11, 0)


def test_several_devices_share_what_one_cannot_hold():
    counts = place(device("A", 700), device("B", 700))
    assert sum(counts) == 11 and all(counts)
    assert place(device("A", 400), device("B", 900)) == (4, 7), "by free memory, which just fits"
    assert place(device("A", 0), device("B", 500)) == (0, 3)


def test_a_device_that_tells_no_memory_counts_as_large():
    assert place(Device("A", "silent", 0, 0)) == (11,)


def test_a_split_is_kept_and_its_sum_is_free():
    assert place(device("A", 2000), device("B", 2000), split=(3, 1)) == (8, 3)
    assert place(device("A", 2000), device("B", 2000), split=(0.75, 0.25)) == (8, 3)
    assert place(device("A", 2000), device("B", 2000), split=(1, 0)) == (11, 0)
    assert place(device("A", 300), device("B", 2000), split=(1, 1)) == (3, 3), "as many as the split allows"


@pytest.mark.parametrize("parts", [(1,), (1, 1, 1), (0, 0)])
def test_a_split_needs_a_part_for_each_device(parts: tuple[float, ...]):
    with pytest.raises(LoadError, match="tensor_split"):
        place(device("A", 2000), device("B", 2000), split=parts)


def test_a_number_is_kept_even_into_the_reserve():
    assert place(device("A", 400), layers=2) == (2,)
    assert place(device("A", 400), layers=4) == (4,), "600 MB of 937"
    assert place(device("A", 2000), layers=99) == (11,)


def test_a_number_that_does_not_fit_says_what_would():
    with pytest.raises(DeviceMemoryExceeded) as told:
        place(device("A", 400), layers=11)
    assert told.value.message == (
        "gpu_layers = 11 of m.gguf needs 1,300 MB on the device and more for buffers (A: 937 MB free); "
        "2 of 11 layers fit: set gpu_layers = 2"
    )
    with pytest.raises(DeviceMemoryExceeded, match="none of 11 layers fit: set gpu_layers = 0, or lower"):
        place(Device("A", "small", 200 * MB, 200 * MB), layers=1)


def test_after_a_failed_allocation_fewer_layers_are_tried():
    devices = (device("A", 1300), device("B", 1300))
    placement = LayerPlacement(11, devices, (11, 0))
    tried = []
    while placement.gpu_layer_count:
        tried.append(placement.gpu_layer_count)
        placement = reduce_placement(placement, NEEDS, ())
    assert tried == [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert placement.list_devices() == ()


def test_a_placement_names_only_devices_with_layers():
    placement = LayerPlacement(11, (device("A", 0), device("B", 9)), (0, 4))
    (listed,) = placement.list_devices()
    assert (listed.device, listed.description, listed.layers, listed.total_layers) == (
        "B",
        "product of B",
        4,
        11,
    )


def test_integrated_devices_are_used_only_alone():
    own, shared = device("A", 1), device("B", 1, integrated=True)
    assert choose_devices([own, shared], ()) == (own,)
    assert choose_devices([shared], ()) == (shared,)
    assert choose_devices([own, shared], ("b", "A")) == (shared, own), "named ones in their order"


def test_hosts_share_devices_that_no_one_named():
    (found,) = devices = (device("A", 8),)
    (part,) = choose_devices(devices, (), 2)
    assert (part.free, part.total) == (found.free // 2, found.total)
    assert choose_devices(devices, ("A",), 2) == devices


def test_a_device_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(LoadError, match=r"no device 'CUDA7'; this library finds A \(product of A\)"):
        choose_devices([device("A", 1)], ("CUDA7",))


@pytest.mark.parametrize(
    ("asked", "backends", "told"),
    [
        ({"gpu_layers": 3}, (), "gpu_layers = 3 needs a device, .* processor alone; .* make native"),
        ({"devices": ("CUDA0",)}, (), "a list of devices or a split needs a device"),
        ({"gpu_layers": 3}, ("CUDA",), "built for CUDA, finds none; check the driver"),
    ],
    ids=["library", "names", "driver"],
)  # fmt: skip
def test_layers_without_a_device_are_refused(asked: dict[str, object], backends: tuple[str, ...], told: str):
    with pytest.raises(LoadError, match=told):
        require_offload(LoadSpec("m.gguf", **asked), (), backends)  # type: ignore[arg-type]


def test_exact_mode_is_refused_on_a_device():
    with pytest.raises(LoadError, match="exact = true computes on the processor only"):
        require_offload(LoadSpec("m.gguf", exact=True, gpu_layers=1), [device("A", 1)], ("CUDA",))
    require_offload(LoadSpec("m.gguf", exact=True), [device("A", 1)], ("CUDA",))


def test_auto_without_a_device_asks_for_nothing():
    require_offload(LoadSpec("m.gguf"), (), ())
    require_offload(LoadSpec("m.gguf"), (), ("CUDA",))
