"""The conversation as every dialect can say it, and as no dialect spells it."""

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `text` is the concatenation of its text parts; text is text, never control tokens."""

    role: Role
    text: str
    name: str | None = None
