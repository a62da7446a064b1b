"""`reasoning_effort` and `thinking`: two ways to say how much a model shall reason."""

from antiphon.dialects.fireworks.wire import LEAST_BUDGET, FireworksChatCompletionRequest
from antiphon.domain.request import Reasoning, ReasoningTerms
from antiphon.errors import InvalidValue

ON, OFF = "medium", "none"
"""What true and false are."""

EFFORT_TERMS = ReasoningTerms(budget="reasoning_effort", least=1)
THINKING_TERMS = ReasoningTerms("thinking", "thinking.budget_tokens", "disabled", "enabled", LEAST_BUDGET)


def read_reasoning(wire: FireworksChatCompletionRequest) -> Reasoning:
    """What of it the model is asked for. Raises InvalidValue where both fields are sent."""
    effort, thinking = wire.reasoning_effort, wire.thinking
    if thinking is not None:
        if effort is not None:
            raise InvalidValue("send reasoning_effort or thinking, not both", param="thinking")
        if thinking.type == "disabled":
            if thinking.budget_tokens is not None:
                raise InvalidValue(
                    "thinking.budget_tokens is taken only with type enabled", param="thinking.budget_tokens"
                )
            return Reasoning(OFF, terms=THINKING_TERMS)
        if thinking.budget_tokens is None:
            return Reasoning(ON, terms=THINKING_TERMS)
        return Reasoning(budget=thinking.budget_tokens, terms=THINKING_TERMS)
    if isinstance(effort, bool):
        return Reasoning(ON if effort else OFF, terms=EFFORT_TERMS)
    if isinstance(effort, int):
        return Reasoning(budget=effort, terms=EFFORT_TERMS)
    return Reasoning(effort, terms=EFFORT_TERMS)
