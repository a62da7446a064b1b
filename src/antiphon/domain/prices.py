"""What tokens cost: a list of prices with the time in which each holds. Integers alone, so that sums are
exact."""

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.domain.identity import matches

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """What a model's tokens cost from a moment on. Amounts are nano-units of the currency for a million
    tokens: 0.15 dollars for a million are 150,000,000."""

    id: str
    models: str
    """Pattern of model names."""
    currency: str
    """ISO 4217: `USD`. All costs of a server are in one."""
    since: int
    """Unix seconds from which it holds."""
    input: int
    output: int
    cached: int | None = None
    """Of prompt tokens that were not computed again; None costs what `input` does."""
    request: int = 0
    """Nano-units for each request."""
    until: int | None = None
    """Unix seconds at which it no longer holds."""
    created: int = 0
    note: str = ""

    def holds(self, at: int) -> bool:
        """Whether what begins at a moment (Unix seconds) is reckoned by it."""
        return self.since <= at and (self.until is None or at < self.until)

    def is_over(self, now: int) -> bool:
        """Whether it holds no more and never will again. `now`: Unix seconds."""
        return self.until is not None and self.until <= max(now, self.since)

    @property
    def never_held(self) -> bool:
        """Whether it was ended before it began."""
        return self.until is not None and self.until <= self.since

    def most(self, prompt_tokens: int, output_tokens: int) -> int:
        """Nano-units that a request costs at most, however many of its prompt tokens are cached."""
        cached = prompt_tokens if self.cached is not None and self.cached > self.input else 0
        return self.cost(prompt_tokens, cached, output_tokens)

    def cost(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> int:
        """Nano-units of one request, each half rounded up."""
        cached = self.input if self.cached is None else self.cached
        millionths = (
            (prompt_tokens - cached_tokens) * self.input
            + cached_tokens * cached
            + output_tokens * self.output
        )
        return self.request + (2 * millionths + MILLION) // (2 * MILLION)


def find_unpriced(prices: Sequence[Price], models: Sequence[str], at: int) -> list[str]:
    """Those of the models that no price holds for at a moment (Unix seconds)."""
    holding = [price.models for price in prices if price.holds(at)]
    return [model for model in models if not matches(holding, model)]


def find_currency(prices: Sequence[Price]) -> str | None:
    """The currency of all costs: that of the price made last, as another is taken only where nothing was
    priced before. `prices`: in the order in which they were made."""
    return prices[-1].currency if prices else None
