"""One choice whose tokens are told: their log-probabilities, their ids, or both, each with the text that it
belongs to; and how likely the whole is.

What is held back of the text holds back its tokens; what a stop string cuts off takes those of the tokens
with it that lie in it whole. So entries and ids of one choice are as many, and stand for the same tokens.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from antiphon.domain.events import Finished, FinishReason, TextDelta
from antiphon.domain.scores import TokenScore
from antiphon.engines.base import Steps
from antiphon.rendering.choice_decoder import ChoiceDecoder, DecodeOptions
from antiphon.rendering.model_info import ModelInfo


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """What of the tokens is wanted."""

    told: bool
    """Whether their log-probabilities are given."""
    offset: int = 0
    """Characters of the choice's text before the first token's."""
    ids: bool = False
    """Whether their ids are given."""
    wanted: tuple[int, ...] = ()
    """The tokens whose log-probabilities stand beside each drawn one, in the place of the likeliest."""


class PendingToken(NamedTuple):
    """A token whose text was not shown yet."""

    token: int
    offset: int
    """Of the choice's character that holds its first byte."""
    shows: bool
    """Whether it adds to the text."""
    score: TokenScore | None


class ScoredDecoder(ChoiceDecoder):
    """A voice that knows the tokens of what it says."""

    __slots__ = ("_pending", "_pieces", "_said", "_scoring", "_shown", "_spelt", "_total")

    def __init__(
        self, choice: int, manner: DecodeOptions, facts: ModelInfo, scoring: ScoreOptions = ScoreOptions(True)
    ) -> None:
        super().__init__(choice, manner)
        self._scoring = scoring
        self._pieces, self._spelt = manner.pieces.bytes, facts.spelt.bytes
        self._total = 0.0
        self._said = scoring.offset
        """Characters that tokens have made certain; the stop filter may hold some of them back."""
        self._shown = scoring.offset
        self._pending: deque[PendingToken] = deque()

    def mean(self) -> float:
        """Log-probability per token, of those that usage counts; 0 for none."""
        return self._total / self.completion_tokens if self.completion_tokens else 0.0

    def _decode_steps(self, steps: Steps) -> str:
        text = ""
        for index, token in enumerate(steps.tokens):
            self.completion_tokens += 1
            self._unreported += 1
            if steps.logprobs:
                self._total += steps.logprobs[index]
            said = self._decode_token(token, steps, index)
            text += self._filter.add(said) if self.completion_tokens > self._deaf else said
            if self._filter.stopped:
                break
        return text

    def _decode_token(self, token: int, steps: Steps, index: int) -> str:
        """The text that a token makes certain; the token waits until the text is shown."""
        silent = token in self._silent
        offset = self._said + (not silent and self._detokenizer.breaks(token))
        score = self._score(token, steps, index, offset) if self._scoring.told else None
        self._pending.append(PendingToken(token, offset, not silent and bool(self._pieces[token]), score))
        text = "" if silent else self._detokenizer.add(token)
        self._said += len(text)
        if self.thoughts is not None:
            self.thoughts.note(len(text))
        return text

    def _score(self, token: int, steps: Steps, index: int, offset: int) -> TokenScore:
        row = steps.alternatives[index] if steps.alternatives else ()
        if self._scoring.wanted:
            row = ((token, steps.logprobs[index]), *(pair for pair in row if pair[0] != token))
        alternatives = tuple((other, self._spelt[other], value) for other, value in row)
        return TokenScore(token, self._spelt[token], steps.logprobs[index], alternatives, offset)

    def _delta(self, text: str) -> TextDelta:
        self._shown += len(text)
        scores, ids = self._told_of(list(self._take_due()))
        return TextDelta(self.choice, text, self._take_unreported(), scores, ids)

    def _take_due(self) -> Iterator[PendingToken]:
        while self._pending and self._pending[0].offset < self._shown:
            yield self._pending.popleft()

    def _build_finished(self, reason: FinishReason) -> Finished:
        """With what stands at the end and shows nothing, as the end of the turn; what was cut is dropped."""
        left = [token for token in self._pending if not token.shows and token.offset <= self._shown]
        scores, ids = self._told_of(left)
        return Finished(
            self.choice, reason, self._take_unreported(), scores if self._scoring.told else None, ids
        )

    def _told_of(self, tokens: list[PendingToken]) -> tuple[tuple[TokenScore, ...], tuple[int, ...]]:
        """Of these tokens what is wanted."""
        scores = tuple(each.score for each in tokens if each.score is not None)
        return scores, tuple(each.token for each in tokens) if self._scoring.ids else ()
