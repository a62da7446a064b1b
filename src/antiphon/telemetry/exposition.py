"""Prometheus' text format: families of numbers as lines. Knows no number of its own, and keeps none.

The format is version 0.0.4, which every scraper reads. A family says once what its numbers mean, so that the
documentation is made from the same value.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from antiphon.domain.load import LATENCY_BOUNDS, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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
    return "".join(line for family, values in series if values for line in _lines(family, values))


def _lines(family: Family, values: Mapping[tuple[str, ...], Value]) -> Iterator[str]:
    says = family.says.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {family.name} {says}\n# TYPE {family.name} {family.kind}\n"
    for labelled, value in values.items():
        labels = [f'{name}="{_quoted(text)}"' for name, text in zip(family.labels, labelled, strict=True)]
        if isinstance(value, Histogram):
            yield from _buckets(family.name, labels, value)
        else:
            yield f"{family.name}{_braced(labels)} {value}\n"


def _buckets(name: str, labels: list[str], value: Histogram) -> Iterator[str]:
    """On the wire buckets are cumulative."""
    below = 0
    for bound, count in zip((*map(str, LATENCY_BOUNDS), "+Inf"), value.counts, strict=True):
        below += count
        within = f'le="{bound}"'
        yield f"{name}_bucket{_braced([*labels, within])} {below}\n"
    yield f"{name}_sum{_braced(labels)} {value.total}\n{name}_count{_braced(labels)} {below}\n"


def _braced(labels: list[str]) -> str:
    return f"{{{','.join(labels)}}}" if labels else ""


def _quoted(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
