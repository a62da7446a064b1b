"""The strategy `last_tokens`: finds how many of the last turns fit a budget of tokens.

Counting costs a rendering, so `TurnSearch` guesses from the lengths of the texts and needs few counts.
"""

from collections.abc import Sequence

from antiphon.domain.messages import Message
from antiphon.domain.token_estimate import BYTES_PER_TOKEN
from antiphon.memory.turns import count_leading, find_turns, measure_message

MOST_GUESSES = 6
"""Guesses after which the search halves the rest instead. Texts of very uneven tokens mislead guesses."""


class TurnSearch:
    """Finds the longest end of a conversation, in whole turns, that fits a budget.

    Ask `choose` for the messages to count and give their tokens to `add`, until `choose` returns None. More
    turns are taken to need more tokens.
    """

    def __init__(self, messages: tuple[Message, ...], budget: int) -> None:
        """`budget`: the most tokens of the prompt."""
        self._messages = messages
        self._leading = count_leading(messages)
        self._turns = find_turns(messages) or (self._leading,)
        self._sizes = _measure_ends(messages, self._leading, self._turns)
        self._budget = budget
        self._low, self._high = 0, len(self._turns)
        """The turns from which the conversation may still begin; from `_high` on it is known to fit."""
        self._at = 0
        """The turn that `choose` chose."""
        self._rate = 1 / BYTES_PER_TOKEN
        """Tokens in a byte, by the latest count."""
        self._guesses = 0
        self.least: int | None = None
        """The tokens of the last turn with the leading messages, once they are counted."""

    def choose(self) -> tuple[Message, ...] | None:
        """Returns the messages to count next; None if the search is over."""
        if self._low >= self._high:
            return None
        self._guesses += 1
        if self._guesses <= MOST_GUESSES:
            self._at = min(max(self._guess(), self._low), self._high - 1)
        else:
            self._at = (self._low + self._high) // 2
        return self.cut(self._at)

    def add(self, tokens: int | None) -> None:
        """Takes the tokens of the chosen messages; None if they are too many for the model."""
        self._rate = self._rate * 2 if tokens is None else tokens / max(1, self._sizes[self._at])
        if self._at == len(self._turns) - 1:
            self.least = tokens
        if tokens is not None and tokens <= self._budget:
            self._high = self._at
        else:
            self._low = self._at + 1

    @property
    def longest(self) -> tuple[Message, ...] | None:
        """The messages that fit, once the search is over; None if the last turn alone does not fit."""
        return None if self._high == len(self._turns) else self.cut(self._high)

    @property
    def begin(self) -> int:
        """The first message after the leading ones in `longest`, or of the last turn if nothing fits."""
        return self._turns[min(self._high, len(self._turns) - 1)]

    def cut(self, turn: int) -> tuple[Message, ...]:
        """Returns the leading messages and those from a turn on."""
        return self._messages[: self._leading] + self._messages[self._turns[turn] :]

    def _guess(self) -> int:
        """Returns the first turn from which the conversation probably fits."""
        ends = range(self._low, self._high)
        fits = (at for at in ends if self._sizes[at] * self._rate <= self._budget)
        return next(fits, self._high - 1)


def _measure_ends(messages: Sequence[Message], leading: int, turns: Sequence[int]) -> list[int]:
    """Returns for each turn the estimated bytes of the leading messages and those from the turn on."""
    total = sum(map(measure_message, messages[:leading]))
    sizes: list[int] = []
    end = len(messages)
    for begin in reversed(turns):
        total += sum(map(measure_message, messages[begin:end]))
        sizes.append(total)
        end = begin
    return sizes[::-1]
