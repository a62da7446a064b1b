"""How each family of models writes reasoning, which template variables set its effort, and its separation
from the answer.

An effort that the model does not support is refused by name. Reasoning is only at the beginning, and ends at
the first closing mark, or in some families where a call begins. Otherwise a call inside reasoning stays
reasoning. Another reader reads the answer. The result does not depend on how the text is divided.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

from antiphon.domain.request import Reasoning
from antiphon.domain.values import Struct
from antiphon.errors import UnsupportedParameter
from antiphon.rendering.call_readers import (
    SPACE,
    OutputPart,
    OutputReader,
    ReasoningPart,
    Span,
    find_partial_mark,
    is_inside,
)

EMPTY_LINE = "\n\n"
"""The empty line that most models write between reasoning and answer."""

NO_REASONING = "none"
"""The name in the settings for a model that does not reason, even if its template suggests reasoning."""

EFFORT_VARIABLE = "reasoning_effort"
"""The template variable for the effort."""

SWITCH_VARIABLES = ("enable_thinking", "thinking")
"""Template variables that switch reasoning on or off."""

NO_EFFORT, ORDINARY_EFFORT = "none", "medium"
"""The effort that switches reasoning off, and the effort that every model with reasoning accepts."""


class ReasoningPosition(StrEnum):
    """Where a choice's text begins: before, in or after its reasoning."""

    BEFORE = "before"
    """Before any reasoning: the model decides whether to reason."""
    INSIDE = "inside"
    """In reasoning: the prompt ends with the opening mark."""
    AFTER = "after"
    """In the answer: the prompt contains complete reasoning, or a mark that says that there is none."""


class ReasoningNotation(Struct, frozen=True):
    """How one family writes reasoning: `open`, the reasoning, `close`, `gap`, the answer."""

    open: tuple[str, ...]
    """Texts, or names of control tokens, in order."""
    close: str
    """A text, or the name of a control token."""
    gap: tuple[str, ...] = ()
    """The texts between the closing mark and the answer."""
    channels: bool = False
    """Whether reasoning is one of harmony's channels. Then the reader of calls reads the reasoning too."""
    efforts: tuple[str, ...] | None = None
    """The efforts that the model was trained for; None if its template decides."""

    @property
    def opening(self) -> str:
        """`open` as one text."""
        return "".join(self.open)

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks that a reader must see in the text."""
        return (*self.open, self.close)

    def find_begin(self, prompt_end: str, answer_start: str = "", is_text: bool = True) -> ReasoningPosition:
        """Returns where a choice begins: before, inside or after its reasoning.

        `prompt_end`: the end of the prompt, with control tokens as their names. `answer_start`: the part of
        the answer that the prompt contains. `is_text`: whether the marks are text. Only then can
        `answer_start` contain them.
        """
        if answer_start and (self.channels or not is_text):
            return ReasoningPosition.AFTER
        if self.channels:
            return ReasoningPosition.BEFORE
        if self.opening in answer_start or self.close in answer_start:
            return (
                ReasoningPosition.INSIDE
                if answer_start.rfind(self.opening) > answer_start.rfind(self.close)
                else ReasoningPosition.AFTER
            )
        tail = prompt_end.rstrip()
        if tail.endswith(self.opening.rstrip()):
            return ReasoningPosition.INSIDE
        return (
            ReasoningPosition.AFTER
            if tail.endswith(self.close.rstrip()) or answer_start
            else ReasoningPosition.BEFORE
        )


def think(source: str) -> ReasoningNotation:
    """`<think>...</think>`: DeepSeek, Qwen 3, QwQ, GLM, SmolLM 3, MiniMax, Kimi and most others. DeepSeek's
    newer templates write the answer at once after the mark."""
    return ReasoningNotation(
        ("<think>",), "</think>", () if "<｜Assistant｜></think>" in source else (EMPTY_LINE,)
    )


def seed(_source: str) -> ReasoningNotation:
    """`<seed:think>...</seed:think>`: Seed-OSS."""
    return ReasoningNotation(("<seed:think>",), "</seed:think>")


def mistral(_source: str) -> ReasoningNotation:
    """`[THINK]...[/THINK]`: Magistral and the models after it."""
    return ReasoningNotation(("[THINK]",), "[/THINK]")


def cohere(source: str) -> ReasoningNotation:
    """`<|START_THINKING|>...<|END_THINKING|>`, then the response in marks of its own: Command R7B and A."""
    response = "<|START_RESPONSE|>"
    return ReasoningNotation(
        ("<|START_THINKING|>",), "<|END_THINKING|>", (response,) if response in source else ()
    )


def gemma(_source: str) -> ReasoningNotation:
    """`<|channel>thought`, a line break, the reasoning, `<channel|>`: Gemma 4."""
    return ReasoningNotation(("<|channel>", "thought\n"), "<channel|>")


def granite(_source: str) -> ReasoningNotation:
    """Two sentences, which are plain text: Granite 3.2."""
    return ReasoningNotation(("Here is my thought process:",), "Here is my response:", (EMPTY_LINE,))


def harmony(_source: str) -> ReasoningNotation:
    """gpt-oss: the channel `analysis`."""
    efforts = ("low", "medium", "high")
    return ReasoningNotation(
        ("<|channel|>", "analysis", "<|message|>"), "<|end|>", channels=True, efforts=efforts
    )


Family = Callable[[str], ReasoningNotation]

REASONING_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "cohere": cohere,
        "gemma": gemma,
        "granite": granite,
        "harmony": harmony,
        "mistral": mistral,
        "seed": seed,
        "think": think,
    }
)
"""The families by the name in a model's settings."""


REASONING_SIGNS: tuple[tuple[str, Family], ...] = (
    ("[/THINK]", mistral),
    ("<|END_THINKING|>", cohere),
    ("<|channel|>analysis", harmony),
    ("<|channel>thought", gemma),
    ("</seed:think>", seed),
    ("</think>", think),
    ("Here is my thought process:", granite),
)
"""Texts in a template's source that identify the family. The most reliable text is first."""


def detect_reasoning(source: str, family: str | None = None) -> ReasoningNotation | None:
    """Returns the notation of the named family. Without a name, finds the family in the template; returns
    None if the template has no reasoning."""
    if family is not None:
        return None if family == NO_REASONING else REASONING_FAMILIES[family](source)
    return next((family(source) for sign, family in REASONING_SIGNS if sign in source), None)


def effort_variables(
    reasoning: Reasoning, read_variables: frozenset[str], notation: ReasoningNotation | None
) -> Mapping[str, object]:
    """Returns the template variables for the requested effort. `read_variables`: the variables that the
    template reads. Raises UnsupportedParameter."""
    effort, names = reasoning.effort, reasoning.field_names
    if effort is None:
        return {}
    if notation is None:
        if effort == NO_EFFORT:
            return {}
        raise _build_refusal(reasoning, f"this model does not reason; leave it out, or send {names.off}")
    switch_names = [name for name in SWITCH_VARIABLES if name in read_variables]
    if switch_names and effort == NO_EFFORT:
        return dict.fromkeys(switch_names, False)
    if EFFORT_VARIABLE in read_variables:
        if notation.efforts is not None and effort not in notation.efforts:
            effort_names = ", ".join(notation.efforts)
            advice = "send one of them, or leave it out" if names.off == NO_EFFORT else "leave it out"
            raise _build_refusal(reasoning, f"this model was trained for {effort_names}; {advice}")
        return {EFFORT_VARIABLE: effort} | dict.fromkeys(switch_names, True)
    if effort == ORDINARY_EFFORT:
        return dict.fromkeys(switch_names, True)
    budget = "a number of tokens" if names.budget == names.effort else names.budget
    if switch_names:
        raise _build_refusal(
            reasoning,
            f"this model's reasoning is on or off; send {names.on} or {names.off}, or {budget} for less",
        )
    advice_for_less = (
        f"{budget}: 0 for no reasoning"
        if effort == NO_EFFORT and not names.min_budget
        else f"{budget} for less"
    )
    behavior = "always reasons" if effort == NO_EFFORT else "reasons"
    raise _build_refusal(
        reasoning, f"this model {behavior} in its own way; send {names.on}, or {advice_for_less}"
    )


