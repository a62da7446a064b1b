"""vLLM's arguments and variables. Settings that would do nothing are refused before vLLM starts."""

import pytest

from antiphon.domain.values import replace
from antiphon.engines.base import LoadSpec
from antiphon.engines.vllm.folder import DTYPE_BYTES, read_folder
from antiphon.engines.vllm.launch import (
    BLOCK,
    CPU_VARIABLES,
    build_arguments,
    build_cpu_arguments,
    build_variables,
    require_cells_to_act,
)
from antiphon.errors import LoadError
from tests.support.vllm_folders import write_facts, write_few_weights

BATCH = "max_num_batched_tokens"


@pytest.fixture
def folder(tmp_path):
    place = write_facts(tmp_path / "cantor")
    write_few_weights(place)
    return read_folder(place)


def test_cells_are_refused_on_a_gpu(folder):
    spec = LoadSpec("m", cells=4096)
    require_cells_to_act(spec, folder, is_cpu=True)
    require_cells_to_act(LoadSpec("m"), folder, is_cpu=False)
    with pytest.raises(LoadError, match=r"^cells = 4096 has no effect on a GPU, where memory_share"):
        require_cells_to_act(spec, folder, is_cpu=False)


def test_cells_are_refused_if_their_size_is_unknown(folder):
    unknown = replace(folder, values_per_token=None)
    require_cells_to_act(LoadSpec("m"), unknown, is_cpu=True)
    with pytest.raises(LoadError, match=r"^cells = 4096 .* config\.json of cantor does not tell"):
        require_cells_to_act(LoadSpec("m", cells=4096), unknown, is_cpu=True)


def test_cells_size_the_cache_on_a_processor(folder):
    name, cell = "kv_cache_memory_bytes", (folder.values_per_token or 0) * DTYPE_BYTES[folder.dtype]
    for cells in (1024, 2048):
        arguments = build_cpu_arguments(LoadSpec("m", context_length=64, cells=cells), folder)
        assert arguments[name] == (cells + BLOCK) * cell > 0, "vLLM keeps one block for itself"


def test_configured_threads_act_on_every_device():
    assert build_variables(3, is_cpu=True, has_chosen_threads=True) == {
        **CPU_VARIABLES,
        "OMP_NUM_THREADS": "3",
    }
    assert build_variables(3, is_cpu=False, has_chosen_threads=True) == {"OMP_NUM_THREADS": "3"}
    assert build_variables(3, is_cpu=False, has_chosen_threads=False) == {}, "vLLM chooses for itself"


def test_a_prefill_chunk_acts_on_every_device(folder):
    assert build_arguments(LoadSpec("m", prefill_chunk=64), folder)[BATCH] == 64
    assert build_arguments(LoadSpec("m", prefill_chunk=64, sequences=100), folder)[BATCH] == 100
    assert BATCH not in build_arguments(LoadSpec("m"), folder), "vLLM chooses for its GPU"
    assert build_cpu_arguments(LoadSpec("m", prefill_chunk=64), folder)[BATCH] == 64
    assert build_cpu_arguments(LoadSpec("m"), folder)[BATCH] == 512
