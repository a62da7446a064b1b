"""The counts of one route of a model, for metrics."""

from collections import Counter

from antiphon.domain.models import Timer


class RouteCounts:
    """The counts of one route in one process. All names of a pattern are counted together."""

    __slots__ = ("first_events", "in_flight", "outcomes", "rests")

    def __init__(self) -> None:
        self.in_flight = 0
        """Requests that run on the route, streams included."""
        self.outcomes: Counter[str] = Counter()
        """Attempts that ended: `ok`, `cancelled` by the caller, or the code of their error."""
        self.rests = 0
        """Rests after failures."""
        self.first_events = Timer()
        """Times from an attempt to its first event."""
