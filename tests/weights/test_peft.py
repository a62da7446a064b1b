"""What PEFT saves: read by the names of the base model, and refused by name where it cannot be computed.

The files are those that PEFT wrote (models/adapters/record.py); tests/engines/llama holds what they compute.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from antiphon.errors import ModelFileError
from antiphon.weights.convert.peft import convert_peft
from antiphon.weights.gguf import Header, read_gguf, read_header
from models.adapters.base import write_base

RECORDED = Path(__file__).parents[1] / "fixtures" / "adapters"
Matrices = Mapping[str, NDArray[np.generic]]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Header]:
    """Headers of two recorded bases: one with a head of its own, one that shares it with the embeddings."""
    folder = tmp_path_factory.mktemp("bases")
    for family in ("llama", "gemma3"):
        write_base(RECORDED / family / "base", folder / f"{family}.gguf")
    return {family: read_header(folder / f"{family}.gguf") for family in ("llama", "gemma3")}


def matrices_of(folder: Path) -> Matrices:
    return dict(load_file(folder / "adapter_model.safetensors"))


def changed(source: Path, target: Path, matrices: Matrices | None = None, **config: Any) -> Path:
    """A copy of an adapter with other matrices, or with more said in its configuration."""
    shutil.copytree(source, target)
    if matrices is not None:
        save_file(dict(matrices), target / "adapter_model.safetensors")
    file = target / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return target


def tensors_of(path: Path) -> Matrices:
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("dora", "use_dora = true"),
        ("bias", 'bias = "lora_only"'),
        ("saved", r'modules_to_save = \["lm_head"\]'),
        ("embedding", "embed_tokens.lora_embedding_.: adapters of embeddings"),
    ],
)
def test_what_peft_saves_besides_two_matrices_is_refused_by_name(
    tmp_path: Path, bases: dict[str, Header], name: str, says: str
) -> None:
    with pytest.raises(ModelFileError, match=says):
        convert_peft(RECORDED / "llama" / name, bases["llama"], tmp_path / "adapter.gguf")
    assert not (tmp_path / "adapter.gguf").exists()


@pytest.mark.parametrize(
    ("name", "silenced", "says"),
    [
        ("dora", {"use_dora": False}, "lora_magnitude_vector"),
        ("bias", {"bias": "none"}, "bias, which is not a matrix"),
        ("saved", {"modules_to_save": None}, "lm_head.weight, which is not a matrix"),
    ],
)
def test_it_is_refused_too_where_the_configuration_hides_it(
    tmp_path: Path, bases: dict[str, Header], name: str, silenced: dict[str, Any], says: str
) -> None:
    source = RECORDED / "llama" / name
    matrices = dict(matrices_of(source))
    if name == "bias":  # of a base with biases, which Llama has none of
        matrices["base_model.model.model.layers.0.self_attn.v_proj.bias"] = np.ones(16, np.float32)
    with pytest.raises(ModelFileError, match=says):
        convert_peft(
            changed(source, tmp_path / "peft", matrices, **silenced),
            bases["llama"],
            tmp_path / "adapter.gguf",
        )


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"kasa_config": {"beta": 1}}, "kasa_config.* is not supported"),
        ({"alora_invocation_tokens": [5]}, "alora_invocation_tokens"),
        ({"use_something_new": True}, "use_something_new = true, which is unknown"),
        ({"init_lora_weights": "lora_ga"}, "changes the base model too"),
        ({"use_rslora": "yes"}, "use_rslora"),
        ({"alpha_pattern": {"q_proj": 1e300}}, "beyond the range of float32"),
    ],
)
def test_a_config_with_unknown_demands_is_refused_by_key(
    tmp_path: Path, bases: dict[str, Header], config: dict[str, Any], says: str
) -> None:
    source = changed(RECORDED / "llama" / "all", tmp_path / "peft", **config)
    with pytest.raises(ModelFileError, match=says):
        convert_peft(source, bases["llama"], tmp_path / "adapter.gguf")


@pytest.mark.parametrize("architecture", ["mamba", "llama4", "gemma3n"])
def test_another_architecture_is_refused_with_known_ones(
    tmp_path: Path, bases: dict[str, Header], architecture: str
) -> None:
    base = bases["llama"]
    other = Header(base.path, base.size, architecture, base.metadata, 0, 0, base.shapes)
    with pytest.raises(
        ModelFileError, match=f"architecture {architecture} is not one of gemma, .*llama.*qwen3"
    ):
        convert_peft(RECORDED / "llama" / "all", other, tmp_path / "adapter.gguf")


def test_a_base_without_head_widths_is_refused(tmp_path: Path, bases: dict[str, Header]) -> None:
    base = bases["llama"]
    metadata = {key: value for key, value in base.metadata.items() if "head_count" not in key}
    other = Header(base.path, base.size, "llama", metadata, 0, 0, base.shapes)
    with pytest.raises(ModelFileError, match="no width of heads"):
        convert_peft(RECORDED / "llama" / "all", other, tmp_path / "adapter.gguf")


def test_heads_that_differ_by_layer_keep_their_number(tmp_path: Path, bases: dict[str, Header]) -> None:
    """Then the file gives a list, which the header does not hold; the width of a head is enough."""
    base = bases["llama"]
    metadata = {key: value for key, value in base.metadata.items() if not key.endswith("head_count_kv")}
    other = Header(base.path, base.size, "llama", metadata, 0, 0, base.shapes)
    convert_peft(RECORDED / "llama" / "all", base, tmp_path / "plain.gguf")
    convert_peft(RECORDED / "llama" / "all", other, tmp_path / "listed.gguf")
    assert (tmp_path / "plain.gguf").read_bytes() == (tmp_path / "listed.gguf").read_bytes()


def test_a_head_shared_with_the_embeddings_is_not_adapted(tmp_path: Path, bases: dict[str, Header]) -> None:
    source = changed(
        RECORDED / "gemma3" / "all",
        tmp_path / "peft",
        {
            "base_model.model.lm_head.lora_A.weight": np.ones((4, 32), np.float32),
            "base_model.model.lm_head.lora_B.weight": np.ones((64, 4), np.float32),
        },
    )
    with pytest.raises(ModelFileError, match="adapts lm_head, which gemma3"):
        convert_peft(source, bases["gemma3"], tmp_path / "adapter.gguf")


def test_embeddings_are_refused_under_every_spelling(tmp_path: Path, bases: dict[str, Header]) -> None:
    name = "base_model.model.model.embed_tokens.lora_{}.weight"
    square = {
        name.format("A"): np.ones((4, 32), np.float32),
        name.format("B"): np.ones((64, 4), np.float32),
    }
    source = changed(RECORDED / "llama" / "all", tmp_path / "peft", square)
    with pytest.raises(ModelFileError, match="embed_tokens, which llama"):
        convert_peft(source, bases["llama"], tmp_path / "adapter.gguf")


@pytest.mark.parametrize("wrapping", ["model.language_model.", "language_model.model."])
def test_the_text_part_of_a_model_that_sees_is_adapted(
    tmp_path: Path, bases: dict[str, Header], wrapping: str
) -> None:
    plain = RECORDED / "gemma3" / "all"
    wrapped: Matrices = {
        name.replace("model.layers.", f"{wrapping}layers."): values
        for name, values in matrices_of(plain).items()
    }
    convert_peft(plain, bases["gemma3"], tmp_path / "plain.gguf")
    convert_peft(changed(plain, tmp_path / "peft", wrapped), bases["gemma3"], tmp_path / "wrapped.gguf")
    assert tensors_of(tmp_path / "wrapped.gguf").keys() == tensors_of(tmp_path / "plain.gguf").keys()
    assert (tmp_path / "wrapped.gguf").read_bytes() == (tmp_path / "plain.gguf").read_bytes()


def test_its_eyes_are_not(tmp_path: Path, bases: dict[str, Header]) -> None:
    name = "base_model.model.model.vision_tower.encoder.layers.0.self_attn.q_proj.lora_{}.weight"
    eyes = {name.format(part): np.ones((4, 4), np.float32) for part in "AB"}
    source = changed(RECORDED / "gemma3" / "all", tmp_path / "peft", eyes)
    with pytest.raises(ModelFileError, match=r"vision_tower.*which gemma3"):
        convert_peft(source, bases["gemma3"], tmp_path / "adapter.gguf")


def test_only_the_modules_that_were_trained_are_in_the_file(tmp_path: Path, bases: dict[str, Header]) -> None:
    convert_peft(RECORDED / "llama" / "subset", bases["llama"], tmp_path / "adapter.gguf")
    assert tensors_of(tmp_path / "adapter.gguf").keys() == {
        f"blk.1.attn_{letter}.weight.lora_{part}" for letter in "qv" for part in "ab"
    }


def test_more_can_be_said_in_the_metadata(tmp_path: Path, bases: dict[str, Header]) -> None:
    target = tmp_path / "adapter.gguf"
    convert_peft(RECORDED / "llama" / "all", bases["llama"], target, metadata={"general.name": "a style"})
    assert read_gguf(target).metadata["general.name"] == "a style"
