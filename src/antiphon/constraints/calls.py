"""A grammar of calls: from the groups that a constraint of the kind `calls` is made of to the compiler's
text."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from llguidance import LLMatcher

from antiphon.constraints.groups import Around, Call, Frame, Group, Mark, load
from antiphon.constraints.schemas import compilable

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

ANYTHING = r"/(.|\n)*/"

PLAIN = re.compile(r"[A-Za-z0-9 ]")
"""Characters that stand for themselves in a regular expression of the compiler's."""


def lark(source: str, options: "JsonCompileOptions") -> str:
    """The grammar as Lark writes it. Raises InvalidValue or UnsupportedParameter for a schema."""
    group = load(source)
    lines = ["%llguidance {}", *_start(group)]
    if group.around is Around.TEXT_ALONE:
        return "\n".join(lines)
    more = "" if group.between is None else f"({marks_of(group.between)} call)*"
    names = [f"call_{index}" for index in range(len(group.calls))]
    lines += [
        f"group: {marks_of(group.open[1:])} call {more} {marks_of(group.close)}",
        f"call: {' | '.join(names)}",
    ]
    for name, call in zip(names, group.calls, strict=True):
        schema = json.dumps({**_schema(call), "x-guidance": options})
        lines.append(f"{name}: {marks_of(call.begin)} %json {schema} {marks_of(call.end)}")
    return "\n".join(lines)


def argument_grammars(source: str, options: "JsonCompileOptions") -> Iterator[tuple[str, str]]:
    """The grammar of each call's arguments alone, after what the caller calls them; free text around them
    would hide what they take."""
    for call in load(source).calls:
        yield (
            call.field,
            LLMatcher.grammar_from_json_schema(json.dumps(_schema(call)), overrides=options),
        )


def _schema(call: Call) -> dict[str, object]:
    made = compilable(json.dumps(call.schema), call.field)
    return dict(made) if isinstance(made, dict) else {}


def _start(group: Group) -> Iterator[str]:
    """What the output as a whole is, and what text is in it."""
    if group.sign is not None:
        whole = {Around.NOTHING: "group", Around.TEXT: "group | TEXT?", Around.TEXT_ALONE: "TEXT?"}
        yield f"start: {whole[group.around]}"
        yield f"TEXT: {ANYTHING} & ~/{group.sign}(.|\n)*/"
        return
    first, again = mark_of(group.open[0]), group.again
    more = "" if again is None else f"({marks_of(again)} {first} group)*"
    if group.frames:
        yield from _framed(group.frames, group.around, f"{first} group {more}")
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


def _framed(frames: Sequence[Frame], around: Around, groups: str) -> Iterator[str]:
    """Where all text has a frame: closed ones, and then groups or the last one."""
    closed = [
        f"{marks_of(frame.open)} TEXT? {marks_of(frame.close)}" for frame in frames if frame.close is not None
    ]
    last = [f"{marks_of(frame.open)} TEXT?" for frame in frames if frame.close is None]
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
