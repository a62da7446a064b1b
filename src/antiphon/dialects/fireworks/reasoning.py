"""`reasoning_effort` and `thinking`: two ways to say how much a model shall reason."""

from antiphon.dialects.fireworks.wire import ChatCompletionRequest
from antiphon.domain.request import Reasoning
from antiphon.errors import InvalidValue

ON, OFF = "medium", "none"
"""What true and false are."""


def asked_reasoning(wire: ChatCompletionRequest) -> Reasoning:
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
            return Reasoning(OFF, field="thinking")
        if thinking.budget_tokens is None:
            return Reasoning(ON, field="thinking")
        return Reasoning(budget=thinking.budget_tokens, field="thinking")
    if isinstance(effort, bool):
        return Reasoning(ON if effort else OFF)
    if isinstance(effort, int):
        return Reasoning(budget=effort)
    return Reasoning(effort)
