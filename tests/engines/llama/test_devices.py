"""The binding to devices, on a library that was built for the processor alone, and the loss of a device."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.domain.models import DeviceLayers
from antiphon.domain.request import EmbedRequest, Sampling
from antiphon.domain.values import replace
from antiphon.engines.base import LoadSpec, PromptTokens, TokenRequest
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.engines.llama.embedding import load_any
from antiphon.engines.llama.libllama.context import FLASH_AUTO, FLASH_ON, ContextSizes, NativeContext
from antiphon.engines.llama.libllama.layer_sizes import list_parts, read_layer_sizes
from antiphon.engines.llama.libllama.library import FUNCTIONS, Library, find_installed, open_library
from antiphon.engines.llama.libllama.model import NativeModel, place_weights
from antiphon.engines.llama.libllama.placement import (
    Device,
    LayerPlacement,
    can_compute_with,
    list_backends,
    list_devices,
)
from antiphon.errors import DeviceMemoryExceeded, EngineDied, EngineUnavailable, LoadError
from antiphon.weights.gguf import read_extents
from tests.engines.llama.conftest import loaded
from tests.support.model_files import CANTOR, write_encoder

WHEEL = next(file.path for file in find_installed() if file.origin.startswith("xllamacpp"))
"""The locked wheel, which computes on the processor, also where another library is installed."""


@pytest.fixture(scope="module")
def library() -> Library:
    return open_library(WHEEL)


def test_the_wheel_has_no_device_here(library: Library):
    assert list_devices(library) == ()
    assert list_backends(library) == ()


def test_every_function_of_devices_is_declared(library: Library):
    names = [name for name in FUNCTIONS if name.startswith(("ggml_backend_", "gguf_"))]
    names += ["ggml_init", "ggml_new_tensor_1d", "ggml_free"]
    assert len(names) > 15
    for name in names:
        assert getattr(library.call, name).argtypes == FUNCTIONS[name][1]


def test_sizes_of_layers_are_those_of_the_file(library: Library):
    sizes = read_layer_sizes(library, CANTOR)
    extents = {each.name: each.size for each in read_extents(CANTOR)}
    first = sum(size for name, size in extents.items() if name.startswith("blk.0."))
    assert len(sizes.weights) == 7 and sizes.weights[0] == first
    inputs = extents["token_embd.weight"]
    if "output.weight" in extents:
        assert sum(sizes.weights) == sum(extents.values()) - inputs
    else:
        assert sum(sizes.weights) == sum(extents.values()), "the output has a copy of the input's table"
    assert (sizes.trained_context, sizes.embeds) == (2048, False)


def test_cells_are_added_to_layers_and_not_to_the_output(library: Library):
    sizes = read_layer_sizes(library, CANTOR)
    assert sizes.values_per_token == (*[256] * 6, 0), "128 numbers in the keys and in the values"
    needs = sizes.add_cells(1000, 2)
    assert needs[0] == sizes.weights[0] + 512_000 and needs[-1] == sizes.weights[-1]


def test_a_device_is_asked_for_the_tensors_that_it_computes_with(library: Library):
    """The processor computes with any; nothing is allocated for the question."""
    assert read_layer_sizes(library, CANTOR).widest_cell == 128
    for size in (1, 1 << 50):
        assert can_compute_with(library, Device("CPU", "", 0, 0), size)


def test_an_encoder_says_that_it_embeds(library: Library, tmp_path: Path):
    assert read_layer_sizes(library, write_encoder(tmp_path / "e.gguf")).embeds


def test_a_missing_part_is_an_error(library: Library, tmp_path: Path):
    with pytest.raises(LoadError, match=r"cannot read the header of gone\.gguf"):
        read_layer_sizes(library, tmp_path / "gone.gguf")


def test_parts_of_a_split_model_are_listed():
    parts = list_parts(Path("/m/big-00001-of-00003.gguf"))
    assert [part.name for part in parts] == [f"big-0000{at}-of-00003.gguf" for at in (1, 2, 3)]
    assert list_parts(Path("/m/big.gguf")) == [Path("/m/big.gguf")]


def test_a_placement_becomes_the_librarys_parameters(library: Library):
    params = library.call.llama_model_default_params()
    devices = tuple(Device(name, name, 0, 0) for name in ("CPU", "absent", "CPU"))
    arrays = place_weights(library, params, LayerPlacement(9, devices, (5, 0, 2)))
    given, shares = (ctypes.c_void_p * 3).from_address(params.devices), arrays[1]
    processor = library.call.ggml_backend_dev_by_name(b"CPU")
    assert list(given) == [processor, processor, None], "devices without layers are left out"
    assert list(shares)[:3] == [5.0, 2.0, 0.0] and len(shares) == library.call.llama_max_devices()
    assert (params.n_gpu_layers, ctypes.addressof(shares)) == (7, params.tensor_split)


def test_without_a_placement_no_device_is_listed(library: Library):
    params = library.call.llama_model_default_params()
    arrays = place_weights(library, params, LayerPlacement(0))
    assert list(arrays[0]) == [None] and params.n_gpu_layers == 0


@pytest.fixture
def on_device(library: Library) -> Iterator[NativeContext]:
    """A context that believes that a device computes its layers."""
    model = NativeModel(library, CANTOR)
    model.placement = LayerPlacement(7, (Device("CUDA0", "a card", 1, 2),), (7,))
    context = NativeContext(model, ContextSizes(64, 2, 16, 16, 1, unified=False, flash=True, kv_type="f16"))
    yield context
    context.close()
    model.close()


def test_the_library_decides_on_flash_attention_on_devices(on_device: NativeContext, library: Library):
    assert on_device._build_params(library).flash_attn_type == FLASH_AUTO
    model = NativeModel(library, CANTOR)
    sizes = ContextSizes(64, 2, 16, 16, 1, unified=False, flash=True, kv_type="f16")
    plain = NativeContext(model, sizes)
    assert plain._build_params(library).flash_attn_type == FLASH_ON
    plain.close()
    model.close()


def test_only_a_device_makes_a_failure_one_of_its_memory(on_device: NativeContext, library: Library):
    model = NativeModel(library, CANTOR)
    said = "llama.cpp refused m.gguf: unable to allocate CUDA0 buffer."
    assert type(model.build_load_error(said)) is LoadError
    model.placement = LayerPlacement(7, (Device("CUDA0", "a card", 1, 2),), (7,))
    assert type(model.build_load_error(said)) is DeviceMemoryExceeded
    assert type(model.build_load_error("llama.cpp refused m.gguf: unknown architecture.")) is LoadError
    model.close()


def lose_device(engine: LlamaTokenEngine) -> None:
    """Makes the library fail from now on, as it does when a device is gone: it takes no empty batch."""
    context = engine._get_loaded().context
    context._devices = (DeviceLayers("CUDA0", "a card", 7, 7),)
    decode = context.decode
    context.decode = lambda rows: decode(0)  # type: ignore[method-assign]


async def test_a_lost_device_ends_the_engine(caplog: pytest.LogCaptureFixture):
    async with loaded(CANTOR, library=str(WHEEL)) as engine:
        lose_device(engine)
        request = TokenRequest(PromptTokens((5, 6, 7)), 4, Sampling(temperature=0.0))
        with pytest.raises(EngineDied):
            async for _ in engine.generate(request):
                pass
        with pytest.raises(EngineUnavailable):
            await engine.info()
    assert "failed with -1 on CUDA0, so the engine ends" in caplog.text


async def test_a_lost_device_ends_an_embedding_engine(tmp_path: Path):
    path = write_encoder(tmp_path / "e.gguf")
    async with loaded(path, library=str(WHEEL), context_length=64) as engine:
        lose_device(engine)
        with pytest.raises(EngineDied):
            async for _ in engine.embed(EmbedRequest(((5, 6, 7),))):
                pass
        with pytest.raises(EngineUnavailable):
            await engine.info()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"gpu_layers": 4}, "gpu_layers = 4 needs a device, .* make native .*or set gpu_layers = 0"),
        ({"gpu_layers": 0, "devices": ("CUDA0",)}, "gpu_layers = 0 leaves no layer for devices"),
        ({"gpu_layers": 0, "tensor_split": (1.0,)}, "gpu_layers = 0 leaves no layer for devices"),
        ({"gpu_layers": 4, "exact": True}, "exact = true computes on the processor only"),
    ],
    ids=["layers", "devices", "split", "exact"],
)
def test_what_needs_a_device_is_refused_in_one_line(asked: dict[str, object], told: str):
    spec = replace(LoadSpec(str(CANTOR), library=str(WHEEL), context_length=64), **asked)  # type: ignore[arg-type]
    with pytest.raises(LoadError, match=told) as refused:
        load_any(spec)
    assert "\n" not in refused.value.message


async def test_the_processor_alone_names_no_device():
    async with loaded(CANTOR, library=str(WHEEL)) as engine:
        info = await engine.info()
        assert info.devices == () and info.load.devices == ()
