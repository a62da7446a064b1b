"""The strategies `last_k` and `last_tokens`: the model sees the last messages of the conversation.

`last_tokens` keeps as many turns as fit a budget of tokens. Every count of tokens needs a rendering.
`TurnSearch` estimates from the lengths of the texts, so it needs few counts.
"""

from collections.abc import Sequence

from antiphon.domain.memory import MEMORY_FIELD
from antiphon.domain.messages import Message
from antiphon.domain.token_estimate import BYTES_PER_TOKEN
from antiphon.errors import InvalidValue
from antiphon.memory.turns import count_leading, find_turns, measure_message, pair_results

MOST_GUESSES = 6
"""After this number of guesses, the search halves the range of turns instead of guessing. Guesses are bad for
texts with very uneven tokens."""


def keep_last_messages(
    messages: tuple[Message, ...], k: int, field: str = MEMORY_FIELD
) -> tuple[Message, ...]:
    """Keeps the leading messages and the last k of the other messages. Drops a tool result if its call is not
    kept.

    `field`: the name of the request field that contains `k`, for the error. Raises InvalidValue if only tool
    results without a call would remain.
    """
    leading_count = count_leading(messages)
    cut = max(leading_count, len(messages) - k)
    calls_of_results = pair_results(messages)
    kept_messages = tuple(
        messages[index] for index in range(cut, len(messages)) if calls_of_results.get(index, index) >= cut
    )
    if not kept_messages and leading_count < len(messages):
        raise InvalidValue(
            f"{field}.k: the last {k} messages are results of a tool whose call is cut, so none would "
            "remain; send a larger k",
            param=f"{field}.k",
        )
    return messages[:leading_count] + kept_messages


class TurnSearch:
    """Finds how many of the last turns fit a budget.

    `choose` returns the messages to count. Count their tokens, and give the number to `add_count`. Repeat
    this until `choose` returns None. The search assumes that more turns need more tokens.
    """

    def __init__(self, messages: tuple[Message, ...], budget: int) -> None:
        """`budget`: the largest number of tokens of the prompt."""
        self._messages = messages
        self._leading_count = count_leading(messages)
        self._turn_starts = find_turns(messages) or (self._leading_count,)
        self._sizes_from_turn = _estimate_sizes(messages, self._leading_count, self._turn_starts)
        self._budget = budget
        self._low, self._high = 0, len(self._turn_starts)
        """The first kept turn is between `_low` and `_high`. The turns from `_high` on fit the budget."""
        self._chosen_turn = 0
        """The turn that `choose` chose last."""
        self._tokens_per_byte = 1 / BYTES_PER_TOKEN
        """An average until the first count, then the ratio of the latest count."""
        self._guess_count = 0
        self.last_turn_tokens: int | None = None
        """Tokens of the leading messages and the last turn; None if they are not counted or do not fit the
        model."""

    def choose(self) -> tuple[Message, ...] | None:
        """Returns the messages to count next; None if the search is over."""
        if self._low >= self._high:
            return None
        self._guess_count += 1
        if self._guess_count <= MOST_GUESSES:
            self._chosen_turn = min(max(self._guess(), self._low), self._high - 1)
        else:
            self._chosen_turn = (self._low + self._high) // 2
        return self._messages_from(self._chosen_turn)

    def add_count(self, tokens: int | None) -> None:
        """Continues the search. `tokens`: the count for the messages of `choose`; None if the model's context
        cannot hold them."""
        self._tokens_per_byte = (
            self._tokens_per_byte * 2
            if tokens is None
            else tokens / max(1, self._sizes_from_turn[self._chosen_turn])
        )
        if self._chosen_turn == len(self._turn_starts) - 1:
            self.last_turn_tokens = tokens
        if tokens is not None and tokens <= self._budget:
            self._high = self._chosen_turn
        else:
            self._low = self._chosen_turn + 1

    @property
    def kept_messages(self) -> tuple[Message, ...] | None:
        """The result of the search: the messages to keep; None if even the last turn does not fit."""
        return None if self._high == len(self._turn_starts) else self._messages_from(self._high)

    @property
    def first_kept_index(self) -> int:
        """Index of the first message that is kept after the leading messages. If not even the last turn fits,
        the index of the last turn's first message."""
        return self._turn_starts[min(self._high, len(self._turn_starts) - 1)]

    def _messages_from(self, turn: int) -> tuple[Message, ...]:
        """Returns the leading messages and all messages from a turn on."""
        return self._messages[: self._leading_count] + self._messages[self._turn_starts[turn] :]

    def _guess(self) -> int:
        """Returns the first turn from which the conversation probably fits the budget."""
        for turn in range(self._low, self._high):
            if self._sizes_from_turn[turn] * self._tokens_per_byte <= self._budget:
                return turn
        return self._high - 1


def _estimate_sizes(messages: Sequence[Message], leading_count: int, turn_starts: Sequence[int]) -> list[int]:
    """Returns for each turn the estimated bytes of a prompt of the leading messages and all messages from
    that turn on."""
    total_bytes = sum(map(measure_message, messages[:leading_count]))
    turn_sizes: list[int] = []
    end = len(messages)
    for begin in reversed(turn_starts):
        total_bytes += sum(map(measure_message, messages[begin:end]))
        turn_sizes.append(total_bytes)
        end = begin
    return turn_sizes[::-1]
