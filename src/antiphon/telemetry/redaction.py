"""Takes out of texts what shall not be kept. Finds what is written plainly; whoever wants to hide something
from it can."""

import ipaddress
import json
import re
from collections.abc import Callable, Collection, Mapping

from antiphon.domain.recording import Redaction

MAX_DEPTH = 60
"""Objects within objects that are looked into; what lies deeper is left out."""

# Every repetition has a bound, so each takes time that grows with the length of the text and no faster.
PATTERNS: Mapping[Redaction, re.Pattern[str]] = {
    Redaction.KEY: re.compile(
        r"\b(?:sk|pk|rk|ak|hf|gh[a-z]|github_pat|glpat|xox[a-z]|AKIA|ASIA|AIza)[-_A-Za-z0-9]{12,400}"
        r"|\beyJ[-_A-Za-z0-9]{8,4000}\.[-_A-Za-z0-9]{8,4000}\.[-_A-Za-z0-9]{8,1000}"
    ),
    Redaction.EMAIL: re.compile(r"[\w.%+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"),
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


def redacted(text: str, kinds: Collection[Redaction]) -> str:
    """The text with `[email]` and the like in the place of what was found."""
    for kind, pattern in PATTERNS.items():
        if kind in kinds:
            text = pattern.sub(_named(kind), text)
    return text


def redacted_json(text: str, kinds: Collection[Redaction]) -> str:
    """JSON in which every string, names of fields too, is redacted; of what is no JSON, the whole text."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return redacted(text, kinds)
    return json.dumps(_within(said, lambda each: redacted(each, kinds), MAX_DEPTH), ensure_ascii=False)


def _within(said: object, change: Callable[[str], str], depth: int) -> object:
    if isinstance(said, str):
        return change(said)
    if not isinstance(said, dict | list):
        return said
    if depth == 0:
        return "[too deep]"
    if isinstance(said, list):
        return [_within(each, change, depth - 1) for each in said]
    return {change(str(name)): _within(each, change, depth - 1) for name, each in said.items()}


def _named(kind: Redaction) -> Callable[[re.Match[str]], str]:
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
