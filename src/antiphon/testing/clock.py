"""A clock that moves only when a test advances it, with countable ids and seeds."""

from itertools import count


class FakeClock:
    """A `Clock` that tests control: equal calls in equal order give equal values."""

    def __init__(self, monotonic: float = 1000.0, wall: float = 1_800_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._ids = count(1)
        self._seeds = count(1)

    def advance(self, seconds: float) -> None:
        """Moves both times forward."""
        self._monotonic += seconds
        self._wall += seconds

    def monotonic(self) -> float:
        return self._monotonic

    def wall(self) -> float:
        return self._wall

    def unique(self) -> str:
        return f"{next(self._ids):032x}"

    def seed(self) -> int:
        return next(self._seeds)
