"""The token engine's rules about constraints: that a sequence is what its constraint says or an error, and
that `min_tokens` holds beside every kind of constraint. An engine that takes none has to say so."""

import json
import re
from dataclasses import replace

from antiphon.domain.constraint import Constraint, ConstraintKind
from antiphon.domain.sampling import Sampling
from antiphon.engines.base import Constrainable, StopCause, TokenRequest
from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.testing.probe import GREEDY, Probe
from antiphon.testing.rules import require, require_error

NAMED = {
    "type": "object",
    "properties": {"name": {"enum": ["a"]}},
    "required": ["name"],
    "additionalProperties": False,
}
FINITE = (
    (Constraint(ConstraintKind.REGEX, "[ab]{3}"), "[ab]{3}"),
    (Constraint(ConstraintKind.REGEX, "hello there"), "hello there"),
    (Constraint(ConstraintKind.CHOICE, json.dumps(["left", "right"])), "left|right"),
    (Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(NAMED)), r'\{"name": "a"\}'),
    (Constraint(ConstraintKind.GBNF, 'root ::= "hello" [ab]'), "hello[ab]"),
    (Constraint(ConstraintKind.LARK, 'start: "hello" /[ab]/'), "hello[ab]"),
)
"""Constraints that end by themselves, some of them in tokens that must follow, and what they allow."""
OPEN = Constraint(ConstraintKind.REGEX, "[ab]+")
LONGEST = 40
"""More tokens than any of the finite ones has."""


async def what_is_said_is_what_the_constraint_allows(probe: Probe) -> None:
    if not await _takes_constraints(probe):
        return
    for constraint, allowed in FINITE:
        for logprobs in (None, 0):
            run = await probe.run(_build_request(probe, constraint, logprobs=logprobs))
            text = b"".join(probe.vocabulary.pieces[token] for token in run.tokens).decode(errors="replace")
            require(
                re.fullmatch(allowed, text) and run.cause is StopCause.END,
                "a constrained sequence is what its constraint allows, and ends when that is complete",
            )


async def no_constraint_ends_anything_before_min_tokens(probe: Probe) -> None:
    """Where the constraint leaves nothing but the end, there is no token that may be drawn."""
    if not await _takes_constraints(probe):
        return
    told: set[str] = set()
    for constraint, _ in FINITE:
        for logprobs in (None, 0):
            free = await probe.run(_build_request(probe, constraint, logprobs=logprobs))
            length = len(free.tokens) - 1
            await _require_end_after(
                probe, _build_request(probe, constraint, length, logprobs=logprobs), length
            )
            for least in (length + 1, LONGEST):
                told.add(
                    await _require_refusal(probe, _build_request(probe, constraint, least, logprobs=logprobs))
                )
    require(len(told) == 1, "whichever the constraint, min_tokens that it cannot reach get one sentence")


async def a_constraint_goes_on_to_min_tokens(probe: Probe) -> None:
    if not await _takes_constraints(probe):
        return
    ends = tuple((token, 100.0) for token in probe.vocabulary.end_ids)
    for logprobs in (None, 0):
        eager = replace(GREEDY, logit_bias=ends)
        run = await probe.run(_build_request(probe, OPEN, 9, logprobs=logprobs, sampling=eager))
        early = set(run.tokens[:9]) & set(probe.vocabulary.end_ids)
        require(
            not early and len(run.tokens) == 10 and run.cause is StopCause.END,
            "a constraint that can go on does, until min_tokens are there",
        )


async def no_forced_token_stops_before_min_tokens(probe: Probe) -> None:
    if not await _takes_constraints(probe):
        return
    certain = Constraint(ConstraintKind.REGEX, "hello there")
    free = await probe.run(_build_request(probe, certain))
    stop = free.tokens[-2]
    first = free.tokens.index(stop) + 1
    run = await probe.run(replace(_build_request(probe, certain, first - 1), stop_token_ids=(stop,)))
    require(
        run.tokens == free.tokens[:first] and run.cause is StopCause.STOP_TOKEN,
        "a stop token that must follow ends the sequence",
    )
    await _require_refusal(probe, replace(_build_request(probe, certain, first), stop_token_ids=(stop,)))


async def _takes_constraints(probe: Probe) -> bool:
    """Whether there is something to try. Requires an engine that takes none to refuse them."""
    constraint = FINITE[0][0]
    if isinstance(probe.engine, Constrainable):
        try:
            await probe.engine.check(constraint)
        except UnsupportedParameter:
            pass
        else:
            return True
    await require_error(
        probe.run(_build_request(probe, constraint)),
        UnsupportedParameter,
        "an engine that takes no constraints refuses requests that have one with UnsupportedParameter",
    )
    return False


async def _require_end_after(probe: Probe, request: TokenRequest, least: int) -> None:
    rule = "a constrained sequence may end when min_tokens are there"
    try:
        run = await probe.run(request)
    except InvalidValue as refusal:
        raise AssertionError(f"{rule} (raised {refusal!r})") from refusal
    require(len(run.tokens) > least and run.cause is StopCause.END, rule)


async def _require_refusal(probe: Probe, request: TokenRequest) -> str:
    """The sentence that a sequence ends with which may go on with no token."""
    rule = "no end and no stop token comes before min_tokens, forced by a constraint or not: InvalidValue"
    try:
        run = await probe.run(request)
    except InvalidValue as refusal:
        return refusal.message
    raise AssertionError(f"{rule} (made {len(run.tokens)} tokens)")


def _build_request(
    probe: Probe,
    constraint: Constraint,
    least: int = 0,
    *,
    logprobs: int | None = None,
    sampling: Sampling = GREEDY,
) -> TokenRequest:
    sampling = replace(sampling, min_tokens=least)
    asked = probe.request(max_tokens=LONGEST + 2, sampling=sampling, logprobs=logprobs)
    return replace(asked, constraint=constraint)


CONSTRAINT_RULES = (
    what_is_said_is_what_the_constraint_allows,
    no_constraint_ends_anything_before_min_tokens,
    a_constraint_goes_on_to_min_tokens,
    no_forced_token_stops_before_min_tokens,
)
