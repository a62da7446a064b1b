"""Builds the compiler's grammar for a constraint. It refuses, by name, each part that the compiler would not
enforce as the caller intends.

llguidance writes some parts itself, or has a notation for them: lowered JSON schemas, groups of tool calls,
and preludes. The module runs in the checking process, because a hostile source can take long to read.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

from antiphon.constraints.grammar_types import (
    WHOLE_TEXT,
    CallFormat,
    CallGroup,
    Grammar,
    JsonPlaces,
    Marks,
    Prelude,
    TextAround,
    TextFrame,
    find_argument_places,
    find_format_places,
    join_grammars,
    load_group,
    load_prelude,
)
from antiphon.constraints.json_schema.lengths import (
    COUNTED_KEYWORDS,
    is_counted_twice,
    needs_trial,
    walk_texts,
)
from antiphon.constraints.json_schema.lowering import make_compilable, parse_json
from antiphon.constraints.key_guard import has_key_patterns, has_open_objects
from antiphon.constraints.lark import (
    ANYTHING,
    escape_character,
    escape_literal,
    format_mark,
    format_marks,
    write_regex,
)
from antiphon.constraints.regexes import require_portable, require_whitespace
from antiphon.constraints.tagged_arguments import write_tagged_call
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue, UnsupportedParameter

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions


FORMAT = "format"
"""The name by which the grammar refers to the grammar of a group's format."""

LEXEME = re.compile(r'"[^"]*"|[:,] |[^"]')
"""The units into which the compiler divides JSON: a string, a separator with its space, or one character."""

ANSWER = "answer"
"""The name by which the grammar of a prelude refers to the grammar after it."""

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

GBNF_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
r"""An escape of GBNF: `\` with a character's number or with one other character."""

GBNF_SIGNS = frozenset('"\\[]^-/')
"""Characters with a special meaning in a literal or class of GBNF."""

GBNF_TEXT = re.compile(r""""(?:\\.|[^"\\])*"|\[(?:\\.|[^]\\])*\]|\#[^\n]*|\{[^}]*\}""")
"""A literal, class, comment or repetition. All other text is names of rules, and operators."""


def build_call_grammar(
    group: CallGroup, options: "JsonCompileOptions", prelude: Prelude | None = None
) -> Grammar:
    """Returns the grammar of all calls. It refers to the grammar of the answer's format by the name FORMAT.
    `prelude`: frames before the calls that a group of calls can end. Raises InvalidValue or
    UnsupportedParameter for a schema."""
    lines = ["%llguidance {}", *_build_start_rules(group)]
    if group.around is TextAround.TEXT_ALONE:
        return Grammar("\n".join(lines))
    if prelude is not None:
        lines[1] = lines[1].replace("start:", f"{ANSWER}:", 1)
        lines[1:1] = [
            *_build_prelude_rules(prelude, f"{ANSWER} | early"),
            *_build_early_rules(group, prelude),
        ]
    names = [f"call_{index}" for index in range(len(group.calls))]
    opening = format_marks(group.open[_count_opening(group) :])
    first_call = "call"
    if group.call_pattern is not None and group.open:
        # The text up to the arguments is one literal. Otherwise the compiler takes its beginning for text.
        opening, first_call = "", "first_call"
        begins = [("".join(map(str, (*group.open, *call.begin))),) for call in group.calls]
        lines += _build_first_calls(group, begins)
    lines += [
        f"group: {opening} {first_call} {_write_further_calls(group)}",
        f"call: {' | '.join(names)}",
    ]
    schemas = [_build_schema(call) for call in group.calls]
    for name, call, schema in zip(names, group.calls, schemas, strict=True):
        begin, end = _write_marks(call.begin, group), _write_marks(call.end, group)
        lines.append(f"{name}: {begin} arguments_{name} {end}")
        if group.tags is None:
            arguments = json.dumps({**schema, "x-guidance": options})
            lines.append(f"arguments_{name}: %json {arguments}")
        else:
            lines += write_tagged_call(f"arguments_{name}", call, schema, group.tags, options)
    if group.tags is not None:
        return Grammar("\n".join(lines))  # a reader drops repeated keys
    places = _find_watched_places(find_argument_places(group), schemas)
    return Grammar("\n".join(lines), places)


def _write_further_calls(group: CallGroup) -> str:
    """Writes what follows the first call of a group."""
    more_calls = "" if group.between is None else f"({format_marks(group.between)} call)* "
    return more_calls + format_marks(group.close)


def _write_further_groups(group: CallGroup) -> str:
    """Writes what follows the first group of an output of calls."""
    opening = format_marks(group.open[: _count_opening(group)])
    between = group.between_groups
    return "" if between is None else f"({format_marks(between)} {opening} group)*"


