"""One choice whose tokens are scored: their log-probabilities, told with the text that they belong to, and
how likely the whole is.

What is held back of the text holds back its tokens' scores; what a stop string cuts off takes those of the
tokens with it that lie in it whole.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.domain.events import Event, Finished, FinishReason, TextDelta
from antiphon.domain.scores import TokenScore
from antiphon.engines.base import SequenceFinished, Steps, StopCause, TokenEvent
from antiphon.rendering.facts import Facts
from antiphon.rendering.voice import Manner, Voice


@dataclass(frozen=True, slots=True)
class Scoring:
    """What of the scores is wanted."""

    told: bool
    """Whether they are given; else they only rank."""
    offset: int = 0
    """Characters of the choice's text before the first token's."""


class ScoredVoice(Voice):
    """A voice that knows the log-probabilities of what it says."""

    __slots__ = ("_pending", "_pieces", "_said", "_scoring", "_shown", "_spelt", "_total")

    def __init__(self, choice: int, manner: Manner, facts: Facts, scoring: Scoring = Scoring(True)) -> None:
        super().__init__(choice, manner)
        self._scoring = scoring
        self._pieces, self._spelt = manner.pieces.bytes, facts.spelt.bytes
        self._total = 0.0
        self._said = scoring.offset
        """Characters that tokens have made certain; the stop filter may hold some of them back."""
        self._shown = scoring.offset
        self._pending: deque[tuple[TokenScore, bool]] = deque()
        """Scores that were not told yet, each with whether its token shows text."""

    def mean(self) -> float:
        """Log-probability per token, of those that usage counts; 0 for none."""
        return self._total / self.completion_tokens if self.completion_tokens else 0.0

    def _told(self, event: TokenEvent) -> Iterator[Event]:
        if isinstance(event, SequenceFinished) and event.cause is not StopCause.LENGTH:
            self._forget_end()
        yield from super()._told(event)

    def _forget_end(self) -> None:
        """A token that ended the turn and shows nothing is no part of the text."""
        if self._pending and not self._pending[-1][1]:
            self._pending.pop()

    def _heard(self, steps: Steps) -> str:
        text, before = "", self.completion_tokens
        for index, token in enumerate(steps.tokens):
            self.completion_tokens += 1
            self._unreported += 1
            self._total += steps.logprobs[index]
            said = self._added(token, steps, index)
            text += self._filter.add(said) if self.completion_tokens > self._deaf else said
            if self._filter.stopped:
                break
        if self._ids is not None:
            self._ids += steps.tokens[: self.completion_tokens - before]
        return text

    def _added(self, token: int, steps: Steps, index: int) -> str:
        """The text that a token makes certain; its score waits until the text is shown."""
        silent = token in self._silent
        if self._scoring.told:
            offset = self._said + (not silent and self._detokenizer.breaks(token))
            self._pending.append(
                (self._score(token, steps, index, offset), not silent and bool(self._pieces[token]))
            )
        text = "" if silent else self._detokenizer.add(token)
        self._said += len(text)
        if self.thoughts is not None:
            self.thoughts.note(len(text))
        return text

    def _score(self, token: int, steps: Steps, index: int, offset: int) -> TokenScore:
        row = steps.alternatives[index] if steps.alternatives else ()
        alternatives = tuple((other, self._spelt[other], value) for other, value in row)
        return TokenScore(token, self._spelt[token], steps.logprobs[index], alternatives, offset)

    def _delta(self, text: str) -> TextDelta:
        self._shown += len(text)
        return TextDelta(self.choice, text, self._reported(), tuple(self._due()), self._named())

    def _due(self) -> Iterator[TokenScore]:
        while self._pending and self._pending[0][0].offset < self._shown:
            yield self._pending.popleft()[0]

    def _finished(self, reason: FinishReason) -> Finished:
        """With what stands at the end and shows nothing; what was cut is dropped."""
        left = (score for score, shows in self._pending if not shows and score.offset <= self._shown)
        scores = tuple(left) if self._scoring.told else None
        return Finished(self.choice, reason, self._reported(), scores, self._named())
