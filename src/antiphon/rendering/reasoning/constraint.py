"""Finds whether a choice begins before, in or after its reasoning, and extends its constraint by the
reasoning before the answer."""

from collections.abc import Mapping

from antiphon.constraints import grammar_types as groups
from antiphon.constraints.grammar_types import Prelude, TextFrame
from antiphon.domain.request import Constraint, ConstraintKind, Conversation, Prompt, Reasoning
from antiphon.domain.values import replace
from antiphon.errors import UnsupportedParameter
from antiphon.rendering.context_window import FittedPrompt
from antiphon.rendering.model_info import ModelInfo
from antiphon.rendering.reasoning.notation import ReasoningNotation, ReasoningPosition
from antiphon.rendering.tools.call_notation import CallNotation, to_marks

TAIL = 64
"""How many tokens at a prompt's end are searched for the opening mark of reasoning, which has at most six
tokens."""

ANYTHING = "start: TEXT?\nTEXT: /(.|\\n)*/"
"""The grammar of any text."""


def find_begin(prompt: Prompt, tokens: tuple[int, ...], model_info: ModelInfo) -> ReasoningPosition | None:
    """Returns where the choices of a prompt begin; None for raw prompts and for models that do not reason."""
    if model_info.template is None or not isinstance(prompt, Conversation):
        return None
    notation = model_info.template.reasoning_notation
    if notation is None:
        return None
    answer_start = prompt.messages[-1].text if prompt.continues else ""
    is_text = notation.close not in model_info.controls
    return notation.find_begin(model_info.named_pieces.text(tokens[-TAIL:]), answer_start, is_text)


def constrain_prompt(
    prompt: Prompt, fitted_prompt: FittedPrompt, constraint: Constraint | None, model_info: ModelInfo
) -> FittedPrompt:
    """Adds to the prompt where its choices begin, and their constraint. Raises UnsupportedParameter."""
    begin = find_begin(prompt, fitted_prompt.tokens, model_info)
    return replace(
        fitted_prompt, begin=begin, constraint=constrain_answer(constraint, prompt, begin, model_info)
    )


def constrain_answer(
    constraint: Constraint | None, prompt: Prompt, begin: ReasoningPosition | None, model_info: ModelInfo
) -> Constraint | None:
    """Returns the constraint of a choice. It applies to the answer, after the reasoning."""
    template = model_info.template
    if template is None or template.reasoning_notation is None or not isinstance(prompt, Conversation):
        return constraint
    notation, budget = template.reasoning_notation, prompt.reasoning.budget
    if begin is None or begin is ReasoningPosition.AFTER or (constraint is None and budget is None):
        return constraint
    if notation.channels:
        return _constrain_channels(constraint, template.call_notation, prompt.reasoning, model_info)
    field = prompt.reasoning.terms.budget
    token_ids = {**model_info.find_single_tokens(notation.marks), **model_info.controls}
    if budget is not None and notation.close not in token_ids:
        raise UnsupportedParameter(
            f"{field} is not supported: this model writes the end of its reasoning in several tokens, so no "
            "budget can end it; leave it out",
            param=field,
        )
    prelude = Prelude(
        frames=(_build_text_frame(notation, begin, token_ids),),
        optional=begin is ReasoningPosition.BEFORE,
        budget=budget,
        never=notation.close if notation.close in token_ids else "",
    )
    answer_constraint = constraint or Constraint(ConstraintKind.LARK, ANYTHING, field=field)
    return replace(answer_constraint, prelude=prelude.dump())


def _build_text_frame(
    notation: ReasoningNotation, begin: ReasoningPosition, token_ids: Mapping[str, int]
) -> TextFrame:
    """Builds the frame of the reasoning before the answer."""
    opening = () if begin is ReasoningPosition.INSIDE else notation.open
    return TextFrame(to_marks(opening, token_ids), to_marks((notation.close, *notation.gap), token_ids))


def _constrain_channels(
    constraint: Constraint | None, call_notation: CallNotation, reasoning: Reasoning, model_info: ModelInfo
) -> Constraint | None:
    """Builds the constraint for a model with channels. The grammar of calls already contains the channels."""
    budget, field = reasoning.budget, reasoning.terms.budget
    reasoning_frame, *other_frames = (
        frame.with_ids(model_info.controls) for frame in call_notation.channels if frame.close is not None
    )
    final_frame = next(
        frame.with_ids(model_info.controls) for frame in call_notation.channels if frame.close is None
    )
    has_calls = constraint is not None and constraint.kind is ConstraintKind.CALLS
    if budget is None:
        if constraint is None or has_calls:
            return constraint
        prelude = Prelude((reasoning_frame, *other_frames), optional=True, many=True, answer=final_frame.open)
        return replace(constraint, prelude=prelude.dump())
    if constraint is None:
        group = groups.CallGroup(
            groups.TextAround.TEXT_ALONE, final_frame.open, (), (), frames=(*other_frames, final_frame)
        )
        constraint, has_calls = Constraint(ConstraintKind.CALLS, group.dump(), field=field), True
    elif has_calls:
        group = groups.load_group(constraint.source)
        frames = tuple(frame for frame in group.frames if frame.open != reasoning_frame.open)
        constraint = replace(constraint, source=replace(group, frames=frames).dump())
    answer_opening = () if has_calls else final_frame.open
    prelude = Prelude((reasoning_frame,), optional=True, budget=budget, answer=answer_opening)
    return replace(constraint, prelude=prelude.dump())