def _build_early_rules(group: CallGroup, prelude: Prelude) -> Iterator[str]:
    """Yields the rules of a frame that a group of calls ends before the frame's closing marks."""
    (frame,), opening = prelude.frames, prelude.call_opening
    further_groups = _write_further_groups(group)
    if isinstance(opening[-1], int):
        text, first_group = "text_0", "group"
        if len(opening) > 1:
            text = "early_text"
            yield f"early_text{_write_limit(prelude)}: EARLY_TEXT"
            yield f"EARLY_TEXT: TEXT_0 {format_marks(opening[:-1])}"
        yield f"early: {format_marks(frame.open)} {text} {format_mark(opening[-1])} group {further_groups}"
        return
    # `lazy` matches the shortest text that ends with the marks up to a function's name.
    yield f"early_text{_write_limit(prelude, 'lazy')}: TEXT_0 {format_marks(opening)}"
    first_group = f"first_call {_write_further_calls(group)}"
    yield f"early: {format_marks(frame.open)} early_text {first_group} {further_groups}"
    written = len("".join(map(str, opening))) - len("".join(map(str, group.open)))
    begins = [(str(call.begin[0])[written:], *call.begin[1:]) for call in group.calls]
    yield from _build_first_calls(group, begins)


def _build_first_calls(group: CallGroup, begins: Sequence[Marks]) -> Iterator[str]:
    """Yields the rules of the first call of a group. `begins`: the marks before the arguments."""
    yield f"first_call: {' | '.join(f'first_call_{index}' for index in range(len(begins)))}"
    for index, (begin, call) in enumerate(zip(begins, group.calls, strict=True)):
        yield (
            f"first_call_{index}: {_write_marks(begin, group)} arguments_call_{index} "
            f"{_write_marks(call.end, group)}"
        )


def _write_limit(prelude: Prelude, *attributes: str) -> str:
    """Writes the attributes of a text in a frame, with the most tokens of the text."""
    attributes += () if prelude.budget is None else (f"max_tokens={prelude.budget}",)
    return f"[{', '.join(attributes)}]" if attributes else ""


def _count_opening(group: CallGroup) -> int:
    """Returns how many marks tell a group from text: those up to the first control token, or the first mark
    if there is no control token."""
    if group.call_pattern is not None:
        return 0
    return next((index + 1 for index, mark in enumerate(group.open) if isinstance(mark, int)), 1)


def _write_marks(marks: Marks, group: CallGroup) -> str:
    """Writes marks in the compiler's notation.

    A call and a text of the answer's format can both be JSON objects. The compiler follows both only while
    their units are equal. In that case the marks are split into the compiler's units of JSON.
    """
    if group.call_pattern is None or not group.can_be_format:
        return format_marks(marks)
    return format_marks([unit for mark in marks for unit in LEXEME.findall(str(mark))])


def build_argument_grammars(group: CallGroup, options: "JsonCompileOptions") -> Iterator[tuple[str, Grammar]]:
    """Yields the grammar of the arguments of each call, with the caller's name for the call's schema. These
    grammars are tested alone, because free text before the arguments would hide their cost."""
    for call in group.calls:
        schema = _build_schema(call)
        if group.tags is None:
            yield call.field, build_json_grammar(schema, options)
        else:
            lines = write_tagged_call("start", call, schema, group.tags, options)
            yield call.field, Grammar(LLMatcher.grammar_from_lark("\n".join(("%llguidance {}", *lines))))


def build_json_grammar(schema: Mapping[str, object], options: "JsonCompileOptions") -> Grammar:
    """Returns the grammar of a text that is one JSON value."""
    text = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
    return Grammar(text, _find_watched_places(WHOLE_TEXT, [schema]))


def _find_watched_places(places: JsonPlaces, schemas: Sequence[Mapping[str, object]]) -> JsonPlaces | None:
    """Returns the places of values whose keys a key guard must watch: `places`, if the schemas of the values
    accept keys that they do not list. Returns None if the grammar alone keeps all keys unique."""
    if not any(map(has_open_objects, schemas)):
        return None
    return replace(places, keys_can_run_out=any(map(has_key_patterns, schemas)))


def _build_schema(call: CallFormat) -> dict[str, object]:
    """Returns the schema of a call's arguments in the compiler's keywords. Raises InvalidValue or
    UnsupportedParameter."""
    compilable = make_compilable(json.dumps(call.schema), call.field)
    return dict(compilable) if isinstance(compilable, dict) else {}


