"""Counts the steps, tokens and times of the vLLM engine, for its load."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from antiphon.domain.models import AdapterLoad, Load, Timer
from antiphon.domain.values import Struct, field

if TYPE_CHECKING:
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
