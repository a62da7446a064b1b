"""What a server's /metrics page says of its engines, and what happened between two readings of it: rates,
percentiles, shares. Asks nobody and shows nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families

ENGINE = "antiphon_engine_"

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Reading:
    """One page."""

    when: float
    """Monotonic seconds."""
    samples: Mapping[tuple[str, Labels], float]

    def value(self, name: str, **labels: str) -> float | None:
        """None when the page does not hold it."""
        return self.samples.get((name, frozenset(labels.items())))

    def labels(self, name: str, label: str, **given: str) -> list[str]:
        """The values of one label of a family, in the order of the page; `given` are the others of it."""
        wanted = frozenset(given.items())
        found = (dict(labels) for each, labels in self.samples if each == name and wanted <= labels)
        return list(dict.fromkeys(labels[label] for labels in found if label in labels))

    def buckets(self, name: str, model: str) -> dict[float, float]:
        """A histogram: how many were at most each bound."""
        bounds = self.labels(f"{name}_bucket", "le", model=model)
        counts = {bound: self.value(f"{name}_bucket", model=model, le=bound) for bound in bounds}
        return {float(bound): count for bound, count in counts.items() if count is not None}


def read(page: str, when: float) -> Reading:
    """Raises ValueError for what is no such page."""
    families = text_string_to_metric_families(page)
    samples = (sample for family in families for sample in family.samples)
    return Reading(when, {(each.name, frozenset(each.labels.items())): each.value for each in samples})


@dataclass(frozen=True, slots=True)
class Latency:
    """Of what came in between, in seconds; as exact as the buckets are."""

    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class AdapterRates:
    """One adapter of a model."""

    adapter: str
    """Digest of its content."""
    queued: int
    running: int
    made: float | None
    """Tokens a second."""


@dataclass(frozen=True, slots=True)
class ModelRates:
    """One model. What cannot be known is None: rates of a first reading, or of an engine that began anew."""

    model: str
    up: bool
    queued: int = 0
    running: int = 0
    computed: float | None = None
    """Prompt tokens a second."""
    cached: float | None = None
    """Prompt tokens a second that needed no computing."""
    made: float | None = None
    """Completion tokens a second."""
    first_token: Latency | None = None
    inter_token: Latency | None = None
    cells: int = 0
    cells_used: int = 0
    cells_cached: int = 0
    prefix_hits: float | None = None
    """Share of the sequences admitted that shared a prefix."""
    preempted: int = 0
    """So far."""
    refused: int = 0
    """So far."""
    adapters: tuple[AdapterRates, ...] = ()


def rates(earlier: Reading, later: Reading) -> tuple[ModelRates, ...]:
    """Every model of the server, in its order."""
    models = later.labels(f"{ENGINE}up", "model")
    return tuple(_Pair(earlier, later, model).rates() for model in models)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two readings, as far as they are about one model."""

    earlier: Reading
    later: Reading
    model: str

    def rates(self) -> ModelRates:
        if not self._read_gauge("up"):
            return ModelRates(self.model, up=False)
        hits, admitted = self._compute_increase("prefix_hits_total"), self._compute_increase("admitted_total")
        return ModelRates(
            self.model,
            up=True,
            queued=self._read_gauge("queued"),
            running=self._read_gauge("running"),
            computed=self._rate("prompt_tokens_total"),
            cached=self._rate("cached_tokens_total"),
            made=self._rate("decoded_tokens_total"),
            first_token=self._latency("first_token_seconds"),
            inter_token=self._latency("inter_token_seconds"),
            cells=self._read_gauge("cells"),
            cells_used=self._read_gauge("cells_used"),
            cells_cached=self._read_gauge("cells_cached"),
            prefix_hits=hits / admitted if hits is not None and admitted else None,
            preempted=self._read_gauge("preemptions_total"),
            refused=self._read_gauge("refused_total"),
            adapters=tuple(map(self._adapter, self._adapters())),
        )

    def _adapters(self) -> list[str]:
        return self.later.labels(f"{ENGINE}adapter_running", "adapter", model=self.model)

    def _adapter(self, adapter: str) -> AdapterRates:
        return AdapterRates(
            adapter,
            queued=self._read_gauge("adapter_queued", adapter=adapter),
            running=self._read_gauge("adapter_running", adapter=adapter),
            made=self._rate("adapter_decoded_tokens_total", adapter=adapter),
        )

    def _read_gauge(self, name: str, **labels: str) -> int:
        return int(self.later.value(ENGINE + name, model=self.model, **labels) or 0)

    def _rate(self, name: str, **labels: str) -> float | None:
        grown, seconds = self._compute_increase(name, **labels), self.later.when - self.earlier.when
        return grown / seconds if grown is not None and seconds > 0 else None

    def _compute_increase(self, name: str, **labels: str) -> float | None:
        """What a counter gained; None when it is not in both, or began anew."""
        before = self.earlier.value(ENGINE + name, model=self.model, **labels)
        now = self.later.value(ENGINE + name, model=self.model, **labels)
        return now - before if before is not None and now is not None and now >= before else None

    def _latency(self, name: str) -> Latency | None:
        before = self.earlier.buckets(ENGINE + name, self.model)
        now = self.later.buckets(ENGINE + name, self.model)
        grown = {bound: count - before.get(bound, 0.0) for bound, count in now.items()}
        if not grown or min(grown.values()) < 0 or max(grown.values()) == 0:
            return None
        return Latency(quantile(grown, 0.5), quantile(grown, 0.95))


def quantile(at_most: Mapping[float, float], share: float) -> float:
    """Where so great a share of the values lies below, taken to lie evenly within a bucket; what lies above
    the last bound counts as that bound. `at_most` is cumulative, and holds at least one value."""
    wanted = share * max(at_most.values())
    low = 0.0
    for (below, lower), (above, upper) in pairwise([(0.0, 0.0), *sorted(at_most.items())]):
        low = below
        if above == float("inf"):
            break
        if upper >= wanted:
            return below + (above - below) * (wanted - lower) / (upper - lower)
    return low
