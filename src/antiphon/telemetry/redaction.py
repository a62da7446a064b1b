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


AFTER_ESCAPE = r"(?<=\\[nrtbf])"
"""Matches after an escaped line break or tab. A text that contains JSON has such escapes."""

# The time of a search must grow only linearly with the text. So every repetition in a pattern is bounded, or
# is possessive and cannot start in the middle of its own characters.
PATTERNS: Mapping[Redaction, re.Pattern[str]] = {
    Redaction.KEY: re.compile(
        rf"(?:\b|{AFTER_ESCAPE})(?:sk|pk|rk|ak|hf|gh[a-z]|github_pat|glpat|xox[a-z]|AKIA|ASIA|AIza)"
        r"[-_A-Za-z0-9]{12,400}"
        rf"|(?:\b|{AFTER_ESCAPE})eyJ[-_A-Za-z0-9]{{8,4000}}\.[-_A-Za-z0-9]{{8,4000}}\.[-_A-Za-z0-9]{{8,1000}}"
    ),
    Redaction.EMAIL: re.compile(
        # The letter of an escape is no part of the address.
        rf"(?:(?<![\w.%+-])(?!(?<=\\)[nrtbf])|{AFTER_ESCAPE})[\w.%+-]++@[\w-]++(?:\.[\w-]++)++"
    ),
    Redaction.CARD: re.compile(r"(?<![\d.])\d(?:[ -]?\d){12,60}(?![\d.]*\d)"),
    Redaction.PHONE: re.compile(
        rf"(?:(?<![\w.])|{AFTER_ESCAPE})(?:\+|00)\d(?:[ ()./-]{{0,2}}\d){{6,14}}(?!\w)"
        rf"|(?:(?<![\w.])|{AFTER_ESCAPE})\(?0\d(?:[ ()./-]{{0,2}}\d){{6,12}}(?!\w)"
    ),
    Redaction.ADDRESS: re.compile(
        rf"(?:(?<![\w.])|{AFTER_ESCAPE})(?:\d{{1,3}}\.){{3}}\d{{1,3}}(?![\w.]*\d)"
        rf"|(?:(?<![\w:])|{AFTER_ESCAPE})[0-9A-Fa-f]{{0,4}}:[0-9A-Fa-f:]{{1,37}}(?![\w:])"
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
        if isinstance(value, int) and not isinstance(value, bool):
            redacted_number = redact(str(value), self._kinds)  # a card's number can be a number
            return value if redacted_number == str(value) else redacted_number
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
    if kind is Redaction.CARD:
        return lambda match: _redact_cards(match[0])
    mark, is_confirmed = f"[{kind}]", CHECKS.get(kind)
    return lambda match: mark if is_confirmed is None or is_confirmed(match[0]) else match[0]


def _redact_cards(text: str) -> str:
    """Replaces the card numbers in a run of digits. An expiry date or another number can stand beside a card
    number, so each part of the run is tried that begins with a group of at least CARD_GROUP digits."""
    if _is_card(text):
        return CARD_MARK
    parts: list[str] = []
    end = 0
    groups = list(re.finditer(r"\d+", text))
    for index, group in enumerate(groups):
        if group.start() < end or len(group[0]) < CARD_GROUP:
            continue
        for last in reversed(groups[index : index + CARD_LENGTHS[1] // CARD_GROUP + 1]):
            if _is_card(text[group.start() : last.end()]):
                parts += [text[end : group.start()], CARD_MARK]
                end = last.end()
                break
    return "".join([*parts, text[end:]])


def _is_address(text: str) -> bool:
    """Whether the text is an IP address, and not a time of day or a version."""
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def _is_card(text: str) -> bool:
    """Whether the text has as many digits as a card number, and the check digit is correct, by Luhn's
    algorithm."""
    digits = [int(character) for character in reversed(text) if character.isdigit()]
    doubled = [digit * 2 - 9 * (digit > 4) for digit in digits[1::2]]
    return CARD_LENGTHS[0] <= len(digits) <= CARD_LENGTHS[1] and (sum(digits[::2]) + sum(doubled)) % 10 == 0


CARD_LENGTHS = (13, 19)
"""The least and the most digits of a card's number."""

CARD_GROUP = 4
"""The least digits of the first group of a card number, if other digits stand beside it."""

CARD_MARK = f"[{Redaction.CARD}]"

CHECKS: Mapping[Redaction, Callable[[str], bool]] = {
    Redaction.ADDRESS: _is_address,
}
"""By kind: a check of each text that the pattern matches. A text that fails it is not replaced."""