def _build_start_rules(group: CallGroup) -> Iterator[str]:
    """Yields the rules of the whole output, and of the text in it."""
    if group.call_pattern is not None:
        if group.can_be_format:
            yield f"start: group | @{FORMAT}"
            return
        output_rules = {
            TextAround.NOTHING: "group",
            TextAround.TEXT: "group | TEXT?",
            TextAround.TEXT_ALONE: "TEXT?",
        }
        yield f"start: {output_rules[group.around]}"
        yield f"TEXT: {ANYTHING} & ~/{group.call_pattern}(.|\n)*/"
        return
    opening, between_groups = group.open[: _count_opening(group)], group.between_groups
    first_mark, more_groups = format_marks(opening), _write_further_groups(group)
    if group.frames:
        text = f"@{FORMAT}" if group.can_be_format else "TEXT?"
        yield from _build_framed_rules(group.frames, group.around, f"{first_mark} group {more_groups}", text)
    elif group.can_be_format:
        yield f"start: {first_mark} group {more_groups} | @{FORMAT}"
    elif group.around is TextAround.NOTHING:
        yield f"start: {first_mark} group {more_groups}"
    elif group.around is TextAround.TEXT_ALONE:
        yield "start: TEXT?"
        # A control token has no text, so no text contains one.
        mark = opening[-1]
        exclusion = "" if not isinstance(mark, str) else f" & ~/(.|\n)*{escape_literal(mark)}(.|\n)*/"
        yield f"TEXT: {ANYTHING}{exclusion}"
    else:
        yield "start: (head group)* TEXT?" if between_groups is not None else "start: head group | TEXT?"
        if len(opening) > 1:  # text, then a control token, which no text contains
            yield f"head: HEAD {format_mark(opening[-1])}"
            yield f"HEAD: {ANYTHING} {format_marks(opening[:-1])}"
        else:
            # `lazy` matches the shortest text that ends with the mark. So no text contains the mark.
            yield f"head{'' if isinstance(opening[0], int) else '[lazy]'}: TEXT {first_mark}"
        yield f"TEXT: {ANYTHING}"


def _build_framed_rules(
    frames: Sequence[TextFrame], around: TextAround, groups: str, text: str
) -> Iterator[str]:
    """Yields the rules for framed text: first closed frames, then groups or the last frame. `text`: the rule
    for the text in frames."""
    closed_frames = [
        f"{format_marks(frame.open)} TEXT? {format_marks(frame.close)}"
        for frame in frames
        if frame.close is not None
    ]
    open_frames = [f"{format_marks(frame.open)} {text}" for frame in frames if frame.close is None]
    endings = {
        TextAround.NOTHING: [groups],
        TextAround.TEXT: [groups, *open_frames],
        TextAround.TEXT_ALONE: open_frames,
    }
    yield f"start: frame* ({' | '.join(endings[around])})"
    yield f"frame: {' | '.join(closed_frames)}"
    yield f"TEXT: {ANYTHING}"


def prepend_prelude(prelude: Prelude, grammar: Grammar) -> Grammar:
    """Returns a grammar for the prelude's frames followed by the text of another grammar."""
    prelude_text = "\n".join(("%llguidance {}", *_build_prelude_rules(prelude)))
    places = None if grammar.places is None else grammar.places.add_prelude(prelude)
    return Grammar(join_grammars(prelude_text, ANSWER, grammar.text), places)


def _build_prelude_rules(prelude: Prelude, answer: str = f"@{ANSWER}") -> Iterator[str]:
    """Yields the rules of a prelude's frames, followed by the marks before the constrained part. `answer`:
    the constrained part."""
    names = [f"frame_{index}" for index in range(len(prelude.frames))]
    repetitions = {(False, False): "", (True, False): "?", (True, True): "*", (False, True): "+"}
    repetition = repetitions[prelude.optional, prelude.allows_several]
    yield f"start: ({' | '.join(names)}){repetition} {format_marks(prelude.answer)} {answer}"
    for index, frame in enumerate(prelude.frames):
        yield from _build_frame_rules(f"frame_{index}", f"text_{index}", frame, prelude)


