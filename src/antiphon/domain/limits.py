"""Limits of usage, and the amounts that they count. Values only."""

from enum import StrEnum

from antiphon.domain.identity import matches
from antiphon.domain.prices import MAX_COST, NANO
from antiphon.domain.values import Struct, Value

MAX_COUNT = 2**53
"""The largest amount of a limit of any measure except cost. Every JSON parser reads it exactly."""


class Subject(StrEnum):
    """The kind of subject whose usage a limit counts."""

    KEY = "key"
    USER = "user"
    PROJECT = "project"
    MODEL = "model"
    """All requests to one model, from all callers."""


class Measure(StrEnum):
    """The quantity that a limit counts."""

    REQUESTS = "requests"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    TOKENS = "tokens"
    """Input and output together."""
    COST = "cost"
    """In nano-units of the price list's currency."""
    CONCURRENT = "concurrent"
    """Requests that run at the same time."""


class Window(StrEnum):
    """The period over which a limit counts."""

    MINUTE = "minute"
    """The last 60 seconds. This window slides."""
    DAY = "day"
    """A calendar day of UTC. Weeks and months are also of UTC."""
    WEEK = "week"
    """Starts on Monday."""
    MONTH = "month"


def explain_too_large(measure: Measure, amount: int) -> str | None:
    """Returns the error message for an amount that is too large for a limit; None if the amount can be
    used."""
    if measure is not Measure.COST:
        return None if amount <= MAX_COUNT else f"a limit of {measure} can be at most {MAX_COUNT}"
    if amount <= MAX_COST:
        return None
    maximum = f"{MAX_COST // NANO} units of the currency ({MAX_COST} billionths)"
    return f"a limit of cost can be at most {maximum}"


class Limit(Struct, frozen=True):
    """A maximum amount of one measure in a window, for one subject. A request needs room in every limit that
    applies to it."""

    id: str
    subject: Subject
    target: str
    """Id of the key, user or project, or name of the model."""
    measure: Measure
    amount: int
    created: int
    """Unix seconds."""
    window: Window | None = None
    """None for concurrent requests."""
    models: str | None = None
    """Pattern of model names whose requests count; None is every model."""
    note: str = ""

    def applies_to(self, model: str) -> bool:
        """Whether requests to a model can count against this limit."""
        if self.subject is Subject.MODEL and self.target != model:
            return False
        return self.models is None or matches((self.models,), model)

    @property
    def is_budget(self) -> bool:
        """Whether the window is a day or longer, so that a short wait does not help."""
        return self.window not in (None, Window.MINUTE)


_REQUESTS, _TOKENS, _COST = Measure.REQUESTS, Measure.TOKENS, Measure.COST
_INPUT, _OUTPUT, _CONCURRENT = Measure.INPUT_TOKENS, Measure.OUTPUT_TOKENS, Measure.CONCURRENT
"""The members as module names: the lookup of an enum member by attribute takes longer than a comparison."""


class Amounts(Value, frozen=True):
    """The amounts that a request uses, or may use at most, of every measure except concurrent requests."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0
    """Nano-units."""

    def index_by_measure(self, concurrent: int = 0) -> dict[Measure, int]:
        """Returns the amount of each measure. `concurrent`: that of concurrent requests."""
        return {
            _REQUESTS: self.requests,
            _INPUT: self.input_tokens,
            _OUTPUT: self.output_tokens,
            _TOKENS: self.input_tokens + self.output_tokens,
            _COST: self.cost,
            _CONCURRENT: concurrent,
        }


class BudgetWarning(Value, frozen=True):
    """A share of a budget is used. Each share is reported once in each window."""

    limit: Limit
    share: float
    """Of the limit's amount, above 0 and at most 1. 1 is also reported when the budget refuses a request."""
    used: int
    """In the limit's measure."""
    at: int
    """Unix seconds."""
    begin: int
    """Unix seconds when the window began."""
    end: int
    """Unix seconds when the window ends."""


class LimitStatus(Value, frozen=True):
    """The amount of a limit that remains."""

    limit: Limit
    remaining: int
    reset: float
    """Seconds until the whole limit is available again. In a sliding window, this is when the newest usage
    leaves it. In other windows, it is the end of the window."""
