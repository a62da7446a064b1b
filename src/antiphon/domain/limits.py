"""What may be used up of the models in which time, and by whom. Values only."""

from dataclasses import dataclass
from enum import StrEnum

from antiphon.domain.identity import matches
from antiphon.domain.money import NANO
from antiphon.domain.values import Value

MAX_COUNT = 2**53
"""Of what is counted in whole numbers: what JSON's numbers hold exactly for everybody."""
MAX_COST_UNITS = 9_000_000_000
"""Of cost, in units of the currency. Nano-units end at 2**63 in databases and in Redis; the rest is for what
counts beyond a limit."""


class Subject(StrEnum):
    """Of what a limit is."""

    KEY = "key"
    USER = "user"
    PROJECT = "project"
    MODEL = "model"
    """Of a model, whoever uses it."""


class Measure(StrEnum):
    """What a limit counts."""

    REQUESTS = "requests"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    TOKENS = "tokens"
    """Of input and output together."""
    COST = "cost"
    """In nano-units of the currency of the price list."""
    CONCURRENT = "concurrent"
    """Requests at once."""


class Window(StrEnum):
    """In which time."""

    MINUTE = "minute"
    """The last 60 seconds, whenever they are looked at: it slides."""
    DAY = "day"
    """Of UTC, like the others."""
    WEEK = "week"
    """From Monday."""
    MONTH = "month"


def explain_too_large(measure: Measure, amount: int) -> str | None:
    """Why a limit cannot be of so much; None where it can."""
    if measure is not Measure.COST:
        return None if amount <= MAX_COUNT else f"a limit of {measure} is of at most {MAX_COUNT}"
    if amount <= MAX_COST_UNITS * NANO:
        return None
    return f"a limit of cost is of at most {MAX_COST_UNITS} units of the currency ({MAX_COST_UNITS * NANO} billionths)"


@dataclass(frozen=True, slots=True)
class Limit:
    """So much of a measure in a window, for one subject. Every limit that is for a request must have room for
    it."""

    id: str
    subject: Subject
    target: str
    """Id of the key, user or project; name of the model."""
    measure: Measure
    amount: int
    created: int
    """Unix seconds."""
    window: Window | None = None
    """None for what is counted at once."""
    models: str | None = None
    """Pattern of the names of the models whose requests count; None is every model."""
    note: str = ""

    def applies_to(self, model: str) -> bool:
        """Whether requests to a model count, of whomever it is."""
        if self.subject is Subject.MODEL and self.target != model:
            return False
        return self.models is None or matches((self.models,), model)

    @property
    def is_budget(self) -> bool:
        """Whether waiting a moment does not help: the window is a day or longer."""
        return self.window not in (None, Window.MINUTE)


_REQUESTS, _TOKENS, _COST = Measure.REQUESTS, Measure.TOKENS, Measure.COST
_INPUT, _OUTPUT = Measure.INPUT_TOKENS, Measure.OUTPUT_TOKENS
"""Looking a member up in its class takes longer than comparing it."""


class Amounts(Value, frozen=True):
    """What a request takes, or may take, of every measure but of the requests at once."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0
    """Nano-units."""

    def amount_of(self, measure: Measure) -> int:
        """How much of one measure; of what is counted at once nothing."""
        if measure is _REQUESTS:
            return self.requests
        if measure is _TOKENS:
            return self.input_tokens + self.output_tokens
        if measure is _COST:
            return self.cost
        if measure is _INPUT:
            return self.input_tokens
        return self.output_tokens if measure is _OUTPUT else 0


class LimitStatus(Value, frozen=True):
    """How a limit stands."""

    limit: Limit
    remaining: int
    reset: float
    """Seconds until all of it is there again: of a window that slides until what was used last leaves it, of
    others until they end."""
