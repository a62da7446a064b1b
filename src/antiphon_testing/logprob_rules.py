"""The token engine's rules about values: log-probabilities, draws, equality alone and in a batch, groups,
scored prompts.

A scored prompt has a score for every token but the first, in order, before the first Steps, from the
distribution of generation.
"""

import math
from array import array
from itertools import pairwise

from antiphon.domain.request import Sampling
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import PromptScores, PromptTokens, StopCause, TokenRequest
from antiphon.errors import AntiphonError
from antiphon_testing.rules import GREEDY, SequenceRun, TokenProbe, require, require_error

ROUNDING = 1e-4
"""Tolerance for float32 rounding of log-probabilities."""
MAX_ALTERNATIVES = 20


async def check_logprobs(probe: TokenProbe) -> None:
    plain_run = await probe.run(probe.build_request(max_tokens=6))
    require(
        not plain_run.logprobs and not plain_run.alternatives,
        "log-probabilities come only when they are requested",
    )
    run_without_alternatives = await probe.run(probe.build_request(max_tokens=6, logprobs=0))
    require(
        len(run_without_alternatives.logprobs) == len(run_without_alternatives.tokens),
        "with logprobs there is one for each token",
    )
    require(not any(run_without_alternatives.alternatives), "logprobs=0 asks for no alternatives")
    require(
        plain_run.tokens == run_without_alternatives.tokens,
        "requesting log-probabilities does not change the tokens",
    )
    for count in (1, 5, MAX_ALTERNATIVES):
        run = await probe.run(probe.build_request(max_tokens=6, logprobs=count))
        require(
            len(run.alternatives) == len(run.tokens) and all(len(row) == count for row in run.alternatives),
            "logprobs=k gives the k likeliest alternatives of each token",
        )
        _require_distributions(run)


