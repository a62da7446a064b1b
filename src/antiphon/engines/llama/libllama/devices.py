"""The devices of a library besides the processor, and their memory."""

import ctypes
from collections.abc import Sequence

from antiphon.domain.models import DeviceLayers, DeviceMemory
from antiphon.engines.llama.libllama.library import GgmlParams, Library
from antiphon.engines.llama.placement import Device

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
        _describe(call, pointer)
        for pointer in pointers
        if call.ggml_backend_dev_type(pointer) in (GPU, INTEGRATED_GPU)
    )


def _describe(call: ctypes.CDLL, pointer: int) -> Device:
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

TENSOR_ROOM = 4096
"""Bytes of room for the description of one tensor. A description takes some hundred bytes."""


def can_compute_with(library: Library, device: Device, size: int) -> bool:
    """Whether the device can compute with one tensor of `size` bytes. Some drivers accept only tensors that
    are much smaller than the device's memory. With a larger tensor, the library would end the process at the
    first step."""
    call = library.call
    context = call.ggml_init(GgmlParams(TENSOR_ROOM, None, True))
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
