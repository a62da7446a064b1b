"""Layers on real devices. Run it where a library with a device is:

ANTIPHON_TEST_DEVICE_LIBRARY=/path/of/libllama.so python -m pytest -n0 -m device

Prompts are short and answers too, since a device may be computed in software.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from antiphon.domain.request import Sampling
from antiphon.engines.base import EngineInfo, LoadSpec, PromptTokens, Steps, TokenRequest
from antiphon.engines.llama.embedding import load_any
from antiphon.engines.llama.libllama.layer_sizes import read_layer_sizes
from antiphon.engines.llama.libllama.library import Library, open_library, resolve_library_file
from antiphon.engines.llama.libllama.placement import can_compute_with, list_backends, list_devices
from antiphon.errors import DeviceMemoryExceeded, LoadError
from benchmarks.make_model import write_model
from tests.engines.llama.conftest import loaded
from tests.engines.random_models import SIZES

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def library() -> Library:
    return open_library(resolve_library_file(Path(os.environ["ANTIPHON_TEST_DEVICE_LIBRARY"])))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", SIZES["tiny"])


async def answer(path: Path, library: Library, **spec: Any) -> tuple[EngineInfo, list[int]]:
    """The engine's facts after a short greedy answer, and its tokens."""
    said: list[int] = []
    async with loaded(path, library=str(library.path), sequences=2, context_length=64, **spec) as engine:
        request = TokenRequest(PromptTokens((300, 301)), 4, Sampling(temperature=0.0, ignore_eos=True))
        async for event in engine.generate(request):
            if isinstance(event, Steps):
                said.extend(event.tokens)
        return await engine.info(), said


def count_layers(info: EngineInfo) -> int:
    return sum(device.layers for device in info.devices)


def test_the_library_has_a_device(library: Library):
    assert list_backends(library)
    for device in list_devices(library):
        assert device.name and device.description and 0 <= device.free <= device.total


async def test_any_number_of_layers_gives_the_same_answer(library: Library, model: Path):
    info, reference = await answer(model, library, gpu_layers=0)
    assert info.devices == () and info.load.devices == () and len(reference) == 4
    whole, said = await answer(model, library)
    layers = whole.devices[0].total_layers
    assert count_layers(whole) == layers > 1, "auto takes all of so small a model"
    assert said == reference
    (memory,) = whole.load.devices
    assert memory.device == whole.devices[0].device and memory.total > 0
    assert (await answer(model, library, gpu_layers=999))[1] == reference
    part, said = await answer(model, library, gpu_layers=layers // 2)
    assert count_layers(part) == layers // 2 and said == reference


async def test_a_split_uses_every_device_that_has_a_share(library: Library, model: Path):
    devices = list_devices(library)
    names = tuple(device.name for device in devices)
    info, said = await answer(model, library, devices=names, tensor_split=(1.0,) * len(names))
    assert [device.device for device in info.devices] == list(names)
    assert count_layers(info) == info.devices[0].total_layers
    assert said == (await answer(model, library, gpu_layers=0))[1]


async def test_exact_mode_stays_on_the_processor(library: Library, model: Path):
    info, _ = await answer(model, library, exact=True)
    assert info.exact and info.devices == ()
    with pytest.raises(LoadError, match="exact = true computes on the processor only"):
        load_any(LoadSpec(str(model), library=str(library.path), exact=True, gpu_layers=1))


def test_what_does_not_fit_says_what_would(library: Library, model: Path):
    room = max(device.total for device in list_devices(library))
    spec = LoadSpec(str(model), library=str(library.path), cells=room // 64, sequences=1, gpu_layers=2)
    with pytest.raises(DeviceMemoryExceeded, match=r"(\d+|none) of \d+ layers fit: set gpu_layers = \d+"):
        load_any(spec)


async def test_a_cache_too_large_for_the_device_stays_off_it(library: Library, model: Path):
    """Its tensors have 256 MB; some drivers compute with 128 MB at most, and the library would abort."""
    cells = (256 << 20) // (2 * read_layer_sizes(library, model).widest_cell)
    spec: dict[str, Any] = {"library": str(library.path), "cells": cells, "sequences": 1}
    able = [each for each in list_devices(library) if can_compute_with(library, each, 256 << 20)]
    async with loaded(model, context_length=64, **spec) as engine:
        info = await engine.info()
    assert bool(info.devices) == bool(able)
    if not able:
        with pytest.raises(
            LoadError, match=r"a tensor of 268 MB, more than \w+ computes with; lower context"
        ):
            load_any(LoadSpec(str(model), gpu_layers=2, **spec))


def test_a_device_that_is_not_there_is_named(library: Library, model: Path):
    with pytest.raises(LoadError, match="there is no device 'Nothing9'; this library finds "):
        load_any(LoadSpec(str(model), library=str(library.path), devices=("Nothing9",)))
