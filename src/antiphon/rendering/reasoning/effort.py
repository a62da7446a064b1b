"""What a caller asks of a model's reasoning, as its template wants to be told; what it cannot do is refused
by name."""

from collections.abc import Mapping

from antiphon.domain.request import Reasoning
from antiphon.errors import UnsupportedParameter
from antiphon.rendering.reasoning.notation import Notation

EFFORT = "reasoning_effort"
"""The variable by which templates are told how much to think."""

SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates are told whether to think at all."""

BUDGET = "thinking_token_budget"

NONE, ORDINARY = "none", "medium"
"""The effort that switches reasoning off, and that of a model that knows no other."""


def values(reasoning: Reasoning, reads: frozenset[str], notation: Notation | None) -> Mapping[str, object]:
    """What the template is told. `reads`: the variables that it takes. Raises UnsupportedParameter."""
    effort = reasoning.effort
    if effort is None:
        return {}
    if notation is None:
        if effort == NONE:
            return {}
        raise _refused(reasoning, "this model does not reason; leave it out, or send none")
    switches = [name for name in SWITCHES if name in reads]
    if switches and effort == NONE:
        return dict.fromkeys(switches, False)
    if EFFORT in reads:
        if notation.efforts is not None and effort not in notation.efforts:
            known = ", ".join(notation.efforts)
            raise _refused(reasoning, f"this model was taught {known}; send one of them, or leave it out")
        return {EFFORT: effort} | dict.fromkeys(switches, True)
    if effort == ORDINARY:
        return dict.fromkeys(switches, True)
    if switches:
        raise _refused(
            reasoning, f"this model's reasoning is on or off; send {ORDINARY} or {NONE}, or {BUDGET} for less"
        )
    raise _refused(
        reasoning,
        f"this model always reasons in its own way; send {ORDINARY}, or {BUDGET}: 0 for no reasoning"
        if effort == NONE
        else f"this model reasons in its own way; send {ORDINARY}, or {BUDGET} for less",
    )


def require_able(reasoning: Reasoning, notation: Notation | None) -> None:
    """Raises UnsupportedParameter for what only a model that reasons can do."""
    if notation is not None:
        return
    if reasoning.wanted:
        raise _refused(reasoning, "this model does not reason; leave it out")
    if reasoning.budget:
        raise UnsupportedParameter(
            f"{BUDGET} is not supported: this model does not reason; leave it out", param=BUDGET
        )


def _refused(reasoning: Reasoning, why: str) -> UnsupportedParameter:
    said = "" if reasoning.effort is None or reasoning.wanted else f" {reasoning.effort[:32]}"
    return UnsupportedParameter(f"{reasoning.field}{said} is not supported: {why}", param=reasoning.field)
