"""The compiler's text for groups of calls, and for a grammar that comes after a prelude."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llguidance import LLMatcher

from antiphon.constraints.grammar import (
    WHOLE_TEXT,
    Around,
    Call,
    Frame,
    Grammar,
    Group,
    JsonPlaces,
    Mark,
    Marks,
    Prelude,
    join_grammars,
    load_prelude,
    places_of_arguments,
)
from antiphon.constraints.json_schema.lowering import compilable
from antiphon.constraints.key_guard import has_key_patterns, has_open_objects

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

ANYTHING = r"/(.|\n)*/"

FORMAT = "format"
"""The name by which the grammar refers to that of a group's format."""

LEXEME = re.compile(r'"[^"]*"|[:,] |[^"]')
"""What the compiler reads as one in JSON: a key or a text, a sign."""

PLAIN = re.compile(r"[A-Za-z0-9 ]")
"""Characters that stand for themselves in a regular expression of the compiler's."""


def grammar_of_calls(group: Group, options: "JsonCompileOptions") -> Grammar:
    """The grammar of all calls, which refers to that of a format by FORMAT. Raises InvalidValue or
    UnsupportedParameter for a schema."""
    lines = ["%llguidance {}", *_start(group)]
    if group.around is Around.TEXT_ALONE:
        return Grammar("\n".join(lines))
    more = "" if group.between is None else f"({marks_of(group.between)} call)*"
    names = [f"call_{index}" for index in range(len(group.calls))]
    lines += [
        f"group: {marks_of(group.open[1:])} call {more} {marks_of(group.close)}",
        f"call: {' | '.join(names)}",
    ]
    schemas = [_schema(call) for call in group.calls]
    for name, call, schema in zip(names, group.calls, schemas, strict=True):
        arguments = json.dumps({**schema, "x-guidance": options})
        begin, end = (_write_marks(marks, group) for marks in (call.begin, call.end))
        lines.append(f"{name}: {begin} %json {arguments} {end}")
    places = _find_watched_places(places_of_arguments(group), schemas)
    return Grammar("\n".join(lines), places)


def _write_marks(marks: Marks, group: Group) -> str:
    """Marks in order. Where a call and a text of the format may both be JSON objects, in the pieces that the
    compiler makes of JSON: it follows both only as long as their pieces are the same."""
    if group.sign is None or not group.is_either:
        return marks_of(marks)
    return marks_of([piece for mark in marks for piece in LEXEME.findall(str(mark))])


def argument_grammars(group: Group, options: "JsonCompileOptions") -> Iterator[tuple[str, Grammar]]:
    """The grammar of each call's arguments alone, after what the caller calls them; free text around them
    would hide what they take."""
    for call in group.calls:
        yield call.field, grammar_of_json(_schema(call), options)


def grammar_of_json(schema: Mapping[str, object], options: "JsonCompileOptions") -> Grammar:
    """The grammar of a text that is one value of JSON."""
    text = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
    return Grammar(text, _find_watched_places(WHOLE_TEXT, [schema]))


def _find_watched_places(places: JsonPlaces, schemas: Sequence[Mapping[str, object]]) -> JsonPlaces | None:
    """The places of values of these schemas, if their keys have to be watched."""
    if not any(map(has_open_objects, schemas)):
        return None
    return replace(places, keys_run_out=any(map(has_key_patterns, schemas)))


def _schema(call: Call) -> dict[str, object]:
    made = compilable(json.dumps(call.schema), call.field)
    return dict(made) if isinstance(made, dict) else {}


