"""The conversation as every dialect can say it, and as no dialect spells it."""

from dataclasses import dataclass, field
from enum import StrEnum

from antiphon.domain.tools import ToolCall


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    """The result of a call."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `text` is the concatenation of its text parts; text is text, never control tokens."""

    role: Role
    text: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    """What the assistant called after its text."""
    tool_call_id: str | None = None
    """Which call a tool's text is the result of."""
    reasoning: str | None = None
    """What the assistant thought before its text; given to templates that read it."""
    reasoning_field: str = field(default="reasoning_content", compare=False)
    """What the caller calls that."""
