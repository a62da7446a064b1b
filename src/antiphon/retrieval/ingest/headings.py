"""Finds the headings of a Markdown text, and the path of headings above a place in it."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

LINE = re.compile(r"^ {0,3}(?:(?P<fence>`{3,}|~{3,})|(?P<marks>#{1,6})[ \t]+(?P<words>\S.*))", re.MULTILINE)
"""A line that opens or closes a fence, or a heading."""

CLOSING_MARKS = re.compile(r"[ \t]+#+[ \t]*$")

JOINT = " > "

LONGEST_PATH = 500
"""Characters of a path. The front of a longer one is left out."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading with all that are above it."""

    start: int
    """The character that it begins at."""
    path: tuple[str, ...]


def find_headings(text: str) -> list[Heading]:
    """Lists the headings that begin with `#`, in order. Those between fences are code."""
    found: list[Heading] = []
    open_levels: list[tuple[int, str]] = []
    fence = ""
    for line in LINE.finditer(text):
        if marks := line["fence"]:
            if not fence:
                fence = marks
            elif marks.startswith(fence):
                fence = ""
        elif not fence:
            level = len(line["marks"])
            while open_levels and open_levels[-1][0] >= level:
                open_levels.pop()
            open_levels.append((level, CLOSING_MARKS.sub("", line["words"]).strip()))
            found.append(Heading(line.start(), tuple(words for _, words in open_levels)))
    return found


def find_path(headings: Sequence[Heading], text: str, start: int) -> str:
    """Returns the headings above the first word from `start` on, or at it, joined; empty if there are
    none."""
    while start < len(text) and text[start].isspace():
        start += 1
    position = bisect_right(headings, start, key=lambda heading: heading.start)
    return JOINT.join(headings[position - 1].path)[-LONGEST_PATH:] if position else ""