def _build_frame_rules(name: str, text_rule: str, frame: TextFrame, prelude: Prelude) -> Iterator[str]:
    """Yields the rules of a frame. The text of the frame ends before the first closing mark."""
    closing_mark, *further_marks = frame.close or ()
    terminal = text_rule.upper()
    opening_marks = format_marks(frame.open)
    if isinstance(closing_mark, int):
        yield f"{name}: {opening_marks} {text_rule} {format_mark(closing_mark)} {format_marks(further_marks)}"
        yield f"{text_rule}{_write_limit(prelude)}: {terminal}"
        # The closing mark is one token. The text must not contain the same characters as other tokens.
        exclusion = (
            f" & ~/(.|\n)*{escape_literal(prelude.forbidden_text)}(.|\n)*/" if prelude.forbidden_text else ""
        )
        yield f"{terminal}: {ANYTHING}{exclusion}"
        return
    # `lazy` matches the shortest text that ends with the mark.
    yield f"{name}: {opening_marks} {text_rule} {format_marks(further_marks)}"
    yield f"{text_rule}[lazy]: {terminal} {format_mark(closing_mark)}"
    yield f"{terminal}: {ANYTHING}"


def build_grammar(constraint: Constraint) -> Grammar:
    """Returns the grammar of a constraint, with the prelude first. Raises InvalidValue or
    UnsupportedParameter."""
    if not constraint.prelude:
        return _build_answer_grammar(constraint)
    prelude = load_prelude(constraint.prelude)
    if not prelude.call_opening:
        return prepend_prelude(prelude, _build_answer_grammar(constraint))
    grammar = _build_calls_grammar(load_group(constraint.source), prelude)
    return replace(grammar, places=None if grammar.places is None else grammar.places.add_prelude(prelude))


def _build_answer_grammar(constraint: Constraint) -> Grammar:
    """Builds the grammar of a constraint without its prelude, by the kind of the constraint."""
    source, field = constraint.source, constraint.field
    match constraint.kind:
        case ConstraintKind.JSON_OBJECT:
            return _build_schema_grammar({"type": "object"}, constraint)
        case ConstraintKind.JSON_SCHEMA:
            return _build_schema_grammar(make_compilable(source, field), constraint)
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
    return (*constrained_part, *formats, *build_argument_grammars(group, COMPACT | STRICT))


def list_trials(constraint: Constraint) -> Iterator[tuple[str, Grammar]]:
    """Yields grammars of texts that may need more of the compiler's states than they have characters, with
    the caller's names for them. Such a text must be followed to its end before it is accepted."""
    match constraint.kind:
        case ConstraintKind.REGEX:
            if is_counted_twice(constraint.source):
                yield constraint.field, _build_answer_grammar(constraint)
        case ConstraintKind.JSON_SCHEMA:
            yield from _list_schema_trials(
                make_compilable(constraint.source, constraint.field), constraint.field
            )
        case ConstraintKind.CALLS:
            group = load_group(constraint.source)
            if group.format is not None:
                yield from list_trials(group.format)
            for call in group.calls:
                yield from _list_schema_trials(_build_schema(call), call.field)


def _list_schema_trials(schema: object, field: str) -> Iterator[tuple[str, Grammar]]:
    """Yields a grammar for each different text of a schema that must be tried."""
    texts = {json.dumps(text, sort_keys=True): text for text in walk_texts([schema]) if needs_trial(text)}
    for text in texts.values():
        counted = {name: value for name, value in text.items() if name in (*COUNTED_KEYWORDS, "format")}
        yield field, build_json_grammar({"type": "string", **counted}, COMPACT | STRICT)


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


def _build_calls_grammar(group: CallGroup, prelude: Prelude | None = None) -> Grammar:
    """Builds the grammar of a group of calls. If an answer without calls is possible, the grammar includes
    the format of that answer. `prelude`: frames before the calls that a group of calls can end."""
    call_grammar = build_call_grammar(group, COMPACT | STRICT, prelude)
    text, places = LLMatcher.grammar_from_lark(call_grammar.text), call_grammar.places
    if group.format is None or not group.can_be_format:
        return Grammar(text, places)
    answer_grammar = _build_answer_grammar(group.format)
    if answer_grammar.places is not None:
        places = (places or JsonPlaces()) | find_format_places(group, answer_grammar.places)
    return Grammar(join_grammars(text, FORMAT, answer_grammar.text), places)


def _build_lark_grammar(text: str) -> Grammar:
    """Builds a grammar from Lark text. The grammar contains no JSON places."""
    return Grammar(LLMatcher.grammar_from_lark(text))


def _build_schema_grammar(schema: object, constraint: Constraint) -> Grammar:
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
    return build_json_grammar(schema if isinstance(schema, dict) else {}, spacing | STRICT)


def _translate_regex(pattern: str, field: str) -> str:
    """Writes a regular expression in Lark's notation."""
    if not pattern:
        raise InvalidValue(f"{field} is empty; leave it out", param=field)
    require_portable(pattern, field)
    return write_regex(pattern)


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
    return escape_character(char) if ord(char) < 128 else f"\\u{{{ord(char):x}}}"


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
