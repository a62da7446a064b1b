"""Memory strategies: which messages of a conversation the model sees.

`antiphon.memory` applies them. The model always sees the leading system messages. It sees a tool's result
only together with its call.
"""

from antiphon.domain.values import Value

MEMORY_FIELD = "memory_strategy"
"""The field's name in every dialect."""


class LastMessages(Value, frozen=True, tag="last_k"):
    """Keeps the last messages. If the cut would separate a tool call from its results, the call and all its
    results are dropped."""

    k: int
    """The most messages to keep, at least 1, besides the leading system messages."""
    field: str = MEMORY_FIELD
    """The caller's name of the object that holds the parameters, for errors."""


class LastTokens(Value, frozen=True, tag="last_tokens"):
    """Keeps the last turns that fit into a budget. A turn begins with a message of the user."""

    tokens: int
    """The most tokens of the prompt, as the model's template renders it."""
    field: str = MEMORY_FIELD
    """The caller's name of the object that holds the parameters, for errors."""


class FittingTurns(Value, frozen=True, tag="fitting"):
    """Keeps the last turns that fit into the model's context beside the answer, at least the last one. Keeps
    all turns on a route that cannot count tokens."""

    field: str = "truncation"
    """The caller's name of the field that asks for it, for the report of ignored fields."""


class BudgetedStrategy(Value, frozen=True):
    """A strategy with a budget and a model of its own."""

    tokens: int | None = None
    """The most tokens of the prompt; None is half of the model's context."""
    model: str | None = None
    """The strategy's model, as the caller named it."""
    field: str = MEMORY_FIELD
    """The caller's name of the object that holds the parameters, for errors."""

    @property
    def tokens_field(self) -> str:
        """The caller's name of `tokens`."""
        return f"{self.field}.tokens"

    @property
    def model_field(self) -> str:
        """The caller's name of `model`."""
        return f"{self.field}.model"


class Summary(BudgetedStrategy, frozen=True, tag="summary"):
    """Replaces the older turns by a summary. `model` writes it; None means the request's own model."""


class RelevantTurns(BudgetedStrategy, frozen=True, tag="relevant"):
    """Keeps the last turn, and the older turns that are most similar to it. `model` is an embedding model,
    and is always set."""


class KeptSummary(Value, frozen=True):
    """A summary that later requests of the same project use again."""

    digest: str
    """The key of the summary: 64 hexadecimal digits, a hash of the messages that it covers."""
    project: str
    at: int
    """Unix milliseconds at which the request began that created the summary."""
    expires: int
    """Unix seconds when it is removed."""
    text: str


MemoryStrategy = LastMessages | LastTokens | FittingTurns | Summary | RelevantTurns


class MemoryReport(Value, frozen=True):
    """The result of a memory strategy: how many messages were kept, dropped, and summarised."""

    kept: int
    """Messages that the model saw as they were sent."""
    dropped: int = 0
    """Messages that the model did not see."""
    summarised: int = 0
    """Messages that a summary replaced."""
