"""Separates a choice's reasoning from its answer while the text arrives, and counts the tokens of reasoning.
The result does not depend on how the text is cut.

Reasoning is only at the beginning, and ends at the first closing mark; without that mark all text is
reasoning. Another reader reads the answer, so a call inside reasoning stays reasoning.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace

from antiphon.constraints import grammar as groups
from antiphon.constraints.grammar import Prelude, TextFrame
from antiphon.domain.request import Constraint, ConstraintKind, Conversation, Prompt, Reasoning
from antiphon.errors import UnsupportedParameter
from antiphon.rendering.context_window import FittedPrompt
from antiphon.rendering.model_info import ModelInfo
from antiphon.rendering.reasoning.notation import Begin, ReasoningNotation
from antiphon.rendering.tools.call_notation import CallNotation, to_marks
from antiphon.rendering.tools.call_readers import (
    OutputPart,
    OutputReader,
    ReasoningPart,
    Span,
    find_partial_mark,
    is_inside,
)
from antiphon.rendering.tools.json_call import SPACE

TAIL = 64
"""Tokens at a prompt's end that may hold the mark that begins reasoning; the mark has at most six."""

ANYTHING = "start: TEXT?\nTEXT: /(.|\\n)*/"
"""The grammar of any text."""


def find_begin(prompt: Prompt, tokens: tuple[int, ...], facts: ModelInfo) -> Begin | None:
    """Returns where the choices of a prompt begin; None for raw prompts and for models that do not reason."""
    if facts.template is None or not isinstance(prompt, Conversation):
        return None
    notation = facts.template.reasoning_notation
    if notation is None:
        return None
    answer_start = prompt.messages[-1].text if prompt.continues else ""
    is_text = notation.close not in facts.controls
    return notation.find_begin(facts.spelt.text(tokens[-TAIL:]), answer_start, is_text)


def constrain_prompt(
    prompt: Prompt, fits: FittedPrompt, constraint: Constraint | None, facts: ModelInfo
) -> FittedPrompt:
    """Adds where the prompt's choices begin and their constraint. Raises UnsupportedParameter."""
    begin = find_begin(prompt, fits.tokens, facts)
    return replace(fits, begin=begin, constraint=constrain_answer(constraint, prompt, begin, facts))


def constrain_answer(
    constraint: Constraint | None, prompt: Prompt, begin: Begin | None, facts: ModelInfo
) -> Constraint | None:
    """Returns the constraint of a choice, applied from the beginning of its answer."""
    template = facts.template
    if template is None or template.reasoning_notation is None or not isinstance(prompt, Conversation):
        return constraint
    notation, budget = template.reasoning_notation, prompt.reasoning.budget
    if begin is None or begin is Begin.AFTER or (constraint is None and budget is None):
        return constraint
    if notation.channels:
        return _constrain_channels(constraint, template.call_notation, prompt.reasoning, facts)
    field = prompt.reasoning.terms.budget
    ids = {**facts.single_tokens(notation.marks), **facts.controls}
    if budget is not None and notation.close not in ids:
        raise UnsupportedParameter(
            f"{field} is not supported: this model writes the end of its reasoning in several tokens",
            param=field,
        )
    prelude = Prelude(
        frames=(_build_frame(notation, begin, ids),),
        optional=begin is Begin.FREE,
        budget=budget,
        never=notation.close if notation.close in ids else "",
    )
    bare = constraint or Constraint(ConstraintKind.LARK, ANYTHING, field=field)
    return replace(bare, prelude=prelude.dump())


def _build_frame(notation: ReasoningNotation, begin: Begin, ids: Mapping[str, int]) -> TextFrame:
    opening = () if begin is Begin.INSIDE else notation.open
    return TextFrame(to_marks(opening, ids), to_marks((notation.close, *notation.gap), ids))


def _constrain_channels(
    constraint: Constraint | None, layout: CallNotation, reasoning: Reasoning, facts: ModelInfo
) -> Constraint | None:
    """Builds the constraint for a model with channels. The grammar of calls has channels of its own."""
    budget, field = reasoning.budget, reasoning.terms.budget
    thought, *others = (
        frame.with_ids(facts.controls) for frame in layout.channels if frame.close is not None
    )
    final = next(frame.with_ids(facts.controls) for frame in layout.channels if frame.close is None)
    calls = constraint is not None and constraint.kind is ConstraintKind.CALLS
    if budget is None:
        if constraint is None or calls:
            return constraint
        prelude = Prelude((thought, *others), optional=True, many=True, answer=final.open)
        return replace(constraint, prelude=prelude.dump())
    if constraint is None:
        group = groups.CallGroup(groups.TextAround.TEXT_ALONE, final.open, (), (), frames=(*others, final))
        constraint, calls = Constraint(ConstraintKind.CALLS, group.dump(), field=field), True
    elif calls:
        group = groups.load_group(constraint.source)
        frames = tuple(frame for frame in group.frames if frame.open != thought.open)
        constraint = replace(constraint, source=replace(group, frames=frames).dump())
    answer = () if calls else final.open
    prelude = Prelude((thought,), optional=True, budget=budget, answer=answer)
    return replace(constraint, prelude=prelude.dump())


class ReasoningReader:
    """Reads one choice of a model that reasons."""

    def __init__(
        self, notation: ReasoningNotation, begin: Begin, inner: OutputReader, kept: bool = False
    ) -> None:
        """`inner` reads the answer. `kept`: whether the answer has a constraint, so that only the gap is
        removed from its beginning and no other whitespace."""
        self._notation = notation
        self._begin = begin
        self._inner = inner
        self._kept = kept
        self._gap = "".join(mark for mark in notation.gap if not mark.strip())
        self._buffer = ""
        self._taken = 0
        """Characters of the raw text before the buffer."""
        self._any = False
        """Whether any reasoning was shown."""
        self._space = ""
        """Whitespace that is shown only if more reasoning follows."""
        self._closed = False
        """Whether reasoning has ended and the answer has not begun."""
        self.spans: list[Span] = [(0, None)] if begin is Begin.INSIDE else []

    @property
    def is_complete(self) -> bool:
        return self._inner.is_complete

    def add(self, text: str) -> list[OutputPart]:
        if self._begin is Begin.AFTER and not self._closed:
            return self._inner.add(text)
        self._buffer += text
        parts: list[OutputPart] = []
        if self._begin is Begin.FREE:
            self._decide()
        if self._begin is Begin.INSIDE:
            parts += self._read_reasoning()
        if self._begin is Begin.AFTER:
            parts += self._read_answer()
        return parts

    def end(self, required: bool = False) -> list[OutputPart]:
        rest, self._buffer = self._buffer, ""
        if self._begin is Begin.INSIDE:
            return [*self._trim_reasoning(rest), *self._inner.end(required)]
        parts = [] if self._closed and not rest.strip() else self._inner.add(rest)
        return [*parts, *self._inner.end(required)]

    # Each step takes the certain part from the buffer.

    def _decide(self) -> None:
        rest = self._buffer if self._kept else self._buffer.lstrip(SPACE)
        if rest.startswith(self._notation.opening):
            self.spans.append((0, None))
            self._take(len(self._buffer) - len(rest) + len(self._notation.opening))
            self._begin = Begin.INSIDE
        elif not self._notation.opening.startswith(rest):
            self._begin = Begin.AFTER

    def _read_reasoning(self) -> list[OutputPart]:
        close = self._notation.close
        at = self._buffer.find(close)
        if at < 0:
            return self._trim_reasoning(self._take(find_partial_mark(self._buffer, close)))
        parts = self._trim_reasoning(self._take(at))
        self._take(len(close))
        self._begin, self._closed = Begin.AFTER, True
        return parts

    def _read_answer(self) -> list[OutputPart]:
        """Reads the answer after the gap."""
        if self._closed:
            if not self._skip_gap():
                return []
            begun, _ = self.spans[-1]
            self.spans[-1] = (begun, self._taken)
            self._closed = False
        return self._inner.add(self._take(len(self._buffer)))

    def _skip_gap(self) -> bool:
        """Removes the gap before the answer. Returns whether the gap is complete."""
        if not self._kept:
            self._take(len(self._buffer) - len(self._buffer.lstrip(SPACE)))
            return bool(self._buffer)
        if self._gap != self._buffer and self._gap.startswith(self._buffer):
            return False
        if self._buffer.startswith(self._gap):
            self._take(len(self._gap))
        return True

    def _take(self, count: int) -> str:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        self._taken += count
        return taken

    def _trim_reasoning(self, text: str) -> list[OutputPart]:
        """Removes the whitespace around reasoning, which belongs to the marks."""
        text = self._space + text
        body = text.rstrip(SPACE)
        self._space = text[len(body) :]
        if not self._any:
            body = body.lstrip(SPACE)
        if not body:
            self._space = self._space if self._any else ""
            return []
        self._any = True
        return [ReasoningPart(body)]


class ReasoningCounter:
    """Counts the reasoning tokens of one choice: all tokens whose text begins before the answer, marks
    included. It uses positions in the raw text, so the count does not depend on how tokens arrive."""

    __slots__ = ("_at", "_begins", "_spans")

    def __init__(self, spans: Sequence[Span]) -> None:
        """`spans`: the reader's spans of reasoning, which grow."""
        self._spans = spans
        self._at = 0
        self._begins = array("I")
        """For each token, the character where its text begins."""

    def note(self, size: int) -> None:
        """Notes the next token, which made `size` characters certain."""
        self._begins.append(self._at)
        self._at += size

    @property
    def tokens(self) -> int:
        """Number of reasoning tokens so far."""
        return sum(is_inside(self._spans, begin) for begin in self._begins) if self._spans else 0
