"""Metric families, sums over processes, and the page that Prometheus reads.

prometheus-client writes the text, in version 0.0.4 of the format, which every scraper reads. The library's
own counters are not used. Each HTTP process reports its totals. The documentation of the metrics is made from
the families' descriptions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING

from antiphon.domain.models import LATENCY_BOUNDS, AdapterLoad, DeviceMemory, Histogram, Load

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (*map(str, LATENCY_BOUNDS), "+Inf")
"""Upper bounds of the buckets, as the page shows them."""


class MetricKind(StrEnum):
    """The kinds of metric families."""

    COUNTER = "counter"
    """A number that only grows, from 0 at the start of its process."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    """Durations in seconds, counted by bucket."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its name, kind, description and labels."""

    name: str
    kind: MetricKind
    description: str
    """One line that says what is counted, and in which unit."""
    labels: tuple[str, ...] = ()


Value = float | Histogram

Series = tuple[Family, Mapping[tuple[str, ...], Value]]
"""A family with its values. The key of each value is the values of the family's labels."""


def render_page(series: Iterable[Series]) -> str:
    """Renders the page. A family without values is left out."""
    import prometheus_client  # imported late: the library imports a web server, which takes 80 ms

    metrics = [_build_metric(prometheus_client.Metric, *each) for each in series if each[1]]
    return prometheus_client.generate_latest(_Page(metrics)).decode()


@dataclass(frozen=True, slots=True)
class _Page:
    """The interface of the library's registries, as the library expects it."""

    metrics: "list[Metric]"

    def collect(self) -> "list[Metric]":
        return self.metrics


def _build_metric(kind: "type[Metric]", family: Family, values: Mapping[tuple[str, ...], Value]) -> "Metric":
    """Converts a family and its values to a metric of the library."""
    metric = kind(family.name.removesuffix("_total"), family.description, family.kind)
    for labelled, value in values.items():
        labels = dict(zip(family.labels, labelled, strict=True))
        if isinstance(value, Histogram):
            # Prometheus expects cumulative buckets.
            for bound, below in zip(BOUNDS, accumulate(value.counts), strict=True):
                metric.add_sample(f"{family.name}_bucket", labels | {"le": bound}, below)
            metric.add_sample(f"{family.name}_sum", labels, value.total)
            metric.add_sample(f"{family.name}_count", labels, sum(value.counts))
        else:
            metric.add_sample(family.name, labels, value)
    return metric


MODEL = "model"
"""The label for a model's name."""

Number = int | float | Histogram

Sums = dict[str, dict[tuple[str, ...], Number]]
"""The value of each series by its labels, for each family's name."""


@dataclass(slots=True)
class Totals:
    """The totals of one process, or of several together."""

    counts: Sums = field(default_factory=dict)
    """Sums that only grow. They stay valid after their process has ended."""
    gauges: Sums = field(default_factory=dict)
    """Values that are valid only while their process runs."""

    @staticmethod
    def from_series(series: Iterable[Series]) -> "Totals":
        """Collects the totals of a process."""
        totals = Totals()
        for family, values in series:
            sums = totals.gauges if family.kind is MetricKind.GAUGE else totals.counts
            sums[family.name] = dict(values)
        return totals

    def add(self, more: "Totals", lives: bool = True) -> None:
        """Adds the totals of another process. `lives`: whether that process still runs, so that its gauges
        are valid."""
        _add(self.counts, more.counts)
        if lives:
            _add(self.gauges, more.gauges)


def sum_series(own: Iterable[Series], others: Totals, is_served: Callable[[str], bool]) -> Iterator[Series]:
    """Yields this process's series, with the totals of the other processes added. The totals of models that
    this server does not serve are not added."""
    for family, values in own:
        other_sums = others.gauges if family.kind is MetricKind.GAUGE else others.counts
        label_index = family.labels.index(MODEL) if MODEL in family.labels else None
        served = {
            labels: value
            for labels, value in other_sums.get(family.name, {}).items()
            if label_index is None or is_served(labels[label_index])
        }
        sums: Sums = {family.name: dict(values)}
        _add(sums, {family.name: served})
        yield family, sums[family.name]


def _add(sums: Sums, more: Sums) -> None:
    """Adds the values of `more` to `sums` in place."""
    for family, series in more.items():
        totals = sums.setdefault(family, {})
        for labels, value in series.items():
            totals[labels] = _add_values(totals[labels], value) if labels in totals else value


def _add_values(one: Number, other: Number) -> Number:
    """Returns the sum of two numbers or of two histograms. Raises TypeError for one of each."""
    if isinstance(one, Histogram) and isinstance(other, Histogram):
        return Histogram(tuple(map(int.__add__, one.counts, other.counts)), one.total + other.total)
    if isinstance(one, Histogram) or isinstance(other, Histogram):
        raise TypeError("a histogram and a number have no sum")
    return one + other


PREFIX = "antiphon_engine_"


def _family(name: str, kind: MetricKind, says: str, *more: str) -> Family:
    """Declares a family of engines. Its labels are the model and `more`."""
    return Family(PREFIX + name, kind, says, ("model", *more))


