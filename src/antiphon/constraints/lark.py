"""Writes marks, texts and regular expressions in the compiler's notation, which is a kind of Lark."""

import json
import re
from collections.abc import Sequence

from llguidance import regex_to_lark

from antiphon.constraints.grammar_types import Mark, NumberMark

ANYTHING = r"/(.|\n)*/"
"""Any text."""

PLAIN = re.compile(r"[A-Za-z0-9 ]")
"""Characters that need no escape in a regular expression of the compiler."""

ASCII_CLASSES = "dws"
"""Character classes that match only ASCII, as with Python's re.ASCII."""


def format_marks(marks: Sequence[Mark]) -> str:
    """Returns marks in the compiler's notation."""
    return " ".join(map(format_mark, marks))


def format_mark(mark: Mark) -> str:
    """Returns a mark in the compiler's notation."""
    if isinstance(mark, NumberMark):
        return "/[0-9]{1,4}/"
    return f"<[{mark}]>" if isinstance(mark, int) else json.dumps(mark)


def escape_literal(text: str) -> str:
    """Escapes a text for a regular expression of the compiler."""
    return "".join(char if PLAIN.match(char) else f"\\u{{{ord(char):x}}}" for char in text)


def escape_character(char: str) -> str:
    """Escapes a character by its number, in hexadecimal."""
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{{{ord(char):x}}}"


def write_regex(pattern: str) -> str:
    """Returns a portable regular expression in the compiler's notation."""
    printable = "".join(char if char.isprintable() else escape_character(char) for char in pattern)
    return f"/{regex_to_lark(printable, ASCII_CLASSES)}/"
