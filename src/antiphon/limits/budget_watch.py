"""Notes how much of each budget is used, and reports each share that is reached. It knows no store: another
process or an earlier start may have reported the same."""

from collections.abc import Callable, Sequence

from antiphon.domain.limits import BudgetWarning, Limit
from antiphon.limits.windows import find_period

ALL = 1.0
"""The share that is also reached when a budget refuses a request, since it has no room for more."""


class BudgetWatch:
    """The budgets that one limiter counts."""

    def __init__(self, shares: Sequence[float], warn: Callable[[BudgetWarning], None]) -> None:
        """`shares`: of a budget's amount, above 0 and at most 1. `warn` must not wait."""
        self._shares = frozenset(shares)
        self._warn = warn
        self._reported: dict[str, tuple[int, frozenset[float]]] = {}
        """By limit id: the beginning of the window, and the shares of it that were reported."""

    def note(self, limit: Limit, used: int, now: float, is_exhausted: bool = False) -> None:
        """Notes what is used of a budget in the window of `now` (Unix seconds). `is_exhausted`: whether it
        refused a request."""
        if limit.window is None or not limit.is_budget or not limit.amount:
            return
        reached = {share for share in self._shares if used >= share * limit.amount}
        if is_exhausted and ALL in self._shares:
            reached.add(ALL)
        if not reached:
            return
        begin, end = find_period(limit.window, now)
        earlier_begin, earlier = self._reported.get(limit.id, (begin, frozenset[float]()))
        reported = earlier if earlier_begin == begin else frozenset[float]()
        if new := sorted(reached - reported):
            self._reported[limit.id] = begin, reported | reached
            for share in new:
                self._warn(BudgetWarning(limit, share, used, int(now), begin, end))
