"""Metric families, sums over processes, and the page that Prometheus reads.

prometheus-client writes the text, in version 0.0.4 of the format, which every scraper reads. Its own
counters are not used. Each HTTP process reports its totals. A family's description is also the source of
the documentation.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING

from antiphon.domain.engine_load import LATENCY_BOUNDS, Histogram

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (*map(str, LATENCY_BOUNDS), "+Inf")
"""Bounds of buckets on the page."""


class MetricKind(StrEnum):
    """How a family's numbers behave."""

    COUNTER = "counter"
    """Only grows, from 0 at the start of its process."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    """Seconds, by bucket."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its name, kind, description and labels."""

    name: str
    kind: MetricKind
    description: str
    """One line: what is counted, in which unit."""
    labels: tuple[str, ...] = ()


Value = float | Histogram

Series = tuple[Family, Mapping[tuple[str, ...], Value]]
"""A family with its values, each under the values of the family's labels."""


def render_page(series: Iterable[Series]) -> str:
    """Renders the page. A family without values is left out."""
    import prometheus_client  # imported late: it brings a web server, which takes 80 ms

    metrics = [_build_metric(prometheus_client.Metric, *each) for each in series if each[1]]
    return prometheus_client.generate_latest(_Page(metrics)).decode()


@dataclass(frozen=True, slots=True)
class _Page:
    """The interface of the library's registries."""

    metrics: "list[Metric]"

    def collect(self) -> "list[Metric]":
        return self.metrics


def _build_metric(kind: "type[Metric]", family: Family, values: Mapping[tuple[str, ...], Value]) -> "Metric":
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
"""Value of each series by its labels, by the name of its family."""


@dataclass(slots=True)
class Totals:
    """The totals of one process, or of several together."""

    counts: Sums = field(default_factory=dict)
    """Only grow."""
    gauges: Sums = field(default_factory=dict)
    """Valid while their process lives."""

    @staticmethod
    def of(series: Iterable[Series]) -> "Totals":
        """Collects the totals of a process."""
        totals = Totals()
        for family, values in series:
            sums = totals.gauges if family.kind is MetricKind.GAUGE else totals.counts
            sums[family.name] = dict(values)
        return totals

    def add(self, more: "Totals", lives: bool = True) -> None:
        """Adds totals of another process. `lives`: whether its gauges are still valid."""
        _add(self.counts, more.counts)
        if lives:
            _add(self.gauges, more.gauges)


def sum_series(own: Iterable[Series], others: Totals, is_served: Callable[[str], bool]) -> Iterator[Series]:
    """Adds the totals of others to this process's series, for models that are served."""
    for family, values in own:
        more = others.gauges if family.kind is MetricKind.GAUGE else others.counts
        place = family.labels.index(MODEL) if MODEL in family.labels else None
        served = {
            labels: value
            for labels, value in more.get(family.name, {}).items()
            if place is None or is_served(labels[place])
        }
        sums: Sums = {family.name: dict(values)}
        _add(sums, {family.name: served})
        yield family, sums[family.name]


def _add(sums: Sums, more: Sums) -> None:
    for family, series in more.items():
        held = sums.setdefault(family, {})
        for labels, value in series.items():
            held[labels] = _add_values(held[labels], value) if labels in held else value


def _add_values(one: Number, other: Number) -> Number:
    if isinstance(one, Histogram) and isinstance(other, Histogram):
        return Histogram(tuple(map(int.__add__, one.counts, other.counts)), one.total + other.total)
    if isinstance(one, Histogram) or isinstance(other, Histogram):
        raise TypeError("a histogram and a number have no sum")
    return one + other
