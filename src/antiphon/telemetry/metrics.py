"""Counters of this process, by model. They only grow, but for the ones that say how many run now."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Metrics:
    """Plain counters; read by whoever exports them."""

    running: Counter[str] = field(default_factory=Counter)
    """Generations begun and not ended, by model."""
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Generations ended, by model and status."""
    prompt_tokens: Counter[str] = field(default_factory=Counter)
    completion_tokens: Counter[str] = field(default_factory=Counter)

    def generation_began(self, model: str) -> None:
        self.running[model] += 1

    def generation_ended(self, model: str, status: str, prompt_tokens: int, completion_tokens: int) -> None:
        self.running[model] -= 1
        self.ended[model, status] += 1
        self.prompt_tokens[model] += prompt_tokens
        self.completion_tokens[model] += completion_tokens
