"""What a request says of reasoning: how much of it, whether it is shown, and what was thought in earlier
turns."""

from typing import Protocol

from antiphon.domain.request import Reasoning
from antiphon.errors import InvalidValue


class Asked(Protocol):
    """The fields of a chat."""

    @property
    def reasoning_effort(self) -> str | None: ...
    @property
    def include_reasoning(self) -> bool | None: ...
    @property
    def thinking_token_budget(self) -> int | None: ...


class Thinking(Protocol):
    """The fields of a message."""

    @property
    def role(self) -> str: ...
    @property
    def reasoning_content(self) -> str | None: ...
    @property
    def reasoning(self) -> str | None: ...


def asked_reasoning(wire: Asked) -> Reasoning:
    """What of it the model is asked for."""
    return Reasoning(
        wire.reasoning_effort, wire.thinking_token_budget, shown=wire.include_reasoning is not False
    )


def thought_field(message: Thinking) -> str:
    """By which of its names a message says what was thought."""
    is_newer = message.reasoning_content is None and message.reasoning is not None
    return "reasoning" if is_newer else "reasoning_content"


def thought(message: Thinking, where: str) -> str | None:
    """What was thought before a message's text. Raises InvalidValue."""
    both = (message.reasoning_content, message.reasoning)
    if both[0] is None and both[1] is None:
        return None
    field = f"{where}.{thought_field(message)}"
    if message.role != "assistant":
        raise InvalidValue(f"{field} is taken only in messages of the role assistant", param=field)
    if None not in both and both[0] != both[1]:
        raise InvalidValue(
            f"{where}.reasoning and {where}.reasoning_content are two names of one thing and differ; send "
            "one of them",
            param=f"{where}.reasoning",
        )
    return both[0] if both[1] is None else both[1]
