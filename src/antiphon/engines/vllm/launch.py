"""Starts vLLM with its environment variables and arguments. The start takes half a minute."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.domain.values import Struct
from antiphon.engines.base import LoadSpec
from antiphon.engines.vllm.adapters import MAX_CPU_LORAS, MAX_LORAS, MAX_RANK
from antiphon.engines.vllm.folder import DTYPE_BYTES, ModelFolder
from antiphon.engines.vllm.load_counter import LoadCounter, create_logger_class
from antiphon.engines.vllm.rows import ARGUMENT
from antiphon.errors import LibraryError, LoadError

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


SAMPLER = "antiphon.engines.vllm.plugin:AntiphonSampler"

BLOCK = 32
"""Tokens of one block of the KV cache on a processor. Prefixes are shared in whole blocks."""

USUAL_SHARE = 0.9
"""The share of a device's memory that all hosts of a model take together if no setting tells it. It is vLLM's
own default."""

FIXED_VARIABLES = {
    "VLLM_NO_USAGE_STATS": "1",  # vLLM would report its use to its makers
    "VLLM_DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",  # all files are in the folder
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the second runner has no logits processors of this kind
}
CPU_VARIABLES = {
    "TORCHDYNAMO_DISABLE": "1",  # the first request with log-probabilities would compile for two minutes
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core computes in its own process: one process less
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # bound threads of two models would share the same cores
}
DEFAULT_VARIABLES = {"VLLM_LOGGING_LEVEL": "WARNING"}


class LaunchedVllm(Struct, frozen=True):
    """A running AsyncLLM, with the facts that vLLM tells about it."""

    llm: "AsyncLLM"
    vocabulary: int
    """The number of token ids."""
    context_length: int
    cells: int
    """The number of tokens that the KV cache can store."""
    dtype: str
    version: str
    path: str
    is_cpu: bool
    threads: int


def launch(
    spec: LoadSpec, folder: ModelFolder, directory: Path, failures_path: str, counter: LoadCounter
) -> LaunchedVllm:
    """Starts vLLM. `directory`: where vLLM makes its sockets. `failures_path`: the path of the socket to
    which the sampler sends failures. Raises a StartupError."""
    os.environ.update(FIXED_VARIABLES, VLLM_RPC_BASE_PATH=str(directory))
    for name, value in DEFAULT_VARIABLES.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as problem:
        raise LibraryError(f"this environment has no usable vLLM ({problem}); run `make cluster`") from None
    is_cpu = current_platform.is_cpu()
    threads = spec.threads or max(1, len(os.sched_getaffinity(0)) // spec.hosts)
    require_cells_to_act(spec, folder, is_cpu)
    os.environ.update(build_variables(threads, is_cpu, has_chosen_threads=spec.threads is not None))
    if spec.devices:
        require_devices(spec.devices, is_cpu)
        os.environ[current_platform.device_control_env_var] = ",".join(spec.devices)
    arguments = {**build_arguments(spec, folder), **(build_cpu_arguments(spec, folder) if is_cpu else {})}
    try:
        llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(additional_config={ARGUMENT: failures_path}, **arguments),
            stat_loggers=[create_logger_class(counter)],
        )
    except Exception as problem:
        reason = str(problem).strip().partition("\n")[0][:300]
        raise LoadError(f"vLLM cannot serve {folder.path.name}: {reason}") from problem
    config = llm.vllm_config
    return LaunchedVllm(
        llm=llm,
        vocabulary=config.model_config.get_vocab_size(),
        context_length=config.model_config.max_model_len,
        cells=(config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size,
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        version=vllm.__version__,
        path=str(Path(vllm.__file__).parent),
        is_cpu=is_cpu,
        threads=threads,
    )


def require_cells_to_act(spec: LoadSpec, folder: ModelFolder, is_cpu: bool) -> None:
    """Raises LoadError if the setting `cells` would have no effect."""
    if spec.cells is None:
        return
    if not is_cpu:
        raise LoadError(
            f"cells = {spec.cells} has no effect on a GPU, where memory_share sizes vLLM's KV cache; "
            "leave cells out"
        )
    if folder.values_per_token is None:
        raise LoadError(
            f"cells = {spec.cells} has no effect, since config.json of {folder.path.name} does not tell the "
            "size of a cell; set memory_share instead"
        )


def build_variables(threads: int, is_cpu: bool, has_chosen_threads: bool) -> dict[str, str]:
    """Builds the environment variables for a kind of device. `has_chosen_threads`: whether the settings tell
    the number of threads. If they do not, vLLM on a GPU chooses it itself."""
    variables = {"OMP_NUM_THREADS": str(threads)} if is_cpu or has_chosen_threads else {}
    return {**CPU_VARIABLES, **variables} if is_cpu else variables


def require_devices(devices: Sequence[str], is_cpu: bool) -> None:
    """Raises LoadError for a list of devices if vLLM computes on the processor."""
    if is_cpu:
        raise LoadError(
            f"devices = {', '.join(devices)}: this vLLM computes on the processor; leave devices out"
        )


def build_arguments(spec: LoadSpec, folder: ModelFolder) -> dict[str, object]:
    """Builds vLLM's arguments for any device."""
    arguments: dict[str, object] = {
        "model": str(folder.path),
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "dtype": spec.dtype,
        "max_model_len": spec.context_length or folder.context_length,
        "max_num_seqs": spec.sequences,
        "max_logprobs": -1,
        "logprobs_mode": "raw_logprobs",
        "enable_prefix_caching": True,
        "tensor_parallel_size": spec.tensor_parallel,
        "disable_log_stats": True,
        "async_scheduling": False,
        "logits_processors": [SAMPLER],
    }
    if spec.prefill_chunk is not None:
        arguments["max_num_batched_tokens"] = max(spec.prefill_chunk, spec.sequences)
    if spec.memory_share is not None:
        arguments["gpu_memory_utilization"] = spec.memory_share
    elif spec.hosts > 1 and not spec.devices:
        arguments["gpu_memory_utilization"] = USUAL_SHARE / spec.hosts
    if spec.adapters:
        arguments |= {
            "enable_lora": True,
            "max_loras": MAX_LORAS,
            "max_cpu_loras": MAX_CPU_LORAS,
            "max_lora_rank": MAX_RANK,
        }
    return arguments


def build_cpu_arguments(spec: LoadSpec, folder: ModelFolder) -> Mapping[str, object]:
    """Builds the further arguments on a processor: short steps, so that a sequence ends soon when its caller
    leaves, and a KV cache of the configured cells."""
    context = spec.context_length or folder.context_length
    arguments: dict[str, object] = {
        "enforce_eager": True,
        "distributed_executor_backend": "uni" if spec.tensor_parallel == 1 else "mp",
        "block_size": BLOCK,
        "max_num_batched_tokens": max(spec.get_prefill_chunk(), spec.sequences),
    }
    if spec.memory_share is None and folder.values_per_token is not None:
        dtype = folder.dtype if spec.dtype == "auto" else spec.dtype
        cells = max(spec.cells or context * spec.sequences, context + BLOCK)
        blocks = -(-cells // BLOCK) + 1  # vLLM keeps one block for itself
        arguments["kv_cache_memory_bytes"] = blocks * BLOCK * folder.values_per_token * DTYPE_BYTES[dtype]
    return arguments
