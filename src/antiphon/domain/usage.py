"""How many tokens a generation took, and who counted them."""

from enum import StrEnum

from antiphon.domain.values import Value


class UsageSource(StrEnum):
    """Where the counts come from."""

    ENGINE = "engine"
    """Counted by the engine that generated."""
    REPORTED = "reported"
    """Said by a vendor."""
    COUNTED = "counted"
    """Counted by us, with the model's tokenizer."""
    ESTIMATED = "estimated"
    """Nobody counted."""


class Usage(Value, frozen=True):
    """Totals of one request: each prompt once, the tokens of every choice. Also the last event of a
    stream."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Prompt tokens that were not computed again, because their KV was there."""
    reasoning_tokens: int = 0
    """Completion tokens that were spent on reasoning."""
    source: UsageSource = UsageSource.ENGINE

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens
