"""Chooses which layers of a model go to which device, by the memory that is free there. It calls no library.

Layers are counted as llama.cpp counts them: the model's own and the output after them. The last ones go to
devices, in the order of the devices; the others stay on the processor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from antiphon.domain.models import DeviceLayers
from antiphon.engines.base import LoadSpec
from antiphon.errors import DeviceMemoryExceeded, LoadError

RESERVE = 512 * 1024 * 1024
"""Bytes of each device that stay free of weights and cells, for the buffers of a step and of the driver."""

STEP_BACK = 8
"""The part of the layers that stays on the processor when the library could not allocate what was planned."""

MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Device:
    """A device of the library, besides the processor."""

    name: str
    """The library's name: `CUDA0`, `Vulkan1`, `Metal`."""
    description: str
    """The product's name, for people."""
    free: int
    """Bytes. A device that reports neither free nor total bytes is taken as large enough."""
    total: int
    is_integrated: bool = False
    """Whether it uses the machine's own memory."""

    @property
    def room(self) -> float:
        """Bytes that can be used; infinite if the device does not tell."""
        return self.free if self.total else float("inf")


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """What computes which layers."""

    layers: int
    """All layers of the model, the output included; 0 where no device could take one."""
    devices: tuple[Device, ...] = ()
    counts: tuple[int, ...] = ()
    """The number of layers on each device, in order."""

    @property
    def gpu_layer_count(self) -> int:
        """The number of layers on devices."""
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
    """Whether the settings say that devices compute."""
    return bool(spec.gpu_layers or spec.devices or spec.tensor_split)


def require_offload(spec: LoadSpec, devices: Sequence[Device], backends: Sequence[str]) -> None:
    """Raises LoadError for settings that request a device that cannot be used. `backends`: the kinds of
    devices that the library was built for."""
    asked = requests_devices(spec)
    if asked and spec.exact:
        raise LoadError(
            "exact = true computes on the processor alone, where alone its bits are proved; leave it out, "
            "or set gpu_layers = 0"
        )
    if not asked or devices:
        return
    wanted = f"gpu_layers = {spec.gpu_layers}" if spec.gpu_layers else "a list of devices or a split"
    if not backends:
        raise LoadError(
            f"{wanted} needs a device, and this library was built for the processor alone; build one with "
            "make native (docs/gpu.md), or set gpu_layers = 0"
        )
    raise LoadError(
        f"{wanted} needs a device, and the library, built for {' and '.join(backends)}, finds none; check "
        "the driver and who can open the device (docs/gpu.md), or set gpu_layers = 0"
    )


