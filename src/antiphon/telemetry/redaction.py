"""Replaces personal data and credentials in texts before they are stored. It finds only common notations, and
not data that somebody hides on purpose.

A regular expression blocks the interpreter while it searches. Texts are therefore searched in pieces, so
other threads run again within milliseconds.
"""

import ipaddress
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from antiphon.domain.tenancy import Redaction

MAX_DEPTH = 60
"""The nesting depth of JSON up to which values are searched. Deeper values are removed."""

CUT_MARK = " [cut]"
"""The mark at the end of a text that was cut."""

PIECE_LENGTH = 8 << 10
"""The number of characters of one piece. A piece has up to twice as many if no boundary is found."""

BOUNDARY = re.compile(r"[^\w.%+@:()/ -]|(?<=[^\W\d]) ")
"""A boundary between pieces: no pattern matches across it."""


# The time of a search must grow only linearly with the text. So every repetition in a pattern is bounded, or
# is possessive and cannot start in the middle of its own characters.
PATTERNS: Mapping[Redaction, re.Pattern[str]] = {
    Redaction.KEY: re.compile(
        r"\b(?:sk|pk|rk|ak|hf|gh[a-z]|github_pat|glpat|xox[a-z]|AKIA|ASIA|AIza)[-_A-Za-z0-9]{12,400}"
        r"|\beyJ[-_A-Za-z0-9]{8,4000}\.[-_A-Za-z0-9]{8,4000}\.[-_A-Za-z0-9]{8,1000}"
    ),
    Redaction.EMAIL: re.compile(r"(?<![\w.%+-])[\w.%+-]++@[\w-]++(?:\.[\w-]++)++"),
    Redaction.CARD: re.compile(r"(?<![\d.])\d(?:[ -]?\d){12,18}(?![\d.]*\d)"),
    Redaction.PHONE: re.compile(
        r"(?<![\w.])(?:\+|00)\d(?:[ ()./-]{0,2}\d){6,14}(?!\w)"
        r"|(?<![\w.])\(?0\d(?:[ ()./-]{0,2}\d){6,12}(?!\w)"
    ),
    Redaction.ADDRESS: re.compile(
        r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)|(?<![\w:])[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:]{1,37}(?![\w:])"
    ),
}
"""The pattern of each kind, in the order in which they are applied."""


def redact(text: str, kinds: Collection[Redaction], max_length: int = sys.maxsize) -> str:
    """Replaces each match by a mark such as `[email]`. A text longer than `max_length` characters is cut at
    the next boundary after that many characters."""
    redacted_pieces: list[str] = []
    position = 0
    for piece in _split_pieces(text):
        if position >= max_length:
            return "".join([*redacted_pieces, CUT_MARK])
        position += len(piece)
        redacted_pieces.append(_redact_piece(piece, kinds))
    return "".join(redacted_pieces)


def _redact_piece(text: str, kinds: Collection[Redaction]) -> str:
    """Replaces each match of the kinds in one piece."""
    for kind, pattern in PATTERNS.items():
        if kind in kinds:
            text = pattern.sub(_make_replacement(kind), text)
    return text


def redact_json(text: str, kinds: Collection[Redaction], max_length: int = sys.maxsize) -> str:
    """Redacts every string in a JSON text, also the names of fields. Text that is not JSON is redacted as a
    whole. If the result is longer than `max_length` characters, it is cut there, and CUT_MARK is
    appended."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return _cut([redact(text, kinds, max_length)], max_length)
    redacted = JsonRedactor(kinds, max_length).redact_value(parsed, MAX_DEPTH)
    return _cut(json.JSONEncoder(ensure_ascii=False).iterencode(redacted), max_length)


class JsonRedactor:
    """Redacts the values of a JSON document. After `max_length` characters in total, replaces the rest by
    CUT_MARK."""

    def __init__(self, kinds: Collection[Redaction], max_length: int) -> None:
        self._kinds = kinds
        self._characters_left = max_length

    def redact_value(self, value: object, levels_left: int) -> object:
        """Returns the redacted value. `levels_left`: the number of nested levels that are still allowed."""
        # Each value gives at least one character of the result. So many numbers use up the limit too.
        self._characters_left -= 1
        if self._characters_left < 0:
            return CUT_MARK
        if isinstance(value, str):
            return self._redact_text(value)
        if not isinstance(value, dict | list):
            return value
        if levels_left == 0:
            return "[too deep]"
        if isinstance(value, list):
            return [self.redact_value(item, levels_left - 1) for item in value]
        return {
            self._redact_text(str(name)): self.redact_value(item, levels_left - 1)
            for name, item in value.items()
        }

    def _redact_text(self, text: str) -> str:
        """Redacts one string, and subtracts its length from the characters that are left."""
        if self._characters_left < 0:
            return CUT_MARK
        redacted = redact(text, self._kinds, self._characters_left)
        self._characters_left -= len(text)
        return redacted


def _split_pieces(text: str) -> Iterator[str]:
    """Yields the text in pieces, split at boundaries if there are any."""
    start = 0
    while start < len(text):
        boundary = BOUNDARY.search(text, start + PIECE_LENGTH, start + 2 * PIECE_LENGTH)
        end = boundary.end() if boundary else start + 2 * PIECE_LENGTH
        yield text[start:end]
        start = end


def _cut(parts: Iterable[str], max_length: int) -> str:
    """Joins the parts. If the text is longer than `max_length` characters, cuts it there and appends
    CUT_MARK."""
    pieces, length = [], 0
    for part in parts:
        pieces.append(part)
        length += len(part)
        if length > max_length:
            return "".join(pieces)[:max_length] + CUT_MARK
    return "".join(pieces)


def _make_replacement(kind: Redaction) -> Callable[[re.Match[str]], str]:
    """Returns the replacement function for `re.sub`. It returns the mark of the kind, or the match unchanged
    if the match fails the check of the kind."""
    mark, is_confirmed = f"[{kind}]", CHECKS.get(kind)
    return lambda match: mark if is_confirmed is None or is_confirmed(match[0]) else match[0]


def _is_address(text: str) -> bool:
    """Whether the text is an IP address, and not a time of day or a version."""
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def _is_card(digits: str) -> bool:
    """Whether the check digit of a card number is correct, by Luhn's algorithm."""
    total = 0
    for position, digit in enumerate(int(character) for character in reversed(digits) if character.isdigit()):
        doubled = digit * 2 if position % 2 else digit
        total += doubled - 9 if doubled > 9 else doubled
    return total % 10 == 0


CHECKS: Mapping[Redaction, Callable[[str], bool]] = {
    Redaction.CARD: _is_card,
    Redaction.ADDRESS: _is_address,
}
"""By kind: a check of each text that the pattern matches. A text that fails it is not replaced."""
