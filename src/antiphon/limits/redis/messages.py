"""What is sent to the scripts of `limits.scripts`, and what they answer. Speaks with nobody."""

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.domain.limits import Amounts, Limit, LimitStatus, Measure, Window
from antiphon.errors import LimitsUnavailable
from antiphon.limits.refusals import build_refusal, pick_worst
from antiphon.limits.windows import find_period, find_period_bounds

MICRO = 1_000_000
INTEGERS_END = 2**63
"""Of Redis."""
CONCURRENT_KIND = "running"
"""The kind of what is counted at once."""
Argument = str | int


@dataclass(frozen=True, slots=True)
class ScriptAnswer:
    """Of STANDING or TAKE."""

    status: str
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
    def parse(said: object) -> "ScriptAnswer":
        """Raises LimitsUnavailable for what no script of ours says."""
        match said:
            case ["stands", [*rows]]:
                return ScriptAnswer("stands", [_parse_integers(row) for row in rows])
            case ["unknown", [*numbers]]:
                return ScriptAnswer("unknown", numbers=[number - 1 for number in _parse_integers(numbers)])
            case ["refused", [*rows], [*refusals], int(at)]:
                refused = [(number - 1, *said) for number, *said in map(_parse_integers, refusals)]
                return ScriptAnswer(
                    "refused", [_parse_integers(row) for row in rows], refusals=refused, at=at
                )
        raise LimitsUnavailable("Redis answers what it was not asked", retry_after=1.0)

    def build_statuses(self, limits: Sequence[Limit], asked: Sequence[int] = ()) -> tuple[LimitStatus, ...]:
        """How limits stand. Raises what refuses, where one of them does."""
        standings = tuple(
            LimitStatus(limit, max(0, limit.amount - used), reset / MICRO)
            for limit, (used, reset) in zip(limits, self.rows, strict=True)
        )
        if not self.refusals:
            return standings
        refusals = (
            (build_refusal(limits[place], asked[place], own, wait / MICRO, self.at / 1_000), place)
            for place, wait, own in self.refusals
        )
        raise pick_worst(refusals, standings)


def counter_kind(limit: Limit) -> str:
    """How the scripts name what a limit counts by."""
    if limit.measure is Measure.CONCURRENT or limit.window is None:
        return CONCURRENT_KIND
    return str(limit.window)


def encode_limits(limits: Sequence[Limit], asked: Sequence[int], now: float) -> list[Argument]:
    """Limits with what is asked of each, as arguments. `now`: Unix seconds."""
    said: list[Argument] = []
    for limit, amount in zip(limits, asked, strict=True):
        said += [limit.id, counter_kind(limit), str(limit.measure), limit.amount, amount]
        said += (
            find_period_bounds(limit.window, now) if limit.window not in (None, Window.MINUTE) else (0, 0, 0)
        )
    return said


def encode_claim(claim: str, amounts: Amounts) -> list[Argument]:
    """What a claim really used, as arguments."""
    return [claim, amounts.requests, amounts.input_tokens, amounts.output_tokens, amounts.cost]


def encode_seed(limit: Limit, taken: Sequence[tuple[float, int]], now: float) -> list[Argument]:
    """What was taken of a limit before it had a counter, as arguments: of a period the sum. `now`: Unix
    seconds."""
    said: list[Argument] = [limit.id, counter_kind(limit)]
    if limit.window is None:
        return said
    if limit.window is not Window.MINUTE:
        begin = find_period(limit.window, now)[0]
        return [*said, begin, min(sum(amount for at, amount in taken if at >= begin), INTEGERS_END - 1)]
    for at, amount in sorted(taken):
        said += [int(at * MICRO), amount]
    return said


def _parse_integers(row: object) -> list[int]:
    """Numbers, of which large ones come as text."""
    try:
        if isinstance(row, list):
            return [each if isinstance(each, int) else int(str(each)) for each in row]
    except ValueError:
        pass
    raise LimitsUnavailable("Redis answers what it was not asked", retry_after=1.0)
