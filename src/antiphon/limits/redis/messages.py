"""Encodes the arguments of the scripts in `limits.redis.scripts`, and parses their results. Does no I/O."""

from collections.abc import Sequence

from antiphon.domain.limits import Amounts, Limit, LimitStatus, Measure, Window
from antiphon.domain.values import Struct
from antiphon.errors import LimitsUnavailable
from antiphon.limits.refusals import build_refusal, pick_longest
from antiphon.limits.windows import find_period, find_period_bounds

MICRO = 1_000_000
INTEGERS_END = 2**63
"""All integers of Redis are below this number."""
CONCURRENT_KIND = "running"
"""The counter kind of running requests."""
Argument = str | int


class ScriptResult(Struct, frozen=True):
    """The result of the scripts READ_STATUS and TAKE."""

    status: str
    """`ok`, `refused`, or `unknown` if limits have no counter."""
    rows: Sequence[Sequence[int]] = ()
    """For each limit: the used amount, and the microseconds until it is 0."""
    indexes: Sequence[int] = ()
    """Indexes of limits without a counter."""
    refusals: Sequence[Sequence[int]] = ()
    """For each limit without room: its index, microseconds until there is room, and the amount that this
    claim reserved before the request's size was known."""
    now_ms: int = 0
    """Unix milliseconds."""

    @staticmethod
    def parse(reply: object) -> "ScriptResult":
        """Parses the answer of a script. Raises LimitsUnavailable for an unknown form."""
        match reply:
            case ["ok", [*rows]]:
                return ScriptResult("ok", [_parse_integers(row) for row in rows])
            case ["unknown", [*lua_indexes]]:
                indexes = [lua_index - 1 for lua_index in _parse_integers(lua_indexes)]
                return ScriptResult("unknown", indexes=indexes)
            case ["refused", [*rows], [*refusals], int(now_ms)]:
                parsed_refusals = [
                    (lua_index - 1, wait, reserved)
                    for lua_index, wait, reserved in map(_parse_integers, refusals)
                ]
                statuses = [_parse_integers(row) for row in rows]
                return ScriptResult("refused", statuses, refusals=parsed_refusals, now_ms=now_ms)
        raise LimitsUnavailable("Redis sent an answer in an unknown form", retry_after=1.0)

    def build_statuses(self, limits: Sequence[Limit], needed: Sequence[int] = ()) -> tuple[LimitStatus, ...]:
        """Returns the status of each limit. Raises the refusal that lasts longest, if there is any."""
        statuses = tuple(
            LimitStatus(limit, max(0, limit.amount - used), reset / MICRO)
            for limit, (used, reset) in zip(limits, self.rows, strict=True)
        )
        if not self.refusals:
            return statuses
        refusals = (
            (build_refusal(limits[index], needed[index], reserved, wait / MICRO, self.now_ms / 1_000), index)
            for index, wait, reserved in self.refusals
        )
        raise pick_longest(refusals, statuses)


def get_counter_kind(limit: Limit) -> str:
    """Returns the scripts' name for the kind of a limit's counter."""
    if limit.measure is Measure.CONCURRENT or limit.window is None:
        return CONCURRENT_KIND
    return str(limit.window)


def encode_limits(limits: Sequence[Limit], needed: Sequence[int], now: float) -> list[Argument]:
    """Encodes limits with the amount requested of each. `now`: Unix seconds."""
    arguments: list[Argument] = []
    for limit, amount in zip(limits, needed, strict=True):
        arguments += [limit.id, get_counter_kind(limit), str(limit.measure), limit.amount, amount]
        if limit.window in (None, Window.MINUTE):
            arguments += (0, 0, 0)
        else:
            arguments += find_period_bounds(limit.window, now)
    return arguments


def encode_claim(claim: str, amounts: Amounts) -> list[Argument]:
    """Encodes a claim with the amounts that it really used."""
    return [claim, amounts.requests, amounts.input_tokens, amounts.output_tokens, amounts.cost]


def encode_seed(limit: Limit, amounts: Sequence[tuple[float, int]], now: float) -> list[Argument]:
    """Encodes the past usage for a new counter: for a calendar period its sum, and for a sliding window each
    amount. `amounts`: pairs of Unix seconds and amount. `now`: Unix seconds."""
    arguments: list[Argument] = [limit.id, get_counter_kind(limit)]
    if limit.window is None:
        return arguments
    if limit.window is not Window.MINUTE:
        begin = find_period(limit.window, now)[0]
        total = sum(amount for at, amount in amounts if at >= begin)
        return [*arguments, begin, min(total, INTEGERS_END - 1)]
    for at, amount in sorted(amounts):
        arguments += [int(at * MICRO), amount]
    return arguments


def _parse_integers(row: object) -> list[int]:
    """Returns a row of integers. Redis sends large integers as text."""
    try:
        if isinstance(row, list):
            return [value if isinstance(value, int) else int(str(value)) for value in row]
    except ValueError:
        pass
    raise LimitsUnavailable("Redis sent an answer in an unknown form", retry_after=1.0)
