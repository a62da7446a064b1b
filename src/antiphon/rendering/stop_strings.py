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

    __slots__ = ("length", "longest_suffix", "next_states", "stop")

    def __init__(self, length: int) -> None:
        self.length = length
        self.next_states: dict[str, _State] = {}
        self.longest_suffix: _State = self
        """The state of the longest proper suffix of this text that begins some stop string. The root refers
        to itself."""
        self.stop = ""
        """The longest stop string that is a suffix of this text; empty if there is none."""


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
            state = state.next_states.setdefault(character, _State(length))
        state.stop = stop

    def _link(self) -> None:
        """Sets `longest_suffix` and `stop` of each state. Shorter texts come first, since a suffix is
        shorter than its text."""
        pending = deque(self.root.next_states.values())
        for state in pending:
            state.longest_suffix = self.root
        while pending:
            state = pending.popleft()
            for character, following in state.next_states.items():
                following.longest_suffix = find_next_state(state.longest_suffix, character, self.root)
                following.stop = following.stop or following.longest_suffix.stop
                pending.append(following)


NO_STOP_STRINGS = StopStrings(())
"""The automaton of requests without stop strings."""


def find_next_state(state: _State, character: str, root: _State) -> _State:
    """Returns the next state for a character."""
    while character not in state.next_states:
        if state is root:
            return root
        state = state.longest_suffix
    return state.next_states[character]


class StopFilter:
    """Cuts one text at the first stop string. `found_stop`: the stop string that was found, or None."""

    __slots__ = ("_held_text", "_state", "_stops", "found_stop")

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._state = stops.root
        self._held_text = ""
        """The end of the text, if it can be the beginning of a stop string."""
        self.found_stop: str | None = None

    def add(self, text: str) -> str:
        """Returns the text that can be shown now. It returns no text after the stop string."""
        root, state = self._stops.root, self._state
        begin = 0
        if state is root:
            match = self._stops.first_pattern.search(text)
            if match is None:
                return text
            begin = match.start()
        held_length = len(self._held_text)
        full_text = self._held_text + text
        for position in range(begin, len(text)):
            state = find_next_state(state, text[position], root)
            if state.stop:
                self.found_stop = state.stop
                self._held_text, self._state = "", root
                return full_text[
                    : held_length + position + 1 - (0 if self._stops.keeps_stop else len(state.stop))
                ]
        self._state = state
        shown_length = len(full_text) - (0 if self._stops.keeps_stop else state.length)
        self._held_text = full_text[shown_length:]
        return full_text[:shown_length]

    def end(self) -> str:
        """Ends a text without a stop string. Returns the text that was held back."""
        held_text, self._held_text, self._state = self._held_text, "", self._stops.root
        return held_text
