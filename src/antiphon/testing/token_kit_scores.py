"""The token engine's rules about scoring a prompt: every token but the first, in order, before the first
Steps, and by the distribution that generating draws from."""

import math
from array import array
from dataclasses import dataclass, replace
from itertools import pairwise

from antiphon.engines.base import PromptScores, StopCause, TokenRequest, TokenSegment
from antiphon.errors import AntiphonError
from antiphon.testing.probe import Probe, Run
from antiphon.testing.rules import require, require_error
from antiphon.testing.token_kit_draws import ROUNDING

WIDTH = 3
"""Alternatives that the rules ask for."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A prompt's scores, unpacked; of its second token and on."""

    logprobs: "array[float]"
    ids: "array[int]"
    values: "array[float]"
    ranks: "array[int]"

    @staticmethod
    def of(parts: tuple[PromptScores, ...]) -> "Scored":
        return Scored(
            array("f", b"".join(part.logprobs for part in parts)),
            array("i", b"".join(part.alternative_ids for part in parts)),
            array("f", b"".join(part.alternative_logprobs for part in parts)),
            array("i", b"".join(part.ranks for part in parts)),
        )


def _scoring(probe: Probe, prompt: tuple[int, ...], max_tokens: int = 2, width: int = WIDTH) -> TokenRequest:
    one = probe.request(max_tokens=max_tokens)
    return replace(one, segments=(TokenSegment(prompt),), prompt_logprobs=width)


async def prompts_are_scored_whole_and_in_order(probe: Probe) -> None:
    """Twice, so that the second finds what is kept of the first."""
    for prompt in (*probe.prompts, probe.prompts[0]):
        run = await probe.run(_scoring(probe, prompt))
        _require_cover(run, len(prompt))
        found = Scored.of(run.scores)
        require(
            len(found.ids) == len(found.values) == WIDTH * (len(prompt) - 1),
            "prompt_logprobs=k gives the k likeliest alternatives of each prompt token, packed as int32 and "
            "float32",
        )
        require(len(found.ranks) == len(prompt) - 1, "each token of a scored prompt has its rank, int32")
        for place, token in enumerate(prompt[1:]):
            wide = slice(place * WIDTH, (place + 1) * WIDTH)
            _require_row(token, found.logprobs[place], found.ids[wide], found.values[wide])
            _require_rank(found.ranks[place], found.logprobs[place], found.values[wide])
    silent = await probe.run(probe.request(max_tokens=2))
    require(not silent.scores, "PromptScores come only when they are asked for")
    bare = Scored.of((await probe.run(_scoring(probe, probe.prompts[0], width=0))).scores)
    require(len(bare.ids) == 0 == len(bare.values), "prompt_logprobs=0 asks for no alternatives")


def _require_cover(run: Run, length: int) -> None:
    expected = 1
    for part in run.scores:
        require(
            part.start == expected,
            "PromptScores cover the prompt from its second token to its last, in order, nothing twice",
        )
        require(part.logprobs and len(part.logprobs) % 4 == 0, "PromptScores hold packed float32")
        expected += len(part.logprobs) // 4
    require(expected == length, "PromptScores cover the prompt from its second token to its last")
    require(run.counts.cached_tokens == 0, "a prompt that is scored is computed anew, whatever is kept of it")


def _require_row(token: int, value: float, ids: "array[int]", values: "array[float]") -> None:
    require(
        value <= ROUNDING and all(other <= ROUNDING for other in values), "log-probabilities are at most 0"
    )
    require(all(a >= b for a, b in pairwise(values)), "alternatives of a prompt token come best first")
    require(len(set(ids)) == len(ids), "alternatives of a prompt token are different tokens")
    require(math.fsum(map(math.exp, values)) <= 1 + ROUNDING, "probabilities add up to at most 1")
    if token in ids:
        same = abs(values[ids.index(token)] - value) <= ROUNDING
        require(same, "a prompt token's log-probability is the same among the alternatives")
    else:
        require(value <= values[-1] + ROUNDING, "the alternatives are the likeliest tokens")


def _require_rank(rank: int, value: float, values: "array[float]") -> None:
    likelier = sum(other > value + ROUNDING for other in values)
    as_likely = sum(other >= value - ROUNDING for other in values)
    most = rank if as_likely == len(values) else max(as_likely, 1)
    require(likelier < rank <= most, "a prompt token's rank is 1 and as many as are likelier at its place")


async def scoring_agrees_with_generating(probe: Probe) -> None:
    said = await probe.run(probe.request(max_tokens=8, logprobs=0))
    prompt = probe.prompts[0] + said.tokens
    scored = Scored.of((await probe.run(_scoring(probe, prompt))).scores)
    slack = max(probe.tolerance, ROUNDING)
    again = scored.logprobs[-len(said.tokens) :]
    near = all(abs(mine - theirs) <= slack for mine, theirs in zip(said.logprobs, again, strict=True))
    require(near, "what was generated, scored as a prompt, has the log-probabilities that it was told with")


async def scoring_changes_nothing_after_it(probe: Probe) -> None:
    plain = await probe.run(probe.request(max_tokens=8))
    scored = await probe.run(_scoring(probe, probe.prompts[0], 8))
    require(
        plain.tokens == scored.tokens or probe.tolerance > 0, "scoring a prompt does not change what follows"
    )


async def nothing_is_made_of_a_prompt_that_is_only_scored(probe: Probe) -> None:
    for prompt in probe.prompts:
        run = await probe.run(_scoring(probe, prompt, max_tokens=0))
        require(not run.tokens, "max_tokens 0 makes no token")
        require(run.cause is StopCause.LENGTH, "a prompt that is only scored ends with LENGTH")
        require(
            (run.counts.prompt_tokens, run.counts.completion_tokens) == (len(prompt), 0),
            "a prompt that is only scored counts its own tokens and none else",
        )
        _require_cover(run, len(prompt))
    one = await probe.run(_scoring(probe, probe.prompts[0][:1], max_tokens=0))
    require(not one.scores, "a prompt of one token has nothing to score")
    await require_error(
        probe.run(replace(_scoring(probe, probe.prompts[0], max_tokens=0), prompt_logprobs=None)),
        AntiphonError,
        "max_tokens 0 needs prompt_logprobs",
    )


async def siblings_share_a_scored_prompt(probe: Probe) -> None:
    count = min(3, probe.info.sequences)
    first = replace(_scoring(probe, probe.prompts[0], max_tokens=4), group="scored")
    siblings = [replace(first, prompt_logprobs=None, choice=choice) for choice in range(1, count)]
    leader, *others = await probe.runs([first, *siblings])
    _require_cover(leader, len(probe.prompts[0]))
    require(not any(run.scores for run in others), "a prompt is scored for the sibling that asks for it")
    if probe.tolerance == 0:
        require(
            all(run.tokens == leader.tokens for run in others),
            "siblings of one whose prompt is scored say what it says",
        )


SCORE_RULES = (
    prompts_are_scored_whole_and_in_order,
    scoring_agrees_with_generating,
    scoring_changes_nothing_after_it,
    nothing_is_made_of_a_prompt_that_is_only_scored,
    siblings_share_a_scored_prompt,
)
