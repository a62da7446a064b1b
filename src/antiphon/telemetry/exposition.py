"""Families of numbers, and the page that Prometheus reads of them. Counts nothing itself.

prometheus-client writes the text, in version 0.0.4 of the format, which every scraper reads. Its own counters
are not used. A family says once what its numbers mean, so that the documentation is made from the same value.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING

from antiphon.domain.load import LATENCY_BOUNDS, Histogram

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (*map(str, LATENCY_BOUNDS), "+Inf")
"""Of buckets, as the page has them."""


class Kind(StrEnum):
    """How a family's numbers behave."""

    COUNTER = "counter"
    """Only grows, from 0 at the start of its process."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    """Seconds, by bucket."""


@dataclass(frozen=True, slots=True)
class Family:
    """What one name stands for."""

    name: str
    kind: Kind
    says: str
    """One line: what is counted, in which unit."""
    labels: tuple[str, ...] = ()


Value = float | Histogram

Series = tuple[Family, Mapping[tuple[str, ...], Value]]
"""A family with its values, each under the values of the family's labels."""


def exposition(series: Iterable[Series]) -> str:
    """The whole page. A family without values is left out."""
    import prometheus_client  # late: it brings a web server of its own, which takes 80 ms

    metrics = [_metric(prometheus_client.Metric, *each) for each in series if each[1]]
    return prometheus_client.generate_latest(_Page(metrics)).decode()


@dataclass(frozen=True, slots=True)
class _Page:
    """What the library asks for metrics, as its registries are."""

    metrics: "list[Metric]"

    def collect(self) -> "list[Metric]":
        return self.metrics


def _metric(kind: "type[Metric]", family: Family, values: Mapping[tuple[str, ...], Value]) -> "Metric":
    metric = kind(family.name.removesuffix("_total"), family.says, family.kind)
    for labelled, value in values.items():
        labels = dict(zip(family.labels, labelled, strict=True))
        if isinstance(value, Histogram):
            # On the wire buckets are cumulative.
            for bound, below in zip(BOUNDS, accumulate(value.counts), strict=True):
                metric.add_sample(f"{family.name}_bucket", labels | {"le": bound}, below)
            metric.add_sample(f"{family.name}_sum", labels, value.total)
            metric.add_sample(f"{family.name}_count", labels, sum(value.counts))
        else:
            metric.add_sample(family.name, labels, value)
    return metric
