"""Checks the regular expressions and whitespace patterns of callers. It compiles nothing.

A regular expression must have the same meaning in Python, in JavaScript and in the compiler. It is refused if
one of the three would read it differently, or if it needs more than an automaton: lookaround, backreferences,
word boundaries, flags and set operations.
"""

import re
from dataclasses import dataclass

from antiphon.errors import InvalidValue

CLASSES = frozenset("dDwWsS")
"""Escapes for classes. `\\d`, `\\w` and `\\s` match only ASCII."""

CONTROLS = frozenset("nrtfv")

HEX = {"x": 2, "u": 4}
"""Escapes with a character's number, and how many digits they have."""

SET_OPERATORS = ("&&", "--", "~~")

UNESCAPABLE = frozenset("<>")
"""Characters that must not be escaped: for the compiler, the escapes are word boundaries."""

GROUP = re.compile(r"\(\?(?::|P?<[A-Za-z_][A-Za-z0-9_]*>)")

QUANTIFIER = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}")

WHITE = r"\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
NOT_WHITE = (
    r"\x00-\x08\x0e-\x1f!-\u009f\u00a1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e"
    r"\u2060-\u2fff\u3001-\ufefe\uff00-\U0010ffff"
)
MEMBERS = {r"\s": WHITE, r"\S": NOT_WHITE}
"""The members of ECMA-262's `\\s` and `\\S`, in a class."""

ECMA_PARTS = {".": r"[^\n\r\u2028\u2029]", r"\s": f"[{WHITE}]", r"\S": f"[^{WHITE}]"}
"""Parts outside classes that mean something else in ECMA-262 than for the compiler."""

ECMA_PART = re.compile(r"\\.|\[(?:\\.|[^\\\]])*\]|\.", re.DOTALL)
"""An escape outside a class, a class, or a dot."""

ANCHORED_PART = re.compile(
    r"(?P<open>\((?:\?(?::|P?<[A-Za-z_][A-Za-z0-9_]*>))?)|(?P<close>\))|(?P<branch>\|)|(?P<start>\^)|(?P<end>\$)"
    r"|(?P<repetition>[*+?]|\{\d+(?:,\d*)?\})|(?:\\.|\[(?:\\.|[^\\\]])*\]|.)",
    re.DOTALL,
)
"""A part of a pattern: the beginning or end of a group, the end of a branch, an anchor, a repetition, or one
character or class."""

CLASS = re.compile(r"\\.|\[(?P<inner>\^?(?:\\.|[^\\\]])*)\]", re.DOTALL)
"""An escape outside a class, or a class."""

ALL_CONTROLS = r"\x00-\x1f"
"""All control characters, in a class."""

QUOTED = '"\\'
"""Characters that JSON escapes by a backslash followed by the character."""

WHITESPACE = re.compile(
    r"(?:\[(?:[ \t\n\r]|\\[tnr ]|\\s|\\x(?:20|09|0[aAdD]))+\]|[ \t\n\r]|\\[tnrs])(?:[*+?]|\{\d+(?:,\d*)?\})?"
)
"""A whitespace pattern: JSON whitespace characters, which may be repeated."""

MAX_WHITESPACE_LENGTH = 256
"""The most characters of a whitespace pattern."""


def require_portable(pattern: str, field: str) -> None:
    """Raises InvalidValue, which names the refused part, unless the pattern has the same meaning in Python,
    in JavaScript and in the compiler."""
    index, in_class = 0, False
    while index < len(pattern):
        if pattern[index] == "\\":
            index = _skip_escape(pattern, index, field)
        elif in_class:
            in_class = pattern[index] != "]"
            _require_plain_class_character(pattern, index, field)
            index += 1
        elif pattern[index] == "[":
            index += 1 + pattern.startswith("^", index + 1)
            in_class = True
            if pattern.startswith("]", index):
                raise _build_refusal(pattern, index, "write a bracket in a class as \\]", field)
        else:
            index = _skip_outside_class(pattern, index, field)


def _skip_escape(pattern: str, index: int, field: str) -> int:
    """Returns the index after the escape at `index`. Raises InvalidValue for an unsupported escape."""
    escaped = pattern[index + 1 : index + 2]
    digits = HEX.get(escaped, 0)
    if digits and re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", pattern[index + 2 : index + 2 + digits]):
        return index + 2 + digits
    punctuation = escaped.isascii() and escaped.isprintable() and not escaped.isalnum()
    if escaped and (escaped in CLASSES | CONTROLS or (punctuation and escaped not in UNESCAPABLE)):
        return index + 2
    raise _build_refusal(
        pattern, index, f"\\{escaped} is not supported; backreferences and word boundaries are not", field
    )


def _require_plain_class_character(pattern: str, index: int, field: str) -> None:
    """Raises InvalidValue for a nested class or a set operation inside a class."""
    if pattern[index] == "[":
        raise _build_refusal(pattern, index, "write a bracket in a class as \\[", field)
    if pattern.startswith(SET_OPERATORS, index):
        raise _build_refusal(
            pattern, index, "set operations in a class are not supported; escape the signs", field
        )


def _skip_outside_class(pattern: str, index: int, field: str) -> int:
    """Returns the index after the next part of a pattern outside a class. Raises InvalidValue for an
    unsupported group or quantifier."""
    if pattern.startswith("(?", index):
        if not (group := GROUP.match(pattern, index)):
            raise _build_refusal(
                pattern, index, "lookaround, flags and other (? groups are not supported", field
            )
        return group.end()
    if quantifier := QUANTIFIER.match(pattern, index):
        end = quantifier.end()
        if pattern.startswith(("+", "*"), end):
            raise _build_refusal(
                pattern, index, "possessive and doubled quantifiers are not supported", field
            )
        return end + pattern.startswith("?", end)
    if pattern[index] == "{":
        raise _build_refusal(
            pattern, index, "write a brace that is no repetition as \\{, and {,n} as {0,n}", field
        )
    return index + 1


