"""Finds stop strings in a text that arrives in parts. No part of a stop string is shown, unless the caller
keeps stop strings.

The match that ends first wins. If several matches end there, the longest wins. So the result does not depend
on how the text is divided. The matcher is the automaton of Aho and Corasick (1975), which reads each
character once.
"""

import re
from collections import deque
from collections.abc import Sequence

from antiphon.errors import InvalidValue

MOST_CHARACTERS = 10_000
"""The most characters of all stop strings of a request together. Each character costs memory in the
automaton."""


class _State:
    """A state of the automaton: a text with which some stop string begins."""

    __slots__ = ("length", "longest", "next", "stop_length")

    def __init__(self, length: int) -> None:
        self.length = length
        self.next: dict[str, _State] = {}
        self.longest: _State = self
        """The state of the longest proper ending of this text with which a stop string begins. The root
        refers to itself."""
        self.stop_length = 0
        """Length of the longest stop string with which this text ends; 0 if there is none."""


class StopStrings:
    """The automaton of a request's stop strings, which all its choices share."""

    def __init__(self, stops: Sequence[str], keep_stop: bool = False) -> None:
        """`keep_stop`: whether the text keeps the stop string that ends it; then no text is held back. Raises
        InvalidValue for stop strings that are too long together."""
        self.keeps_stop = keep_stop
        if sum(map(len, stops)) > MOST_CHARACTERS:
            raise InvalidValue(
                f"all stop strings together may have at most {MOST_CHARACTERS} characters", param="stop"
            )
        self.root = _State(0)
        stop_strings = [stop for stop in stops if stop]
        for stop in stop_strings:
            self._insert(stop)
        self._link()
        first_characters = "".join(map(re.escape, sorted({stop[0] for stop in stop_strings})))
        self.first_pattern = re.compile(f"[{first_characters}]" if first_characters else r"(?!)")
        """Finds where a stop string can begin."""

    def _insert(self, stop: str) -> None:
        """Adds the states of one stop string to the automaton."""
        state = self.root
        for length, character in enumerate(stop, start=1):
            state = state.next.setdefault(character, _State(length))
        state.stop_length = len(stop)

    def _link(self) -> None:
        """Sets `longest` of each state. Shorter texts come first, because an ending is shorter than its
        text."""
        pending = deque(self.root.next.values())
        for state in pending:
            state.longest = self.root
        while pending:
            state = pending.popleft()
            for character, following in state.next.items():
                following.longest = find_next_state(state.longest, character, self.root)
                following.stop_length = following.stop_length or following.longest.stop_length
                pending.append(following)


NO_STOP_STRINGS = StopStrings(())
"""The automaton of requests without stop strings."""


def find_next_state(state: _State, character: str, root: _State) -> _State:
    """Returns the next state for a character."""
    while character not in state.next:
        if state is root:
            return root
        state = state.longest
    return state.next[character]


class StopFilter:
    """Cuts one text at the first stop string. `has_stopped`: whether it found one."""

    __slots__ = ("_held_text", "_state", "_stops", "has_stopped")

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._state = stops.root
        self._held_text = ""
        """The end of the text with which a stop string can begin."""
        self.has_stopped = False

    def add(self, text: str) -> str:
        """Returns the text that can be shown now. It returns no text after the stop string."""
        root, state = self._stops.root, self._state
        at = 0
        if state is root:
            match = self._stops.first_pattern.search(text)
            if match is None:
                return text
            at = match.start()
        held_length = len(self._held_text)
        full_text = self._held_text + text
        for position in range(at, len(text)):
            state = find_next_state(state, text[position], root)
            if state.stop_length:
                self.has_stopped = True
                self._held_text, self._state = "", root
                return full_text[
                    : held_length + position + 1 - (0 if self._stops.keeps_stop else state.stop_length)
                ]
        self._state = state
        shown_length = len(full_text) - (0 if self._stops.keeps_stop else state.length)
        self._held_text = full_text[shown_length:]
        return full_text[:shown_length]

    def end(self) -> str:
        """Returns the text that was held back when the text ends without a stop string."""
        held_text, self._held_text, self._state = self._held_text, "", self._stops.root
        return held_text
