"""Where in a JSON text something stands, as a path of keys and indices: for telling which field is at fault
when the text cannot be read whole. Reads tokens, not values; never fails."""

import re

MARKS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\],:]', re.DOTALL)
"""Strings, also one that never ends, and what structures a text."""

LONGEST_PATH = 200
"""Characters of a path that an error repeats."""


def place(text: str, position: int) -> str | None:
    """The path of the value that stands, or should begin, at a position; None at the top."""
    steps: list[str | int | None] = []
    """Of each object and list that is open: its key (None before one) or index."""
    last = ""
    for mark in MARKS.finditer(text, 0, position):
        character = mark.group()
        if character == "{":
            steps.append(None)
        elif character == "[":
            steps.append(0)
        elif character in "}]" and steps:
            steps.pop()
        elif character == "," and steps:
            index = steps[-1]
            steps[-1] = index + 1 if isinstance(index, int) else None
        elif character == ":" and steps and steps[-1] is None:
            steps[-1] = last
        else:
            last = character[1:-1]
    return _path(steps)


def outside_strings(text: str, wanted: str) -> int | None:
    """Where a pattern first matches that is in no string."""
    pattern = re.compile(rf"(?P<string>{MARKS.pattern})|(?P<found>{wanted})", re.DOTALL)
    found = (match for match in pattern.finditer(text) if match["found"] is not None)
    first = next(found, None)
    return None if first is None else first.start()


def _path(steps: list[str | int | None]) -> str | None:
    path = ""
    for step in steps:
        if step is None:
            break
        path += f"[{step}]" if isinstance(step, int) else f".{_printable(step)}" if path else _printable(step)
    return path[:LONGEST_PATH] or None


def _printable(key: str) -> str:
    plain = key.encode("ascii", "backslashreplace").decode()
    return "".join(character if character.isprintable() else "?" for character in plain)
