"""Chooses the turns of a conversation that the model sees.

A conversation has leading system messages, turns, and tool results with their calls. `last_k` and
`last_tokens` keep the last messages. Every count of tokens needs a rendering. `TurnSearch` estimates from the
lengths of the texts, so it needs few counts. `relevant` keeps the last turn, and the older turns that are
most similar to it.
"""

from collections.abc import Mapping, Sequence

from antiphon.domain.memory import MEMORY_FIELD
from antiphon.domain.messages import BYTES_PER_TOKEN, Message, Role, measure_text
from antiphon.domain.values import Struct
from antiphon.errors import InvalidValue

LEADING_ROLES = (Role.SYSTEM, Role.DEVELOPER)
"""The roles of leading messages, which every strategy keeps."""

FRAME_BYTES = 16
"""Bytes that a template writes around each message, approximately."""

MOST_GUESSES = 6
"""After this number of guesses, the search halves the range of turns instead of guessing. Guesses are bad for
texts with very uneven tokens."""

LONGEST_TURN = 1_000
"""The most characters of a turn's text that is embedded. The middle of a longer text is left out."""

SHORTEST_CUT = 60
"""A turn that is too long for the embedding model is not cut to fewer characters."""

LABELS = {
    Role.SYSTEM: "System",
    Role.DEVELOPER: "System",
    Role.USER: "User",
    Role.ASSISTANT: "Assistant",
    Role.TOOL: "Tool",
}

OMITTED = "\n[...]\n"
"""Replaces the middle of a text that `cut_middle` shortens."""


def count_leading(messages: Sequence[Message]) -> int:
    """Returns the number of system and developer messages before the first other message."""
    other_indexes = (index for index, message in enumerate(messages) if message.role not in LEADING_ROLES)
    return next(other_indexes, len(messages))


def pair_results(messages: Sequence[Message]) -> Mapping[int, int]:
    """Returns a mapping from the index of each tool result to the index of the message with its call. If
    calls have the same id, a result belongs to the nearest call before it."""
    call_messages: dict[str, int] = {}
    pairs: dict[int, int] = {}
    for index, message in enumerate(messages):
        for call in message.tool_calls:
            call_messages[call.id] = index
        if message.role is Role.TOOL and message.tool_call_id in call_messages:
            pairs[index] = call_messages[message.tool_call_id]
    return pairs


def find_turns(messages: Sequence[Message]) -> tuple[int, ...]:
    """Returns the index of each turn's first message, without the leading messages. A turn begins with a
    message of the user. Messages before the first such message are a turn too. A turn never begins between
    a call and its result. Returns an empty tuple if there are only leading messages."""
    leading_count = count_leading(messages)
    if leading_count == len(messages):
        return ()
    inside_calls: set[int] = set()
    for result, call in pair_results(messages).items():
        inside_calls.update(range(call + 1, result + 1))
    user_messages = (at for at in range(leading_count + 1, len(messages)) if messages[at].role is Role.USER)
    return (leading_count, *(at for at in user_messages if at not in inside_calls))


def measure_message(message: Message) -> int:
    """Estimates how many bytes a message adds to the prompt, without images and recordings."""
    calls = sum(measure_text(call.name) + measure_text(call.arguments) for call in message.tool_calls)
    return FRAME_BYTES + measure_text(message.text) + measure_text(message.reasoning or "") + calls


def write_transcript(messages: Sequence[Message]) -> str:
    """Returns the messages as a text that a model can summarise."""
    return "\n\n".join(map(_write_message, messages))


def _write_message(message: Message) -> str:
    calls = [f"(calls {call.name} with {call.arguments})" for call in message.tool_calls]
    return "\n".join([f"{LABELS[message.role]}: {message.text}", *calls])


def cut_middle(text: str, length: int) -> str:
    """Cuts a text to `length` characters by replacing its middle with OMITTED."""
    if len(text) <= length:
        return text
    head = (length + 1) // 2
    return text[:head] + OMITTED + text[len(text) - (length - head) :]


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


class PromptBudget(Struct, frozen=True):
    """The most tokens of a prompt."""

    tokens: int
    is_raisable: bool
    """Whether the caller can raise the budget. If not, the model's context limits it."""


def choose_budget(
    requested: int | None, context_length: int | None, answer_tokens: int
) -> PromptBudget | None:
    """Returns the budget that the caller requested, by default half of the context. It is at most what the
    context can hold beside the answer.

    `answer_tokens`: the most tokens of the answer. Returns None if nothing was requested and the context
    length is unknown.
    """
    if context_length is None:
        return None if requested is None else PromptBudget(requested, is_raisable=True)
    tokens, free_tokens = requested or context_length // 2, max(context_length - max(answer_tokens, 1), 0)
    return PromptBudget(min(tokens, free_tokens), is_raisable=tokens <= free_tokens)


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


class RankedTurns:
    """The turns of a conversation, ordered by their similarity to the last turn."""

    def __init__(self, messages: tuple[Message, ...]) -> None:
        self._messages = messages
        self._leading_count = count_leading(messages)
        begins = find_turns(messages) or (self._leading_count,)
        ends = (*begins[1:], len(messages))
        self._turns = [messages[begin:end] for begin, end in zip(begins, ends, strict=True)]
        self._ranking: list[int] = []

    def __len__(self) -> int:
        """Number of older turns."""
        return len(self._turns) - 1

    def write_texts(self, most_characters: int = LONGEST_TURN) -> list[str]:
        """Returns the text to embed for each turn, in order. `most_characters`: the most characters of a
        text."""
        return [cut_middle(write_transcript(turn), most_characters) for turn in self._turns]

    def rank(self, vectors: Sequence[bytes]) -> None:
        """Orders the older turns by the cosine similarity to the last turn. Of two equal turns, the later
        comes first. `vectors`: float32, one for each text of `write_texts`."""
        import numpy as np  # importing takes a tenth of a second: only processes that need it import it

        matrix = np.array([np.frombuffer(vector, np.float32) for vector in vectors], np.float32)
        matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        similarities = matrix[:-1] @ matrix[-1]
        self._ranking = sorted(range(len(self)), key=lambda turn: (-float(similarities[turn]), -turn))

    def choose(self, count: int) -> tuple[Message, ...]:
        """Returns the leading messages, the `count` most similar turns in their original order, and the last
        turn."""
        chosen = [self._turns[turn] for turn in sorted(self._ranking[:count])]
        turns = (message for turn in (*chosen, self._turns[-1]) for message in turn)
        return (*self._messages[: self._leading_count], *turns)
