"""What a caller asks of a model's reasoning, as its template wants to be told; what it cannot do is refused
by name."""

from collections.abc import Mapping

from antiphon.domain.request import Reasoning
from antiphon.errors import UnsupportedParameter
from antiphon.rendering.reasoning.notation import ReasoningNotation

EFFORT_VARIABLE = "reasoning_effort"
"""The variable by which templates are told how much to think."""

SWITCH_VARIABLES = ("enable_thinking", "thinking")
"""Variables by which templates are told whether to think at all."""

NONE, ORDINARY = "none", "medium"
"""The effort that switches reasoning off, and that of a model that knows no other."""


def effort_variables(reasoning: Reasoning, reads: frozenset[str], notation: ReasoningNotation | None) -> Mapping[str, object]:
    """What the template is told. `reads`: the variables that it takes. Raises UnsupportedParameter."""
    effort, terms = reasoning.effort, reasoning.terms
    if effort is None:
        return {}
    if notation is None:
        if effort == NONE:
            return {}
        raise _to_refusal(reasoning, f"this model does not reason; leave it out, or send {terms.off}")
    switches = [name for name in SWITCH_VARIABLES if name in reads]
    if switches and effort == NONE:
        return dict.fromkeys(switches, False)
    if EFFORT_VARIABLE in reads:
        if notation.efforts is not None and effort not in notation.efforts:
            known = ", ".join(notation.efforts)
            says = "send one of them, or leave it out" if terms.off == NONE else "leave it out"
            raise _to_refusal(reasoning, f"this model was taught {known}; {says}")
        return {EFFORT_VARIABLE: effort} | dict.fromkeys(switches, True)
    if effort == ORDINARY:
        return dict.fromkeys(switches, True)
    budget = "a number of tokens" if terms.budget == terms.effort else terms.budget
    if switches:
        raise _to_refusal(
            reasoning,
            f"this model's reasoning is on or off; send {terms.on} or {terms.off}, or {budget} for less",
        )
    less = f"{budget}: 0 for no reasoning" if effort == NONE and not terms.least else f"{budget} for less"
    always = "always reasons" if effort == NONE else "reasons"
    raise _to_refusal(reasoning, f"this model {always} in its own way; send {terms.on}, or {less}")


def require_reasoning(reasoning: Reasoning, notation: ReasoningNotation | None) -> None:
    """Raises UnsupportedParameter for what only a model that reasons can do."""
    if notation is not None:
        return
    if reasoning.wanted:
        raise _to_refusal(reasoning, "this model does not reason; leave it out")
    if reasoning.budget:
        field = reasoning.terms.budget
        raise UnsupportedParameter(
            f"{field} is not supported: this model does not reason; leave it out", param=field
        )


def _to_refusal(reasoning: Reasoning, why: str) -> UnsupportedParameter:
    effort, terms = reasoning.effort, reasoning.terms
    value = {NONE: terms.off, ORDINARY: terms.on}.get(effort or "", effort)
    shown = "" if value is None or reasoning.wanted else f" {value[:32]}"
    return UnsupportedParameter(f"{terms.effort}{shown} is not supported: {why}", param=terms.effort)
