"""Metric families, sums over processes, and the page that Prometheus reads.

prometheus-client writes the text, in version 0.0.4 of the format, which every scraper reads. The library's
own counters are not used. Each HTTP process reports its totals. The documentation of the metrics is made from
the families' descriptions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING

from antiphon.domain.models import GAP_BOUNDS, LATENCY_BOUNDS, AdapterLoad, DeviceMemory, Histogram, Load
from antiphon.domain.values import Struct, field, replace

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Value = float | Histogram

MODEL = "model"
"""The label for a model's name."""

Number = int | float | Histogram

Sums = dict[str, dict[tuple[str, ...], Number]]
"""Maps each family's name to its series: the labels of each series to its value."""

PREFIX = "antiphon_engine_"


class MetricKind(StrEnum):
    """The kinds of metric families."""

    COUNTER = "counter"
    """A number that starts at 0 with its process, and only grows."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    """Durations in seconds, counted by bucket."""


class Family(Struct, frozen=True):
    """A metric family: a name, a kind, a description and labels. Each set of label values has a value of its
    own."""

    name: str
    kind: MetricKind
    description: str
    """One line with the counted quantity and its unit."""
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = LATENCY_BOUNDS
    """Upper bounds of a histogram's buckets."""


Series = tuple[Family, Mapping[tuple[str, ...], Value]]
"""A family with its values. The key of each value is the values of the family's labels."""


def render_page(series: Iterable[Series]) -> str:
    """Renders the page. A family without values is left out."""
    import prometheus_client  # imported late: the library imports a web server, which takes 80 ms

    metrics = [_build_metric(prometheus_client.Metric, *entry) for entry in series if entry[1]]
    return prometheus_client.generate_latest(_Page(metrics)).decode()


class _Page(Struct, frozen=True):
    """The interface of the library's registries, as the library expects it."""

    metrics: "list[Metric]"

    def collect(self) -> "list[Metric]":
        return self.metrics


def _build_metric(
    metric_class: "type[Metric]", family: Family, values: Mapping[tuple[str, ...], Value]
) -> "Metric":
    """Converts a family and its values to a metric of the library."""
    metric = metric_class(family.name.removesuffix("_total"), family.description, family.kind)
    for label_values, value in values.items():
        labels = dict(zip(family.labels, label_values, strict=True))
        if isinstance(value, Histogram):
            # Prometheus expects cumulative buckets.
            bounds = (*map(str, family.bounds), "+Inf")
            for bound, cumulative in zip(bounds, accumulate(value.counts), strict=True):
                metric.add_sample(f"{family.name}_bucket", labels | {"le": bound}, cumulative)
            metric.add_sample(f"{family.name}_sum", labels, value.total)
            metric.add_sample(f"{family.name}_count", labels, sum(value.counts))
        else:
            metric.add_sample(family.name, labels, value)
    return metric


class Totals(Struct):
    """The values of one process's metrics, or the sums over several processes."""

    counts: Sums = field(default_factory=dict)
    """Sums that only grow. They stay valid after their process has ended."""
    gauges: Sums = field(default_factory=dict)
    """Values that are valid only while their process runs."""

    @staticmethod
    def from_series(series: Iterable[Series]) -> "Totals":
        """Sorts the values of a process into counts and gauges."""
        totals = Totals()
        for family, values in series:
            sums = totals.gauges if family.kind is MetricKind.GAUGE else totals.counts
            sums[family.name] = dict(values)
        return totals

    def add(self, other: "Totals", is_running: bool = True) -> None:
        """Adds the totals of another process. `is_running`: whether that process still runs, so that its
        gauges are valid."""
        _add(self.counts, other.counts)
        if is_running:
            _add(self.gauges, other.gauges)


def sum_series(
    own_series: Iterable[Series], other_totals: Totals, is_counted: Callable[[str], bool]
) -> Iterator[Series]:
    """Yields this process's series, with the totals of the other processes added. Leaves out the totals of
    models for which `is_counted` returns False."""
    for family, values in own_series:
        other_sums = other_totals.gauges if family.kind is MetricKind.GAUGE else other_totals.counts
        label_index = family.labels.index(MODEL) if MODEL in family.labels else None
        counted_values = {
            labels: value
            for labels, value in other_sums.get(family.name, {}).items()
            if label_index is None or is_counted(labels[label_index])
        }
        sums: Sums = {family.name: dict(values)}
        _add(sums, {family.name: counted_values})
        yield family, sums[family.name]


def _add(target: Sums, added: Sums) -> None:
    """Adds the values of `added` to `target` in place."""
    for family, series in added.items():
        totals = target.setdefault(family, {})
        for labels, value in series.items():
            totals[labels] = _add_values(totals[labels], value) if labels in totals else value


def _add_values(left: Number, right: Number) -> Number:
    """Returns the sum of two numbers or of two histograms. Raises TypeError for a number and a histogram."""
    if isinstance(left, Histogram) and isinstance(right, Histogram):
        return Histogram(tuple(map(int.__add__, left.counts, right.counts)), left.total + right.total)
    if isinstance(left, Histogram) or isinstance(right, Histogram):
        raise TypeError("a histogram and a number have no sum")
    return left + right


def _declare_family(name: str, kind: MetricKind, description: str, *extra_labels: str) -> Family:
    """Declares a metric family about engines. Its labels are the model and `extra_labels`."""
    return Family(PREFIX + name, kind, description, ("model", *extra_labels))


