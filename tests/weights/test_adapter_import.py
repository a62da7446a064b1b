"""Adapter files: what fits its model is kept under its digest, and everything else is refused by name."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from antiphon.errors import ModelFileError
from antiphon.weights.adapter_import import import_adapter, read_adapter
from antiphon.weights.convert.peft import reorder_rows
from antiphon.weights.gguf import Header, read_header
from benchmarks.make_model import SIZES, write_model

MODULE = "base_model.model.model.layers.0.self_attn.v_proj"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Header:
    """The header of a small model of architecture llama."""
    path = tmp_path_factory.mktemp("base") / "base.gguf"
    write_model(path, SIZES["tiny"], "f32")
    return read_header(path)


def peft(directory: Path, base: Header, **config: object) -> Path:
    """An adapter of rank 2 for one module, as PEFT saves it; `config` overrides what it says."""
    inputs, outputs = base.shapes["blk.0.attn_v.weight"]
    directory.mkdir()
    matrices = {
        f"{MODULE}.lora_A.weight": np.ones((2, inputs), np.float32),
        f"{MODULE}.lora_B.weight": np.ones((outputs, 2), np.float32),
    }
    save_file(matrices, directory / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": 2, "lora_alpha": 4} | config
    (directory / "adapter_config.json").write_text(json.dumps(said))
    return directory


def test_one_adapter_has_one_digest_and_one_file(tmp_path: Path, base: Header) -> None:
    first = import_adapter(peft(tmp_path / "one", base), base, tmp_path / "kept")
    second = import_adapter(peft(tmp_path / "two", base), base, tmp_path / "kept")
    assert first == second
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [f"{first.digest}.gguf"]
    assert (first.rank, first.alpha) == (2, 4.0)
    assert read_adapter(first.path, base) == first


def test_a_gguf_adapter_is_kept_as_it_is(tmp_path: Path, base: Header) -> None:
    made = import_adapter(peft(tmp_path / "peft", base), base, tmp_path / "first")
    again = import_adapter(made.path, base, tmp_path / "second")
    assert again.digest == made.digest
    assert again.path.read_bytes() == made.path.read_bytes()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"peft_type": "IA3"}, "'IA3'"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"init_lora_weights": "pissa_niter_16"}, "pissa"),
        ({"lora_alpha": 0}, "lora_alpha"),
        ({"lora_alpha": float("inf")}, "lora_alpha"),
        ({"alpha_pattern": {"(a+)+$": 3}}, "only names of modules"),
    ],
)
def test_adapters_beyond_llama_cpps_format_are_refused(
    tmp_path: Path, base: Header, config: dict[str, object], says: str
) -> None:
    with pytest.raises(ModelFileError, match=says.replace("(", r"\(").replace("+", r"\+")):
        import_adapter(peft(tmp_path / "peft", base, **config), base, tmp_path / "kept")
    assert list((tmp_path / "kept").iterdir()) == []


@pytest.mark.parametrize("depth", [500, 995, 200_000])
def test_a_deeply_nested_config_is_refused_in_our_words(tmp_path: Path, base: Header, depth: int) -> None:
    source = peft(tmp_path / "deep", base)
    (source / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "x": ' + "[" * depth + "]" * depth + "}"
    )
    with pytest.raises(ModelFileError, match=r"nested too deep|is unknown") as refused:
        import_adapter(source, base, tmp_path / "kept")
    assert "recursion" not in refused.value.message


def test_matrices_for_another_model_are_refused_with_both_shapes(tmp_path: Path, base: Header) -> None:
    source = peft(tmp_path / "peft", base)
    wrong = {
        f"{MODULE}.lora_A.weight": np.ones((2, 3), np.float32),
        f"{MODULE}.lora_B.weight": np.ones((5, 2), np.float32),
    }
    save_file(wrong, source / "adapter_model.safetensors")
    with pytest.raises(ModelFileError, match="made for another model"):
        import_adapter(source, base, tmp_path / "kept")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("base_model.model.model.layers.9.self_attn.v_proj.lora_A.weight", "only one of the two"),
        ("base_model.model.model.layers.0.self_attn.v_proj.lora_magnitude_vector", "not a matrix lora_A"),
    ],
)
def test_other_tensors_are_refused_by_name(tmp_path: Path, base: Header, name: str, says: str) -> None:
    source = peft(tmp_path / "peft", base)
    save_file({name: np.ones((2, 2), np.float32)}, source / "adapter_model.safetensors")
    with pytest.raises(ModelFileError, match=says):
        import_adapter(source, base, tmp_path / "kept")


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, base: Header) -> None:
    source = peft(tmp_path / "peft", base)
    save_file({f"{MODULE}.lora_A.weight": np.full((2, 2), np.nan)}, source / "adapter_model.safetensors")
    with pytest.raises(ModelFileError, match="not finite"):
        import_adapter(source, base, tmp_path / "kept")


def test_weights_in_bfloat16_are_read(tmp_path: Path, base: Header) -> None:
    source = peft(tmp_path / "peft", base)
    whole = import_adapter(source, base, tmp_path / "kept")
    inputs, outputs = base.shapes["blk.0.attn_v.weight"]
    one = b"\x80\x3f"  # 1.0: the upper half of its float32
    sizes = {"A": ([2, inputs], 2 * inputs), "B": ([outputs, 2], outputs * 2)}
    header, data = {}, b""
    for part, (shape, count) in sizes.items():
        span = [len(data), len(data) + 2 * count]
        header[f"{MODULE}.lora_{part}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": span}
        data += one * count
    text = json.dumps(header).encode()
    (source / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    assert import_adapter(source, base, tmp_path / "kept").digest == whole.digest


def test_a_pickle_is_never_read(tmp_path: Path, base: Header) -> None:
    source = peft(tmp_path / "peft", base)
    (source / "adapter_model.safetensors").rename(source / "adapter_model.bin")
    with pytest.raises(ModelFileError, match="can contain code"):
        import_adapter(source, base, tmp_path / "kept")


def test_a_model_is_no_adapter(tmp_path: Path, base: Header) -> None:
    with pytest.raises(ModelFileError, match="not a LoRA adapter"):
        import_adapter(base.path, base, tmp_path / "kept")


def test_every_cut_of_an_adapter_is_refused(tmp_path: Path, base: Header) -> None:
    whole = import_adapter(peft(tmp_path / "peft", base), base, tmp_path / "kept").path.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in range(0, len(whole) - 1, max(1, len(whole) // 60)):
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            read_adapter(cut, base)


def test_an_adapter_for_another_architecture_is_refused(tmp_path: Path, base: Header) -> None:
    kept = import_adapter(peft(tmp_path / "peft", base), base, tmp_path / "kept")
    other = Header(Path("other.gguf"), 1, "qwen2", {}, 0, 0, base.shapes)
    with pytest.raises(ModelFileError, match="made for the architecture llama"):
        read_adapter(kept.path, other)


def test_turned_rows_keep_their_heads_apart() -> None:
    rows = np.arange(8, dtype=np.float32).reshape(8, 1)
    assert reorder_rows(rows, 4).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def of_kind(path: Path, base: Header, kind: str, value: float) -> Path:
    """A GGUF adapter of one module, of numbers of one type; the last of them is this one."""
    import gguf

    inputs, outputs = base.shapes["blk.0.attn_v.weight"]
    writer = gguf.GGUFWriter(path, base.architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 2.0)
    for part, shape in (("a", (32, inputs)), ("b", (outputs, 32))):
        numbers = np.ones(shape, np.float32)
        numbers[-1, -1] = value
        with np.errstate(invalid="ignore"):
            quantized = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[kind])
        raw = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(f"blk.0.attn_v.weight.lora_{part}", quantized, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_adapters_of_every_served_type_are_checked(tmp_path: Path, base: Header, kind: str) -> None:
    assert read_adapter(of_kind(tmp_path / "good.gguf", base, kind, 3.0), base).rank == 32
    bad = of_kind(tmp_path / "bad.gguf", base, kind, float("inf"))
    with pytest.raises(ModelFileError, match=r"bad.gguf has numbers in blk.0.attn_v.weight.lora_a that"):
        read_adapter(bad, base)


def test_matrices_of_other_types_are_refused(tmp_path: Path, base: Header) -> None:
    with pytest.raises(ModelFileError, match="as Q4_0; an adapter's matrices must be F32, F16, BF16, Q8_0"):
        read_adapter(of_kind(tmp_path / "q4.gguf", base, "Q4_0", 1.0), base)
