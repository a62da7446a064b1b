"""What the engine counts and times, and the load that it reports."""

from collections import Counter
from dataclasses import dataclass, field

from antiphon.domain.load import AdapterLoad, Load, Timer
from antiphon.engines.llama.scheduler import Scheduler


@dataclass(slots=True)
class Meters:
    """What was done so far. The decode thread adds, any thread may look."""

    prefill_tokens: int = 0
    decoded_tokens: int = 0
    steps: int = 0
    by_adapter: Counter[str] = field(default_factory=Counter)
    """Tokens decoded with each adapter."""
    queue: Timer = field(default_factory=Timer)
    first_token: Timer = field(default_factory=Timer)
    inter_token: Timer = field(default_factory=Timer)

    def drew(self, adapter: str | None, tokens: int) -> None:
        """Notes completion tokens."""
        self.decoded_tokens += tokens
        if adapter is not None:
            self.by_adapter[adapter] += tokens

    def load(self, scheduler: Scheduler, arriving: int) -> Load:
        """Counters, each true at some moment of the running step; `arriving` will be queued."""
        cells, tally = scheduler.cells, scheduler.tally
        running = scheduler.running
        return Load(
            running=running,
            queued=len(scheduler.waiting) + arriving,
            free_sequences=scheduler.policy.sequences - running,
            cells_used=cells.used,
            prefill_tokens=self.prefill_tokens,
            decoded_tokens=self.decoded_tokens,
            steps=self.steps,
            cells=cells.total,
            cells_cached=cells.cached,
            cached_tokens=tally.cached_tokens,
            admitted=tally.admitted,
            prefix_hits=tally.hits,
            preemptions=tally.preemptions,
            refused=scheduler.waiting.refused,
            queue_seconds=self.queue.histogram(),
            first_token_seconds=self.first_token.histogram(),
            inter_token_seconds=self.inter_token.histogram(),
            adapters=tuple(self._adapters(scheduler)),
        )

    def _adapters(self, scheduler: Scheduler) -> list[AdapterLoad]:
        running = Counter(sequence.request.adapter for sequence in scheduler.everybody())
        queued = Counter(sequence.request.adapter for sequence in scheduler.waiting.everybody())
        used = {*running, *queued, *tuple(self.by_adapter)}
        named = sorted(adapter for adapter in used if adapter is not None)
        return [
            AdapterLoad(adapter, running[adapter], queued[adapter], self.by_adapter[adapter])
            for adapter in named
        ]
