"""Figures of a measurement: from the times of single requests to percentiles, and their plot in text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from antiphon.cli.load import Timed

EIGHTHS = " ▏▎▍▌▋▊▉"
BINS = 10
WIDTH = 40
"""Columns of the longest bar, where there is room."""
BESIDE = 24
"""Columns of a line of the plot that are no bar."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How values lie."""

    median: float
    p95: float
    p99: float
    maximum: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured; times in seconds."""

    answered: int
    failed: int
    wall: float
    """From the first request to the end of the last."""
    prompt_tokens: float | None
    """Of the median prompt; None when the server does not count."""
    tokens: int
    """Of all answers: by the server's count, or else the pieces of text."""
    counted: bool
    """Whether the server counted them."""
    ttft: Spread | None
    """From sending a request, connecting included, to its first text."""
    inter_token: Spread | None
    """Between two pieces of text, which most servers send for each token."""
    problems: dict[str, int]
    """Why requests failed, and how many each."""

    @property
    def tokens_per_second(self) -> float:
        """Of all requests together."""
        return self.tokens / self.wall if self.wall else 0.0

    @property
    def requests_per_second(self) -> float:
        return self.answered / self.wall if self.wall else 0.0


def figures(results: Sequence[Timed]) -> Figures:
    """The figures of at least one request; failed ones count only as failed."""
    good = [result for result in results if not result.problem]
    counted = all(result.usage for result in good)
    return Figures(
        answered=len(good),
        failed=len(results) - len(good),
        wall=max(result.ended for result in results) - min(result.began for result in results),
        prompt_tokens=_prompt_tokens(good),
        tokens=sum(result.usage.completion if result.usage else len(result.arrivals) for result in good),
        counted=counted,
        ttft=spread(waits(good)),
        inter_token=spread(gaps(good)),
        problems=dict(Counter(result.problem for result in results if result.problem)),
    )


def waits(results: Sequence[Timed]) -> list[float]:
    """Seconds to the first text of each request that had one."""
    return [result.arrivals[0] - result.began for result in results if result.arrivals]


def gaps(results: Sequence[Timed]) -> list[float]:
    """Seconds between neighbouring pieces of text, over all requests."""
    return [later - earlier for result in results for earlier, later in pairwise(result.arrivals)]


def _prompt_tokens(results: Sequence[Timed]) -> float | None:
    counts = [float(result.usage.prompt) for result in results if result.usage]
    return percentile(counts, 50) if counts else None


def spread(values: Sequence[float]) -> Spread | None:
    """None of no values."""
    if not values:
        return None
    return Spread(percentile(values, 50), percentile(values, 95), percentile(values, 99), max(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """By linear interpolation between the nearest ranks."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def histogram(values: Sequence[float], columns: int = WIDTH + BESIDE) -> list[str]:
    """A line for each range of values: its lower end in milliseconds, a bar, how many. The last range also
    holds what lies beyond the 99th percentile, so that one straggler does not flatten the rest. `columns`: of
    the terminal."""
    width = max(1, min(WIDTH, columns - BESIDE))
    low, high = min(values), percentile(values, 99)
    step = (high - low) / BINS or 1e-9
    counts = Counter(min(BINS - 1, int((value - low) / step)) for value in values)
    most = max(counts.values())
    return [
        f"{(low + index * step) * 1000:10.1f} ms  {bar(counts[index] / most, width):{width}}  {counts[index]}"
        for index in range(BINS)
    ]


def bar(share: float, width: int = WIDTH) -> str:
    """A bar of `width` columns at a share of 1, drawn in eighths of a column."""
    whole, eighths = divmod(round(share * width * 8), 8)
    return "█" * whole + (EIGHTHS[eighths] if eighths else "")
