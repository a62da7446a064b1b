"""What a folder of weights says, and which folders are refused."""

import json

import pytest

from antiphon.domain.request import SamplingOptions
from antiphon.engines.vllm.folder import read_folder
from antiphon.errors import ModelFileError
from tests.support.vllm_folders import write_facts, write_few_weights


@pytest.fixture
def folder(tmp_path):
    """A folder whose weights are a few bytes."""
    write_facts(tmp_path / "cantor")
    write_few_weights(tmp_path / "cantor")
    return tmp_path / "cantor"


def change(folder, name, **values):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")


def test_a_folder_says_what_its_model_is(folder):
    facts = read_folder(folder)
    assert (facts.architecture, facts.context_length, facts.dtype) == ("llama", 2048, "float32")
    assert (facts.parameters, facts.size) == (6, (folder / "model.safetensors").stat().st_size)
    assert facts.end_ids == (2, 4)
    assert facts.sampling == SamplingOptions(temperature=0.0, top_p=0.9)
    assert "<|user|>" in (facts.chat_template or "") or facts.chat_template
    assert facts.values_per_token == 2 * 6 * 2 * 64


def test_values_out_of_range_are_no_defaults(folder):
    change(folder, "generation_config.json", temperature=7, top_p="much", top_k=-1, min_p=0.1)
    assert read_folder(folder).sampling == SamplingOptions(min_p=0.1)


def test_a_template_may_be_in_the_tokenizers_configuration(folder):
    (folder / "chat_template.jinja").unlink()
    assert read_folder(folder).chat_template is None
    change(folder, "tokenizer_config.json", chat_template="{{ one }}")
    assert read_folder(folder).chat_template == "{{ one }}"
    named = [{"name": "tool_use", "template": "{{ a }}"}, {"name": "default", "template": "{{ b }}"}]
    change(folder, "tokenizer_config.json", chat_template=named)
    assert read_folder(folder).chat_template == "{{ b }}"


@pytest.mark.parametrize("names", [["BertModel"], ["Qwen3ForSequenceClassification"], [], None])
def test_a_model_that_makes_no_text_is_refused(folder, names):
    change(folder, "config.json", architectures=names)
    with pytest.raises(ModelFileError, match="makes no text"):
        read_folder(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(ModelFileError, match=f"has no .*{name.rpartition('.')[2]}"):
        read_folder(folder)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_a_broken_configuration_is_named(folder, content):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"config\.json"):
        read_folder(folder)


@pytest.mark.parametrize("content", [b"", b"\0" * 9, b"\xff" * 99, b"\x02" + b"\0" * 7 + b"[]"])
def test_broken_weights_are_named(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelFileError, match="is no file of safetensors"):
        read_folder(folder)


def test_a_file_is_no_folder(folder):
    with pytest.raises(ModelFileError, match="is no folder"):
        read_folder(folder / "config.json")
