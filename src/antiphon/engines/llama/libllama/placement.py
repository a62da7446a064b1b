"""Chooses which layers of a model go to which device, by the memory that is free there.

The choice itself calls no library. Layers are counted as llama.cpp counts them: the model's own layers, and
the output as one more layer after them. The last layers go to devices, in the order of the devices; the
layers before them stay on the processor.

The library tells its devices besides the processor, and their memory. `layer_sizes` reads the sizes of
layers.
"""

import ctypes
from collections.abc import Sequence
from itertools import accumulate, pairwise

from antiphon.domain.models import DeviceLayers, DeviceMemory
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import LoadSpec
from antiphon.engines.llama.libllama.library import GgmlParams, Library
from antiphon.errors import DeviceMemoryExceeded, LoadError

RESERVED_BYTES = 512 * 1024 * 1024
"""The number of bytes of each device that stay free of weights and cells, for the buffers of a step and of
the driver."""

REDUCTION = 8
"""If the library cannot allocate a placement, one eighth of the layers on devices move back to the
processor."""

MEGABYTE = 1e6


class Device(Struct, frozen=True):
    """A device of the library, besides the processor."""

    name: str
    """The library's name: `CUDA0`, `Vulkan1`, `Metal`."""
    description: str
    """The product's name, for people."""
    free: int
    """Free bytes."""
    total: int
    """All bytes; 0 if the device does not report its memory. Such a device counts as large enough."""
    is_integrated: bool = False
    """Whether it uses the machine's own memory."""

    @property
    def capacity(self) -> float:
        """Bytes that can be used; infinite if the device does not report its memory."""
        return self.free if self.total else float("inf")


class LayerPlacement(Struct, frozen=True):
    """The layers that each device computes."""

    layers: int
    """All layers of the model, the output included; 0 where no device could take one."""
    devices: tuple[Device, ...] = ()
    counts: tuple[int, ...] = ()
    """The number of layers on each device, in order."""

    @property
    def gpu_layer_count(self) -> int:
        """The number of layers on all devices together."""
        return sum(self.counts)

    def list_devices(self) -> tuple[DeviceLayers, ...]:
        """The devices that have layers."""
        return tuple(
            DeviceLayers(device.name, device.description, count, self.layers)
            for device, count in zip(self.devices, self.counts, strict=False)
            if count
        )


ON_PROCESSOR = LayerPlacement(0)
"""Nothing is on a device."""


def requests_devices(spec: LoadSpec) -> bool:
    """Whether the settings ask for layers on devices."""
    return bool(spec.gpu_layers or spec.devices or spec.tensor_split)


def require_offload(spec: LoadSpec, devices: Sequence[Device], backends: Sequence[str]) -> None:
    """Raises LoadError for settings that request a device that cannot be used. `backends`: the kinds of
    devices that the library was built for."""
    is_requested = requests_devices(spec)
    if is_requested and spec.exact:
        raise LoadError(
            "exact = true computes on the processor only, because results are proved to be bit-equal only "
            "there; leave it out, or set gpu_layers = 0"
        )
    if not is_requested or devices:
        return
    setting = f"gpu_layers = {spec.gpu_layers}" if spec.gpu_layers else "a list of devices or a split"
    if not backends:
        raise LoadError(
            f"{setting} needs a device, and this library was built for the processor alone; build one with "
            "make native (docs/gpu.md), or set gpu_layers = 0"
        )
    raise LoadError(
        f"{setting} needs a device, and the library, built for {' and '.join(backends)}, finds none; check "
        "the driver and who can open the device (docs/gpu.md), or set gpu_layers = 0"
    )