async def check_listed_logprobs(probe: TokenProbe) -> None:
    """Requests likely and unlikely tokens, and compares their values with those of the likeliest
    alternatives."""
    size = probe.info.vocabulary
    ranked = (await probe.run(probe.build_request(max_tokens=4, logprobs=size))).alternatives
    for sampling in (GREEDY, Sampling(temperature=0.0, logit_bias=((0, -9.0),))):
        token_ids = (size - 1, 0, ranked[0][0][0], size // 2)
        request = replace(
            probe.build_request(max_tokens=4, logprobs=2, sampling=sampling), logprob_token_ids=token_ids
        )
        run = await probe.run(request)
        rule = "with logprob_token_ids the alternatives are these tokens, in their order"
        require(len(run.alternatives) == len(run.tokens), rule)
        require(all(tuple(token for token, _ in row) == token_ids for row in run.alternatives), rule)
        full_logprobs, slack = dict(ranked[0]), max(probe.tolerance, ROUNDING)
        is_near = all(abs(full_logprobs[token] - value) <= slack for token, value in run.alternatives[0])
        require(is_near, "log-probabilities of listed tokens are of the raw distribution")


def _require_distributions(run: SequenceRun) -> None:
    """Checks that the log-probabilities of a run can be those of distributions."""
    for token, value, row in zip(run.tokens, run.logprobs, run.alternatives, strict=True):
        values = [other for _, other in row]
        require(value <= 0 and all(other <= 0 for other in values), "log-probabilities are at most 0")
        require(all(first >= second for first, second in pairwise(values)), "alternatives come best first")
        require(len({index for index, _ in row}) == len(row), "alternatives are different tokens")
        require(math.fsum(map(math.exp, values)) <= 1 + ROUNDING, "probabilities add up to at most 1")
        if token in dict(row):
            is_same = abs(dict(row)[token] - value) <= ROUNDING
            require(is_same, "the chosen token's log-probability is the same among the alternatives")
        else:
            require(value <= values[-1] + ROUNDING, "the alternatives are the likeliest tokens")


async def check_greedy_tokens(probe: TokenProbe) -> None:
    run = await probe.run(probe.build_request(max_tokens=8, logprobs=1))
    for value, row in zip(run.logprobs, run.alternatives, strict=True):
        require(value >= row[0][1] - ROUNDING, "temperature 0 takes the likeliest token")


async def check_raw_logprobs(probe: TokenProbe) -> None:
    rows = []
    for temperature in (0.0, 0.5, 1.7):
        sampling = Sampling(temperature=temperature, top_k=1, top_p=0.5, seed=3)
        run = await probe.run(probe.build_request(max_tokens=1, logprobs=5, sampling=sampling))
        rows.append(run.alternatives[0])
    slack = max(probe.tolerance, ROUNDING)
    for row in rows[1:]:
        is_near = all(abs(own[1] - expected[1]) <= slack for own, expected in zip(row, rows[0], strict=True))
        require(is_near, "log-probabilities are of the raw distribution, whatever the sampling")


async def check_narrow_sampling(probe: TokenProbe) -> None:
    greedy = await probe.run(probe.build_request(max_tokens=8))
    top_k_run = await probe.run(
        probe.build_request(max_tokens=8, sampling=Sampling(temperature=1.5, top_k=1, seed=5))
    )
    require(greedy.tokens == top_k_run.tokens, "top_k=1 leaves only the likeliest token")
    top_p_run = await probe.run(
        probe.build_request(max_tokens=8, sampling=Sampling(temperature=1.0, top_p=1e-9, seed=5))
    )
    require(greedy.tokens == top_p_run.tokens, "top_p near 0 leaves only the likeliest token")
    min_p_run = await probe.run(
        probe.build_request(max_tokens=8, sampling=Sampling(temperature=1.0, min_p=1.0, seed=5))
    )
    require(greedy.tokens == min_p_run.tokens, "min_p=1 leaves only the likeliest token")


async def check_seeds(probe: TokenProbe) -> None:
    def build_request(seed: int, choice: int = 0) -> TokenRequest:
        return replace(
            probe.build_request(max_tokens=8, sampling=Sampling(temperature=1.5, seed=seed)), choice=choice
        )

    choices = [build_request(11, choice) for choice in range(8)]
    seeds = [build_request(seed) for seed in (11, 12, 13, 14, 2**63 + 5, 2**64 - 1)]
    alone = [(await probe.run(request)).tokens for request in (*choices, *seeds)]
    require(alone[0] == alone[8], "equal seeds give equal draws")
    require(
        len(set(alone[:8])) > 1, "the choice enters the draw: the same seed gives siblings different draws"
    )
    require(len(set(alone[8:])) > 1, "the seed enters the draw")
    if probe.tolerance == 0:
        batched_tokens = [run.tokens for run in await probe.run_all([*choices, *seeds])]
        require(batched_tokens == alone, "a draw does not depend on the other sequences of the batch")


async def check_batch_invariance(probe: TokenProbe) -> None:
    requests = [
        probe.build_request(index % len(probe.prompts), max_tokens=16, logprobs=2)
        for index in range(probe.info.sequences)
    ]
    alone = [await probe.run(request) for request in requests[: len(probe.prompts)]]
    for index, run in enumerate(await probe.run_all(requests)):
        _require_equal(alone[index % len(alone)], run, probe.tolerance)


def _require_equal(alone: SequenceRun, together: SequenceRun, tolerance: float) -> None:
    """Requires equal tokens, within the tolerance, up to the first place where the log-probabilities of the
    two best tokens differ by less than the tolerance."""
    rule = "a greedy sequence has the same tokens alone and in a batch"
    for place, (own, expected) in enumerate(zip(alone.tokens, together.tokens, strict=False)):
        first, second = alone.alternatives[place]
        if own != expected and first[1] - second[1] < tolerance:
            return
        require(own == expected, rule)
        is_near = abs(alone.logprobs[place] - together.logprobs[place]) <= tolerance
        require(is_near, "log-probabilities are the same alone and together, within the tolerance")
    require(len(alone.tokens) == len(together.tokens), rule)


async def check_shared_prompt(probe: TokenProbe) -> None:
    count = min(3, probe.info.sequences)
    single_run = await probe.run(probe.build_request(max_tokens=6))
    load_before = await probe.get_load()
    request = replace(probe.build_request(max_tokens=6), group="shared")
    sibling_runs = await probe.run_all([replace(request, choice=choice) for choice in range(count)])
    load_after = await probe.get_load()
    if probe.tolerance == 0:
        require(
            all(run.tokens == single_run.tokens for run in sibling_runs),
            "greedy siblings have the tokens of a single sequence",
        )
    size = len(probe.prompts[0])
    require(
        load_after.prefill_tokens - load_before.prefill_tokens < 2 * size or count < 2,
        "siblings share the first one's prefill instead of computing the prompt again",
    )
    require(
        sum(run.counts.cached_tokens > 0 for run in sibling_runs) >= count - 1,
        "siblings count the prompt tokens that were shared",
    )
    require(
        all(run.started.cached_tokens == run.counts.cached_tokens for run in sibling_runs),
        "both counts of cached tokens agree",
    )


async def check_greedy_seed(probe: TokenProbe) -> None:
    first = await probe.run(probe.build_request(max_tokens=8, sampling=replace(GREEDY, seed=1)))
    second = await probe.run(probe.build_request(max_tokens=8, sampling=replace(GREEDY, seed=2)))
    require(first.tokens == second.tokens, "temperature 0 draws nothing, so the seed changes nothing")


VALUE_RULES = (
    check_logprobs,
    check_listed_logprobs,
    check_greedy_tokens,
    check_raw_logprobs,
    check_narrow_sampling,
    check_seeds,
    check_greedy_seed,
    check_batch_invariance,
    check_shared_prompt,
)

WIDTH = 3
"""The number of alternatives that the rules request."""


class UnpackedScores(Struct, frozen=True):
    """A prompt's unpacked scores, from its second token on."""

    logprobs: "array[float]"
    ids: "array[int]"
    values: "array[float]"
    ranks: "array[int]"

    @staticmethod
    def from_parts(parts: tuple[PromptScores, ...]) -> "UnpackedScores":
        return UnpackedScores(
            array("f", b"".join(part.logprobs for part in parts)),
            array("i", b"".join(part.alternative_ids for part in parts)),
            array("f", b"".join(part.alternative_logprobs for part in parts)),
            array("i", b"".join(part.ranks for part in parts)),
        )


def _build_scoring_request(
    probe: TokenProbe, prompt: tuple[int, ...], max_tokens: int = 2, width: int = WIDTH
) -> TokenRequest:
    """Builds a request that scores the prompt."""
    single = probe.build_request(max_tokens=max_tokens)
    return replace(single, prompt=PromptTokens(prompt), prompt_logprobs=width)


async def check_prompt_scores(probe: TokenProbe) -> None:
    """Scores a prompt twice, so that the second request meets the cached prefix of the first."""
    for prompt in (*probe.prompts, probe.prompts[0]):
        run = await probe.run(_build_scoring_request(probe, prompt))
        _require_cover(run, len(prompt))
        scores = UnpackedScores.from_parts(run.scores)
        require(
            len(scores.ids) == len(scores.values) == WIDTH * (len(prompt) - 1),
            "prompt_logprobs=k gives the k likeliest alternatives of each prompt token, packed as int32 and "
            "float32",
        )
        require(len(scores.ranks) == len(prompt) - 1, "each token of a scored prompt has its rank, int32")
        for place, token in enumerate(prompt[1:]):
            row_slice = slice(place * WIDTH, (place + 1) * WIDTH)
            _require_row(token, scores.logprobs[place], scores.ids[row_slice], scores.values[row_slice])
            _require_rank(scores.ranks[place], scores.logprobs[place], scores.values[row_slice])
    plain_run = await probe.run(probe.build_request(max_tokens=2))
    require(not plain_run.scores, "PromptScores come only when they are requested")
    run_without_alternatives = UnpackedScores.from_parts(
        (await probe.run(_build_scoring_request(probe, probe.prompts[0], width=0))).scores
    )
    require(
        len(run_without_alternatives.ids) == 0 == len(run_without_alternatives.values),
        "prompt_logprobs=0 asks for no alternatives",
    )


def _require_cover(run: SequenceRun, length: int) -> None:
    """Checks that the scores cover the prompt once and in order, and that no cached token was used."""
    expected = 1
    for part in run.scores:
        require(
            part.start == expected,
            "PromptScores cover the prompt from its second token to its last, in order, nothing twice",
        )
        require(part.logprobs and len(part.logprobs) % 4 == 0, "PromptScores hold packed float32")
        expected += len(part.logprobs) // 4
    require(expected == length, "PromptScores cover the prompt from its second token to its last")
    require(run.counts.cached_tokens == 0, "a scored prompt is computed again, even if it is cached")


def _require_row(token: int, value: float, ids: "array[int]", values: "array[float]") -> None:
    """Checks that the scores at one place of a prompt can be those of a distribution."""
    require(
        value <= ROUNDING and all(other <= ROUNDING for other in values), "log-probabilities are at most 0"
    )
    require(all(a >= b for a, b in pairwise(values)), "alternatives of a prompt token come best first")
    require(len(set(ids)) == len(ids), "alternatives of a prompt token are different tokens")
    require(math.fsum(map(math.exp, values)) <= 1 + ROUNDING, "probabilities add up to at most 1")
    if token in ids:
        is_same = abs(values[ids.index(token)] - value) <= ROUNDING
        require(is_same, "a prompt token's log-probability is the same among the alternatives")
    else:
        require(value <= values[-1] + ROUNDING, "the alternatives are the likeliest tokens")


def _require_rank(rank: int, value: float, values: "array[float]") -> None:
    """Checks the rank of a prompt token against the likeliest tokens at its place."""
    likelier = sum(other > value + ROUNDING for other in values)
    at_least_as_likely = sum(other >= value - ROUNDING for other in values)
    max_rank = rank if at_least_as_likely == len(values) else max(at_least_as_likely, 1)
    require(
        likelier < rank <= max_rank, "a prompt token's rank is 1 and as many as are likelier at its place"
    )


async def check_score_consistency(probe: TokenProbe) -> None:
    generated = await probe.run(probe.build_request(max_tokens=8, logprobs=0))
    prompt = probe.prompts[0] + generated.tokens
    scored = UnpackedScores.from_parts((await probe.run(_build_scoring_request(probe, prompt))).scores)
    slack = max(probe.tolerance, ROUNDING)
    again = scored.logprobs[-len(generated.tokens) :]
    is_near = all(
        abs(own - expected) <= slack for own, expected in zip(generated.logprobs, again, strict=True)
    )
    require(is_near, "generated tokens have equal log-probabilities when they are scored as a prompt")


async def check_generation_after_scoring(probe: TokenProbe) -> None:
    plain = await probe.run(probe.build_request(max_tokens=8))
    scored = await probe.run(_build_scoring_request(probe, probe.prompts[0], 8))
    require(
        plain.tokens == scored.tokens or probe.tolerance > 0,
        "scoring a prompt does not change the completion",
    )


async def check_scoring_only(probe: TokenProbe) -> None:
    for prompt in probe.prompts:
        run = await probe.run(_build_scoring_request(probe, prompt, max_tokens=0))
        require(not run.tokens, "max_tokens 0 makes no token")
        require(run.cause is StopCause.LENGTH, "a prompt that is only scored ends with LENGTH")
        require(
            (run.counts.prompt_tokens, run.counts.completion_tokens) == (len(prompt), 0),
            "a prompt that is only scored counts its own tokens only",
        )
        _require_cover(run, len(prompt))
    single = await probe.run(_build_scoring_request(probe, probe.prompts[0][:1], max_tokens=0))
    require(not single.scores, "a prompt of one token has nothing to score")
    await require_error(
        probe.run(
            replace(_build_scoring_request(probe, probe.prompts[0], max_tokens=0), prompt_logprobs=None)
        ),
        AntiphonError,
        "max_tokens 0 needs prompt_logprobs",
    )


async def check_shared_scored_prompt(probe: TokenProbe) -> None:
    count = min(3, probe.info.sequences)
    first = replace(_build_scoring_request(probe, probe.prompts[0], max_tokens=4), group="scored")
    siblings = [replace(first, prompt_logprobs=None, choice=choice) for choice in range(1, count)]
    leader, *others = await probe.run_all([first, *siblings])
    _require_cover(leader, len(probe.prompts[0]))
    require(not any(run.scores for run in others), "a prompt is scored for the sibling that asks for it")
    if probe.tolerance == 0:
        require(
            all(run.tokens == leader.tokens for run in others),
            "siblings of a scored sequence have the same tokens",
        )


SCORE_RULES = (
    check_prompt_scores,
    check_score_consistency,
    check_generation_after_scoring,
    check_scoring_only,
    check_shared_scored_prompt,
)
