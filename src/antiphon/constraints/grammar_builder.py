"""Builds the compiler's grammar for a constraint. It refuses, by name, each part that the compiler would not
enforce as the caller intends.

It runs in the checking process, because a hostile source can take long to read.
"""

import re
import sys
from typing import TYPE_CHECKING, NamedTuple

from llguidance import LLMatcher, regex_to_lark
from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

from antiphon.constraints import compiler_grammar
from antiphon.constraints.compiler_grammar import prepend_prelude
from antiphon.constraints.grammar_types import (
    CallGroup,
    Grammar,
    JsonPlaces,
    find_format_places,
    join_grammars,
    load_group,
)
from antiphon.constraints.json_schema.lowering import make_compilable, parse_json
from antiphon.constraints.regexes import require_portable, require_whitespace
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.errors import InvalidValue, UnsupportedParameter

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_CHOICES = 4096
"""The most texts of one choice."""

COMPACT: "JsonCompileOptions" = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "whitespace_pattern": None,
}
"""The default spacing of JSON."""

STRICT: "JsonCompileOptions" = {
    "coerce_one_of": False,
    "lenient": False,
    "json_allowed_escapes": None,
    "json_allow_general_unicode_escapes": False,
}
"""Options that are always set, so that a schema cannot change them."""

ASCII_CLASSES = "dws"
"""Character classes that match only ASCII, as with Python's re.ASCII."""

LARK_TEXT = re.compile(
    r"""(?P<comment>(?://|\#)[^\n]*)"""
    r"""|(?P<string>"(?:\\.|[^"\\\n])*"i?)"""
    r"""|(?P<regex>/(?P<body>(?:\\.|[^/\\\n])+)/(?P<flags>[imslux]*))"""
)
"""A comment, literal or regular expression in a Lark grammar. All other text is the grammar's structure."""

LARK_HEADER = re.compile(r"%llguidance\s*\{\s*\}")
"""A header without options. It only names the dialect of Lark."""

LARK_REFUSED = {
    re.compile(r"%(?!import\b|ignore\b)\w+"): "directives other than %import and %ignore are not supported",
    re.compile(r"%import\s+(?!common\b)"): "only %import common is supported",
    re.compile(r"<"): "tokens written as <...> are not supported; write their text",
    re.compile(r"@"): "references to other grammars are not supported",
    re.compile(r"::"): "parameters of rules are not supported",
    re.compile(r"\[[^\]]*\]\s*(?:\.\d+\s*)?:"): "attributes of rules are not supported",
    re.compile(r"~(?!\s*\d)"): "negation is not supported: it also matches bytes that are no text",
}
"""Refused parts of a grammar's structure, with the reasons."""


def build_grammar(constraint: Constraint) -> Grammar:
    """Returns the grammar of a constraint, with the prelude first. Raises InvalidValue or
    UnsupportedParameter."""
    grammar = _build_answer_grammar(constraint)
    return prepend_prelude(constraint.prelude, grammar) if constraint.prelude else grammar


def _build_answer_grammar(constraint: Constraint) -> Grammar:
    """Builds the grammar of a constraint without its prelude, by the kind of the constraint."""
    source, field = constraint.source, constraint.field
    match constraint.kind:
        case ConstraintKind.JSON_OBJECT:
            return _build_json_grammar({"type": "object"}, constraint)
        case ConstraintKind.JSON_SCHEMA:
            return _build_json_grammar(make_compilable(source, field), constraint)
        case ConstraintKind.REGEX:
            return _build_lark_grammar(f"start: {_translate_regex(source, field)}")
        case ConstraintKind.CHOICE:
            return _build_lark_grammar(f"start: ONE\nONE: {' | '.join(_translate_choices(source, field))}")
        case ConstraintKind.LARK:
            return _build_lark_grammar(_require_plain_lark(source, field))
        case ConstraintKind.GBNF:
            return _build_lark_grammar(_translate_gbnf(source, field))
        case ConstraintKind.CALLS:
            return _build_calls_grammar(load_group(source))


