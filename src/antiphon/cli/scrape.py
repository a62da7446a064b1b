"""What a server's /metrics page says, read back from Prometheus' text format. Asks nobody."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
ESCAPED = re.compile(r"\\(.)")

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
    """The page, without what is not of its form."""
    return Reading(when, dict(_samples(page)))


def _samples(page: str) -> Iterator[tuple[tuple[str, Labels], float]]:
    for line in page.split("\n"):
        if (found := SAMPLE.fullmatch(line)) is None:
            continue
        name, labelled, value = found.groups()
        labels = ((label, ESCAPED.sub(_meant, text)) for label, text in LABEL.findall(labelled or ""))
        try:
            yield (name, frozenset(labels)), float(value)
        except ValueError:
            continue


def _meant(escaped: re.Match[str]) -> str:
    return "\n" if escaped[1] == "n" else escaped[1]
