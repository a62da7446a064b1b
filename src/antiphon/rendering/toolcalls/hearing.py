"""The events of one choice with its calls told apart from its text. Tokens and scores go with whatever they
made certain first; a call's markup shows as nothing, and its tokens count with what follows."""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing

from antiphon.domain.events import (
    Event,
    Finished,
    FinishReason,
    TextDelta,
    ToolCallBegun,
    ToolCallDelta,
)
from antiphon.domain.scores import Scores, joined
from antiphon.rendering.toolcalls.objects import Named
from antiphon.rendering.toolcalls.reading import Reader, Said, Text


class Hearing:
    """One choice."""

    __slots__ = ("_calls", "_choice", "_ids", "_reader", "_required", "_scores", "_tokens")

    def __init__(self, choice: int, reader: Reader, ids: Callable[[], str], required: bool = False) -> None:
        """`ids`: makes the id of a call. `required`: the choice is calls, and no text."""
        self._choice = choice
        self._reader = reader
        self._ids = ids
        self._required = required
        self._calls = 0
        self._tokens = 0
        self._scores: list[Scores] = []

    async def told(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """The same events, with calls instead of their text."""
        async with aclosing(events):
            async for event in events:
                for told in self._heard(event):
                    yield told

    def _heard(self, event: Event) -> Iterator[Event]:
        if isinstance(event, TextDelta):
            self._note(event)
            yield from map(self._event, self._reader.add(event.text))
        elif isinstance(event, Finished):
            yield from self._ending(event)
        else:
            yield event

    def _note(self, event: TextDelta) -> None:
        self._tokens += event.tokens
        if event.scores:
            self._scores.append(event.scores)

    def _ending(self, event: Finished) -> Iterator[Event]:
        for said in self._reader.end(self._required):
            yield self._event(said)
        called = event.reason is FinishReason.STOP and self._reader.whole
        reason = FinishReason.TOOL_CALLS if called else event.reason
        tokens, scores = self._due()
        left = None if event.scores is None else joined([scores, event.scores])
        yield Finished(event.choice, reason, tokens + event.tokens, left)

    def _event(self, said: Said) -> Event:
        tokens, scores = self._due()
        if isinstance(said, Text):
            return TextDelta(self._choice, said.text, tokens, scores)
        if isinstance(said, Named):
            self._calls += 1
            return ToolCallBegun(self._choice, self._calls - 1, self._ids(), said.name, tokens, scores)
        return ToolCallDelta(self._choice, self._calls - 1, said.text, tokens, scores)

    def _due(self) -> tuple[int, Scores]:
        tokens, self._tokens = self._tokens, 0
        scores, self._scores = self._scores, []
        return tokens, joined(scores)