def list_parts(constraint: Constraint) -> tuple[tuple[str, Grammar], ...]:
    """Returns the grammars inside a constraint that must be tested separately, with the caller's names for
    them. In the whole grammar, free text before them would hide their cost."""
    constrained_part = ((constraint.field, _build_answer_grammar(constraint)),) if constraint.prelude else ()
    if constraint.kind is not ConstraintKind.CALLS:
        return constrained_part
    group = load_group(constraint.source)
    formats = () if group.format is None else ((group.format.field, _build_answer_grammar(group.format)),)
    return (*constrained_part, *formats, *compiler_grammar.build_argument_grammars(group, COMPACT | STRICT))


class AnswerFormat(NamedTuple):
    """The caller's constraint on an answer without calls."""

    constraint: Constraint
    grammar: Grammar
    call_beginnings: tuple[str, ...]
    """The beginnings of calls. No text of the format may begin with one of them."""


def find_answer_format(constraint: Constraint) -> AnswerFormat | None:
    """Returns the constraint on an answer without calls; None if there is no such constraint."""
    group = load_group(constraint.source) if constraint.kind is ConstraintKind.CALLS else None
    if group is None or group.format is None or not group.can_be_format:
        return None
    return AnswerFormat(group.format, _build_answer_grammar(group.format), group.forbidden_prefixes)


def _build_calls_grammar(group: CallGroup) -> Grammar:
    """Builds the grammar of a group of calls. If an answer without calls is possible, the grammar includes
    the format of that answer."""
    call_grammar = compiler_grammar.build_call_grammar(group, COMPACT | STRICT)
    text, places = LLMatcher.grammar_from_lark(call_grammar.text), call_grammar.places
    if group.format is None or not group.can_be_format:
        return Grammar(text, places)
    answer_grammar = _build_answer_grammar(group.format)
    if answer_grammar.places is not None:
        places = (places or JsonPlaces()) | find_format_places(group, answer_grammar.places)
    return Grammar(join_grammars(text, compiler_grammar.FORMAT, answer_grammar.text), places)


def _build_lark_grammar(text: str) -> Grammar:
    """Builds a grammar from Lark text. The grammar contains no JSON places."""
    return Grammar(LLMatcher.grammar_from_lark(text))


def _build_json_grammar(schema: object, constraint: Constraint) -> Grammar:
    """Builds the grammar of a JSON schema, with the caller's whitespace pattern if there is one."""
    spacing = COMPACT
    if (pattern := constraint.whitespace) is not None:
        require_whitespace(pattern, constraint.field)
        allowed = pattern.replace("\\s", r"[ \t\n\r]" if not pattern.startswith("[") else r" \t\n\r")
        spacing = {
            "item_separator": ",",
            "key_separator": ":",
            "whitespace_flexible": True,
            "whitespace_pattern": allowed,
        }
    if schema is False:
        raise InvalidValue(f"{constraint.field} accepts nothing", param=constraint.field)
    return compiler_grammar.build_json_grammar(schema if isinstance(schema, dict) else {}, spacing | STRICT)


def _translate_regex(pattern: str, field: str) -> str:
    """Writes a regular expression in Lark's notation."""
    if not pattern:
        raise InvalidValue(f"{field} is empty; leave it out", param=field)
    require_portable(pattern, field)
    printable = "".join(char if char.isprintable() else _escape(char) for char in pattern)
    return f"/{regex_to_lark(printable, ASCII_CLASSES)}/"


def _escape(char: str) -> str:
    """Escapes a character by its number, in hexadecimal."""
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{{{ord(char):x}}}"