def _start(group: Group) -> Iterator[str]:
    """What the output as a whole is, and what text is in it."""
    if group.sign is not None:
        if group.is_either:
            yield f"start: group | @{FORMAT}"
            return
        whole = {Around.NOTHING: "group", Around.TEXT: "group | TEXT?", Around.TEXT_ALONE: "TEXT?"}
        yield f"start: {whole[group.around]}"
        yield f"TEXT: {ANYTHING} & ~/{group.sign}(.|\n)*/"
        return
    first, again = mark_of(group.open[0]), group.again
    more = "" if again is None else f"({marks_of(again)} {first} group)*"
    if group.frames:
        text = f"@{FORMAT}" if group.is_either else "TEXT?"
        yield from _build_framed_rules(group.frames, group.around, f"{first} group {more}", text)
    elif group.is_either:
        yield f"start: {first} group {more} | @{FORMAT}"
    elif group.around is Around.NOTHING:
        yield f"start: {first} group {more}"
    elif group.around is Around.TEXT_ALONE:
        yield "start: TEXT?"
        # A control token is no text, so no text holds one.
        kept = "" if isinstance(group.open[0], int) else f" & ~/(.|\n)*{literal(group.open[0])}(.|\n)*/"
        yield f"TEXT: {ANYTHING}{kept}"
    else:
        yield "start: (head group)* TEXT?" if again is not None else "start: head group | TEXT?"
        # The shortest text that ends with the mark: a text never holds it, so each begins a group.
        yield f"head{'' if isinstance(group.open[0], int) else '[lazy]'}: TEXT {first}"
        yield f"TEXT: {ANYTHING}"


def _build_framed_rules(frames: Sequence[Frame], around: Around, groups: str, text: str) -> Iterator[str]:
    """Where all text has a frame: closed ones, and then groups or the last one, with `text` in it."""
    closed = [
        f"{marks_of(frame.open)} TEXT? {marks_of(frame.close)}" for frame in frames if frame.close is not None
    ]
    last = [f"{marks_of(frame.open)} {text}" for frame in frames if frame.close is None]
    ends = {
        Around.NOTHING: [groups],
        Around.TEXT: [groups, *last],
        Around.TEXT_ALONE: last,
    }
    yield f"start: frame* ({' | '.join(ends[around])})"
    yield f"frame: {' | '.join(closed)}"
    yield f"TEXT: {ANYTHING}"


def marks_of(marks: Sequence[Mark]) -> str:
    """Marks in order, as the compiler writes them."""
    return " ".join(map(mark_of, marks))


def mark_of(mark: Mark) -> str:
    """A text, or a token by its id."""
    return f"<[{mark}]>" if isinstance(mark, int) else json.dumps(mark)


def literal(text: str) -> str:
    """The text in a regular expression of the compiler's."""
    return "".join(char if PLAIN.match(char) else f"\\u{{{ord(char):x}}}" for char in text)


ANSWER = "answer"
"""The name by which the first grammar refers to the one that follows."""


def after(prelude: str, grammar: Grammar) -> Grammar:
    """First what the prelude takes, then the grammar."""
    made = load_prelude(prelude)
    first = "\n".join(("%llguidance {}", *_rules(made)))
    places = None if grammar.places is None else grammar.places.after_prelude(made)
    return Grammar(join_grammars(first, ANSWER, grammar.text), places)


def _rules(prelude: Prelude) -> Iterator[str]:
    names = [f"frame_{at}" for at in range(len(prelude.frames))]
    how = {(False, False): "", (True, False): "?", (True, True): "*", (False, True): "+"}
    times = how[prelude.optional, prelude.many]
    yield f"start: ({' | '.join(names)}){times} {marks_of(prelude.answer)} @{ANSWER}"
    for at, frame in enumerate(prelude.frames):
        yield from _frame(f"frame_{at}", f"said_{at}", frame, prelude)


def _frame(name: str, said: str, frame: Frame, prelude: Prelude) -> Iterator[str]:
    """A frame whose text ends with the first mark that closes it."""
    first, *rest = frame.close or ()
    token, budget = said.upper(), prelude.budget
    begin = marks_of(frame.open)
    if isinstance(first, int):
        limit = "" if budget is None else f"[max_tokens={budget}]"
        yield f"{name}: {begin} {said} {mark_of(first)} {marks_of(rest)}"
        yield f"{said}{limit}: {token}"
        # The mark is one token, so nothing else may spell it.
        kept = f" & ~/(.|\n)*{literal(prelude.never)}(.|\n)*/" if prelude.never else ""
        yield f"{token}: {ANYTHING}{kept}"
        return
    # The shortest text that ends with the mark.
    yield f"{name}: {begin} {said} {marks_of(rest)}"
    yield f"{said}[lazy]: {token} {mark_of(first)}"
    yield f"{token}: {ANYTHING}"
