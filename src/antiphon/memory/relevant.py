"""The strategy `relevant`: keeps the last turn, and of the older turns those that are nearest to it."""

from collections.abc import Sequence

from antiphon.domain.messages import Message
from antiphon.memory.summary import cut_middle, write_transcript
from antiphon.memory.turns import count_leading, find_turns

LONGEST_TURN = 1_000
"""Characters of a turn that its vector is made of. The middle of a longer turn is left out."""

LEAST_TURN = 60
"""Characters of a turn below which it is not cut any further."""


class RankedTurns:
    """The turns of a conversation, of which the best are chosen."""

    def __init__(self, messages: tuple[Message, ...]) -> None:
        self._messages = messages
        self._leading = count_leading(messages)
        begins = find_turns(messages) or (self._leading,)
        ends = (*begins[1:], len(messages))
        self._turns = [messages[begin:end] for begin, end in zip(begins, ends, strict=True)]
        self._order: list[int] = []

    def __len__(self) -> int:
        """Number of older turns."""
        return len(self._turns) - 1

    def write_texts(self, longest: int = LONGEST_TURN) -> list[str]:
        """Returns what each turn's vector is made of, the last turn's at the end. `longest`: characters."""
        return [cut_middle(write_transcript(turn), longest) for turn in self._turns]

    def rank(self, vectors: Sequence[bytes]) -> None:
        """Orders the older turns by the cosine with the last one. Of equal turns the later comes first.
        `vectors`: float32, one for each text."""
        import numpy as np  # takes a tenth of a second, which only processes that need it spend

        matrix = np.array([np.frombuffer(each, np.float32) for each in vectors], np.float32)
        matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        nearness = matrix[:-1] @ matrix[-1]
        self._order = sorted(range(len(self)), key=lambda turn: (-float(nearness[turn]), -turn))

    def choose(self, count: int) -> tuple[Message, ...]:
        """Returns the leading messages, so many of the nearest turns in their own order, and the last one."""
        chosen = [self._turns[turn] for turn in sorted(self._order[:count])]
        turns = (message for turn in (*chosen, self._turns[-1]) for message in turn)
        return (*self._messages[: self._leading], *turns)
