"""Builds the errors of limits, which name the limit and why the request does not fit."""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from antiphon.domain.limits import Limit, LimitStatus, Measure
from antiphon.domain.prices import format_decimal
from antiphon.errors import BudgetExceeded, LargerThanLimit, RateLimited

NOUNS: Mapping[Measure, tuple[str, str]] = MappingProxyType(
    {
        Measure.REQUESTS: ("request", "requests"),
        Measure.INPUT_TOKENS: ("input token", "input tokens"),
        Measure.OUTPUT_TOKENS: ("output token", "output tokens"),
        Measure.TOKENS: ("token", "tokens"),
        Measure.COST: ("in cost", "in cost"),
        Measure.CONCURRENT: ("request", "requests"),
    }
)
"""Singular and plural of the unit of each measure."""

TOKENS = (Measure.INPUT_TOKENS, Measure.OUTPUT_TOKENS, Measure.TOKENS)

Refusal = RateLimited | BudgetExceeded | LargerThanLimit


def describe_limit(limit: Limit) -> str:
    """Describes a limit, for example as `600 requests per minute for the key key_1`."""
    return f"{_describe_amount(limit)} for the {limit.subject} {limit.target}"


def _describe_amount(limit: Limit) -> str:
    """Returns the amount, window and models of a limit in words."""
    frequency = "at once" if limit.window is None else f"per {limit.window}"
    models = "" if limit.models is None else f" to models {limit.models}"
    return f"{format_amount(limit.measure, limit.amount)} {frequency}{models}"


def format_amount(measure: Measure, amount: int) -> str:
    """Returns an amount in words, for example `600 requests`."""
    singular, plural = NOUNS[measure]
    if measure is Measure.COST:
        return f"{format_decimal(amount)} {singular}"
    return f"{amount:,} {singular if amount == 1 else plural}"


def build_refusal(limit: Limit, needed: int, reserved: int, wait_s: float, now: float) -> Refusal:
    """Builds the error for a limit that has no room for `needed` more. `reserved`: the amount that this
    request reserved before its size was known. `wait_s`: seconds until there is room. `now`: Unix seconds.

    RateLimited and BudgetExceeded begin with OpenAI's words, because clients search for them. LargerThanLimit
    must not contain these words: clients would send the request again.
    """
    limit_text = describe_limit(limit)
    total = reserved + needed
    if total > limit.amount:
        return LargerThanLimit(
            f"this request alone takes {format_amount(limit.measure, total)}, which is larger "
            f"than the limit of {limit_text}: ask for less"
        )
    # One token can stand for a request whose size is not known yet.
    is_used_up = needed == 1 and limit.measure in TOKENS
    room = "is used up" if is_used_up else f"has no room for {format_amount(limit.measure, needed)} more"
    if limit.is_budget:
        reset_time = datetime.fromtimestamp(math.ceil(now + wait_s), UTC)
        return BudgetExceeded(
            f"You exceeded your current quota: the budget of {limit_text} {room}. "
            f"It resets at {reset_time:%Y-%m-%d %H:%M:%S} UTC.",
            retry_after=wait_s,
        )
    return RateLimited(
        f"Rate limit reached for the {limit.subject} {limit.target}: the limit of {_describe_amount(limit)} "
        f"{room}. Please try again in {math.ceil(wait_s)}s.",
        retry_after=wait_s,
    )


def pick_longest(refusals: Iterable[tuple[Refusal, int]], statuses: tuple[LimitStatus, ...]) -> Refusal:
    """Returns the refusal that lasts longest, with all statuses, the status of its own limit first.

    A LargerThanLimit lasts longest, because it does not end. A refusal of a budget lasts longer than one of a
    limit per minute. Among equal kinds, the longest wait decides. `refusals`: each with the index of its
    limit. The caller must not store the error in a variable when it raises it: the error's traceback would
    keep the whole request in memory.
    """
    kinds = (RateLimited, BudgetExceeded, LargerThanLimit)
    refusal, index = max(
        refusals,
        key=lambda pair: (
            kinds.index(type(pair[0])),
            pair[0].retry_after or 0.0,
        ),
    )
    refusal.limit = statuses[index].limit.id
    refusal.statuses = (statuses[index], *statuses[:index], *statuses[index + 1 :])
    return refusal
