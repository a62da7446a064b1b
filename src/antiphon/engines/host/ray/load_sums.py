"""The load of all replicas of a model together. Totals never fall, because the totals of an ended replica
stay.
"""

from collections.abc import Collection
from functools import reduce

from antiphon.domain.models import AdapterLoad, Histogram, Load
from antiphon.domain.values import Struct, field, replace
from antiphon.engines.base import EngineInfo


class LoadSums(Struct):
    """The last report of each running replica, and the totals of the ended replicas."""

    _reports: dict[str, Load] = field(default_factory=dict)
    _ended: Load = field(default_factory=Load)

    def note(self, replica: str, load: Load) -> None:
        """Notes a replica's report."""
        self._reports[replica] = load

    def set_replicas(self, replicas: Collection[str]) -> None:
        """Notes which replicas run now. The totals of replicas that have ended stay in the sum; their running
        sequences and cells do not."""
        for name in self._reports.keys() - set(replicas):
            ended_report = self._reports.pop(name)
            self._ended = add_loads(
                self._ended,
                replace(
                    ended_report,
                    running=0,
                    queued=0,
                    free_sequences=0,
                    cells_used=0,
                    cells=0,
                    cells_cached=0,
                    adapters=(),
                ),
            )

    def sum(self) -> Load:
        """Returns the load of the running replicas, together with the totals of the ended ones."""
        return reduce(add_loads, self._reports.values(), self._ended)


def add_loads(load: Load, other_load: Load) -> Load:
    """Returns the sum of two loads, field by field."""
    return Load(
        running=load.running + other_load.running,
        queued=load.queued + other_load.queued,
        free_sequences=load.free_sequences + other_load.free_sequences,
        cells_used=load.cells_used + other_load.cells_used,
        prefill_tokens=load.prefill_tokens + other_load.prefill_tokens,
        decoded_tokens=load.decoded_tokens + other_load.decoded_tokens,
        steps=load.steps + other_load.steps,
        drafts=load.drafts + other_load.drafts,
        accepted_drafts=load.accepted_drafts + other_load.accepted_drafts,
        cells=load.cells + other_load.cells,
        cells_cached=load.cells_cached + other_load.cells_cached,
        cached_tokens=load.cached_tokens + other_load.cached_tokens,
        admitted=load.admitted + other_load.admitted,
        prefix_hits=load.prefix_hits + other_load.prefix_hits,
        preemptions=load.preemptions + other_load.preemptions,
        refused=load.refused + other_load.refused,
        queue_seconds=_add_histograms(load.queue_seconds, other_load.queue_seconds),
        first_token_seconds=_add_histograms(load.first_token_seconds, other_load.first_token_seconds),
        inter_token_seconds=_add_histograms(load.inter_token_seconds, other_load.inter_token_seconds),
        step_gap_seconds=_add_histograms(load.step_gap_seconds, other_load.step_gap_seconds),
        adapters=_add_adapters((*load.adapters, *other_load.adapters)),
    )


def _add_histograms(load: Histogram, other_load: Histogram) -> Histogram:
    """Returns the sum of two histograms."""
    counts = tuple(sum(pair) for pair in zip(load.counts, other_load.counts, strict=True))
    return Histogram(counts, load.total + other_load.total)


def _add_adapters(loads: tuple[AdapterLoad, ...]) -> tuple[AdapterLoad, ...]:
    """Returns one load for each adapter."""
    sums: dict[str, AdapterLoad] = {}
    for load in loads:
        total = sums.get(load.adapter, AdapterLoad(load.adapter))
        sums[load.adapter] = AdapterLoad(
            load.adapter,
            total.running + load.running,
            total.queued + load.queued,
            total.decoded_tokens + load.decoded_tokens,
        )
    return tuple(sums.values())


def replace_load(info: EngineInfo, load: Load, replicas: int) -> EngineInfo:
    """Returns one replica's facts with the load of all replicas, and the most sequences that all replicas
    together run at once."""
    return replace(info, load=load, sequences=info.sequences * replicas)
