"""How each family of models writes reasoning, and which template variables set the caller's reasoning effort.

An effort that the model does not support is refused by name.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

from antiphon.domain.request import Reasoning
from antiphon.domain.values import Struct
from antiphon.errors import UnsupportedParameter


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


EMPTY_LINE = "\n\n"
"""The empty line that most models write between reasoning and answer."""


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

NO_REASONING = "none"
"""The name in the settings for a model that does not reason, even if its template suggests reasoning."""

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


EFFORT_VARIABLE = "reasoning_effort"
"""The template variable for the effort."""

SWITCH_VARIABLES = ("enable_thinking", "thinking")
"""Template variables that switch reasoning on or off."""

NO_EFFORT, ORDINARY_EFFORT = "none", "medium"
"""The effort that switches reasoning off, and the effort that every model with reasoning accepts."""


def effort_variables(
    reasoning: Reasoning, read_variables: frozenset[str], notation: ReasoningNotation | None
) -> Mapping[str, object]:
    """Returns the template variables for the requested effort. `read_variables`: the variables that the
    template reads. Raises UnsupportedParameter."""
    effort, terms = reasoning.effort, reasoning.terms
    if effort is None:
        return {}
    if notation is None:
        if effort == NO_EFFORT:
            return {}
        raise _build_refusal(reasoning, f"this model does not reason; leave it out, or send {terms.off}")
    switch_names = [name for name in SWITCH_VARIABLES if name in read_variables]
    if switch_names and effort == NO_EFFORT:
        return dict.fromkeys(switch_names, False)
    if EFFORT_VARIABLE in read_variables:
        if notation.efforts is not None and effort not in notation.efforts:
            effort_names = ", ".join(notation.efforts)
            advice = "send one of them, or leave it out" if terms.off == NO_EFFORT else "leave it out"
            raise _build_refusal(reasoning, f"this model was trained for {effort_names}; {advice}")
        return {EFFORT_VARIABLE: effort} | dict.fromkeys(switch_names, True)
    if effort == ORDINARY_EFFORT:
        return dict.fromkeys(switch_names, True)
    budget = "a number of tokens" if terms.budget == terms.effort else terms.budget
    if switch_names:
        raise _build_refusal(
            reasoning,
            f"this model's reasoning is on or off; send {terms.on} or {terms.off}, or {budget} for less",
        )
    advice_for_less = (
        f"{budget}: 0 for no reasoning"
        if effort == NO_EFFORT and not terms.min_budget
        else f"{budget} for less"
    )
    behavior = "always reasons" if effort == NO_EFFORT else "reasons"
    raise _build_refusal(
        reasoning, f"this model {behavior} in its own way; send {terms.on}, or {advice_for_less}"
    )


def require_reasoning(reasoning: Reasoning, notation: ReasoningNotation | None) -> None:
    """Raises UnsupportedParameter for fields that need a model with reasoning, if the model has none."""
    if notation is not None:
        return
    if reasoning.wanted:
        raise _build_refusal(reasoning, "this model does not reason; leave it out")
    if reasoning.budget:
        field = reasoning.terms.budget
        raise UnsupportedParameter(
            f"{field} is not supported: this model does not reason; leave it out", param=field
        )


def _build_refusal(reasoning: Reasoning, reason: str) -> UnsupportedParameter:
    """Returns the error for a reasoning effort that the model does not support. `reason`: in words, with
    advice."""
    effort, terms = reasoning.effort, reasoning.terms
    value = {NO_EFFORT: terms.off, ORDINARY_EFFORT: terms.on}.get(effort or "", effort)
    excerpt = "" if value is None or reasoning.wanted else f" {value[:32]}"
    return UnsupportedParameter(f"{terms.effort}{excerpt} is not supported: {reason}", param=terms.effort)
