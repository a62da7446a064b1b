"""A buffered answer is a fold over the events of a stream: there is no second path."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from antiphon.domain.events import (
    Delta,
    Event,
    Finished,
    FinishReason,
    TextDelta,
    ToolCallBegun,
    ToolCallDelta,
)
from antiphon.domain.scores import Scores, joined
from antiphon.domain.tools import ToolCall
from antiphon.domain.usage import Usage


@dataclass(frozen=True, slots=True)
class Choice:
    """One complete choice."""

    index: int
    text: str
    reason: FinishReason
    scores: Scores | None = None
    """None when they were not asked for."""
    calls: tuple[ToolCall, ...] = ()
    """In the order in which they were begun."""
    reasoning: str = ""
    """What was thought before the text, where the model says it."""


@dataclass(frozen=True, slots=True)
class Generation:
    """All that a stream said, once it has ended."""

    choices: tuple[Choice, ...]
    usage: Usage


async def collect(events: AsyncIterator[Event]) -> Generation:
    """Folds a whole stream. Raises what the stream raises; ValueError when it breaks the order of events."""
    said: dict[int, list[Delta]] = {}
    ends: dict[int, Finished] = {}
    usage: Usage | None = None
    async for event in events:
        if isinstance(event, TextDelta | ToolCallBegun | ToolCallDelta):
            said.setdefault(event.choice, []).append(event)
        elif isinstance(event, Finished):
            ends[event.choice] = event
        elif isinstance(event, Usage):
            usage = event
    if usage is None:
        raise ValueError("the stream ended without usage")
    choices = (_choice(index, said.get(index, []), end) for index, end in sorted(ends.items()))
    return Generation(tuple(choices), usage)


def _choice(index: int, deltas: Sequence[Delta], end: Finished) -> Choice:
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    parts = [delta.scores for delta in deltas if delta.scores]
    scores = None if end.scores is None else joined([*parts, end.scores])
    return Choice(index, text, end.reason, scores, tuple(_calls(deltas)))


def _calls(deltas: Sequence[Delta]) -> Iterator[ToolCall]:
    arguments: dict[int, list[str]] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            arguments.setdefault(delta.index, []).append(delta.arguments)
    for delta in deltas:
        if isinstance(delta, ToolCallBegun):
            yield ToolCall(delta.id, delta.name, "".join(arguments.get(delta.index, ())))
