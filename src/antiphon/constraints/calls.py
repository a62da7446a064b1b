"""A grammar of calls: from the groups that a constraint of the kind `calls` is made of to the compiler's
text."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from llguidance import LLMatcher

from antiphon.constraints.groups import Around, Call, Group, Mark, load
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
    more = "" if group.between is None else f"({_marks(group.between)} call)*"
    names = [f"call_{index}" for index in range(len(group.calls))]
    lines += [
        f"group: {_marks(group.open[1:])} call {more} {_marks(group.close)}",
        f"call: {' | '.join(names)}",
    ]
    for name, call in zip(names, group.calls, strict=True):
        schema = json.dumps({**_schema(call), "x-guidance": options})
        lines.append(f"{name}: {_marks(call.begin)} %json {schema} {_marks(call.end)}")
    return "\n".join(lines)


def argument_grammars(source: str, options: "JsonCompileOptions") -> Iterator[str]:
    """The grammar of each call's arguments alone; free text around them would hide what they take."""
    for call in load(source).calls:
        yield LLMatcher.grammar_from_json_schema(json.dumps(_schema(call)), overrides=options)


def _schema(call: Call) -> dict[str, object]:
    made = compilable(json.dumps(call.schema), call.field)
    return dict(made) if isinstance(made, dict) else {}


def _start(group: Group) -> Iterator[str]:
    """What the output as a whole is."""
    first, again = group.open[0], group.again
    if group.around is Around.NOTHING:
        more = "" if again is None else f"({_marks(again)} {_mark(first)} group)*"
        yield f"start: {_mark(first)} group {more}"
        return
    if group.around is Around.TEXT_ALONE:
        yield "start: TEXT"
        # A control token is no text, so no text holds one.
        without = "" if isinstance(first, int) else f" & ~{_holding(first)}"
        yield f"TEXT: {ANYTHING}{without}"
        return
    yield "start: (head group)* TEXT?" if again is not None else "start: head group | TEXT?"
    # The shortest text that ends with the mark: a text never holds it, so each begins a group.
    yield f"head: TEXT {_mark(first)}" if isinstance(first, int) else f"head[lazy]: TEXT {_mark(first)}"
    yield f"TEXT: {ANYTHING}"


def _marks(marks: Sequence[Mark]) -> str:
    return " ".join(map(_mark, marks))


def _mark(mark: Mark) -> str:
    return f"<[{mark}]>" if isinstance(mark, int) else json.dumps(mark)


def _holding(mark: str) -> str:
    """A regular expression of every text that holds the mark."""
    literal = "".join(char if PLAIN.match(char) else f"\\u{{{ord(char):x}}}" for char in mark)
    return rf"/(.|\n)*{literal}(.|\n)*/"