def choose_devices(available: Sequence[Device], names: Sequence[str], hosts: int = 1) -> tuple[Device, ...]:
    """Returns the devices of these names, in the order of the names. Without names, returns the devices with
    memory of their own, or the integrated devices if there are no others. Without names, `hosts` share the
    devices: each gets an equal part of the free memory. Raises LoadError for an unknown name."""
    if not names:
        shared = tuple(device for device in available if not device.is_integrated) or tuple(available)
        return tuple(replace(device, free=device.free // hosts) for device in shared)
    by_name = {device.name.lower(): device for device in available}
    for name in names:
        if name.lower() not in by_name:
            known_devices = ", ".join(f"{device.name} ({device.description})" for device in available)
            raise LoadError(f"there is no device {name!r}; this library finds {known_devices}")
    return tuple(by_name[name.lower()] for name in names)


def place_layers(
    spec: LoadSpec, devices: Sequence[Device], layer_bytes: Sequence[int], name: str
) -> LayerPlacement:
    """Chooses the layers of each device: as many as requested, or as many as fit. `layer_bytes`: the bytes of
    each layer's weights and cells, the output last. `name`: the model's name, for messages. Raises
    LoadError."""
    layers = len(layer_bytes)
    if spec.tensor_split and len(spec.tensor_split) != len(devices):
        raise LoadError(
            f"tensor_split has {len(spec.tensor_split)} parts for {len(devices)} devices "
            f"({', '.join(device.name for device in devices)}); give one for each, or leave it out"
        )
    if spec.tensor_split and not sum(spec.tensor_split):
        raise LoadError("tensor_split gives no device a part; give at least one a number above 0")
    if spec.gpu_layers is None:
        counts = find_largest_counts(layer_bytes, devices, spec.tensor_split)
        return LayerPlacement(layers, tuple(devices), counts)
    requested = min(spec.gpu_layers, layers)
    for reserve in (RESERVED_BYTES, 0):
        reserved_counts = count_device_layers(requested, layer_bytes, devices, spec.tensor_split, reserve)
        if reserved_counts is not None:
            return LayerPlacement(layers, tuple(devices), reserved_counts)
    raise build_memory_error(requested, layer_bytes, devices, spec.tensor_split, name)


def build_memory_error(
    requested: int, layer_bytes: Sequence[int], devices: Sequence[Device], split: Sequence[float], name: str
) -> DeviceMemoryExceeded:
    """Builds the error for layers that do not fit. It names the number of layers that fit."""
    free_memory = ", ".join(f"{device.name}: {device.free / MEGABYTE:,.0f} MB free" for device in devices)
    max_layers = min(sum(find_largest_counts(layer_bytes, devices, split)), requested - 1)
    size = sum(layer_bytes[len(layer_bytes) - requested :]) / MEGABYTE
    advice = (
        f"set gpu_layers = {max_layers}"
        if max_layers
        else "set gpu_layers = 0, or lower context_length or sequences"
    )
    return DeviceMemoryExceeded(
        f"gpu_layers = {requested} of {name} needs {size:,.0f} MB on the device and more for buffers "
        f"({free_memory}); {max_layers or 'none'} of {len(layer_bytes)} layers fit: {advice}"
    )


def build_tensor_error(size: int, devices: Sequence[Device]) -> LoadError:
    """Builds the error for a KV cache with tensors that are too large for the devices."""
    return LoadError(
        f"one layer of the KV cache is a tensor of {size / MEGABYTE:,.0f} MB, more than "
        f"{' and '.join(device.name for device in devices)} computes with; lower context_length or "
        "sequences, or set gpu_layers = 0"
    )


def reduce_placement(
    placement: LayerPlacement, layer_bytes: Sequence[int], split: Sequence[float]
) -> LayerPlacement:
    """Returns a placement with fewer layers on devices, after the library could not allocate this one."""
    layer_count = placement.gpu_layer_count - max(1, placement.gpu_layer_count // REDUCTION)
    if layer_count <= 0:
        return ON_PROCESSOR
    counts = count_device_layers(layer_count, layer_bytes, placement.devices, split, 0)
    return LayerPlacement(placement.layers, placement.devices, counts or ())


def find_largest_counts(
    layer_bytes: Sequence[int], devices: Sequence[Device], split: Sequence[float]
) -> tuple[int, ...]:
    """Returns the number of layers on each device, with as many layers on devices as fit beside the
    reserve."""
    for count in range(len(layer_bytes), 0, -1):
        counts = count_device_layers(count, layer_bytes, devices, split, RESERVED_BYTES)
        if counts is not None:
            return counts
    return (0,) * len(devices)


def count_device_layers(
    count: int, layer_bytes: Sequence[int], devices: Sequence[Device], split: Sequence[float], reserve: int
) -> tuple[int, ...] | None:
    """Returns the number of layers on each device if the last `count` layers go to devices; None if they do
    not fit.

    With a split, the layers are divided by it. Without a split, one device takes all layers if they fit
    there, because each change of the device costs a copy; the device with the most memory is tried first. If
    no device is large enough, the layers are divided by the devices' memory. If that does not fit, they fill
    one device after the other.
    """
    offloaded_bytes = layer_bytes[len(layer_bytes) - count :]
    capacities = [device.capacity - reserve for device in devices]
    if split:
        candidates = [divide_layers(count, split)]
    else:
        order = sorted(range(len(devices)), key=lambda index: -capacities[index])
        candidates = [
            tuple(count if index == chosen else 0 for index in range(len(devices))) for chosen in order
        ]
        usable = [max(0.0, capacity) for capacity in capacities]
        if 0 < sum(usable) < float("inf"):
            candidates.append(divide_layers(count, usable))
        candidates.append(fill_devices(offloaded_bytes, capacities))
    return next((counts for counts in candidates if all_fit(counts, offloaded_bytes, capacities)), None)


def all_fit(counts: Sequence[int], layer_bytes: Sequence[int], capacities: Sequence[float]) -> bool:
    """Whether every layer has a device, and the layers of each device fit there."""
    ends = list(accumulate(counts, initial=0))
    parts = (layer_bytes[start:end] for start, end in pairwise(ends))
    return ends[-1] == len(layer_bytes) and all(
        not part or sum(part) <= capacity for part, capacity in zip(parts, capacities, strict=True)
    )


def divide_layers(count: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Divides layers by shares, which need not add up to 1."""
    total = sum(shares)
    ends = [round(count * share_end / total) for share_end in accumulate(shares)]
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


def fill_devices(layer_bytes: Sequence[int], capacities: Sequence[float]) -> tuple[int, ...]:
    """Fills one device after the other. Layers that fit nowhere are not counted."""
    counts, layer = [], 0
    for capacity in capacities:
        start, used_bytes = layer, 0
        while layer < len(layer_bytes) and used_bytes + layer_bytes[layer] <= capacity:
            used_bytes += layer_bytes[layer]
            layer += 1
        counts.append(layer - start)
    return tuple(counts)


GPU, INTEGRATED_GPU = 1, 2
"""ggml_backend_dev_type of devices that take layers. The other types are the processor and its
accelerators."""

PROCESSOR_BACKENDS = frozenset({"CPU", "BLAS", "AMX"})
"""Backends that compute on the processor."""


def list_backends(library: Library) -> tuple[str, ...]:
    """The kinds of devices that the library was built for, such as `CUDA` and `Vulkan`."""
    call = library.call
    backends = (call.ggml_backend_reg_get(index) for index in range(call.ggml_backend_reg_count()))
    names = [call.ggml_backend_reg_name(backend).decode() for backend in backends]
    return tuple(name for name in names if name not in PROCESSOR_BACKENDS)


def list_devices(library: Library) -> tuple[Device, ...]:
    """The library's devices, without the processor."""
    call = library.call
    pointers = [call.ggml_backend_dev_get(index) for index in range(call.ggml_backend_dev_count())]
    return tuple(
        _describe_device(call, pointer)
        for pointer in pointers
        if call.ggml_backend_dev_type(pointer) in (GPU, INTEGRATED_GPU)
    )


def _describe_device(call: ctypes.CDLL, pointer: int) -> Device:
    """Reads the facts of a device."""
    free, total = _read_memory(call, pointer)
    return Device(
        name=call.ggml_backend_dev_name(pointer).decode("utf-8", "replace"),
        description=call.ggml_backend_dev_description(pointer).decode("utf-8", "replace"),
        free=free,
        total=total,
        is_integrated=call.ggml_backend_dev_type(pointer) == INTEGRATED_GPU,
    )


def _read_memory(call: ctypes.CDLL, pointer: int) -> tuple[int, int]:
    """The device's free and total bytes."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call.ggml_backend_dev_memory(pointer, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


BYTE = 24
"""ggml_type of numbers of one byte."""

TENSOR_DESCRIPTION_BYTES = 4096
"""The size in bytes of the buffer for the description of one tensor. A description takes some hundred
bytes."""


def can_compute_with(library: Library, device: Device, size: int) -> bool:
    """Whether the device can compute with one tensor of `size` bytes. Some drivers accept only tensors that
    are much smaller than the device's memory. With a larger tensor, the library would end the process at the
    first step."""
    call = library.call
    context = call.ggml_init(GgmlParams(TENSOR_DESCRIPTION_BYTES, None, True))
    try:
        tensor = call.ggml_new_tensor_1d(context, BYTE, size)
        pointer = call.ggml_backend_dev_by_name(device.name.encode())
        return bool(call.ggml_backend_dev_supports_op(pointer, tensor))
    finally:
        call.ggml_free(context)


def measure_devices(library: Library, devices: Sequence[DeviceLayers]) -> tuple[DeviceMemory, ...]:
    """Measures the memory of devices that have layers. Any thread may call it.

    Some drivers report all bytes as free, although layers are on the device. The used bytes are None for such
    a device.
    """
    memories = []
    for device in devices:
        free, total = _read_memory(
            library.call, library.call.ggml_backend_dev_by_name(device.device.encode())
        )
        used_bytes = None if free >= total else total - free
        memories.append(DeviceMemory(device.device, device.layers, total, used_bytes))
    return tuple(memories)
