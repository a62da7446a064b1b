"""Watches how much of each budget is used, and reports when a share of it is reached, for example 80 percent.

The state of the watch is in memory. So several processes can report the same share, and a process can report
it again after a restart.
"""

from collections.abc import Callable, Sequence
from math import inf

from antiphon.domain.limits import BudgetWarning, Limit
from antiphon.limits.windows import find_period

WHOLE_BUDGET = 1.0
"""The share of a completely used budget. It is also reported when the budget refuses a request."""


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
        """Reports each share that is reached and was not reported in this window. `used`: the amount used in
        the window of `now` (Unix seconds). `is_exhausted`: whether the budget refused a request."""
        if used < self._smallest_share * limit.amount and not is_exhausted:  # the usual case
            return
        if limit.window is None or not limit.is_budget or not limit.amount:
            return
        reached_shares = {share for share in self._shares if used >= share * limit.amount}
        if is_exhausted and WHOLE_BUDGET in self._shares:
            reached_shares.add(WHOLE_BUDGET)
        if not reached_shares:
            return
        period_begin, period_end = find_period(limit.window, now)
        last_begin, reported_shares = self._reported.get(limit.id, (period_begin, frozenset[float]()))
        if last_begin != period_begin:
            reported_shares = frozenset()
        if new_shares := sorted(reached_shares - reported_shares):
            self._reported[limit.id] = period_begin, reported_shares | reached_shares
            for share in new_shares:
                self._warn(BudgetWarning(limit, share, used, int(now), period_begin, period_end))
