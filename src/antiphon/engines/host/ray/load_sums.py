"""The load of all replicas of a model together. Totals never fall: those of an ended replica stay."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import reduce

from antiphon.domain.models import AdapterLoad, Histogram, Load
from antiphon.engines.base import EngineInfo


@dataclass(slots=True)
class LoadSums:
    """The last report of each replica, and the totals of those that have ended."""

    _reports: dict[str, Load] = field(default_factory=dict)
    _ended: Load = field(default_factory=Load)

    def note(self, replica: str, load: Load) -> None:
        """Notes a replica's report."""
        self._reports[replica] = load

    def keep(self, replicas: Collection[str]) -> None:
        """Notes which replicas there are. The others have ended."""
        for name in self._reports.keys() - set(replicas):
            ended = self._reports.pop(name)
            self._ended = add_loads(
                self._ended,
                replace(
                    ended,
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
        """Returns the sum of everything."""
        return reduce(add_loads, self._reports.values(), self._ended)


def add_loads(one: Load, other: Load) -> Load:
    """Returns the sum of two loads, field by field."""
    return Load(
        running=one.running + other.running,
        queued=one.queued + other.queued,
        free_sequences=one.free_sequences + other.free_sequences,
        cells_used=one.cells_used + other.cells_used,
        prefill_tokens=one.prefill_tokens + other.prefill_tokens,
        decoded_tokens=one.decoded_tokens + other.decoded_tokens,
        steps=one.steps + other.steps,
        cells=one.cells + other.cells,
        cells_cached=one.cells_cached + other.cells_cached,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        admitted=one.admitted + other.admitted,
        prefix_hits=one.prefix_hits + other.prefix_hits,
        preemptions=one.preemptions + other.preemptions,
        refused=one.refused + other.refused,
        queue_seconds=_add_times(one.queue_seconds, other.queue_seconds),
        first_token_seconds=_add_times(one.first_token_seconds, other.first_token_seconds),
        inter_token_seconds=_add_times(one.inter_token_seconds, other.inter_token_seconds),
        adapters=_add_adapters((*one.adapters, *other.adapters)),
    )


def _add_times(one: Histogram, other: Histogram) -> Histogram:
    """Returns the sum of two histograms."""
    counts = tuple(sum(pair) for pair in zip(one.counts, other.counts, strict=True))
    return Histogram(counts, one.total + other.total)


def _add_adapters(loads: tuple[AdapterLoad, ...]) -> tuple[AdapterLoad, ...]:
    """Returns one load for each adapter."""
    sums: dict[str, AdapterLoad] = {}
    for each in loads:
        before = sums.get(each.adapter, AdapterLoad(each.adapter))
        sums[each.adapter] = AdapterLoad(
            each.adapter,
            before.running + each.running,
            before.queued + each.queued,
            before.decoded_tokens + each.decoded_tokens,
        )
    return tuple(sums.values())


def replace_load(info: EngineInfo, load: Load, replicas: int) -> EngineInfo:
    """Returns one replica's facts with the load of all, and the sequences that all run at once."""
    return replace(info, load=load, sequences=info.sequences * replicas)