def _translate_choices(source: str, field: str) -> list[str]:
    """Converts a list of texts in JSON to literals of Lark."""
    texts = parse_json(source, field)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidValue(f"{field} must be a list of texts", param=field)
    if len(texts) > MAX_CHOICES:
        raise InvalidValue(f"{field} can have at most {MAX_CHOICES} texts; got {len(texts)}", param=field)
    if "" in texts:
        raise InvalidValue(f"{field} has an empty text; leave it out", param=field)
    return [f"/{''.join(map(_escape_literal, text))}/" for text in dict.fromkeys(texts)]


def _escape_literal(char: str) -> str:
    """Escapes a literal character for a regular expression of Lark."""
    if char.isalnum() and char.isascii():
        return char
    return _escape(char) if ord(char) < 128 else f"\\u{{{ord(char):x}}}"


def _require_plain_lark(source: str, field: str) -> str:
    """Returns the grammar for the compiler. Raises UnsupportedParameter for refused parts."""
    body = LARK_HEADER.sub("", source, count=1)
    for element in LARK_TEXT.finditer(body):
        if element["regex"]:
            if set(element["flags"]) - {"s"}:
                raise UnsupportedParameter(
                    f"{field}: the flags {element['flags']} of a regex are not supported", param=field
                )
            require_portable(element["body"], field)
        elif element["string"] and element["string"].endswith("i"):
            raise UnsupportedParameter(
                f'{field}: case-insensitive literals ("..."i) are not supported', param=field
            )
    structure = LARK_TEXT.sub(" ", body)
    for pattern, reason in LARK_REFUSED.items():
        if match := pattern.search(structure):
            raise UnsupportedParameter(f"{field}: {match[0][:32]!r}: {reason}", param=field)
    return "%llguidance {}\n" + body


GBNF_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
r"""An escape of GBNF: `\` with a character's number or with one other character."""

GBNF_SIGNS = frozenset('"\\[]^-/')
"""Characters with a special meaning in a literal or class of GBNF."""


def _unescape(escape: re.Match[str]) -> str:
    """Replaces an escape with a character's number by the character, unless the character needs an escape."""
    if escape[4]:
        return escape[0]
    code_point = int(escape[1] or escape[2] or escape[3], 16)
    if code_point > sys.maxunicode or 0xD800 <= code_point < 0xE000:
        raise ValueError(f"{escape[0]} is no character")
    char = chr(code_point)
    return (
        char if char.isprintable() and char not in GBNF_SIGNS and code_point != 32 else f"\\x{code_point:02x}"
    )


def _translate_gbnf(source: str, field: str) -> str:
    """Translates the grammar to Lark's notation."""
    try:
        text = GBNF_ESCAPE.sub(_unescape, source)
        _require_rules(text)
        lark = gbnf_to_lark(text)
    except RecursionError:
        raise InvalidValue(f"{field} is nested too deep", param=field) from None
    except (ValueError, IndexError, GbnfToLarkError) as problem:
        raise InvalidValue(f"{field} is no grammar in GBNF: {str(problem)[:300]}", param=field) from None
    return _require_plain_lark(lark, field)


GBNF_TEXT = re.compile(r""""(?:\\.|[^"\\])*"|\[(?:\\.|[^]\\])*\]|\#[^\n]*|\{[^}]*\}""")
"""A literal, class, comment or repetition. All other text is names of rules, and operators."""


def _require_rules(text: str) -> None:
    """Raises ValueError if a name has no rule, or if the converter would give two rules the same name."""
    structure = GBNF_TEXT.sub(" ", text)
    defined = re.findall(r"([\w-]+)\s*::=", structure)
    converted_names = {re.sub(r"[-_]", "", name).lower() for name in defined}
    if "root" not in defined:
        raise ValueError("there is no rule named root")
    if len(converted_names) < len(defined) or "start" in converted_names:
        raise ValueError("two rules are named alike, or one is named start")
    if unknown := {*re.findall(r"[\w-]+", structure)} - {*defined}:
        raise ValueError(f"there is no rule named {min(unknown)[:64]}")
