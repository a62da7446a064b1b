"""Starts vLLM with its environment variables and arguments. The start takes half a minute.

The `LoadCounter` that vLLM starts with counts its steps, tokens and times, for the engine's load.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.domain.models import AdapterLoad, Load, Timer
from antiphon.domain.values import Struct, field
from antiphon.engines.base import LoadSpec
from antiphon.engines.vllm.adapters import MAX_CPU_LORAS, MAX_LORAS, MAX_RANK
from antiphon.engines.vllm.folder import DTYPE_BYTES, ModelFolder
from antiphon.engines.vllm.rows import ARGUMENT
from antiphon.errors import LibraryError, LoadError

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import StatLoggerBase


class LoadCounter(Struct):
    """The totals of one engine since its start."""

    steps: int = 0
    cache_usage: float = 0.0
    """The used share of the KV cache, from 0 to 1, by vLLM's last report."""
    preemptions: int = 0
    prefill_tokens: int = 0
    decoded_tokens: int = 0
    cached_tokens: int = 0
    admitted: int = 0
    prefix_hits: int = 0
    queue_seconds: Timer = field(default_factory=Timer)
    first_token_seconds: Timer = field(default_factory=Timer)
    inter_token_seconds: Timer = field(default_factory=Timer)
    adapter_tokens: Counter[str] = field(default_factory=Counter)

    def note_step(self, cache_usage: float | None, preemptions: int) -> None:
        """Notes a step of vLLM."""
        self.steps += 1
        self.preemptions += preemptions
        if cache_usage is not None:
            self.cache_usage = cache_usage

    def note_start(
        self, prompt_tokens: int, cached_tokens: int, queue_time: float, first_token_time: float
    ) -> None:
        """Notes the first output of a sequence. `queue_time`: seconds from the request to its admission.
        `first_token_time`: seconds from the request to its first token."""
        self.admitted += 1
        self.prefix_hits += cached_tokens > 0
        self.cached_tokens += cached_tokens
        self.prefill_tokens += prompt_tokens - cached_tokens
        self.queue_seconds.add(queue_time)
        self.first_token_seconds.add(first_token_time)

    def note_tokens(self, count: int, adapter: str | None) -> None:
        """Notes new tokens."""
        self.decoded_tokens += count
        if adapter is not None:
            self.adapter_tokens[adapter] += count

    def build_load(
        self,
        sequence_counts: tuple[int, int, int],
        refused: int,
        cells: int,
        adapter_users: Mapping[str, int],
    ) -> Load:
        """Builds the load. `sequence_counts`: the numbers of running sequences, queued sequences and free
        places. `refused`: the number of refused sequences. `adapter_users`: the number of sequences of each
        adapter."""
        running, queued, free = sequence_counts
        return Load(
            running=running,
            queued=queued,
            free_sequences=free,
            cells_used=round(self.cache_usage * cells) if running else 0,
            prefill_tokens=self.prefill_tokens,
            decoded_tokens=self.decoded_tokens,
            steps=self.steps,
            cells=cells,
            cached_tokens=self.cached_tokens,
            admitted=self.admitted,
            prefix_hits=self.prefix_hits,
            preemptions=self.preemptions,
            refused=refused,
            queue_seconds=self.queue_seconds.build_histogram(),
            first_token_seconds=self.first_token_seconds.build_histogram(),
            inter_token_seconds=self.inter_token_seconds.build_histogram(),
            adapters=tuple(
                AdapterLoad(digest, adapter_users.get(digest, 0), 0, tokens)
                for digest, tokens in self.adapter_tokens.items()
                if digest in adapter_users
            ),
        )


def create_logger_class(counter: LoadCounter) -> type["StatLoggerBase"]:
    """Makes the logger class to which vLLM reports each step."""
    from vllm.config import VllmConfig
    from vllm.v1.metrics.loggers import StatLoggerBase
    from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

    class StepLogger(StatLoggerBase):  # type: ignore[misc]
        def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
            pass

        def record(
            self,
            scheduler_stats: SchedulerStats | None,
            iteration_stats: IterationStats | None,
            mm_cache_stats: MultiModalCacheStats | None = None,
            engine_idx: int = 0,
        ) -> None:
            usage = None if scheduler_stats is None else scheduler_stats.kv_cache_usage
            preempted = 0 if iteration_stats is None else iteration_stats.num_preempted_reqs
            counter.note_step(usage, preempted)

        def log_engine_initialized(self) -> None:
            pass

    return StepLogger


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