def _build_refusal(pattern: str, index: int, reason: str, field: str) -> InvalidValue:
    """Returns the error for a refused part of a pattern."""
    excerpt = pattern[index : index + 12]
    return InvalidValue(f"the regular expression at character {index}, {excerpt!r}: {reason}", param=field)


def spell_classes(pattern: str) -> str:
    """Writes out the classes that the compiler reads differently from ECMA-262, which JSON Schema's patterns
    follow: `.` excludes all line ends, and `\\s` is all white space."""

    def spell(match: re.Match[str]) -> str:
        part = match[0]
        if not part.startswith("["):
            return ECMA_PARTS.get(part, part)
        if "\\s" in part and "\\S" in part:
            return part  # any character, or none
        return re.sub(r"\\.", lambda each: MEMBERS.get(each[0], each[0]), part, flags=re.DOTALL)

    return ECMA_PART.sub(spell, pattern)


def split_anchored(pattern: str) -> list[tuple[bool, str, bool]] | None:
    """Splits a pattern at its outermost `|`. Returns for each branch whether it begins with `^`, the branch
    without its anchors, and whether it ends with `$`. Returns None if a group has an anchor. The pattern has
    no inner anchor (`has_inner_anchor`)."""
    branches = [(False, "", False)]
    depth = 0
    for part in ANCHORED_PART.finditer(pattern):
        at_start, body, at_end = branches[-1]
        if depth and (part["start"] or part["end"]):
            return None
        depth += bool(part["open"]) - bool(part["close"])
        if part["start"]:
            branches[-1] = (True, body, at_end)
        elif part["end"]:
            branches[-1] = (at_start, body, True)
        elif part["branch"] and not depth:
            branches.append((False, "", False))
        else:
            branches[-1] = (at_start, body + part[0], at_end)
    return branches


@dataclass
class _Branch:
    """A branch of a group while it is read."""

    is_first: bool
    """Whether no character can come before the group."""
    is_empty: bool = True
    """Whether the branch has no character yet."""
    has_end: bool = False
    """Whether an earlier part of the group needs the end of the text right behind it."""
    has_anchor: bool = False
    """Whether the group has any anchor."""


def has_inner_anchor(pattern: str) -> bool:
    """Whether a part comes before a `^` or behind a `$`, or a group with an anchor is repeated. The compiler
    does not support such a pattern."""
    branches = [_Branch(is_first=True)]
    needs_end = [False]
    """For each open group: whether a branch that is read ends with `$`."""
    closed: _Branch | None = None
    """The group that the last part closed."""
    for part in ANCHORED_PART.finditer(pattern):
        branch, last_closed, closed = branches[-1], closed, None
        if part["start"]:
            if not (branch.is_first and branch.is_empty):
                return True
            branch.has_anchor = True
        elif part["end"]:
            branch.has_end = branch.has_anchor = True
        elif part["branch"]:
            needs_end[-1] |= branch.has_end
            branch.is_empty, branch.has_end = True, False
        elif part["close"] and len(branches) > 1:
            closed = branches.pop()
            outer = branches[-1]
            outer.has_anchor |= closed.has_anchor
            outer.has_end |= needs_end.pop() or closed.has_end
            outer.is_empty = False
        elif part["repetition"]:
            if last_closed is not None and last_closed.has_anchor:
                return True
        else:
            if branch.has_end:
                return True
            if part["open"]:
                branches.append(_Branch(branch.is_first and branch.is_empty))
                needs_end.append(False)
            else:
                branch.is_empty = False
    return False


def make_quotable(pattern: str, field: str) -> str:
    """Rewrites a pattern so that the compiler quotes it correctly for JSON. The result matches no more than
    the original.

    If a class contains all control characters, the compiler assumes that the class contains the quote and the
    backslash too. So if a negated class does not contain these two, the control characters are removed from
    it. Other such classes are refused.
    """
    try:
        return CLASS.sub(lambda match: _remove_controls(match, field), pattern)
    except re.error as problem:
        raise InvalidValue(
            f"the regular expression holds an invalid class: {problem.msg}", param=field
        ) from None


def _remove_controls(match: re.Match[str], field: str) -> str:
    """Removes control characters from a class that the compiler would quote incorrectly. Raises InvalidValue
    if they cannot be removed."""
    inner = match["inner"]
    if inner is None or all(re.fullmatch(match[0], char, re.ASCII) for char in QUOTED):
        return match[0]
    if inner.startswith("^"):
        return match[0] if inner.endswith(ALL_CONTROLS) else f"[{inner}{ALL_CONTROLS}]"
    if any(re.fullmatch(match[0], chr(code), re.ASCII) for code in {*range(32)} - {9, 10, 11, 12, 13}):
        raise InvalidValue(
            f"the class {match[0][:32]} holds control characters and not both of quote and backslash, which "
            "cannot be enforced in JSON; leave the control characters out",
            param=field,
        )
    return match[0]


def require_whitespace(pattern: str, field: str) -> None:
    """Raises InvalidValue, which names `field`, unless the pattern is a whitespace pattern."""
    if len(pattern) > MAX_WHITESPACE_LENGTH or not WHITESPACE.fullmatch(pattern):
        raise InvalidValue(
            f"{field}: the whitespace pattern must be one class of spaces, tabs and line ends, perhaps "
            f"repeated, in at most {MAX_WHITESPACE_LENGTH} characters: [ \\n]{{0,2}}",
            param=field,
        )
