"""Encoders of BERT's kind become GGUF embedding models; what would compute otherwise is refused by name."""

import json
import math
import os
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from antiphon.errors import ModelFileError
from antiphon.weights.convert.bert import convert_bert, read_pooling, to_gguf_piece
from antiphon.weights.gguf import read_header

ENCODER = Path(__file__).parent.parent / "fixtures" / "encoder"


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A copy of the recorded encoder, to change."""
    copy = tmp_path / "encoder"
    shutil.copytree(ENCODER, copy)
    return copy


def configured(encoder: Path, **changes: object) -> Path:
    """The same encoder with other values in its config.json."""
    file = encoder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return encoder


def test_an_encoder_keeps_its_shape_and_gets_its_pooling(tmp_path: Path, encoder: Path) -> None:
    pooling = encoder / "1_Pooling"
    pooling.mkdir()
    (pooling / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    convert_bert(encoder, tmp_path / "out.gguf")
    header = read_header(tmp_path / "out.gguf")
    assert (header.architecture, header.layers, header.context_length) == ("bert", 2, 96)
    assert header.metadata["bert.pooling_type"] == 2
    assert header.metadata["tokenizer.ggml.bos_token_id"] == 2
    assert header.shapes["blk.1.attn_q.weight"] == (64, 64)


def test_half_width_halves_the_file(tmp_path: Path) -> None:
    convert_bert(ENCODER, tmp_path / "whole.gguf", "F32")
    convert_bert(ENCODER, tmp_path / "half.gguf", "F16")
    assert (tmp_path / "half.gguf").stat().st_size < 0.65 * (tmp_path / "whole.gguf").stat().st_size


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "roberta"}, "model_type = 'roberta'"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ],
)
def test_another_kind_of_encoder_is_refused_by_name(
    tmp_path: Path, encoder: Path, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(ModelFileError, match=says):
        convert_bert(configured(encoder, **changes), tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_attention_heads": 7}, "num_attention_heads = 7 for a width of 64"),
        ({"num_attention_heads": True}, "num_attention_heads = True"),
        ({"num_attention_heads": None}, "num_attention_heads = None"),
        ({"layer_norm_eps": math.nan}, "layer_norm_eps = nan"),
        ({"layer_norm_eps": "1e-12"}, "layer_norm_eps = '1e-12'"),
        ({"layer_norm_eps": 0}, "layer_norm_eps = 0"),
    ],
)
def test_a_number_that_cannot_be_so_is_refused_by_name(
    tmp_path: Path, encoder: Path, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(ModelFileError, match=says):
        convert_bert(configured(encoder, **changes), tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("name", "known_as"),
    [
        ("encoder.layer.1.output.dense.bias", "blk.1.ffn_down.bias"),
        ("encoder.layer.0.intermediate.dense.weight", "blk.0.ffn_up.weight"),
        ("embeddings.position_embeddings.weight", "position_embd.weight"),
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, encoder: Path, name: str, known_as: str) -> None:
    tensors = load_file(encoder / "model.safetensors")
    del tensors[name]
    save_file(tensors, encoder / "model.safetensors")
    with pytest.raises(ModelFileError, match=f"has no {known_as}"):
        convert_bert(encoder, tmp_path / "out.gguf")


def test_weights_for_another_vocabulary_are_refused(tmp_path: Path, encoder: Path) -> None:
    tensors = load_file(encoder / "model.safetensors")
    tensors["embeddings.word_embeddings.weight"] = tensors["embeddings.word_embeddings.weight"][:-1].copy()
    save_file(tensors, encoder / "model.safetensors")
    with pytest.raises(ModelFileError, match="214 pieces, but the embedding matrix has 213 rows"):
        convert_bert(encoder, tmp_path / "out.gguf")


@pytest.mark.parametrize("name", ["vocab.txt", "model.safetensors"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, encoder: Path, name: str) -> None:
    (encoder / name).unlink()
    os.mkfifo(encoder / name)
    with pytest.raises(ModelFileError, match=f"{name} is not a file"):
        convert_bert(encoder, tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": []}, "tokenizer of the type None"),
        ({"normalizer": "x"}, "only BERT's WordPiece"),
        ({"model": {"type": "WordPiece", "vocab": {"a": "x"}}}, "not all whole numbers"),
        ({"model": {"type": "WordPiece", "vocab": {"a": 0, "b": 7}}}, "gaps in its ids"),
        ({"added_tokens": [{"id": 3}]}, "added_tokens"),
        ({"added_tokens": [7]}, "added_tokens"),
        ({"added_tokens": [{"content": "new"}]}, "not all whole numbers"),
    ],
)
def test_a_tokenizer_of_another_make_is_refused_by_name(
    tmp_path: Path, encoder: Path, changes: dict[str, object], says: str
) -> None:
    pieces = (encoder / "vocab.txt").read_text("utf-8").splitlines()
    said = {
        "model": {"type": "WordPiece", "vocab": {piece: at for at, piece in enumerate(pieces)}},
        "normalizer": {"type": "BertNormalizer"},
    }
    (encoder / "tokenizer.json").write_text(json.dumps(said))
    convert_bert(encoder, tmp_path / "sound.gguf")
    (encoder / "tokenizer.json").write_text(json.dumps(said | changes))
    with pytest.raises(ModelFileError, match=says):
        convert_bert(encoder, tmp_path / "out.gguf")


def test_a_piece_that_stands_twice_is_named(tmp_path: Path, encoder: Path) -> None:
    pieces = (encoder / "vocab.txt").read_text("utf-8").splitlines()
    (encoder / "vocab.txt").write_text("\n".join([*pieces[:-1], pieces[-2]]), "utf-8")
    with pytest.raises(ModelFileError, match="twice"):
        convert_bert(encoder, tmp_path / "out.gguf")


def test_json_that_is_nested_too_deep_is_refused_in_our_words(tmp_path: Path, encoder: Path) -> None:
    (encoder / "config.json").write_text("[" * 200_000)
    with pytest.raises(ModelFileError, match=r"config\.json cannot be read: it is nested too deep"):
        convert_bert(encoder, tmp_path / "out.gguf")


def test_a_pooling_that_is_not_known_is_refused(encoder: Path) -> None:
    assert read_pooling(encoder) == "MEAN"
    (encoder / "1_Pooling").mkdir()
    (encoder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(ModelFileError, match="pooling_mode_max_tokens"):
        read_pooling(encoder)


def test_the_longest_text_of_sentence_transformers_is_kept(tmp_path: Path, encoder: Path) -> None:
    for longest, kept in ((40, 40), (1000, 96), (None, 96)):
        (encoder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": longest}))
        convert_bert(encoder, tmp_path / "out.gguf")
        header = read_header(tmp_path / "out.gguf")
        assert (header.context_length, header.shapes["position_embd.weight"]) == (kept, (64, kept))


@pytest.mark.parametrize("longest", [0, -1, True, "256", 25.6])
def test_a_longest_text_that_is_no_count_is_refused(tmp_path: Path, encoder: Path, longest: object) -> None:
    (encoder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": longest}))
    with pytest.raises(ModelFileError, match="max_seq_length = "):
        convert_bert(encoder, tmp_path / "out.gguf")


def test_a_vocabulary_without_its_special_pieces_is_refused(tmp_path: Path, encoder: Path) -> None:
    words = (encoder / "vocab.txt").read_text("utf-8").replace("[CLS]", "[XXX]")
    (encoder / "vocab.txt").write_text(words, "utf-8")
    with pytest.raises(ModelFileError, match=r"\[CLS\]"):
        convert_bert(encoder, tmp_path / "out.gguf")


def test_q8_0_quarters_matrices_but_not_added_rows(tmp_path: Path) -> None:
    convert_bert(ENCODER, tmp_path / "out.gguf", "Q8_0")
    kinds = {
        tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "out.gguf").tensors
    }
    assert kinds["blk.0.attn_q.weight"] == kinds["token_embd.weight"] == "Q8_0"
    assert kinds["position_embd.weight"] == kinds["token_types.weight"] == kinds["blk.0.attn_q.bias"] == "F32"


def test_columns_that_q8_0_cannot_hold_stay_half(tmp_path: Path, encoder: Path) -> None:
    tensors = {}
    for name, values in load_file(encoder / "model.safetensors").items():
        tensors[name] = (
            values[:, :100] if name.endswith("output.dense.weight") and "attention" not in name else values
        )
    for layer in range(2):
        part = f"encoder.layer.{layer}.intermediate.dense"
        tensors |= {
            f"{part}.weight": tensors[f"{part}.weight"][:100],
            f"{part}.bias": tensors[f"{part}.bias"][:100],
        }
    save_file(
        {name: np.ascontiguousarray(values) for name, values in tensors.items()},
        encoder / "model.safetensors",
    )
    convert_bert(configured(encoder, intermediate_size=100), tmp_path / "out.gguf", "Q8_0")
    kinds = {
        tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "out.gguf").tensors
    }
    assert (kinds["blk.0.ffn_down.weight"], kinds["blk.0.ffn_up.weight"]) == ("F16", "Q8_0")


def test_tensors_unused_for_embedding_are_left_out(tmp_path: Path, encoder: Path) -> None:
    """Real checkpoints hold numbers of positions as integers, and heads of their training."""
    tensors = load_file(encoder / "model.safetensors")
    tensors["embeddings.position_ids"] = np.arange(96, dtype=np.int64)[None]
    tensors["cls.predictions.bias"] = np.zeros(3, np.float32)
    save_file(tensors, encoder / "model.safetensors")
    convert_bert(encoder, tmp_path / "out.gguf")
    convert_bert(ENCODER, tmp_path / "same.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "same.gguf").read_bytes()


def test_norms_may_have_their_old_names(tmp_path: Path, encoder: Path) -> None:
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): values
        for name, values in load_file(encoder / "model.safetensors").items()
    }
    save_file({f"bert.{name}": values for name, values in tensors.items()}, encoder / "model.safetensors")
    convert_bert(encoder, tmp_path / "out.gguf")
    convert_bert(ENCODER, tmp_path / "same.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "same.gguf").read_bytes()


@pytest.mark.parametrize(
    ("modules", "says"),
    [
        (["sentence_transformers.models.Transformer", "sentence_transformers.models.Dense"], "module Dense"),
        (["sentence_transformers.models.Transformer", "my.own.Module"], "module Module"),
        ([None], r"module \?"),
        (["sentence_transformers.models.Transformer", "without a name."], "the module"),
    ],
)
def test_other_sentence_transformers_modules_are_refused(
    tmp_path: Path, encoder: Path, modules: list[str | None], says: str
) -> None:
    said = [{"idx": index, "type": kind} if kind else kind for index, kind in enumerate(modules)]
    (encoder / "modules.json").write_text(json.dumps(said))
    with pytest.raises(ModelFileError, match=says):
        convert_bert(encoder, tmp_path / "out.gguf")
    plain = [
        {"type": f"sentence_transformers.models.{kind}"} for kind in ("Transformer", "Pooling", "Normalize")
    ]
    (encoder / "modules.json").write_text(json.dumps(plain))
    convert_bert(encoder, tmp_path / "out.gguf")


def test_the_beginning_of_a_word_is_marked() -> None:
    assert [to_gguf_piece(piece) for piece in ("word", "##ing", "[CLS]", ".")] == [
        "▁word",
        "ing",
        "[CLS]",
        "▁.",
    ]
