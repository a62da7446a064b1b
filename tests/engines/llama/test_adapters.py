"""Adapters in the library: what a converted one computes is what its merged weights compute."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from antiphon.engines.llama.libllama.context import ContextSizes, DecodeStatus, NativeContext
from antiphon.engines.llama.libllama.library import find_library
from antiphon.engines.llama.libllama.model import NativeAdapter, NativeModel, set_adapter
from antiphon.errors import LoadError
from antiphon.weights.adapter_import import import_adapter
from antiphon.weights.gguf import read_header
from models.cantor.convert import reference_weights, write_gguf

Weights = dict[str, NDArray[np.float32]]

PROMPT = [1, 30, 31, 32, 33, 34, 35, 36]
MODULES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj")
RANK, ALPHA = 4, 24.0


def random_adapter(directory: Path, weights: Weights, **config: object) -> Weights:
    """Saves a random adapter as PEFT does; the weights with it merged in."""
    draws = np.random.default_rng(7)
    merged, matrices = dict(weights), {}
    scale = ALPHA / (RANK**0.5 if config.get("use_rslora") else RANK)
    for name in (f"model.layers.{layer}.{module}" for layer in (0, 5) for module in MODULES):
        outputs, inputs = weights[f"{name}.weight"].shape
        a = draws.normal(0, 0.05, (RANK, inputs)).astype(np.float32)
        b = draws.normal(0, 0.05, (outputs, RANK)).astype(np.float32)
        matrices[f"base_model.model.{name}.lora_A.weight"] = a
        matrices[f"base_model.model.{name}.lora_B.weight"] = b
        merged[f"{name}.weight"] = weights[f"{name}.weight"] + np.float32(scale) * (b @ a)
    directory.mkdir()
    save_file(matrices, directory / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none"} | config
    (directory / "adapter_config.json").write_text(json.dumps(said))
    return merged


def last_logits(model: NativeModel, adapter: NativeAdapter | None = None) -> NDArray[np.float32]:
    """Of the token after PROMPT."""
    shape = ContextSizes(
        cells=64, sequences=1, rows=16, micro_rows=16, threads=2, unified=True, flash=False, kv_type="f32"
    )
    context = NativeContext(model, shape)
    try:
        assert set_adapter(model.library.call, context.pointer, adapter) == 0
        context.set_rows(0, PROMPT, 0, 0, True)
        assert context.decode(len(PROMPT)) == DecodeStatus.DONE
        return np.array(context.read_logits(1)[0], dtype=np.float32)
    finally:
        context.close()


@pytest.fixture(scope="module")
def weights() -> Weights:
    return reference_weights()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, weights: Weights) -> Path:
    path = tmp_path_factory.mktemp("base") / "base.gguf"
    write_gguf(path, "F32", weights)
    return path


@pytest.mark.parametrize("config", [{}, {"use_rslora": True}], ids=["plain", "rank-stabilised"])
def test_a_peft_adapter_computes_what_its_merged_weights_do(
    tmp_path: Path, base: Path, weights: Weights, config: dict[str, object]
) -> None:
    whole = tmp_path / "merged.gguf"
    write_gguf(whole, "F32", random_adapter(tmp_path / "peft", weights, **config))
    kept = import_adapter(tmp_path / "peft", read_header(base), tmp_path / "kept")
    library, _ = find_library(None)
    plain, merged = NativeModel(library, base, False), NativeModel(library, whole, False)
    adapter = NativeAdapter(plain, kept.path)
    try:
        bare, adapted, expected = last_logits(plain), last_logits(plain, adapter), last_logits(merged)
    finally:
        adapter.close()
        plain.close()
        merged.close()
    assert np.abs(bare - expected).max() > 0.5
    assert np.abs(adapted - expected).max() < 1e-3
    assert (kept.rank, kept.alpha) == (RANK, ALPHA)


def test_the_library_refuses_what_is_no_adapter(base: Path) -> None:
    library, _ = find_library(None)
    model = NativeModel(library, base, False)
    try:
        with pytest.raises(LoadError, match="refused the adapter"):
            NativeAdapter(model, base)
    finally:
        model.close()
