"""A buffered answer is a fold over the events of a stream: there is no second path."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from antiphon.domain.events import Event, Finished, FinishReason, TextDelta
from antiphon.domain.scores import Scores, joined
from antiphon.domain.usage import Usage


@dataclass(frozen=True, slots=True)
class Choice:
    """One complete choice."""

    index: int
    text: str
    reason: FinishReason
    scores: Scores | None = None
    """None when they were not asked for."""


@dataclass(frozen=True, slots=True)
class Generation:
    """All that a stream said, once it has ended."""

    choices: tuple[Choice, ...]
    usage: Usage


async def collect(events: AsyncIterator[Event]) -> Generation:
    """Folds a whole stream. Raises what the stream raises; ValueError when it breaks the order of events."""
    texts: dict[int, list[str]] = {}
    scores: dict[int, list[Scores]] = {}
    ends: dict[int, Finished] = {}
    usage: Usage | None = None
    async for event in events:
        if isinstance(event, TextDelta):
            texts.setdefault(event.choice, []).append(event.text)
            if event.scores:
                scores.setdefault(event.choice, []).append(event.scores)
        elif isinstance(event, Finished):
            ends[event.choice] = event
        elif isinstance(event, Usage):
            usage = event
    if usage is None:
        raise ValueError("the stream ended without usage")
    choices = (
        Choice(index, "".join(texts.get(index, ())), end.reason, _all_scores(scores.get(index, []), end))
        for index, end in sorted(ends.items())
    )
    return Generation(tuple(choices), usage)


def _all_scores(parts: list[Scores], end: Finished) -> Scores | None:
    return None if end.scores is None else joined([*parts, end.scores])
