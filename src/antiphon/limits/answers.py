"""What is sent to the scripts of `limits.scripts`, and what they answer. Speaks with nobody."""

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.domain.limits import Amounts, Limit, LimitStatus, Measure, Window
from antiphon.errors import LimitsUnavailable
from antiphon.limits.periods import bounds, period
from antiphon.limits.wording import refusal, worst

MICRO = 1_000_000
INTEGERS_END = 2**63
"""Of Redis."""
RUNNING = "running"
"""The kind of what is counted at once."""
Argument = str | int


@dataclass(frozen=True, slots=True)
class Answer:
    """Of STANDING or TAKE."""

    word: str
    """`stands`, `refused` or `unknown`."""
    rows: Sequence[Sequence[int]] = ()
    """By limit what is used, and microseconds until nothing of it is."""
    numbers: Sequence[int] = ()
    """Places of the unknown limits."""
    refusals: Sequence[Sequence[int]] = ()
    """Places of the limits that say no, with microseconds until they do not, and what the request
    itself took of them before its size was known."""
    at: int = 0
    """Unix milliseconds."""

    @staticmethod
    def of(said: object) -> "Answer":
        """Raises LimitsUnavailable for what no script of ours says."""
        match said:
            case ["stands", [*rows]]:
                return Answer("stands", [_integers(row) for row in rows])
            case ["unknown", [*numbers]]:
                return Answer("unknown", numbers=[number - 1 for number in _integers(numbers)])
            case ["refused", [*rows], [*refusals], int(at)]:
                refused = [(number - 1, *said) for number, *said in map(_integers, refusals)]
                return Answer("refused", [_integers(row) for row in rows], refusals=refused, at=at)
        raise LimitsUnavailable("Redis answers what it was not asked", retry_after=1.0)

    def standings(self, limits: Sequence[Limit], asked: Sequence[int] = ()) -> tuple[LimitStatus, ...]:
        """How limits stand. Raises what refuses, where one of them does."""
        standings = tuple(
            LimitStatus(limit, max(0, limit.amount - used), reset / MICRO)
            for limit, (used, reset) in zip(limits, self.rows, strict=True)
        )
        if not self.refusals:
            return standings
        refusals = (
            (refusal(limits[place], asked[place], own, wait / MICRO, self.at / 1_000), place)
            for place, wait, own in self.refusals
        )
        raise worst(refusals, standings)


def kind_of(limit: Limit) -> str:
    """How the scripts name what a limit counts by."""
    if limit.measure is Measure.CONCURRENT or limit.window is None:
        return RUNNING
    return str(limit.window)


def limits_said(limits: Sequence[Limit], asked: Sequence[int], now: float) -> list[Argument]:
    """Limits with what is asked of each, as arguments. `now`: Unix seconds."""
    said: list[Argument] = []
    for limit, amount in zip(limits, asked, strict=True):
        said += [limit.id, kind_of(limit), str(limit.measure), limit.amount, amount]
        said += bounds(limit.window, now) if limit.window not in (None, Window.MINUTE) else (0, 0, 0)
    return said


def used_said(claim: str, amounts: Amounts) -> list[Argument]:
    """What a claim really used, as arguments."""
    return [claim, amounts.requests, amounts.input_tokens, amounts.output_tokens, amounts.cost]


def taken_said(limit: Limit, taken: Sequence[tuple[float, int]], now: float) -> list[Argument]:
    """What was taken of a limit before it had a counter, as arguments: of a period the sum. `now`: Unix
    seconds."""
    said: list[Argument] = [limit.id, kind_of(limit)]
    if limit.window is None:
        return said
    if limit.window is not Window.MINUTE:
        begin = period(limit.window, now)[0]
        return [*said, begin, min(sum(amount for at, amount in taken if at >= begin), INTEGERS_END - 1)]
    for at, amount in sorted(taken):
        said += [int(at * MICRO), amount]
    return said


def _integers(row: object) -> list[int]:
    """Numbers, of which large ones come as text."""
    try:
        if isinstance(row, list):
            return [each if isinstance(each, int) else int(str(each)) for each in row]
    except ValueError:
        pass
    raise LimitsUnavailable("Redis answers what it was not asked", retry_after=1.0)