def _declare_gauge(name: str, description: str, *extra_labels: str) -> Family:
    """Declares a gauge about engines."""
    return _declare_family(name, MetricKind.GAUGE, description, *extra_labels)


def _declare_counter(name: str, description: str, *extra_labels: str) -> Family:
    """Declares a counter about engines."""
    return _declare_family(name, MetricKind.COUNTER, description, *extra_labels)


def _declare_histogram(name: str, description: str) -> Family:
    """Declares a histogram about engines."""
    return _declare_family(name, MetricKind.HISTOGRAM, description)


UP = _declare_gauge(
    "up",
    "1 if the engine answered this scrape within a second. If it is 0, the engine's other "
    "metrics are missing.",
)

PARKED = _declare_gauge("parked", "1 while the model is not loaded; its next request loads it.")

MEASURES: tuple[tuple[Family, Callable[[Load], Value]], ...] = (
    (_declare_gauge("queued", "Sequences that wait for a place in the batch."), lambda load: load.queued),
    (_declare_gauge("running", "Sequences in the batch."), lambda load: load.running),
    (
        _declare_gauge("free_sequences", "Places in the batch that are free."),
        lambda load: load.free_sequences,
    ),
    (_declare_gauge("cells", "Cells of the KV cache; each cell is for one token."), lambda load: load.cells),
    (_declare_gauge("cells_used", "Cells that running sequences use."), lambda load: load.cells_used),
    (
        _declare_gauge(
            "cells_cached", "Cells with prefixes for later prompts. They are free when they are needed."
        ),
        lambda load: load.cells_cached,
    ),
    (_declare_counter("prompt_tokens_total", "Prompt tokens computed."), lambda load: load.prefill_tokens),
    (
        _declare_counter("cached_tokens_total", "Prompt tokens that came from the cache."),
        lambda load: load.cached_tokens,
    ),
    (
        _declare_counter("decoded_tokens_total", "Completion tokens that were generated."),
        lambda load: load.decoded_tokens,
    ),
    (_declare_counter("steps_total", "Steps of the batch."), lambda load: load.steps),
    (
        _declare_counter("drafts_total", "Tokens that were computed ahead of their sequence."),
        lambda load: load.drafts,
    ),
    (
        _declare_counter("accepted_drafts_total", "Tokens computed ahead that were then drawn."),
        lambda load: load.accepted_drafts,
    ),
    (
        _declare_counter("admitted_total", "Sequences that got a place in the batch."),
        lambda load: load.admitted,
    ),
    (
        _declare_counter("prefix_hits_total", "Sequences with a prefix from the cache."),
        lambda load: load.prefix_hits,
    ),
    (
        _declare_counter(
            "preemptions_total",
            "Sequences that paused: there were no free cells, or another caller got the place.",
        ),
        lambda load: load.preemptions,
    ),
    (
        _declare_counter("refused_total", "Sequences that were refused because the queue was full."),
        lambda load: load.refused,
    ),
    (
        _declare_histogram("queue_seconds", "Time from a sequence's arrival to its place in the batch."),
        lambda load: load.queue_seconds,
    ),
    (
        _declare_histogram("first_token_seconds", "Time from a sequence's arrival to its first token."),
        lambda load: load.first_token_seconds,
    ),
    (
        _declare_histogram("inter_token_seconds", "Time between tokens of one sequence."),
        lambda load: load.inter_token_seconds,
    ),
    (
        replace(
            _declare_histogram(
                "step_gap_seconds",
                "Time between two decodes of llama.cpp while there is work: drawing, sending, planning.",
            ),
            bounds=GAP_BOUNDS,
        ),
        lambda load: load.step_gap_seconds,
    ),
)

ADAPTER_MEASURES: tuple[tuple[Family, Callable[[AdapterLoad], Value]], ...] = (
    (
        _declare_gauge("adapter_queued", "Sequences of an adapter that wait.", "adapter"),
        lambda load: load.queued,
    ),
    (
        _declare_gauge("adapter_running", "Sequences of an adapter in the batch.", "adapter"),
        lambda load: load.running,
    ),
    (
        _declare_counter(
            "adapter_decoded_tokens_total",
            "Completion tokens that were generated with an adapter.",
            "adapter",
        ),
        lambda load: load.decoded_tokens,
    ),
)

DEVICE_MEASURES: tuple[tuple[Family, Callable[[DeviceMemory], Value | None]], ...] = (
    (
        _declare_gauge("device_layers", "Layers of the model on a GPU.", "device"),
        lambda device: device.layers,
    ),
    (
        _declare_gauge("device_memory_bytes", "Memory of a GPU that has layers of the model.", "device"),
        lambda device: device.total,
    ),
    (
        _declare_gauge(
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
    """Yields the series of all engines. `loads`: the load of each model's engine; None if it is unknown.
    `up`: whether each model's engine answered."""
    yield UP, {(model,): int(is_up) for model, is_up in up.items()}
    known_loads = {model: load for model, load in loads.items() if load is not None}
    for family, measure in MEASURES:
        yield family, {(model,): measure(load) for model, load in known_loads.items()}
    for family, measure_adapter in ADAPTER_MEASURES:
        yield (
            family,
            {
                (model, adapter.adapter): measure_adapter(adapter)
                for model, load in known_loads.items()
                for adapter in load.adapters
            },
        )
    for family, measure_device in DEVICE_MEASURES:
        yield (
            family,
            {
                (model, device.device): value
                for model, load in known_loads.items()
                for device in load.devices
                if (value := measure_device(device)) is not None
            },
        )
