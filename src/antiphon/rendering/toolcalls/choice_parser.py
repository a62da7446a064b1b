"""The events of one choice with its reasoning and its calls told apart from its text. Tokens, their ids and
their scores go with whatever they made certain first; markup shows as nothing, and its tokens count with what
follows. So do those of reasoning that is not shown."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing

from antiphon.domain.events import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallBegun,
    ToolCallDelta,
)
from antiphon.domain.scores import Scores, joined
from antiphon.rendering.toolcalls.objects import CallName
from antiphon.rendering.toolcalls.reading import OutputReader, OutputPart, TextPart, ReasoningPart


class ChoiceParser:
    """One choice."""

    __slots__ = (
        "_calls",
        "_choice",
        "_ids",
        "_reader",
        "_required",
        "_scores",
        "_shown",
        "_token_ids",
        "_tokens",
    )

    def __init__(
        self,
        choice: int,
        reader: OutputReader,
        ids: Callable[[], str],
        required: bool = False,
        shown: bool = True,
    ) -> None:
        """`ids`: makes the id of a call. `required`: the choice is calls, and no text. `shown`: whether
        reasoning is told."""
        self._choice = choice
        self._reader = reader
        self._ids = ids
        self._required = required
        self._shown = shown
        self._calls = 0
        self._tokens = 0
        self._scores: list[Scores] = []
        self._token_ids: tuple[int, ...] = ()

    async def parse(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """The same events, with reasoning and calls instead of their text."""
        async with aclosing(events):
            async for event in events:
                for told in self._parse_event(event):
                    yield told

    def _parse_event(self, event: Event) -> Iterator[Event]:
        if isinstance(event, TextDelta):
            self._note(event)
            yield from self._events(self._reader.add(event.text))
        elif isinstance(event, Finished):
            yield from self._end_events(event)
        else:
            yield event

    def _note(self, event: TextDelta) -> None:
        self._tokens += event.tokens
        self._token_ids += event.ids
        if event.scores:
            self._scores.append(event.scores)

    def _end_events(self, event: Finished) -> Iterator[Event]:
        yield from self._events(self._reader.end(self._required))
        called = event.reason is FinishReason.STOP and self._reader.whole
        reason = FinishReason.TOOL_CALLS if called else event.reason
        tokens, scores, ids = self._take_due()
        left = None if event.scores is None else joined([scores, event.scores])
        yield Finished(event.choice, reason, tokens + event.tokens, left, ids + event.ids)

    def _events(self, all_said: Iterable[OutputPart]) -> Iterator[Event]:
        for said in all_said:
            if not isinstance(said, ReasoningPart):
                yield self._event(said)
            elif self._shown:
                yield ReasoningDelta(self._choice, said.text, *self._take_due())

    def _event(self, said: OutputPart) -> Event:
        due = self._take_due()
        if isinstance(said, TextPart):
            return TextDelta(self._choice, said.text, *due)
        if isinstance(said, CallName):
            self._calls += 1
            return ToolCallBegun(self._choice, self._calls - 1, self._ids(), said.name, *due)
        return ToolCallDelta(self._choice, self._calls - 1, said.text, *due)

    def _take_due(self) -> tuple[int, Scores, tuple[int, ...]]:
        """Count, scores and ids of the tokens that no event has told."""
        tokens, self._tokens = self._tokens, 0
        scores, self._scores = joined(self._scores), []
        ids, self._token_ids = self._token_ids, ()
        return tokens, scores, ids
