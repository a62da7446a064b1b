"""The settings of a model that act on one engine only."""

import pytest

from antiphon.errors import SettingsError
from antiphon.settings.loading import load_settings
from antiphon.settings.models import LLAMA_ONLY, MODEL_DEFAULTS, VLLM_ONLY

VLLM = {"name": "m", "path": "/m", "engine": "vllm", "interpreter": "/python"}
LLAMA = {"name": "m", "path": "/m.gguf"}
OTHER = {
    "bind_threads": False,
    "exact": True,
    "kv_type": "f32",
    "layout": "pool",
    "step_latency": 1.0,
    "weights": "file",
    "load": "request",
    "keep_alive": 9.0,
    "gpu_layers": 1,
    "tensor_split": (1.0, 2.0),
    "drafts": "auto",
    "charge_rejected_predictions": True,
    "mmproj": "/p.gguf",
    "image_max_tokens": 512,
    "image_min_tokens": 64,
    "interpreter": "/python",
    "dtype": "float32",
    "memory_share": 0.5,
    "tensor_parallel": 2,
}


def load(**table: object) -> None:
    load_settings({}, {}, None, [table])


def test_settings_of_one_engine_are_settings():
    assert LLAMA_ONLY | VLLM_ONLY == OTHER.keys() <= MODEL_DEFAULTS.keys()
    assert not LLAMA_ONLY & VLLM_ONLY


@pytest.mark.parametrize("name", sorted(OTHER))
def test_a_setting_of_the_other_engine_is_refused(name):
    table, mine = (VLLM, LLAMA) if name in LLAMA_ONLY else (LLAMA, VLLM)
    projector = {"mmproj": "/p.gguf"} if name.startswith("image_") else {}
    load(**{**mine, **projector, name: OTHER[name]})
    with pytest.raises(SettingsError, match=f"^{name} has no effect on the model m"):
        load(**{**table, name: OTHER[name]})


def test_vllm_needs_an_interpreter():
    with pytest.raises(SettingsError, match="run `make cluster`, then set interpreter"):
        load(name="m", path="/m", engine="vllm")


def test_a_pool_is_refused_beside_exact():
    with pytest.raises(SettingsError, match=r'^layout = "pool" of the model m has no effect with exact'):
        load(**LLAMA, exact=True, layout="pool")


def test_drafts_are_refused_beside_exact():
    load(**LLAMA, exact=True, drafts="off")
    with pytest.raises(SettingsError, match=r"^drafts of the model m are not possible with exact = true"):
        load(**LLAMA, exact=True, drafts="auto")


def test_limits_of_images_are_refused_without_a_projector():
    with pytest.raises(SettingsError, match=r"^image_max_tokens of the model m has no effect without mmproj"):
        load(**LLAMA, image_max_tokens=512)
    with pytest.raises(
        SettingsError, match=r"^image_min_tokens of the model m is more than image_max_tokens"
    ):
        load(**LLAMA, mmproj="/p.gguf", image_min_tokens=2000)


def test_cells_are_refused_beside_a_memory_share():
    load(**VLLM, cells=4096)
    with pytest.raises(SettingsError, match=r"^cells of the model m has no effect beside memory_share"):
        load(**VLLM, cells=4096, memory_share=0.5)


def test_another_engine_is_refused():
    with pytest.raises(SettingsError, match="must be llama or vllm"):
        load(name="m", path="/m", engine="sglang")
