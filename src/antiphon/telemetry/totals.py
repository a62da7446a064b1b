"""What several HTTP processes count, as one: each reports its totals, and sums are made of them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from antiphon.domain.load import Histogram
from antiphon.telemetry.exposition import Kind, Series

MODEL = "model"
"""The label by which a series is of a model."""

Number = int | float | Histogram

Sums = dict[str, dict[tuple[str, ...], Number]]
"""Value of each series by its labels, by the name of its family."""


@dataclass(slots=True)
class Totals:
    """What one process counts, or several together."""

    counts: Sums = field(default_factory=dict)
    """Only grow."""
    gauges: Sums = field(default_factory=dict)
    """Hold while their process lives."""

    @staticmethod
    def of(series: Iterable[Series]) -> "Totals":
        """What a process counts."""
        totals = Totals()
        for family, values in series:
            sums = totals.gauges if family.kind is Kind.GAUGE else totals.counts
            sums[family.name] = dict(values)
        return totals

    def add(self, more: "Totals", lives: bool = True) -> None:
        """Adds what a process counts. `lives`: whether its gauges hold."""
        _add(self.counts, more.counts)
        if lives:
            _add(self.gauges, more.gauges)


def summed(own: Iterable[Series], others: Totals, is_served: Callable[[str], bool]) -> Iterator[Series]:
    """This process's numbers and those of others; of others only models that are served."""
    for family, values in own:
        more = others.gauges if family.kind is Kind.GAUGE else others.counts
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
            held[labels] = _plus(held[labels], value) if labels in held else value


def _plus(one: Number, other: Number) -> Number:
    if isinstance(one, Histogram) and isinstance(other, Histogram):
        return Histogram(tuple(map(int.__add__, one.counts, other.counts)), one.total + other.total)
    if isinstance(one, Histogram) or isinstance(other, Histogram):
        raise TypeError("a histogram and a number have no sum")
    return one + other
