"""Watches how much of each budget is used, and reports each share that is reached.

The watch keeps its state in memory. Another process, or this one before a restart, can report the same
share.
"""

from collections.abc import Callable, Sequence
from math import inf

from antiphon.domain.limits import BudgetWarning, Limit
from antiphon.limits.windows import find_period

WHOLE_BUDGET = 1.0
"""This share counts as reached also when the budget refuses a request."""


class BudgetWatch:
    """Reports reached shares of the budgets of one limiter."""

    def __init__(self, shares: Sequence[float], warn: Callable[[BudgetWarning], None]) -> None:
        """`shares`: fractions of a budget to report, above 0 and at most 1. `warn`: gets the reports; must
        not wait."""
        self._shares = frozenset(shares)
        self._least = min(self._shares, default=inf)
        self._warn = warn
        self._reported: dict[str, tuple[int, frozenset[float]]] = {}
        """By limit id: the beginning of the budget's window, and the shares that were reported in this
        window."""

    def observe(self, limit: Limit, used: int, now: float, is_exhausted: bool = False) -> None:
        """Reports the shares that are newly reached. `used`: the amount used in the window of `now` (Unix
        seconds). `is_exhausted`: whether the budget refused a request."""
        if limit.window is None or not limit.is_budget or not limit.amount:
            return
        if used < self._least * limit.amount and not is_exhausted:  # nearly always
            return
        reached = {share for share in self._shares if used >= share * limit.amount}
        if is_exhausted and WHOLE_BUDGET in self._shares:
            reached.add(WHOLE_BUDGET)
        if not reached:
            return
        begin, end = find_period(limit.window, now)
        reported_begin, reported = self._reported.get(limit.id, (begin, frozenset[float]()))
        if reported_begin != begin:
            reported = frozenset()
        if new := sorted(reached - reported):
            self._reported[limit.id] = begin, reported | reached
            for share in new:
                self._warn(BudgetWarning(limit, share, used, int(now), begin, end))
