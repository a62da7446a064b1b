"""How much context fits the memory."""

from pathlib import Path

import pytest

from antiphon.errors import LoadError
from antiphon.weights.gguf import Header
from antiphon.weights.sizing import LONGEST_DEFAULT, available_memory, fitting_context, kv_bytes_per_cell


def header(
    context: int = 32768, layers: int = 10, heads: int = 8, kv_heads: int = 2, width: int = 512
) -> Header:
    metadata: dict[str, int | float | bool | str] = {
        "llama.context_length": context,
        "llama.block_count": layers,
        "llama.embedding_length": width,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
    }
    return Header(Path("m.gguf"), 1_000_000, "llama", metadata, 1, 1)


def test_a_token_takes_its_keys_and_values_in_every_layer():
    assert kv_bytes_per_cell(header(), "f16") == 10 * (2 * 64 + 2 * 64) * 2
    assert kv_bytes_per_cell(header(), "f32") == 2 * kv_bytes_per_cell(header(), "f16")


def test_explicit_head_widths_and_missing_groups_count():
    wide = header()
    wide.metadata["llama.attention.key_length"] = 128
    assert (wide.key_width, wide.value_width) == (256, 128)
    del wide.metadata["llama.attention.head_count_kv"]
    assert wide.key_width == 1024


def test_plenty_of_memory_gives_the_models_own_context_up_to_the_default_most():
    assert fitting_context(header(context=2048), 8, "f16", free=10**12) == 2048
    assert fitting_context(header(context=131072), 8, "f16", free=10**12) == LONGEST_DEFAULT


def test_the_caches_of_all_sequences_fit_half_of_what_is_free():
    at = header()
    length = fitting_context(at, 8, "f16", free=200_000_000)
    assert length % 256 == 0
    assert length * 8 * kv_bytes_per_cell(at, "f16") <= (200_000_000 - at.size) / 2
    assert (length + 256) * 8 * kv_bytes_per_cell(at, "f16") > (200_000_000 - at.size) / 2


def test_too_little_memory_is_refused_with_what_to_do():
    with pytest.raises(LoadError, match="fewer --sequences"):
        fitting_context(header(), 8, "f16", free=2_000_000)


def test_a_header_without_figures_gets_the_default_context():
    assert fitting_context(header(context=0, layers=0), 8, "f16", free=10**9) == LONGEST_DEFAULT


def test_the_machine_has_some_memory():
    assert available_memory() > 50_000_000


def test_a_model_for_fewer_tokens_than_can_be_served_is_refused():
    with pytest.raises(LoadError, match="made for 1 tokens; 16 are the least"):
        fitting_context(header(context=1), 1, "f16", free=10**9)
