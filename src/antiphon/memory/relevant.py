"""The strategy `relevant`: keeps the last turn, and the older turns that are most similar to it."""

from collections.abc import Sequence

from antiphon.domain.messages import Message
from antiphon.memory.summary import cut_middle, write_transcript
from antiphon.memory.turns import count_leading, find_turns

LONGEST_TURN = 1_000
"""The most characters of a turn's text that is embedded. The middle of a longer text is left out."""

SHORTEST_CUT = 60
"""A turn that is too long for the embedding model is not cut to fewer characters."""


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
