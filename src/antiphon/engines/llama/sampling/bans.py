"""Sequences of tokens that an output may not hold: which tokens would complete one now."""

from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.intp]


class Bans:
    """Of one output, which grows by `add`. What is looked at in a step are the sequences whose last token but
    one has just been said."""

    def __init__(self, sequences: Iterable[tuple[int, ...]]) -> None:
        """Each of at least one token."""
        always: set[int] = set()
        self._after: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        longest = 0
        for *before, last in sequences:
            if before:
                self._after.setdefault(before[-1], []).append((tuple(before), last))
                longest = max(longest, len(before))
            else:
                always.add(last)
        self._always: Ids = np.array(sorted(always), dtype=np.intp)
        self._said: deque[int] = deque(maxlen=longest)

    def add(self, token: int) -> None:
        """The output's next token."""
        self._said.append(token)

    def now(self) -> Ids:
        """The tokens that may not come next; some may be there twice."""
        begun = self._after.get(self._said[-1], ()) if self._said else ()
        if not begun:
            return self._always
        said = tuple(self._said)
        ended = [last for before, last in begun if said[-len(before) :] == before]
        return np.concatenate((self._always, np.array(ended, dtype=np.intp))) if ended else self._always
