"""Parts of grammars that llguidance writes itself, or in its notation: lowered JSON schemas, groups of tool
calls, and preludes. `grammar_builder` writes the whole grammar."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from llguidance import LLMatcher

from antiphon.constraints.grammar_types import (
    WHOLE_TEXT,
    CallFormat,
    CallGroup,
    Grammar,
    JsonPlaces,
    Mark,
    Marks,
    Prelude,
    TextAround,
    TextFrame,
    find_argument_places,
    join_grammars,
    load_prelude,
)
from antiphon.constraints.json_schema.lowering import make_compilable
from antiphon.constraints.key_guard import has_key_patterns, has_open_objects
from antiphon.domain.values import replace

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

ANYTHING = r"/(.|\n)*/"

FORMAT = "format"
"""The name by which the grammar refers to the grammar of a group's format."""

LEXEME = re.compile(r'"[^"]*"|[:,] |[^"]')
"""The units into which the compiler divides JSON: a string, a separator with its space, or one character."""

PLAIN = re.compile(r"[A-Za-z0-9 ]")
"""Characters that need no escape in a regular expression of the compiler."""


def build_call_grammar(group: CallGroup, options: "JsonCompileOptions") -> Grammar:
    """Returns the grammar of all calls. It refers to the grammar of the answer's format by the name FORMAT.
    Raises InvalidValue or UnsupportedParameter for a schema."""
    lines = ["%llguidance {}", *_build_start_rules(group)]
    if group.around is TextAround.TEXT_ALONE:
        return Grammar("\n".join(lines))
    more_calls = "" if group.between is None else f"({format_marks(group.between)} call)*"
    names = [f"call_{index}" for index in range(len(group.calls))]
    lines += [
        f"group: {format_marks(group.open[1:])} call {more_calls} {format_marks(group.close)}",
        f"call: {' | '.join(names)}",
    ]
    schemas = [_build_schema(call) for call in group.calls]
    for name, call, schema in zip(names, group.calls, schemas, strict=True):
        arguments = json.dumps({**schema, "x-guidance": options})
        begin, end = _write_marks(call.begin, group), _write_marks(call.end, group)
        lines.append(f"{name}: {begin} %json {arguments} {end}")
    places = _find_watched_places(find_argument_places(group), schemas)
    return Grammar("\n".join(lines), places)


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
        yield call.field, build_json_grammar(_build_schema(call), options)


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
    first_mark, between_groups = format_mark(group.open[0]), group.between_groups
    more_groups = "" if between_groups is None else f"({format_marks(between_groups)} {first_mark} group)*"
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
        mark = group.open[0]
        exclusion = "" if isinstance(mark, int) else f" & ~/(.|\n)*{escape_literal(mark)}(.|\n)*/"
        yield f"TEXT: {ANYTHING}{exclusion}"
    else:
        yield "start: (head group)* TEXT?" if between_groups is not None else "start: head group | TEXT?"
        # `lazy` matches the shortest text that ends with the mark. So no text contains the mark.
        yield f"head{'' if isinstance(group.open[0], int) else '[lazy]'}: TEXT {first_mark}"
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


def format_marks(marks: Sequence[Mark]) -> str:
    """Returns marks in the compiler's notation."""
    return " ".join(map(format_mark, marks))


def format_mark(mark: Mark) -> str:
    """Returns a mark in the compiler's notation."""
    return f"<[{mark}]>" if isinstance(mark, int) else json.dumps(mark)


def escape_literal(text: str) -> str:
    """Escapes a text for a regular expression of the compiler."""
    return "".join(char if PLAIN.match(char) else f"\\u{{{ord(char):x}}}" for char in text)


ANSWER = "answer"
"""The name by which the grammar of a prelude refers to the grammar after it."""


def prepend_prelude(prelude: str, grammar: Grammar) -> Grammar:
    """Returns a grammar for the prelude's frames followed by the text of another grammar."""
    loaded_prelude = load_prelude(prelude)
    prelude_text = "\n".join(("%llguidance {}", *_build_prelude_rules(loaded_prelude)))
    places = None if grammar.places is None else grammar.places.add_prelude(loaded_prelude)
    return Grammar(join_grammars(prelude_text, ANSWER, grammar.text), places)


def _build_prelude_rules(prelude: Prelude) -> Iterator[str]:
    """Yields the rules of a prelude's frames, followed by the marks before the constrained part."""
    names = [f"frame_{index}" for index in range(len(prelude.frames))]
    repetitions = {(False, False): "", (True, False): "?", (True, True): "*", (False, True): "+"}
    repetition = repetitions[prelude.optional, prelude.many]
    yield f"start: ({' | '.join(names)}){repetition} {format_marks(prelude.answer)} @{ANSWER}"
    for index, frame in enumerate(prelude.frames):
        yield from _build_frame_rules(f"frame_{index}", f"text_{index}", frame, prelude)


def _build_frame_rules(name: str, text_rule: str, frame: TextFrame, prelude: Prelude) -> Iterator[str]:
    """Yields the rules of a frame. The text of the frame ends before the first closing mark."""
    closing_mark, *further_marks = frame.close or ()
    terminal, budget = text_rule.upper(), prelude.budget
    opening_marks = format_marks(frame.open)
    if isinstance(closing_mark, int):
        limit = "" if budget is None else f"[max_tokens={budget}]"
        yield f"{name}: {opening_marks} {text_rule} {format_mark(closing_mark)} {format_marks(further_marks)}"
        yield f"{text_rule}{limit}: {terminal}"
        # The closing mark is one token. The text must not contain the same characters as other tokens.
        exclusion = f" & ~/(.|\n)*{escape_literal(prelude.never)}(.|\n)*/" if prelude.never else ""
        yield f"{terminal}: {ANYTHING}{exclusion}"
        return
    # `lazy` matches the shortest text that ends with the mark.
    yield f"{name}: {opening_marks} {text_rule} {format_marks(further_marks)}"
    yield f"{text_rule}[lazy]: {terminal} {format_mark(closing_mark)}"
    yield f"{terminal}: {ANYTHING}"
