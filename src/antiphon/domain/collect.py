"""A buffered answer is a fold over the events of a stream: there is no second path."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from antiphon.domain.events import Event, Finished, FinishReason, TextDelta
from antiphon.domain.usage import Usage


@dataclass(frozen=True, slots=True)
class Choice:
    """One complete choice."""

    index: int
    text: str
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Generation:
    """All that a stream said, once it has ended."""

    choices: tuple[Choice, ...]
    usage: Usage


async def collect(events: AsyncIterator[Event]) -> Generation:
    """Folds a whole stream. Raises what the stream raises; ValueError when it breaks the order of events."""
    texts: dict[int, list[str]] = {}
    reasons: dict[int, FinishReason] = {}
    usage: Usage | None = None
    async for event in events:
        if isinstance(event, TextDelta):
            texts.setdefault(event.choice, []).append(event.text)
        elif isinstance(event, Finished):
            reasons[event.choice] = event.reason
        elif isinstance(event, Usage):
            usage = event
    if usage is None:
        raise ValueError("the stream ended without usage")
    choices = (Choice(index, "".join(texts.get(index, ())), reasons[index]) for index in sorted(reasons))
    return Generation(tuple(choices), usage)
