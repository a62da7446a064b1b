"""What an engine does at this moment and did so far, in numbers."""

from bisect import bisect_left
from dataclasses import dataclass

LATENCY_BOUNDS: tuple[float, ...] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
"""Upper bounds of a Histogram's buckets, in seconds; the last bucket has none."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often a time fell into each bucket; only grows."""

    counts: tuple[int, ...] = (0,) * (len(LATENCY_BOUNDS) + 1)
    """One for each bound, not cumulative, and one for what is above all."""
    total: float = 0.0
    """Seconds of all together."""


class Timer:
    """A histogram that grows. One thread adds, any may look."""

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BOUNDS) + 1)
        self._total = 0.0

    def add(self, seconds: float) -> None:
        """Notes that something took so long."""
        self._counts[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self._total += seconds

    def add_several(self, seconds: float, times: int) -> None:
        """The same, so many times."""
        self._counts[bisect_left(LATENCY_BOUNDS, seconds)] += times
        self._total += seconds * times

    def histogram(self) -> Histogram:
        """What came so far."""
        return Histogram(tuple(self._counts), self._total)


@dataclass(frozen=True, slots=True)
class AdapterLoad:
    """What one adapter does now."""

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
    """Cells that there are."""
    cells_cached: int = 0
    """Cells that no running sequence uses, kept for requests that begin alike; free when needed."""
    cached_tokens: int = 0
    """Prompt tokens taken from kept or running prefixes so far."""
    admitted: int = 0
    """Sequences admitted to the batch so far."""
    prefix_hits: int = 0
    """Of these, those that shared a prefix."""
    preemptions: int = 0
    """Sequences put back into the queue because cells ran out, so far."""
    refused: int = 0
    """Sequences refused because the queue was full, so far."""
    queue_seconds: Histogram = Histogram()
    """From asking to admission."""
    first_token_seconds: Histogram = Histogram()
    """From asking to the first token."""
    inter_token_seconds: Histogram = Histogram()
    """Between tokens of one sequence."""
    adapters: tuple[AdapterLoad, ...] = ()
    """The same by adapter, of those that were used and are not removed."""
