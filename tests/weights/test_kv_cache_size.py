"""How much context fits the memory."""

from pathlib import Path

import pytest

from antiphon.errors import LoadError
from antiphon.weights.gguf import Header
from antiphon.weights.kv_cache_size import (
    LONGEST_DEFAULT,
    CacheOptions,
    CacheSize,
    compute_cell_bytes,
    compute_text_token_bytes,
    fit_cache,
    fit_text_length,
    measure_available_memory,
)


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


def encoder(context: int = 8192, vocabulary: int = 250_000) -> Header:
    metadata: dict[str, int | float | bool | str] = {
        "bert.context_length": context,
        "bert.embedding_length": 1024,
        "bert.attention.causal": False,
        "bert.pooling_type": 2,
    }
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (1024, vocabulary)}
    return Header(Path("e.gguf"), 1_000_000, "bert", metadata, 1, 1, shapes)


def test_the_longest_text_is_the_models_if_memory_allows():
    assert fit_text_length(encoder(512), None, available_bytes=10**12) == 512
    assert fit_text_length(encoder(131072), None, available_bytes=10**12) == LONGEST_DEFAULT
    assert fit_text_length(header(2048), None, available_bytes=10**12) == 2048


def test_a_large_vocabulary_shortens_an_encoders_text():
    """Each token of it takes a row as wide as the vocabulary."""
    assert compute_text_token_bytes(encoder()) > 4 * 250_000
    scarce = fit_text_length(encoder(), None, available_bytes=4 * 10**9)
    assert scarce % 256 == 0 and scarce * compute_text_token_bytes(encoder()) <= 2 * 10**9
    assert scarce > 1024 < fit_text_length(encoder(vocabulary=30_000), None, available_bytes=4 * 10**9)
    assert fit_text_length(encoder(), 8192, available_bytes=4 * 10**9) == 8192, "what was said stands"
    with pytest.raises(LoadError, match="256 tokens"):
        fit_text_length(encoder(), None, available_bytes=10**8)


def test_a_decoder_takes_what_it_keeps_of_a_text():
    assert compute_text_token_bytes(header()) == compute_cell_bytes(header(), "f16")


def test_a_token_takes_its_keys_and_values_in_every_layer():
    assert compute_cell_bytes(header(), "f16") == 10 * (2 * 64 + 2 * 64) * 2
    assert compute_cell_bytes(header(), "f32") == 2 * compute_cell_bytes(header(), "f16")


def test_explicit_head_widths_and_missing_groups_count():
    wide = header()
    wide.metadata["llama.attention.key_length"] = 128
    assert (wide.key_width, wide.value_width) == (256, 128)
    del wide.metadata["llama.attention.head_count_kv"]
    assert wide.key_width == 1024


def test_with_memory_each_sequence_gets_the_models_context():
    for pool in (True, False):
        asked = CacheOptions(8, shares_cells=pool)
        assert fit_cache(header(context=2048), asked, available_bytes=10**12) == CacheSize(2048, 8 * 2048)
        assert fit_cache(header(context=131072), asked, available_bytes=10**12) == CacheSize(
            LONGEST_DEFAULT, 8 * LONGEST_DEFAULT
        )


def test_cells_take_half_the_rest_and_pools_shrink_first():
    at = header()
    room = (200_000_000 - at.size) / 2 / compute_cell_bytes(at, "f16")
    shared = fit_cache(at, CacheOptions(8), available_bytes=200_000_000)
    assert shared.context_length == LONGEST_DEFAULT
    assert shared.cells <= room < shared.cells + 256
    apart = fit_cache(at, CacheOptions(8, shares_cells=False), available_bytes=200_000_000)
    assert apart.cells == 8 * apart.context_length and apart.context_length % 256 == 0
    assert apart.cells <= room < apart.cells + 8 * 256
    scarce = fit_cache(at, CacheOptions(8), available_bytes=20_000_000)
    assert scarce.cells == scarce.context_length < LONGEST_DEFAULT


def test_what_was_said_stands():
    at = header()
    assert fit_cache(at, CacheOptions(8, context_length=30_000), available_bytes=20_000_000) == CacheSize(
        30_000, 30_000
    )
    assert fit_cache(at, CacheOptions(8, context_length=1000), available_bytes=10**12) == CacheSize(
        1000, 8000
    )
    assert fit_cache(at, CacheOptions(8, cells=1000), available_bytes=20) == CacheSize(1000, 1000)
    assert fit_cache(at, CacheOptions(8, 500, 1000), available_bytes=20) == CacheSize(500, 1000)
    assert fit_cache(at, CacheOptions(8, cells=1000, shares_cells=False), available_bytes=20) == CacheSize(
        125, 1000
    )


def test_too_little_memory_is_refused_with_what_to_do():
    with pytest.raises(LoadError, match=r"smaller quantization$"):
        fit_cache(header(), CacheOptions(8), available_bytes=2_000_000)
    with pytest.raises(LoadError, match=r"8 x 256 tokens.*fewer --sequences"):
        fit_cache(header(), CacheOptions(8, shares_cells=False), available_bytes=2_000_000)


def test_a_header_without_figures_gets_the_default_context():
    assert (
        fit_cache(header(context=0, layers=0), CacheOptions(8), available_bytes=10**9).context_length
        == LONGEST_DEFAULT
    )


def test_the_machine_has_some_memory():
    assert measure_available_memory() > 50_000_000


def test_a_model_for_fewer_tokens_than_can_be_served_is_refused():
    with pytest.raises(LoadError, match="has a context of 1 tokens; the minimum is 16"):
        fit_cache(header(context=1), CacheOptions(1), available_bytes=10**9)
