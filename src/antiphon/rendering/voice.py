"""One choice: from the tokens of its sequence to its text, its end and its counts."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from antiphon.domain.events import Event, Finished, FinishReason, Started, TextDelta
from antiphon.engines.base import SequenceFinished, SequenceStarted, Steps, StopCause, TokenEvent
from antiphon.rendering.detokenizer import Detokenizer
from antiphon.rendering.facts import Facts
from antiphon.rendering.stops import StopFilter, StopStrings


class Voice:
    """What one choice has said so far."""

    __slots__ = (
        "_deaf",
        "_detokenizer",
        "_ends",
        "_filter",
        "_reason",
        "_unreported",
        "cached",
        "choice",
        "completion_tokens",
    )

    def __init__(self, choice: int, facts: Facts, stops: StopStrings, deaf: int = 0) -> None:
        """`deaf`: tokens in which no stop string is looked for."""
        self.choice = choice
        self.completion_tokens = 0
        """Up to and including the one that completes a stop string."""
        self.cached: int | None = None
        """Prompt tokens that were not computed for it; None before it is admitted."""
        self._deaf = deaf
        self._ends = facts.ends
        self._detokenizer = Detokenizer(facts.pieces)
        self._filter = StopFilter(stops)
        self._reason = FinishReason.STOP
        self._unreported = 0

    async def speak(self, sequence: AsyncGenerator[TokenEvent, None]) -> AsyncGenerator[Event, None]:
        """The events of this choice: Started with its first token, deltas, Finished. Ends its sequence at
        once."""
        async with aclosing(sequence) as events:
            async for event in events:
                for told in self._told(event):
                    yield told
                if self._filter.stopped:
                    break
        for told in self._ending():
            yield told

    def _told(self, event: TokenEvent) -> Iterator[Event]:
        """What an event of the sequence means to whoever reads."""
        if isinstance(event, Steps):
            first = not self.completion_tokens
            text = self._heard(event)
            if first:
                yield Started(0)
            if text:
                yield self._delta(text)
        elif isinstance(event, SequenceStarted):
            self.cached = event.cached_tokens
        elif isinstance(event, SequenceFinished):
            if event.cause is StopCause.LENGTH:
                self._reason = FinishReason.LENGTH
            if not self.completion_tokens:
                yield Started(0)

    def go_on(self, held: bytes) -> None:
        """Begins with the beginning of a character that the prompt ended with."""
        self._detokenizer.go_on(held)

    def _ending(self) -> Iterator[Event]:
        if not self._filter.stopped:
            rest = self._rest()
            if rest:
                yield self._delta(rest)
        reason = FinishReason.STOP if self._filter.stopped else self._reason
        yield self._finished(reason)

    def _heard(self, steps: Steps) -> str:
        """The text that these tokens make certain; tokens after a stop string are neither shown nor
        counted."""
        text = ""
        for token in steps.tokens:
            self.completion_tokens += 1
            self._unreported += 1
            if token not in self._ends:
                said = self._detokenizer.add(token)
                text += self._filter.add(said) if self.completion_tokens > self._deaf else said
                if self._filter.stopped:
                    break
        return text

    def _rest(self) -> str:
        """What was held back, when no more tokens come."""
        shown = self._filter.add(self._detokenizer.end())
        return shown if self._filter.stopped else shown + self._filter.end()

    def _delta(self, text: str) -> TextDelta:
        return TextDelta(self.choice, text, self._reported())

    def _finished(self, reason: FinishReason) -> Finished:
        return Finished(self.choice, reason, self._reported())

    def _reported(self) -> int:
        tokens, self._unreported = self._unreported, 0
        return tokens
