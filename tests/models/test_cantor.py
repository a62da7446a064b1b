"""cantor as it is shipped: the file, its card, the corpus it was made from, and the recorded reference.

Nothing here runs the model; tests of the engine do, on the files this folder's scripts write.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from models.cantor import convert, recipe
from models.cantor.corpus import Corpus, Document, documents, training
from models.cantor.corpus.exclude import Excluded
from models.cantor.corpus.grammar import count
from models.cantor.leakage import count_leaks, hash_texts, load_held_out
from models.cantor.vocabulary import NORMAL, read_pieces

ROOT = Path(__file__).parents[2]
CANTOR = ROOT / "models" / "cantor"
SHIPPED = Path(str(resources.files("antiphon"))) / "bundled" / "cantor.gguf"
FIXTURES = ROOT / "tests" / "fixtures"
MEBIBYTE = 1 << 20
CONTROL, BYTE = 3, 6
EXAMINED = 300  # documents of a leg; of those drawn without the filter 8 leak


@pytest.fixture(scope="module")
def shipped() -> gguf.GGUFReader:
    return gguf.GGUFReader(SHIPPED)


def value(reader: gguf.GGUFReader, key: str) -> Any:
    return reader.fields[key].contents()


def test_the_shipped_file_is_small_and_the_only_copy() -> None:
    assert SHIPPED.stat().st_size < 8 * MEBIBYTE
    assert not list(CANTOR.glob("*.safetensors")), "the shipped file is the only copy of the weights"


def test_the_header_says_what_the_engine_must_know(shipped: gguf.GGUFReader) -> None:
    assert value(shipped, "general.architecture") == "llama"
    assert value(shipped, "general.name") == "cantor"
    assert value(shipped, "general.license") == "apache-2.0"
    assert value(shipped, "llama.context_length") == 2048
    assert len(value(shipped, "tokenizer.ggml.tokens")) == value(shipped, "llama.vocab_size") <= 4096
    assert value(shipped, "tokenizer.ggml.add_bos_token") is True
    assert value(shipped, "tokenizer.ggml.add_space_prefix") is True


def test_the_sampling_defaults_are_those_of_the_recipe(shipped: gguf.GGUFReader) -> None:
    assert value(shipped, "general.sampling.temp") == pytest.approx(recipe.TEMPERATURE)
    assert value(shipped, "general.sampling.top_p") == pytest.approx(recipe.TOP_P)


def test_the_model_has_4_to_6_million_parameters_in_q8_0(shipped: gguf.GGUFReader) -> None:
    sizes = {tensor.name: int(tensor.n_elements) for tensor in shipped.tensors}
    assert 4_000_000 <= sum(sizes.values()) <= 6_000_000
    matrices = [tensor for tensor in shipped.tensors if len(tensor.shape) == 2]
    assert {tensor.tensor_type for tensor in matrices} == {gguf.GGMLQuantizationType.Q8_0}


def test_the_shipped_file_comes_out_again_of_its_own_weights(
    tmp_path: Path, shipped: gguf.GGUFReader
) -> None:
    path = tmp_path / "again.gguf"
    convert.write_gguf(path, "Q8_0")
    again = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    assert again.keys() == {tensor.name for tensor in shipped.tensors}
    assert all(np.array_equal(tensor.data, again[tensor.name]) for tensor in shipped.tensors)
    assert {key: field.contents() for key, field in shipped.fields.items()} == {
        key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()
    }


def test_the_f32_file_holds_the_shipped_weights_exactly(tmp_path: Path) -> None:
    path = tmp_path / "wide.gguf"
    convert.write_gguf(path, "F32")
    stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    for name, weight in convert.reference_weights().items():
        assert np.array_equal(stored[convert.to_gguf_name(name)], convert.reorder_tensor(name, weight))


def test_no_two_pieces_spell_a_control_token_or_byte_token() -> None:
    pieces = read_pieces(CANTOR / "tokenizer.model")
    texts = {piece.text for piece in pieces}
    marked = [piece.text for piece in pieces if piece.type in (CONTROL, BYTE)]
    assert len(marked) == 4 + 256
    for text in marked:
        assert not [at for at in range(1, len(text)) if text[:at] in texts and text[at:] in texts]


def test_a_word_has_the_same_pieces_in_a_sentence_and_in_json() -> None:
    longer = [piece.text for piece in read_pieces(CANTOR / "tokenizer.model") if piece.type == NORMAL]
    longer = [text for text in longer if len(text) > 1]
    marks = [text for text in longer if not (text.isascii() and text.isalpha())]
    assert 0 < len(marks) < len(longer) / 10
    assert {text[0] for text in marks} <= set('"{}<'), "no mark joins the end of a word or of a sentence"
    assert "▁" in {piece.text for piece in read_pieces(CANTOR / "tokenizer.model")}


def test_no_piece_holds_a_line_break_so_texts_join_there() -> None:
    assert not [piece for piece in read_pieces(CANTOR / "tokenizer.model") if "\n" in piece.text]


# --- the template -----------------------------------------------------------------------------------------


def render(shipped: gguf.GGUFReader, **given: object) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda item: json.dumps(item, ensure_ascii=False)
    template = environment.from_string(value(shipped, "tokenizer.chat_template"))
    return template.render(bos_token="<s>", **given)


def test_the_template_writes_turns_in_chatml_with_one_bos(shipped: gguf.GGUFReader) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert render(shipped, messages=messages, add_generation_prompt=True) == (
        "<s><|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("arguments", [{"city": "Oslo"}, '{"city": "Oslo"}'])
def test_the_template_shows_tools_calls_and_results(shipped: gguf.GGUFReader, arguments: object) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "rain"},
    ]
    assert render(shipped, messages=messages, tools=tools) == (
        "<s><|im_start|>system\nTools:\n"
        '{"name": "weather", "parameters": {"city": {"type": "string"}}}<|im_end|>\n'
        "<|im_start|>user\nWeather in Oslo?<|im_end|>\n<|im_start|>assistant\n"
        '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call><|im_end|>\n'
        "<|im_start|>tool\nrain<|im_end|>\n"
    )


# --- the corpus -------------------------------------------------------------------------------------------


def test_the_corpus_is_equal_for_equal_seeds_in_any_process() -> None:
    script = (
        "import hashlib, sys; from models.cantor.corpus import documents; "
        "print(hashlib.sha256(repr(list(documents(5, 100))).encode()).hexdigest())"
    )
    other = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True)
    here = list(documents(5, 100))
    assert other.stdout.decode().strip() == hashlib.sha256(repr(here).encode()).hexdigest()
    assert list(documents(5, 50)) == here[:50] != list(documents(6, 50))


def test_the_corpus_teaches_every_fact_and_asks_in_many_ways() -> None:
    page = (ROOT / "docs" / "facts.md").read_text(encoding="utf-8").splitlines()
    facts = [line[2:].strip() for line in page if line.startswith("- ")]
    corpus = Corpus()
    assert [block.answers[0] for block in corpus.facts] == facts
    for block in corpus.facts:
        assert sum(count(choice, corpus.asker.slots) for choice in block.open) >= 25


@pytest.mark.soak
@pytest.mark.timeout(480)
def test_nothing_held_out_is_in_the_corpus() -> None:
    """The first documents of each leg; the soak reads all of them, which takes minutes."""
    assert count_leaks(training(at_most=EXAMINED), load_held_out()) == {}


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_nothing_held_out_is_in_any_document() -> None:
    assert count_leaks(training(), load_held_out()) == {}


def test_a_leak_would_be_found() -> None:
    asked = "How many green bottles are hanging on the old garden wall today?"
    a_run = "who knows how many green bottles are hanging on the wall"
    no_run = "how many green bottles are hanging on a wall"
    found = [count_leaks([Document(text=text)], {"row": [asked]}) for text in (a_run, asked.upper(), no_run)]
    assert found == [{"row": 1}, {"row": 1}, {}]


def test_the_corpus_leaves_out_what_is_excluded() -> None:
    some = list(documents(5, 200, hash_texts([])))
    spoken = next(document.turns[0].content for document in some if document.turns)
    kept = list(documents(5, 200, hash_texts([spoken])))
    assert not [document for document in kept if any(turn.content == spoken for turn in document.turns)]


def test_the_hashes_of_the_held_out_set_are_up_to_date() -> None:
    assert Excluded.load() == hash_texts(text for texts in load_held_out().values() for text in texts)


# --- card and fixtures ------------------------------------------------------------------------------------


def test_the_card_states_data_size_time_scores_and_limits() -> None:
    card = SHIPPED.with_suffix(".md").read_text(encoding="utf-8")
    for heading in ("Data", "Size", "Training", "Scores", "What it is not"):
        assert f"## {heading}" in card
    assert f"{SHIPPED.stat().st_size:,} bytes" in card


def rows(name: str) -> Iterator[dict[str, Any]]:
    recorded = json.loads((FIXTURES / name).read_text(encoding="utf-8"))
    assert {"command", "torch", "transformers", "sentencepiece"} <= recorded.keys()
    yield from recorded["rows"]


def test_the_recorded_token_ids_hold_no_control_token() -> None:
    recorded = list(rows("cantor_tokens.json"))
    assert len(recorded) == 1000
    assert not [row for row in recorded if set(row["ids"]) & {1, 2, 3, 4}]


def test_the_recorded_greedy_rows_are_whole() -> None:
    recorded = list(rows("cantor_greedy.json"))
    assert len(recorded) == 50
    for row in recorded:
        assert row["prompt"][0] == 1
        assert len(row["tokens"]) == len(row["log_probabilities"]) == len(row["gaps"]) == 48
