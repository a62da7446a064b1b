"""The header of a GGUF file: read as its writers write it, refused where it contradicts itself."""

import os
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest

from antiphon.errors import ModelFileError
from antiphon.weights.gguf import read_header


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_block_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_float32("llama.logit_scale", 2.0)
    writer.add_name("näme")
    writer.add_array("tokenizer.ggml.tokens", ["a", "bb", "ü"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5, 2.5])
    writer.add_tensor("x.weight", np.ones((3, 64), dtype=np.float32))
    packed = gguf.quants.quantize(np.ones((2, 32), dtype=np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("y.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_it_is_read_as_it_was_written(model: Path):
    header = read_header(model)
    assert (header.architecture, header.context_length, header.layers) == ("llama", 512, 2)
    assert header.metadata["general.name"] == "näme"
    assert "tokenizer.ggml.tokens" not in header.metadata
    assert (header.tensors, header.parameters) == (2, 3 * 64 + 2 * 32)
    assert header.size == model.stat().st_size


def test_every_shorter_file_is_refused_by_name(model: Path):
    whole = model.read_bytes()
    for length in [*range(0, len(whole) - 200, 7), len(whole) - 100]:
        model.write_bytes(whole[:length])
        with pytest.raises(ModelFileError, match=r"m\.gguf"):
            read_header(model)


def test_no_damaged_header_does_more_than_be_refused(model: Path):
    whole = bytearray(model.read_bytes())
    dice = random.Random(1)
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(400)] = dice.randrange(256)
        model.write_bytes(damaged)
        with suppress(ModelFileError):
            read_header(model)


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        assert data.count(old) == 1
        return data.replace(old, new)

    return change


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: b"GGML" + data[4:], "not a GGUF file"),
        (lambda data: data[:4] + struct.pack("<I", 9) + data[8:], "version 9"),
        (lambda data: data[:8] + struct.pack("<Q", 2**40) + data[16:], "claims 1099511627776 tensors"),
        (lambda data: data[:16] + struct.pack("<Q", 2**40) + data[24:], "claims 1099511627776 metadata keys"),
        (
            replaced(string("x.weight") + struct.pack("<I", 2), string("x.weight") + struct.pack("<I", 9)),
            "9 dim",
        ),
        (
            replaced(
                string("x.weight") + struct.pack("<IQQ", 2, 64, 3),
                string("x.weight") + struct.pack("<IQQ", 2, 64, 2**50),
            ),
            "ends before its weights",
        ),
        (
            replaced(
                string("x.weight") + struct.pack("<IQQ", 2, 64, 3),
                string("x.weight") + struct.pack("<IQQ", 2, 2**40, 2**40),
            ),
            "x.weight' the impossible shape",
        ),
        (
            replaced(
                string("y.weight") + struct.pack("<IQQ", 2, 32, 2),
                string("y.weight") + struct.pack("<IQQ", 2, 31, 2),
            ),
            "y.weight' the impossible shape",
        ),
        (
            replaced(
                string("x.weight") + struct.pack("<IQQI", 2, 64, 3, 0),
                string("x.weight") + struct.pack("<IQQI", 2, 64, 3, 99),
            ),
            "unknown type 99",
        ),
        (
            replaced(
                string("x.weight") + struct.pack("<IQQIQ", 2, 64, 3, 0, 0),
                string("x.weight") + struct.pack("<IQQIQ", 2, 64, 3, 0, 7),
            ),
            "multiple of 32",
        ),
        (
            replaced(
                string("general.architecture") + struct.pack("<I", 8),
                string("general.architecturx") + struct.pack("<I", 8),
            ),
            "has no architecture",
        ),
        (
            replaced(
                string("llama.block_count") + struct.pack("<I", 4),
                string("llama.block_count") + struct.pack("<I", 77),
            ),
            "unknown type 77",
        ),
        (
            replaced(
                string("llama.block_count") + struct.pack("<II", 4, 2),
                string("llama.block_count") + struct.pack("<II", 4, 0),
            ),
            "no layers",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(model: Path, change: Callable[[bytes], bytes], words: str):
    model.write_bytes(change(model.read_bytes()))
    with pytest.raises(ModelFileError, match=words):
        read_header(model)


def test_an_adapter_is_not_taken_for_a_model(tmp_path: Path):
    path = tmp_path / "lora.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match="LoRA adapter"):
        read_header(path)


def test_what_is_no_file_is_refused(tmp_path: Path):
    with pytest.raises(ModelFileError, match="there is no file"):
        read_header(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match="is a directory"):
        read_header(tmp_path)


@pytest.mark.parametrize("number", [512.5, float("inf")])
def test_a_length_that_is_no_whole_number_is_none(model: Path, number: float):
    change = replaced(
        string("llama.context_length") + struct.pack("<II", 4, 512),
        string("llama.context_length") + struct.pack("<If", 6, number),
    )
    model.write_bytes(change(model.read_bytes()))
    assert read_header(model).context_length == 0


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path):
    path = tmp_path / "pipe.gguf"
    os.mkfifo(path)
    with pytest.raises(ModelFileError, match="not a regular file"):
        read_header(path)


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("attention.layer_norm_rms_epsilon", 1e-5, "nan"),
        ("attention.layer_norm_rms_epsilon", 1e-5, "inf"),
        ("attention.layer_norm_rms_epsilon", 1e-5, "-1e-05"),
        ("rope.freq_base", 10000.0, "0"),
        ("logit_scale", 2.0, "nan"),
    ],
)
def test_a_number_that_would_end_the_library_is_refused(model: Path, key: str, value: float, wrong: str):
    old, new = (string(f"llama.{key}") + struct.pack("<If", 6, number) for number in (value, float(wrong)))
    model.write_bytes(replaced(old, new)(model.read_bytes()))
    with pytest.raises(ModelFileError, match=rf"m\.gguf gives llama\.{key} as {wrong}, which must be a"):
        read_header(model)


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """The first of three parts."""
    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "llama", split_max_tensors=2)
    writer.add_block_count(1)
    for name in "abcde":
        writer.add_tensor(f"{name}.weight", np.ones((4, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "big-00001-of-00003.gguf"


def test_a_split_model_is_read_whole_by_its_first_part(split: Path):
    header = read_header(split)
    parts = sorted(split.parent.iterdir())
    assert len(parts) == 3 and header.size == sum(part.stat().st_size for part in parts)
    assert (header.tensors, header.parameters) == (5, 5 * 4 * 32)


def test_a_split_model_is_refused_from_or_without_a_part(split: Path):
    second, third = (split.with_name(f"big-0000{number}-of-00003.gguf") for number in (2, 3))
    with pytest.raises(ModelFileError, match=r"part 2 of 3 .* name the first part, big-00001-of-00003\.gguf"):
        read_header(second)
    whole = third.read_bytes()
    third.write_bytes(whole[:-40])
    with pytest.raises(ModelFileError, match=r"big-00003-of-00003\.gguf ends before its weights"):
        read_header(split)
    third.write_bytes(second.read_bytes())
    with pytest.raises(ModelFileError, match="do not belong together"):
        read_header(split)
    third.unlink()
    with pytest.raises(ModelFileError, match=r"big-00003-of-00003\.gguf is missing"):
        read_header(split)
    renamed = split.rename(split.with_name("big.gguf"))
    with pytest.raises(ModelFileError, match="their original names"):
        read_header(renamed)
