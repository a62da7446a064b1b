"""Takes out of texts what shall not be kept. Finds what is written plainly; whoever wants to hide something
from it can.

A pattern holds the interpreter for as long as it looks through a text, so texts are looked through in pieces:
whatever is sent, other threads get their turn within milliseconds.
"""

import ipaddress
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from antiphon.domain.tenancy import Redaction

MAX_DEPTH = 60
"""Objects within objects that are looked into; what lies deeper is left out."""

CUT = " [cut]"
"""Stands where a text was cut."""
PIECE = 8 << 10
"""Characters that are looked through at once, and twice as many where they end nowhere sooner."""
BORDER = re.compile(r"[^\w.%+@:()/ -]|(?<=[^\W\d]) ")
"""What no pattern finds anything across."""

# Every repetition has a bound, or gives nothing back and begins at the first of its characters alone: each
# takes time that grows with the length of the text and no faster.
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
"""In the order in which they are looked for."""


def redact(text: str, kinds: Collection[Redaction], most: int = sys.maxsize) -> str:
    """The text with `[email]` and the like in the place of what was found; of a longer one about so many
    characters, cut where nothing is cut into."""
    done: list[str] = []
    at = 0
    for piece in _pieces(text):
        if at >= most:
            return "".join([*done, CUT])
        at += len(piece)
        done.append(_redacted_piece(piece, kinds))
    return "".join(done)


def _redacted_piece(text: str, kinds: Collection[Redaction]) -> str:
    for kind, pattern in PATTERNS.items():
        if kind in kinds:
            text = pattern.sub(_make_replacement(kind), text)
    return text


def redact_json(text: str, kinds: Collection[Redaction], most: int = sys.maxsize) -> str:
    """JSON in which every string, names of fields too, is redacted; of what is no JSON, the whole text. No
    more than `most` characters, and the mark of a cut."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return _cut([redact(text, kinds, most)], most)
    kept = Redacting(kinds, most).within(said, MAX_DEPTH)
    return _cut(json.JSONEncoder(ensure_ascii=False).iterencode(kept), most)


class Redacting:
    """Redacts what JSON holds, as much of it as is kept."""

    def __init__(self, kinds: Collection[Redaction], most: int) -> None:
        self._kinds = kinds
        self._left = most

    def within(self, said: object, depth: int) -> object:
        """The same, redacted."""
        self._left -= 1
        if self._left < 0:
            return CUT
        if isinstance(said, str):
            return self._text(said)
        if not isinstance(said, dict | list):
            return said
        if depth == 0:
            return "[too deep]"
        if isinstance(said, list):
            return [self.within(each, depth - 1) for each in said]
        return {self._text(str(name)): self.within(each, depth - 1) for name, each in said.items()}

    def _text(self, text: str) -> str:
        if self._left < 0:
            return CUT
        kept = redact(text, self._kinds, self._left)
        self._left -= len(text)
        return kept


def _pieces(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        border = BORDER.search(text, at + PIECE, at + 2 * PIECE)
        end = border.end() if border else at + 2 * PIECE
        yield text[at:end]
        at = end


def _cut(parts: Iterable[str], most: int) -> str:
    """The beginning of what the parts are together."""
    kept, length = [], 0
    for part in parts:
        kept.append(part)
        length += len(part)
        if length > most:
            return "".join(kept)[:most] + CUT
    return "".join(kept)


def _make_replacement(kind: Redaction) -> Callable[[re.Match[str]], str]:
    mark, is_one = f"[{kind}]", CHECKS.get(kind)
    return lambda found: mark if is_one is None or is_one(found[0]) else found[0]


def _is_address(text: str) -> bool:
    """What only looks like one is a time of day, or a version."""
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def _is_card(digits: str) -> bool:
    """Whether the last digit is what the others make it."""
    total = 0
    for place, digit in enumerate(int(each) for each in reversed(digits) if each.isdigit()):
        doubled = digit * 2 if place % 2 else digit
        total += doubled - 9 if doubled > 9 else doubled
    return total % 10 == 0


CHECKS: Mapping[Redaction, Callable[[str], bool]] = {
    Redaction.CARD: _is_card,
    Redaction.ADDRESS: _is_address,
}
"""What is more than a pattern."""
