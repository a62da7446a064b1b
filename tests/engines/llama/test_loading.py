"""Loading: facts of the model, refusals in one sentence, and the proof that exact mode stands on."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest

from antiphon.domain.request import SamplingOptions
from antiphon.engines.base import LoadSpec
from antiphon.engines.llama.libllama.context import ContextSizes, NativeContext
from antiphon.engines.llama.libllama.library import find_library
from antiphon.engines.llama.libllama.model import NativeModel
from antiphon.engines.llama.loading import (
    SINGLE_THREAD_BYTES,
    find_alike_row_counts,
    format_quantization,
    load_model,
)
from antiphon.errors import LibraryError, LoadError
from benchmarks import make_model
from benchmarks.make_model import write_model
from tests.engines.random_models import SIZES


def spec(path: Path, **changes: Any) -> LoadSpec:
    defaults: dict[str, Any] = {"sequences": 4, "context_length": 512, "threads": 1}
    return LoadSpec(str(path), **(defaults | changes))


def test_the_facts_of_a_model(models):
    loaded = load_model(spec(models / "tiny-q8_0.gguf", threads=2))
    info = loaded.info
    loaded.close()
    assert (info.architecture, info.quantization, info.vocabulary) == ("llama", "Q8_0", 1001)
    assert info.parameters == SIZES["tiny"].parameters
    assert info.size == pytest.approx(info.parameters * 34 / 32, rel=0.02)
    assert (info.trained_context, info.context_length, info.sequences, info.threads) == (2048, 512, 4, 2)
    assert (
        info.library.startswith(("xllamacpp 20", "llama-cpp-python 0.")) and Path(info.library_path).is_file()
    )
    assert info.chat_template and "<|assistant|>" in info.chat_template
    assert info.sampling.temperature is None and info.sampling.top_k is None
    assert loaded.end_ids == {2, 6}


def test_sampling_that_the_weights_recommend(tmp_path):
    path = write_model(
        tmp_path / "m.gguf", SIZES["tiny"], sampling={"temp": 0.7, "top_p": 0.9, "top_k": 40.0, "min_p": 0.05}
    )
    loaded = load_model(spec(path))
    loaded.close()
    said = loaded.info.sampling
    assert said.temperature == pytest.approx(0.7) and said.top_p == pytest.approx(0.9)
    assert said.top_k == 40 and said.min_p == pytest.approx(0.05)


def test_recommended_sampling_out_of_range_is_left_out(tmp_path):
    odd = {"temp": float("nan"), "top_p": 5.0, "top_k": float("inf"), "min_p": -1.0}
    loaded = load_model(spec(write_model(tmp_path / "m.gguf", SIZES["tiny"], sampling=odd)))
    loaded.close()
    assert loaded.info.sampling == SamplingOptions()


def test_a_model_without_a_tokenizer_is_refused(tmp_path):
    path, kind = tmp_path / "mute.gguf", gguf.GGMLQuantizationType.F32
    writer = gguf.GGUFWriter(path, "llama")
    make_model.add_shape(writer, SIZES["tiny"], kind)
    make_model.add_vocabulary(writer, SIZES["tiny"].vocabulary)
    writer.kv_data[0]["tokenizer.ggml.model"].value = "none"
    make_model.add_weights(writer, SIZES["tiny"], kind, 0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(LoadError, match=r"mute\.gguf cannot be served: it has no tokenizer"):
        load_model(spec(path))


def test_the_context_is_the_models_own_unless_said(models):
    loaded = load_model(spec(models / "tiny-q8_0.gguf", context_length=None, sequences=2))
    loaded.close()
    assert loaded.info.context_length == 2048


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("llama 1B Q8_0", "Q8_0"),
        ("qwen2 7B Q4_K - Medium", "Q4_K_M"),
        ("llama ?B all F32", "F32"),
        ("x 1B F16 (guessed)", "F16"),
    ],
)
def test_quantizations_are_named_as_everybody_does(words, name):
    assert format_quantization(words) == name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sequences": 0}, "from 1 to 256"),
        ({"sequences": 300}, "from 1 to 256"),
        ({"kv_type": "q4_0"}, "one of f32, f16"),
        ({"prefill_chunk": 0}, "at least 1"),
    ],
)
def test_impossible_orders_are_refused(models, changes, words):
    with pytest.raises(LoadError, match=words):
        load_model(spec(models / "tiny-q8_0.gguf", **changes))


def test_a_library_that_is_not_there_is_refused(models, tmp_path):
    with pytest.raises(LibraryError, match="no library at"):
        load_model(spec(models / "tiny-q8_0.gguf", library=str(tmp_path / "absent.so")))


def test_files_that_the_library_refuses(models, tmp_path):
    whole = (models / "tiny-q8_0.gguf").read_bytes()
    for name, data in {
        "text": b"just text",
        "short": whole[:5000],
        "cut": whole[:-5000],
        "empty": b"",
    }.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(data)
        with pytest.raises(LoadError, match=rf"refused {name}\.gguf: \w+"):
            load_model(spec(path))
    with pytest.raises(LoadError, match=r"refused absent\.gguf"):
        load_model(spec(tmp_path / "absent.gguf"))


@pytest.mark.parametrize("length", [0, 2**30])
def test_impossible_lengths_are_refused(models, length):
    with pytest.raises(LoadError, match="lower the context length"):
        load_model(spec(models / "tiny-q8_0.gguf", context_length=length or -1))


TOO_MUCH = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from antiphon.engines.base import LoadSpec
from antiphon.engines.llama.loading import load_model
from antiphon.errors import LoadError
for exact in (True, False):
    try:
        load_model(LoadSpec(sys.argv[1], sequences=1, context_length=1 << 20, exact=exact))
    except LoadError as error:
        print(error.message)
"""


