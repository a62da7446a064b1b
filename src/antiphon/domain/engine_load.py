"""The load and the totals of an engine, in numbers."""

from bisect import bisect_left
from dataclasses import dataclass

LATENCY_BOUNDS: tuple[float, ...] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
"""Upper bounds of a Histogram's buckets, in seconds; the last bucket has none."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often a time fell into each bucket; the counts only grow."""

    counts: tuple[int, ...] = (0,) * (len(LATENCY_BOUNDS) + 1)
    """One for each bound, not cumulative, and one above all bounds."""
    total: float = 0.0
    """Sum of all times, in seconds."""


class Timer:
    """A histogram that grows. One thread adds, any thread reads."""

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BOUNDS) + 1)
        self._total = 0.0

    def add(self, seconds: float) -> None:
        """Adds a time."""
        self._counts[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self._total += seconds

    def add_several(self, seconds: float, times: int) -> None:
        """Adds a time, `times` times."""
        self._counts[bisect_left(LATENCY_BOUNDS, seconds)] += times
        self._total += seconds * times

    def histogram(self) -> Histogram:
        """Returns the histogram so far."""
        return Histogram(tuple(self._counts), self._total)


@dataclass(frozen=True, slots=True)
class AdapterLoad:
    """The current load of one adapter."""

    adapter: str
    """Digest of its content."""
    running: int = 0
    queued: int = 0
    decoded_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """Live counters; the free ones return when a sequence ends, the totals only grow."""

    running: int = 0
    queued: int = 0
    free_sequences: int = 0
    cells_used: int = 0
    prefill_tokens: int = 0
    """Prompt tokens computed so far."""
    decoded_tokens: int = 0
    """Completion tokens made so far."""
    steps: int = 0
    """Calls of the library's decode so far."""
    cells: int = 0
    """All cells."""
    cells_cached: int = 0
    """Cells without a running sequence, kept for requests with the same beginning; free when needed."""
    cached_tokens: int = 0
    """Prompt tokens taken from cached or running prefixes so far."""
    admitted: int = 0
    """Sequences admitted to the batch so far."""
    prefix_hits: int = 0
    """Those of them that shared a prefix."""
    preemptions: int = 0
    """Sequences put back into the queue because cells ran out, so far."""
    refused: int = 0
    """Sequences refused because the queue was full, so far."""
    queue_seconds: Histogram = Histogram()
    """From request to admission."""
    first_token_seconds: Histogram = Histogram()
    """From request to the first token."""
    inter_token_seconds: Histogram = Histogram()
    """Between tokens of one sequence."""
    adapters: tuple[AdapterLoad, ...] = ()
    """The load of each adapter that was used and is not removed."""