def require_reasoning(reasoning: Reasoning, notation: ReasoningNotation | None) -> None:
    """Raises UnsupportedParameter for fields that need a model with reasoning, if the model has none."""
    if notation is not None:
        return
    if reasoning.is_required:
        raise _build_refusal(reasoning, "this model does not reason; leave it out")
    if reasoning.budget:
        field = reasoning.field_names.budget
        raise UnsupportedParameter(
            f"{field} is not supported: this model does not reason; leave it out", param=field
        )


def _build_refusal(reasoning: Reasoning, reason: str) -> UnsupportedParameter:
    """Returns the error for a reasoning effort that the model does not support. `reason`: in words, with
    advice."""
    effort, names = reasoning.effort, reasoning.field_names
    value = {NO_EFFORT: names.off, ORDINARY_EFFORT: names.on}.get(effort or "", effort)
    excerpt = "" if value is None or reasoning.is_required else f" {value[:32]}"
    return UnsupportedParameter(f"{names.effort}{excerpt} is not supported: {reason}", param=names.effort)


class ReasoningReader:
    """Separates reasoning and answer in the text of one choice."""

    def __init__(
        self,
        notation: ReasoningNotation,
        begin: ReasoningPosition,
        answer_reader: OutputReader,
        keeps_whitespace: bool = False,
        call_opening: str = "",
    ) -> None:
        """`answer_reader`: reads the text after the reasoning. `keeps_whitespace`: whether only the
        notation's gap is removed before the answer, because the answer has a constraint. Without a
        constraint, all whitespace is removed. `call_opening`: the text with which calls begin that end the
        reasoning; empty if there are none."""
        self._notation = notation
        self._position = begin
        self._answer_reader = answer_reader
        self._keeps_whitespace = keeps_whitespace
        self._ends = tuple(filter(None, (notation.close, call_opening)))
        self._gap = "".join(mark for mark in notation.gap if not mark.strip())
        self._buffer = ""
        self._consumed_length = 0
        """Number of characters of the raw text before the buffer."""
        self._has_reasoning = False
        """Whether the reader has returned any reasoning."""
        self._trailing_space = ""
        """Whitespace that is shown only if more reasoning follows."""
        self._is_in_gap = False
        """Whether the closing mark was read, and the gap before the answer was not."""
        self.spans: list[Span] = [(0, None)] if begin is ReasoningPosition.INSIDE else []

    @property
    def has_complete_calls(self) -> bool:
        return self._answer_reader.has_complete_calls

    def add(self, text: str) -> list[OutputPart]:
        if self._position is ReasoningPosition.AFTER and not self._is_in_gap:
            return self._answer_reader.add(text)
        self._buffer += text
        parts: list[OutputPart] = []
        if self._position is ReasoningPosition.BEFORE:
            self._detect_opening()
        if self._position is ReasoningPosition.INSIDE:
            parts += self._read_reasoning()
        if self._position is ReasoningPosition.AFTER:
            parts += self._read_answer()
        return parts

    def end(self, calls_required: bool = False) -> list[OutputPart]:
        rest, self._buffer = self._buffer, ""
        if self._position is ReasoningPosition.INSIDE:
            return [*self._trim_reasoning(rest), *self._answer_reader.end(calls_required)]
        parts = [] if self._is_in_gap and not rest.strip() else self._answer_reader.add(rest)
        return [*parts, *self._answer_reader.end(calls_required)]

    # Each method removes the part that it has identified from the buffer.

    def _detect_opening(self) -> None:
        """Decides whether the text begins with reasoning, if the buffer is long enough."""
        rest = self._buffer if self._keeps_whitespace else self._buffer.lstrip(SPACE)
        if rest.startswith(self._notation.opening):
            self.spans.append((0, None))
            self._take(len(self._buffer) - len(rest) + len(self._notation.opening))
            self._position = ReasoningPosition.INSIDE
        elif not self._notation.opening.startswith(rest):
            self._position = ReasoningPosition.AFTER

    def _read_reasoning(self) -> list[OutputPart]:
        """Returns the reasoning in the buffer, without the possible beginning of a closing mark. Switches to
        the answer at the closing mark, and where calls begin."""
        found = min(((at, end) for end in self._ends if (at := self._buffer.find(end)) >= 0), default=None)
        if found is None:
            held = min(find_partial_mark(self._buffer, end) for end in self._ends)
            return self._trim_reasoning(self._take(held))
        at, end = found
        parts = self._trim_reasoning(self._take(at))
        self._position, self._is_in_gap = ReasoningPosition.AFTER, end == self._notation.close
        if self._is_in_gap:
            self._take(len(end))
        else:
            self.spans[-1] = (self.spans[-1][0], self._consumed_length)
        return parts

    def _read_answer(self) -> list[OutputPart]:
        """Reads the answer after the gap."""
        if self._is_in_gap:
            if not self._skip_gap():
                return []
            span_start, _ = self.spans[-1]
            self.spans[-1] = (span_start, self._consumed_length)
            self._is_in_gap = False
        return self._answer_reader.add(self._take(len(self._buffer)))

    def _skip_gap(self) -> bool:
        """Removes the gap before the answer. Returns whether the gap is complete."""
        if not self._keeps_whitespace:
            self._take(len(self._buffer) - len(self._buffer.lstrip(SPACE)))
            return bool(self._buffer)
        if self._gap != self._buffer and self._gap.startswith(self._buffer):
            return False
        if self._buffer.startswith(self._gap):
            self._take(len(self._gap))
        return True

    def _take(self, count: int) -> str:
        """Removes and returns the first `count` characters of the buffer."""
        text, self._buffer = self._buffer[:count], self._buffer[count:]
        self._consumed_length += count
        return text

    def _trim_reasoning(self, text: str) -> list[OutputPart]:
        """Removes the whitespace around the reasoning, because it belongs to the marks. Holds back whitespace
        at the end until more reasoning follows."""
        text = self._trailing_space + text
        body = text.rstrip(SPACE)
        self._trailing_space = text[len(body) :]
        if not self._has_reasoning:
            body = body.lstrip(SPACE)
        if not body:
            self._trailing_space = self._trailing_space if self._has_reasoning else ""
            return []
        self._has_reasoning = True
        return [ReasoningPart(body)]


class ReasoningCounter:
    """Counts the reasoning tokens of one choice: all tokens whose text begins before the answer, including
    marks. The count uses positions in the raw text, so it does not depend on how the tokens arrive."""

    __slots__ = ("_length", "_spans", "_token_starts")

    def __init__(self, spans: Sequence[Span]) -> None:
        """`spans`: the reader's list of reasoning spans, to which the reader adds while it reads."""
        self._spans = spans
        self._length = 0
        self._token_starts = array("I")
        """For each token, the character where its text begins."""

    def add_token(self, size: int) -> None:
        """Adds the next token. `size`: the number of characters that the decoder returned for it."""
        self._token_starts.append(self._length)
        self._length += size

    @property
    def tokens(self) -> int:
        """Number of reasoning tokens so far."""
        return sum(is_inside(self._spans, begin) for begin in self._token_starts) if self._spans else 0
