"""Readings of a server's /metrics page: values, percentiles and tables for `antiphon top`."""

from collections.abc import Mapping
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families
from rich.table import Table

from antiphon.domain.values import Struct

NAME_WIDTH = 14
"""The most columns of a model's name, so that a table fits into 80 columns."""

SECONDS_FROM = 10.0
"""Latencies of at least this many seconds are displayed in seconds, and shorter ones in milliseconds."""

Labels = frozenset[tuple[str, str]]


class Reading(Struct, frozen=True):
    """The values of a metrics page at one time."""

    read_at: float
    """The time of the reading in monotonic seconds."""
    samples: Mapping[tuple[str, Labels], float]

    def get_value(self, name: str, **labels: str) -> float | None:
        """Returns a value; None if the page lacks it."""
        return self.samples.get((name, frozenset(labels.items())))

    def list_label_values(self, name: str, label: str, **other_labels: str) -> list[str]:
        """Returns the values of one label of a metric, in the page's order.

        `other_labels`: the required values of other labels.
        """
        required = frozenset(other_labels.items())
        label_sets = (
            dict(labels) for sample_name, labels in self.samples if sample_name == name and required <= labels
        )
        return list(dict.fromkeys(labels[label] for labels in label_sets if label in labels))

    def read_buckets(self, name: str, **labels: str) -> dict[float, float]:
        """Returns a histogram's cumulative counts, by upper bound. `labels`: all its other labels."""
        bounds = self.list_label_values(f"{name}_bucket", "le", **labels)
        counts = {bound: self.get_value(f"{name}_bucket", le=bound, **labels) for bound in bounds}
        return {float(bound): count for bound, count in counts.items() if count is not None}


class Latency(Struct, frozen=True):
    """Percentiles in seconds between two readings, with the accuracy of the histogram's buckets."""

    p50: float
    p95: float


def parse_page(page: str, read_at: float) -> Reading:
    """Parses a metrics page. Raises ValueError for any other text. `read_at`: monotonic seconds."""
    families = text_string_to_metric_families(page)
    samples = (sample for family in families for sample in family.samples)
    return Reading(
        read_at, {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    )


def estimate_latency(earlier: Reading, later: Reading, name: str, **labels: str) -> Latency | None:
    """Estimates the percentiles of what a histogram measured between two readings. Returns None if it
    measured nothing."""
    earlier_counts, later_counts = earlier.read_buckets(name, **labels), later.read_buckets(name, **labels)
    increases = {bound: count - earlier_counts.get(bound, 0.0) for bound, count in later_counts.items()}
    if not increases or min(increases.values()) < 0 or max(increases.values()) == 0:
        return None
    return Latency(estimate_quantile(increases, 0.5), estimate_quantile(increases, 0.95))


def estimate_quantile(cumulative_counts: Mapping[float, float], share: float) -> float:
    """Estimates the value that a share of all values does not exceed.

    Interpolates within a bucket. Values above the last bound count as that bound. `cumulative_counts`: counts
    by upper bound, at least one.
    """
    target = share * max(cumulative_counts.values())
    previous_bound = 0.0
    for (lower_bound, lower_count), (upper_bound, upper_count) in pairwise(
        [(0.0, 0.0), *sorted(cumulative_counts.items())]
    ):
        previous_bound = lower_bound
        if upper_bound == float("inf"):
            break
        if upper_count >= target:
            return lower_bound + (upper_bound - lower_bound) * (target - lower_count) / (
                upper_count - lower_count
            )
    return previous_bound


def build_table(name_heading: str, *headings: str) -> Table:
    """Builds an empty table: a left column of names and right columns of figures."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(name_heading, no_wrap=True, max_width=NAME_WIDTH)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def format_rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def format_latency(value: Latency | None) -> str:
    return "-" if value is None else f"{_format_milliseconds(value.p50)}/{_format_milliseconds(value.p95)}"


def _format_milliseconds(seconds: float) -> str:
    if seconds >= SECONDS_FROM:
        return f"{seconds:.0f}s"
    return f"{seconds * 1000:.0f}" if seconds >= 0.01 else f"{seconds * 1000:.1f}"
