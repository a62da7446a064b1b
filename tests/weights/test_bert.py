"""Encoders of BERT's kind become GGUF embedding models; what would compute otherwise is refused by name."""

import json
import shutil
from pathlib import Path

import pytest

from antiphon.errors import ModelFileError
from antiphon.weights.convert.bert import convert_bert, phantom, read_pooling
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
        ({"vocab_size": 7}, "214 pieces"),
    ],
)
def test_another_kind_of_encoder_is_refused_by_name(
    tmp_path: Path, encoder: Path, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(ModelFileError, match=says):
        convert_bert(configured(encoder, **changes), tmp_path / "out.gguf")


def test_a_pooling_that_is_not_known_is_refused(encoder: Path) -> None:
    assert read_pooling(encoder) == "MEAN"
    (encoder / "1_Pooling").mkdir()
    (encoder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(ModelFileError, match="pooling_mode_max_tokens"):
        read_pooling(encoder)


def test_a_vocabulary_without_its_special_pieces_is_refused(tmp_path: Path, encoder: Path) -> None:
    words = (encoder / "vocab.txt").read_text("utf-8").replace("[CLS]", "[XXX]")
    (encoder / "vocab.txt").write_text(words, "utf-8")
    with pytest.raises(ModelFileError, match=r"\[CLS\]"):
        convert_bert(encoder, tmp_path / "out.gguf")


def test_the_beginning_of_a_word_is_marked() -> None:
    assert [phantom(piece) for piece in ("word", "##ing", "[CLS]", ".")] == ["▁word", "ing", "[CLS]", "▁."]
