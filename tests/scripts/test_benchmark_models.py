"""The files that benchmarks of the engine measure."""

from pathlib import Path

import gguf

from benchmarks.make_model import SIZES, write_model
from benchmarks.model_files import CANTOR, MODELS, find_model


def test_smollm2_is_the_first_model_and_is_found():
    assert MODELS[0] == "smollm2"
    assert find_model("smollm2").is_file() and find_model("cantor").is_file()


def test_random_weights_get_the_tokenizer_and_template_of_another_file(tmp_path: Path):
    written = write_model(tmp_path / "a.gguf", SIZES["tiny"], tokenizer=CANTOR)
    copied, original = gguf.GGUFReader(written).fields, gguf.GGUFReader(CANTOR).fields
    names = [name for name in original if name.startswith("tokenizer.")]
    assert names == [name for name in copied if name.startswith("tokenizer.")]
    assert all(copied[name].contents() == original[name].contents() for name in names)
