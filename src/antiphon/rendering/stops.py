"""Stop strings in a text that comes in parts: found wherever the parts are cut. They are never shown, not
even a beginning; or, where that is asked for, they are shown whole and nothing after them.

The match that ends first wins, and of those that end together the longest, so the outcome does not depend on
how the text was cut. Matching is Aho and Corasick's automaton (1975): each character is looked at once.
"""

import re
from collections import deque
from collections.abc import Sequence

from antiphon.errors import InvalidValue

MOST_CHARACTERS = 10_000
"""Of all stop strings of a request together; each costs memory in the automaton."""


class _State:
    """A text that is the beginning of some stop string."""

    __slots__ = ("ends", "length", "longest", "next")

    def __init__(self, length: int) -> None:
        self.length = length
        self.next: dict[str, _State] = {}
        self.longest: _State = self
        """The longest proper ending of this text that begins a stop string too; the root's is itself."""
        self.ends = 0
        """Length of the longest stop string that this text ends with; 0 is none."""


class StopStrings:
    """The automaton of a request's stop strings; shared by its choices. Raises InvalidValue."""

    def __init__(self, stops: Sequence[str], kept: bool = False) -> None:
        """`kept`: whether the one that ends a text stays at its end; nothing has to be held back then."""
        self.kept = kept
        if sum(map(len, stops)) > MOST_CHARACTERS:
            raise InvalidValue(f"stop strings together may have {MOST_CHARACTERS} characters", param="stop")
        self.root = _State(0)
        wanted = [stop for stop in stops if stop]
        for stop in wanted:
            self._insert(stop)
        self._link()
        firsts = "".join(map(re.escape, sorted({stop[0] for stop in wanted})))
        self.first = re.compile(f"[{firsts}]" if firsts else r"(?!)")
        """Finds where a stop string may begin."""

    def _insert(self, stop: str) -> None:
        state = self.root
        for length, character in enumerate(stop, start=1):
            state = state.next.setdefault(character, _State(length))
        state.ends = len(stop)

    def _link(self) -> None:
        """Breadth first, since the longest proper ending of a text is shorter than the text."""
        pending = deque(self.root.next.values())
        for state in pending:
            state.longest = self.root
        while pending:
            state = pending.popleft()
            for character, following in state.next.items():
                following.longest = step(state.longest, character, self.root)
                following.ends = following.ends or following.longest.ends
                pending.append(following)


NO_STOP_STRINGS = StopStrings(())
"""Of all requests without any."""


def step(state: _State, character: str, root: _State) -> _State:
    """Where a character leads."""
    while character not in state.next:
        if state is root:
            return root
        state = state.longest
    return state.next[character]


class StopFilter:
    """One text that ends at a stop string. `stopped` says whether it did."""

    __slots__ = ("_held", "_state", "_stops", "stopped")

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._state = stops.root
        self._held = ""
        """The end of the text so far that may be the beginning of a stop string."""
        self.stopped = False

    def add(self, text: str) -> str:
        """The text that may be shown now. After the stop string nothing is."""
        root, state = self._stops.root, self._state
        at = 0
        if state is root:
            found = self._stops.first.search(text)
            if found is None:
                return text
            at = found.start()
        known = len(self._held)
        whole = self._held + text
        for place in range(at, len(text)):
            state = step(state, text[place], root)
            if state.ends:
                self.stopped = True
                self._held, self._state = "", root
                return whole[: known + place + 1 - (0 if self._stops.kept else state.ends)]
        self._state = state
        shown = len(whole) - (0 if self._stops.kept else state.length)
        self._held = whole[shown:]
        return whole[:shown]

    def end(self) -> str:
        """What was held back, when the text ends without a stop string."""
        held, self._held, self._state = self._held, "", self._stops.root
        return held