def test_memory_that_does_not_suffice_is_a_refusal(models):
    """In a process of its own, whose address space is limited: 6 GB of cells do not fit in 4 GB."""
    command = [sys.executable, "-c", TOO_MUCH, str(models / "small.gguf")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    exact, pool = run.stdout.splitlines()
    for refusal in (exact, pool):
        assert "tokens in the KV cache" in refusal and "lower the context length" in refusal


@pytest.mark.parametrize(("kind", "threads"), [("q8_0", 1), ("f32", 0)])
def test_one_thread_computes_a_single_row_of_few_weights(tmp_path, kind, threads):
    """By the size of the weights alone, and never in exact mode."""
    path = write_model(tmp_path / "m.gguf", make_model.SIZES["small"], kind)
    assert (path.stat().st_size <= SINGLE_THREAD_BYTES) == (kind == "q8_0")
    for exact in (False, True) if threads else (False,):
        loaded = load_model(spec(path, threads=2, exact=exact))
        loaded.close()
        expected = 0 if exact else threads
        assert (loaded.context.shape.single_row_threads, loaded.context.shape.threads) == (expected, 2)


def test_tensors_are_checked_when_asked(models):
    load_model(spec(models / "tiny-f32.gguf", check_tensors=True)).close()


@pytest.mark.parametrize(("kind", "lone"), [("q8_0", True), ("f32", False)])
def test_numbers_of_rows_that_compute_alike_are_found(models, kind, lone):
    """A lone row of F32 weights is computed by another kernel; quantized rows are all computed alike."""
    library, _ = find_library(None)
    model = NativeModel(library, models / f"tiny-{kind}.gguf")
    shape = ContextSizes(256, 6, 64, 32, threads=2, unified=False, flash=False, kv_type="f16")
    context = NativeContext(model, shape)
    counts = find_alike_row_counts(context, model.size)
    assert counts[-1] == 6 and (1 in counts) == lone
    assert set(range(2, 7)) <= set(counts)
    context.close()
    model.close()


@pytest.mark.parametrize("in_memory", [False, True])
def test_weights_lie_where_the_order_says(models, in_memory):
    path = models / "tiny-q8_0.gguf"
    loaded = load_model(spec(path, weights_in_memory=in_memory))
    try:
        assert (str(path) in Path("/proc/self/maps").read_text()) is not in_memory
    finally:
        loaded.close()
