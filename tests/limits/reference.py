"""The obvious limiter: every amount with the moment at which it was taken, in a list. Slow, and plain to
see."""

from dataclasses import dataclass, field

from antiphon.domain.limits import Amounts, Limit, Measure, Window
from antiphon.limits.windows import find_period

MINUTE = 60.0


@dataclass
class Taken:
    at: float
    claim: str
    amount: int


@dataclass
class Reference:
    """One limit. Times are seconds; `start` is the Unix time of 0."""

    limit: Limit
    start: float
    taken: list[Taken] = field(default_factory=list)

    def counts(self, at: float, margin: float = 0.0) -> int:
        """What counts at a moment; `margin`: of a window that is so much longer."""
        return sum(each.amount for each in self.taken if self._holds(each, at, margin))

    def _holds(self, each: Taken, at: float, margin: float) -> bool:
        if self.limit.measure is Measure.CONCURRENT or self.limit.window is None:
            return True
        if self.limit.window is Window.MINUTE:
            return each.at > at - MINUTE - margin
        begin, end = find_period(self.limit.window, self.start + at)
        return begin <= self.start + each.at < end

    def take(self, at: float, claim: str, amounts: Amounts, first: bool) -> None:
        if amount := self.asked(amounts, first):
            self.taken.append(Taken(at, claim, amount))

    def asked(self, amounts: Amounts, first: bool) -> int:
        return amounts.index_by_measure(concurrent=int(first))[self.limit.measure]

    def settle(self, claim: str, amounts: Amounts) -> None:
        """Only for what was really used is at most what was reserved."""
        excess = sum(each.amount for each in self.taken if each.claim == claim)
        excess -= amounts.index_by_measure()[self.limit.measure]
        for each in reversed([each for each in self.taken if each.claim == claim]):
            less = min(each.amount, excess)
            each.amount -= less
            excess -= less
        self.taken = [each for each in self.taken if each.amount]
