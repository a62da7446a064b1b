"""Watches how much of each budget is used, and reports when a share of it is reached, for example 80 percent.

The watch keeps its state in memory. So several processes can report the same share, and a process can report
it again after a restart.
"""

from collections.abc import Callable, Sequence
from math import inf

from antiphon.domain.limits import BudgetWarning, Limit
from antiphon.limits.windows import find_period

WHOLE_BUDGET = 1.0
"""The share that also counts as reached when the budget refuses a request."""


class BudgetWatch:
    """Reports reached shares of the budgets of one limiter."""

    def __init__(self, shares: Sequence[float], warn: Callable[[BudgetWarning], None]) -> None:
        """`shares`: the fractions of a budget to report, above 0 and at most 1. `warn` is called with each
        report, and must not block."""
        self._shares = frozenset(shares)
        self._smallest_share = min(self._shares, default=inf)
        self._warn = warn
        self._reported: dict[str, tuple[int, frozenset[float]]] = {}
        """By limit id: the beginning of the budget's period, and the shares reported in this period."""

    def observe(self, limit: Limit, used: int, now: float, is_exhausted: bool = False) -> None:
        """Reports the shares that are newly reached. `used`: the amount used in the window of `now` (Unix
        seconds). `is_exhausted`: whether the budget refused a request."""
        if limit.window is None or not limit.is_budget or not limit.amount:
            return
        if used < self._smallest_share * limit.amount and not is_exhausted:  # the usual case
            return
        reached = {share for share in self._shares if used >= share * limit.amount}
        if is_exhausted and WHOLE_BUDGET in self._shares:
            reached.add(WHOLE_BUDGET)
        if not reached:
            return
        period_begin, period_end = find_period(limit.window, now)
        reported_begin, reported = self._reported.get(limit.id, (period_begin, frozenset[float]()))
        if reported_begin != period_begin:
            reported = frozenset()
        if new_shares := sorted(reached - reported):
            self._reported[limit.id] = period_begin, reported | reached
            for share in new_shares:
                self._warn(BudgetWarning(limit, share, used, int(now), period_begin, period_end))