def choose_devices(found: Sequence[Device], names: Sequence[str], hosts: int = 1) -> tuple[Device, ...]:
    """Returns the named devices in their order. Without names: those with memory of their own, or, where
    there are none, the integrated ones. `hosts` that share them get equal parts of their free memory. Raises
    LoadError for a name that is not there."""
    if not names:
        shared = tuple(device for device in found if not device.is_integrated) or tuple(found)
        return tuple(replace(device, free=device.free // hosts) for device in shared)
    by_name = {device.name.lower(): device for device in found}
    for name in names:
        if name.lower() not in by_name:
            there = ", ".join(f"{device.name} ({device.description})" for device in found)
            raise LoadError(f"there is no device {name!r}; this library finds {there}")
    return tuple(by_name[name.lower()] for name in names)


def place_layers(
    spec: LoadSpec, devices: Sequence[Device], needs: Sequence[int], name: str
) -> LayerPlacement:
    """Chooses the layers of each device: as many as requested, or as many as fit. `needs`: the bytes of each
    layer's weights and cells, the output last. `name`: the model's, for messages. Raises LoadError."""
    layers = len(needs)
    if spec.tensor_split and len(spec.tensor_split) != len(devices):
        raise LoadError(
            f"tensor_split has {len(spec.tensor_split)} parts for {len(devices)} devices "
            f"({', '.join(device.name for device in devices)}); give one for each, or leave it out"
        )
    if spec.tensor_split and not sum(spec.tensor_split):
        raise LoadError("tensor_split gives no device a part; give at least one a number above 0")
    if spec.gpu_layers is None:
        counts = find_most(needs, devices, spec.tensor_split)
        return LayerPlacement(layers, tuple(devices), counts)
    wanted = min(spec.gpu_layers, layers)
    for reserve in (RESERVE, 0):
        fits = find_counts(wanted, needs, devices, spec.tensor_split, reserve)
        if fits is not None:
            return LayerPlacement(layers, tuple(devices), fits)
    raise build_refusal(wanted, needs, devices, spec.tensor_split, name)


def build_refusal(
    wanted: int, needs: Sequence[int], devices: Sequence[Device], split: Sequence[float], name: str
) -> DeviceMemoryExceeded:
    """Builds the error for layers that do not fit, with the number that does."""
    room = ", ".join(f"{device.name}: {device.free / MEGABYTE:,.0f} MB free" for device in devices)
    most = min(sum(find_most(needs, devices, split)), wanted - 1)
    size = sum(needs[len(needs) - wanted :]) / MEGABYTE
    less = f"set gpu_layers = {most}" if most else "set gpu_layers = 0, or lower context_length or sequences"
    return DeviceMemoryExceeded(
        f"gpu_layers = {wanted} of {name} needs {size:,.0f} MB on the device and more for buffers ({room}); "
        f"{most or 'none'} of {len(needs)} layers fit: {less}"
    )


def build_tensor_refusal(size: int, devices: Sequence[Device]) -> LoadError:
    """Builds the error for a KV cache whose tensors are larger than devices compute with."""
    return LoadError(
        f"one layer of the KV cache is a tensor of {size / MEGABYTE:,.0f} MB, more than "
        f"{' and '.join(device.name for device in devices)} computes with; lower context_length or "
        "sequences, or set gpu_layers = 0"
    )


def step_back(placement: LayerPlacement, needs: Sequence[int], split: Sequence[float]) -> LayerPlacement:
    """Returns a placement with fewer layers on devices, after the library could not allocate this one."""
    fewer = placement.gpu_layer_count - max(1, placement.gpu_layer_count // STEP_BACK)
    if fewer <= 0:
        return ON_PROCESSOR
    counts = find_counts(fewer, needs, placement.devices, split, 0)
    return LayerPlacement(placement.layers, placement.devices, counts or ())


def find_most(needs: Sequence[int], devices: Sequence[Device], split: Sequence[float]) -> tuple[int, ...]:
    """Returns the layers of each device when as many are there as fit beside the reserve."""
    for count in range(len(needs), 0, -1):
        counts = find_counts(count, needs, devices, split, RESERVE)
        if counts is not None:
            return counts
    return (0,) * len(devices)


def find_counts(
    count: int, needs: Sequence[int], devices: Sequence[Device], split: Sequence[float], reserve: int
) -> tuple[int, ...] | None:
    """Returns the layers of each device when the last `count` layers are on devices; None if they do not fit.

    Without a split one device takes all of them if it can, the one with the most room first: each change of
    the device costs a copy. Otherwise they are divided by the room, or, if that fails, fill one device after
    the other.
    """
    offloaded = needs[len(needs) - count :]
    rooms = [device.room - reserve for device in devices]
    if split:
        choices = [divide(count, split)]
    else:
        order = sorted(range(len(devices)), key=lambda at: -rooms[at])
        choices = [tuple(count if at == one else 0 for at in range(len(devices))) for one in order]
        usable = [max(0.0, room) for room in rooms]
        if 0 < sum(usable) < float("inf"):
            choices.append(divide(count, usable))
        choices.append(fill(offloaded, rooms))
    return next((counts for counts in choices if fit(counts, offloaded, rooms)), None)


def fit(counts: Sequence[int], needs: Sequence[int], rooms: Sequence[float]) -> bool:
    """Whether each device holds its layers, and every layer has one."""
    ends = list(accumulate(counts, initial=0))
    parts = (needs[start:end] for start, end in pairwise(ends))
    return ends[-1] == len(needs) and all(
        not part or sum(part) <= room for part, room in zip(parts, rooms, strict=True)
    )


def divide(count: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Divides layers by shares, which need not add up to 1."""
    total = sum(shares)
    ends = [round(count * part / total) for part in accumulate(shares)]
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


def fill(needs: Sequence[int], rooms: Sequence[float]) -> tuple[int, ...]:
    """Fills one device after the other. Layers that fit nowhere are not counted."""
    counts, at = [], 0
    for room in rooms:
        start, used = at, 0
        while at < len(needs) and used + needs[at] <= room:
            used += needs[at]
            at += 1
        counts.append(at - start)
    return tuple(counts)
