"""Grammars that were compiled lately: a request with the same one takes a copy, which costs microseconds."""

import threading
import time
from collections.abc import Callable
from hashlib import sha256

from antiphon.constraints.grammar import Grammar
from antiphon.constraints.matching import Matcher, Vocabulary
from antiphon.constraints.segmented_lru import SegmentedLRU

MOST = 64 * 1024 * 1024
"""Bytes that are held, by the estimate below, which is several times the truth of most."""

ENTRIES = 1024

PER_SECOND, PER_CHARACTER, LEAST = 400e6, 100, 32 * 1024
"""Bytes that a compiled grammar holds at most: for each second of CPU that compiling took, or each character
of its text. The compiler does not tell; hostile and everyday ones were measured at 18 to 300 MB/s."""


class Compiled:
    """Grammars of one vocabulary. From any thread."""

    def __init__(self, most: int = MOST, clock: Callable[[], float] = time.thread_time) -> None:
        """`clock`: seconds of the calling thread's CPU."""
        self._clock = clock
        self._kept: SegmentedLRU[bytes, Matcher] = SegmentedLRU(most, ENTRIES)
        """Matchers that nobody follows; copying one is reading it, so all of it is under the lock."""
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes, by estimate."""
        return self._kept.held

    def matcher(self, grammar: Grammar, vocabulary: Vocabulary) -> Matcher:
        """One text's way through a checked grammar. Raises EngineError when it does not compile."""
        key = sha256(repr(grammar).encode()).digest()
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                return kept.copy()
        began = self._clock()
        made = Matcher(grammar, vocabulary)
        size = max(PER_SECOND * (self._clock() - began), PER_CHARACTER * len(grammar.text), LEAST)
        with self._lock:
            self._kept.put(key, made.copy(), int(size))
        return made