def _gauge(name: str, says: str, *more: str) -> Family:
    """Declares a gauge of engines."""
    return _family(name, MetricKind.GAUGE, says, *more)


def _counter(name: str, says: str, *more: str) -> Family:
    """Declares a counter of engines."""
    return _family(name, MetricKind.COUNTER, says, *more)


def _histogram(name: str, says: str) -> Family:
    """Declares a histogram of engines."""
    return _family(name, MetricKind.HISTOGRAM, says)


UP = _gauge(
    "up",
    "1 if the engine answered this scrape within a second. If it is 0, the engine's other "
    "metrics are missing.",
)

PARKED = _gauge("parked", "1 while the model is not loaded; its next request loads it.")

MEASURES: tuple[tuple[Family, Callable[[Load], Value]], ...] = (
    (_gauge("queued", "Sequences that wait for a place in the batch."), lambda load: load.queued),
    (_gauge("running", "Sequences in the batch."), lambda load: load.running),
    (_gauge("free_sequences", "Places in the batch that are free."), lambda load: load.free_sequences),
    (_gauge("cells", "Cells of the KV cache; one holds one token."), lambda load: load.cells),
    (_gauge("cells_used", "Cells that running sequences use."), lambda load: load.cells_used),
    (
        _gauge("cells_cached", "Cells with prefixes for later prompts. They are free when they are needed."),
        lambda load: load.cells_cached,
    ),
    (_counter("prompt_tokens_total", "Prompt tokens computed."), lambda load: load.prefill_tokens),
    (
        _counter("cached_tokens_total", "Prompt tokens that came from the cache."),
        lambda load: load.cached_tokens,
    ),
    (
        _counter("decoded_tokens_total", "Completion tokens that were generated."),
        lambda load: load.decoded_tokens,
    ),
    (_counter("steps_total", "Steps of the batch."), lambda load: load.steps),
    (_counter("admitted_total", "Sequences that got a place in the batch."), lambda load: load.admitted),
    (_counter("prefix_hits_total", "Sequences with a prefix from the cache."), lambda load: load.prefix_hits),
    (
        _counter(
            "preemptions_total",
            "Sequences that paused: there were no free cells, or another caller got the place.",
        ),
        lambda load: load.preemptions,
    ),
    (
        _counter("refused_total", "Sequences that were refused because the queue was full."),
        lambda load: load.refused,
    ),
    (
        _histogram("queue_seconds", "Time from a sequence's arrival to its place in the batch."),
        lambda load: load.queue_seconds,
    ),
    (
        _histogram("first_token_seconds", "Time from a sequence's arrival to its first token."),
        lambda load: load.first_token_seconds,
    ),
    (
        _histogram("inter_token_seconds", "Time between tokens of one sequence."),
        lambda load: load.inter_token_seconds,
    ),
)

ADAPTER_MEASURES: tuple[tuple[Family, Callable[[AdapterLoad], Value]], ...] = (
    (_gauge("adapter_queued", "Sequences of an adapter that wait.", "adapter"), lambda load: load.queued),
    (
        _gauge("adapter_running", "Sequences of an adapter in the batch.", "adapter"),
        lambda load: load.running,
    ),
    (
        _counter(
            "adapter_decoded_tokens_total",
            "Completion tokens that were generated with an adapter.",
            "adapter",
        ),
        lambda load: load.decoded_tokens,
    ),
)

DEVICE_MEASURES: tuple[tuple[Family, Callable[[DeviceMemory], Value | None]], ...] = (
    (
        _gauge("device_layers", "Layers of the model on a GPU.", "device"),
        lambda device: device.layers,
    ),
    (
        _gauge("device_memory_bytes", "Memory of a GPU that has layers of the model.", "device"),
        lambda device: device.total,
    ),
    (
        _gauge(
            "device_memory_used_bytes",
            "Memory of the GPU that all programs use together. Missing if the driver does not report it.",
            "device",
        ),
        lambda device: device.used,
    ),
)

FAMILIES = (UP, PARKED, *(family for family, _ in (*MEASURES, *ADAPTER_MEASURES, *DEVICE_MEASURES)))
"""All families of engines, in the order of the page."""


def list_series(loads: Mapping[str, Load | None], up: Mapping[str, bool]) -> Iterator[Series]:
    """Yields the series of all engines. `loads` and `up` map each model's name to its value. A load is None
    if it is not known."""
    yield UP, {(model,): int(there) for model, there in up.items()}
    known_loads = {model: load for model, load in loads.items() if load is not None}
    for family, measure in MEASURES:
        yield family, {(model,): measure(load) for model, load in known_loads.items()}
    for family, of_adapter in ADAPTER_MEASURES:
        yield (
            family,
            {
                (model, each.adapter): of_adapter(each)
                for model, load in known_loads.items()
                for each in load.adapters
            },
        )
    for family, of_device in DEVICE_MEASURES:
        yield (
            family,
            {
                (model, device.device): value
                for model, load in known_loads.items()
                for device in load.devices
                if (value := of_device(device)) is not None
            },
        )
