"""Readings of a server's /metrics page: their values, percentiles and tables, for `antiphon top`."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families
from rich.table import Table

NAME = 14
"""Columns of a model's name, so that a table fits into 80 columns."""

LONG = 10.0
"""Latencies from this one on are shown in seconds instead of milliseconds."""

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures of one page."""

    when: float
    """The time of the reading, in monotonic seconds."""
    samples: Mapping[tuple[str, Labels], float]

    def value(self, name: str, **labels: str) -> float | None:
        """Returns a value; None if the page lacks it."""
        return self.samples.get((name, frozenset(labels.items())))

    def labels(self, name: str, label: str, **given: str) -> list[str]:
        """Returns the values of one label of a family, in the page's order. `given`: required values of other
        labels."""
        required = frozenset(given.items())
        label_sets = (dict(labels) for each, labels in self.samples if each == name and required <= labels)
        return list(dict.fromkeys(labels[label] for labels in label_sets if label in labels))

    def buckets(self, name: str, **labels: str) -> dict[float, float]:
        """Returns a histogram's cumulative counts, by upper bound. `labels`: all its labels but the bound."""
        bounds = self.labels(f"{name}_bucket", "le", **labels)
        counts = {bound: self.value(f"{name}_bucket", le=bound, **labels) for bound in bounds}
        return {float(bound): count for bound, count in counts.items() if count is not None}


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles in seconds between two readings, as exact as the histogram's buckets."""

    p50: float
    p95: float


def parse_page(page: str, when: float) -> Reading:
    """Parses a page. Raises ValueError for any other text."""
    families = text_string_to_metric_families(page)
    samples = (sample for family in families for sample in family.samples)
    return Reading(when, {(each.name, frozenset(each.labels.items())): each.value for each in samples})


def estimate_latency(earlier: Reading, later: Reading, name: str, **labels: str) -> Latency | None:
    """Returns the percentiles of a histogram between two readings; None if nothing was measured."""
    before, now = earlier.buckets(name, **labels), later.buckets(name, **labels)
    grown = {bound: count - before.get(bound, 0.0) for bound, count in now.items()}
    if not grown or min(grown.values()) < 0 or max(grown.values()) == 0:
        return None
    return Latency(estimate_quantile(grown, 0.5), estimate_quantile(grown, 0.95))


def estimate_quantile(at_most: Mapping[float, float], share: float) -> float:
    """Estimates the value below which a share of all values is, spread evenly within a bucket.

    Values above the last bound count as that bound. `at_most` is cumulative and has at least one value.
    """
    target = share * max(at_most.values())
    low = 0.0
    for (below, lower), (above, upper) in pairwise([(0.0, 0.0), *sorted(at_most.items())]):
        low = below
        if above == float("inf"):
            break
        if upper >= target:
            return below + (above - below) * (target - lower) / (upper - lower)
    return low


def build_table(first: str, *figures: str) -> Table:
    """Builds an empty table with names on the left and figures on the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True, max_width=NAME)
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def format_rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def format_latency(value: Latency | None) -> str:
    return "-" if value is None else f"{_format_milliseconds(value.p50)}/{_format_milliseconds(value.p95)}"


def _format_milliseconds(seconds: float) -> str:
    if seconds >= LONG:
        return f"{seconds:.0f}s"
    return f"{seconds * 1000:.0f}" if seconds >= 0.01 else f"{seconds * 1000:.1f}"
