"""A buffered answer is a fold over the events of a stream: there is no second path."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from antiphon.domain.events import (
    Delta,
    Event,
    Finished,
    FinishReason,
    PromptScored,
    ReasoningDelta,
    Started,
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
    ids: tuple[int, ...] = ()
    """Of its tokens, as many as `scores`, when token ids were asked for."""


@dataclass(frozen=True, slots=True)
class Generation:
    """All that a stream said, once it has ended."""

    choices: tuple[Choice, ...]
    usage: Usage
    prompts: tuple[tuple[int, ...], ...] = ()
    """The ids of each prompt, when token ids were asked for."""
    prompt_scores: tuple[Scores, ...] = ()
    """Of each prompt's tokens, when they were asked for."""


async def collect(events: AsyncIterator[Event]) -> Generation:
    """Folds a whole stream. Raises what the stream raises; ValueError when it breaks the order of events."""
    said: dict[int, list[Delta]] = {}
    ends: dict[int, Finished] = {}
    usage: Usage | None = None
    prompts: tuple[tuple[int, ...], ...] = ()
    scored: dict[int, Scores] = {}
    async for event in events:
        if isinstance(event, TextDelta | ReasoningDelta | ToolCallBegun | ToolCallDelta):
            said.setdefault(event.choice, []).append(event)
        elif isinstance(event, Finished):
            ends[event.choice] = event
        elif isinstance(event, Usage):
            usage = event
        elif isinstance(event, Started):
            prompts = event.prompts
        elif isinstance(event, PromptScored):
            scored[event.prompt] = event.scores
    if usage is None:
        raise ValueError("the stream ended without usage")
    choices = (_choice(index, said.get(index, []), end) for index, end in sorted(ends.items()))
    return Generation(tuple(choices), usage, prompts, tuple(scores for _, scores in sorted(scored.items())))


def _choice(index: int, deltas: Sequence[Delta], end: Finished) -> Choice:
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    parts = [delta.scores for delta in deltas if delta.scores]
    scores = None if end.scores is None else joined([*parts, end.scores])
    ids = tuple(chain.from_iterable((*(delta.ids for delta in deltas if delta.ids), end.ids)))
    return Choice(index, text, end.reason, scores, tuple(_calls(deltas)), reasoning, ids)


def _calls(deltas: Sequence[Delta]) -> Iterator[ToolCall]:
    arguments: dict[int, list[str]] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            arguments.setdefault(delta.index, []).append(delta.arguments)
    for delta in deltas:
        if isinstance(delta, ToolCallBegun):
            yield ToolCall(delta.id, delta.name, "".join(arguments.get(delta.index, ())))
