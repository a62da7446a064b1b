"""A grammar after what a choice may say first: the compiler's text of both, as one."""

from collections.abc import Iterator

from antiphon.constraints.calls import ANYTHING, literal, mark_of, marks_of
from antiphon.constraints.grammar import Grammar
from antiphon.constraints.groups import Frame, Prelude, load_prelude
from antiphon.constraints.joining import join_grammars

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
