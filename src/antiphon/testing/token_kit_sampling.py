"""The token engine's rules about what sampling may and may not draw, each where its effect is certain: bans,
forced tokens, penalties that outweigh every distribution."""

from dataclasses import replace

from antiphon.domain.sampling import Mirostat, Sampling
from antiphon.engines.base import StopCause
from antiphon.testing.probe import GREEDY, Probe
from antiphon.testing.rules import require

OVERWHELMING = 1000.0
"""More than logits differ by."""
HOT = Sampling(temperature=1.5, seed=5)


async def bias_bans_and_forces(probe: Probe) -> None:
    free = await probe.run(probe.request(max_tokens=1, logprobs=1))
    (likeliest,) = free.tokens
    banned = replace(GREEDY, logit_bias=((likeliest, -OVERWHELMING),))
    run = await probe.run(probe.request(max_tokens=1, sampling=banned, logprobs=1))
    require(run.tokens != free.tokens, "a token with a bias of minus infinity, as it were, is not drawn")
    near = abs(run.alternatives[0][0][1] - free.alternatives[0][0][1]) <= max(probe.tolerance, 1e-3)
    require(near, "log-probabilities are those before the bias")
    wanted = probe.prompts[0][-1]
    forced = replace(HOT, logit_bias=((wanted, OVERWHELMING),))
    run = await probe.run(probe.request(max_tokens=4, sampling=forced))
    require(set(run.tokens) == {wanted}, "a token with an overwhelming bias is always drawn")


async def only_allowed_tokens_are_drawn(probe: Probe) -> None:
    allowed = tuple(dict.fromkeys(_words(probe)))[:5]
    for sampling in (GREEDY, HOT):
        asked = replace(sampling, allowed_token_ids=allowed)
        run = await probe.run(probe.request(max_tokens=12, sampling=asked))
        require(set(run.tokens) <= set(allowed), "allowed_token_ids are the only ones drawn")
        require(len(run.tokens) == 12, "allowing no end token lets a sequence go on to max_tokens")


async def banned_sequences_are_not_completed(probe: Probe) -> None:
    async def greedy(max_tokens: int, *banned: tuple[int, ...]) -> tuple[int, ...]:
        sampling = replace(GREEDY, ignore_eos=True, banned=banned)
        return (await probe.run(probe.request(max_tokens=max_tokens, sampling=sampling))).tokens

    free = first, second = await greedy(2)
    require((await greedy(1, (first,)))[0] != first, "a banned token is not drawn")
    pair = await greedy(2, free)
    require(
        pair[0] == first and pair[1] != second,
        "the last token of a banned sequence is not drawn after its others, and the others are",
    )
    alone = await greedy(1, (probe.prompts[0][-1], first))
    require(alone == free[:1], "the prompt does not begin a banned sequence")
    if first != second:
        require(await greedy(2, (second, first)) == free, "a banned sequence is banned in its order only")


async def least_tokens_come_before_any_end(probe: Probe) -> None:
    end, word = probe.vocabulary.end_ids[0], probe.prompts[0][-1]
    for token, stop, cause in ((end, (), StopCause.END), (word, (word,), StopCause.STOP_TOKEN)):
        sampling = replace(GREEDY, min_tokens=5, logit_bias=((token, OVERWHELMING),))
        run = await probe.run(probe.request(max_tokens=12, sampling=sampling, stop=stop))
        require(token not in run.tokens[:5], "no end and no stop token is drawn in the first min_tokens")
        require(
            run.tokens[5:] == (token,) and run.cause is cause,
            "after min_tokens an end or stop token may be drawn, and ends the sequence",
        )


async def end_tokens_end_nothing_when_ignored(probe: Probe) -> None:
    end = probe.vocabulary.end_ids[0]
    sampling = replace(GREEDY, ignore_eos=True, logit_bias=((end, OVERWHELMING),))
    run = await probe.run(probe.request(max_tokens=6, sampling=sampling))
    require(run.tokens == (end,) * 6, "with ignore_eos end tokens are drawn like others and end nothing")
    require(run.cause is StopCause.LENGTH, "with ignore_eos a sequence ends at max_tokens")
    stopped = await probe.run(probe.request(max_tokens=6, sampling=sampling, stop=(end,)))
    require(
        stopped.tokens == (end,) and stopped.cause is StopCause.STOP_TOKEN,
        "a stop token ends a sequence that ignores the model's end tokens",
    )


async def penalties_count_the_output(probe: Probe) -> None:
    allowed = tuple(dict.fromkeys(_words(probe)))[:6]
    among = replace(GREEDY, allowed_token_ids=allowed)
    for sampling in (
        replace(among, frequency_penalty=OVERWHELMING),
        replace(among, presence_penalty=OVERWHELMING),
    ):
        run = await probe.run(probe.request(max_tokens=6, sampling=sampling))
        require(
            sorted(run.tokens) == sorted(allowed),
            "a token that was said is penalised, one of the prompt alone is not",
        )
    sampling = replace(GREEDY, allowed_token_ids=allowed[:2], frequency_penalty=OVERWHELMING)
    run = await probe.run(probe.request(max_tokens=6, sampling=sampling))
    require(
        sorted(run.tokens) == sorted(allowed[:2] * 3), "frequency_penalty counts each time a token was said"
    )


async def mirostat_draws_by_seed_and_not_at_temperature_zero(probe: Probe) -> None:
    greedy = await probe.run(probe.request(max_tokens=8))
    steered = replace(GREEDY, mirostat=Mirostat())
    run = await probe.run(probe.request(max_tokens=8, sampling=steered))
    require(run.tokens == greedy.tokens, "temperature 0 is greedy, Mirostat or not")
    narrow = replace(HOT, mirostat=Mirostat(target=1e-9, rate=0.0))
    run = await probe.run(probe.request(max_tokens=8, sampling=narrow))
    require(run.tokens == greedy.tokens, "a target of next to no surprise leaves only the likeliest token")
    drawn = [
        await probe.run(probe.request(max_tokens=8, sampling=replace(HOT, mirostat=Mirostat(target=8.0))))
        for _ in range(2)
    ]
    require(drawn[0].tokens == drawn[1].tokens or probe.tolerance > 0, "equal seeds draw equally by Mirostat")


def _words(probe: Probe) -> list[int]:
    """Ids that mean nothing special, not those that prompts begin with."""
    special = {*probe.vocabulary.end_ids, probe.vocabulary.bos_id}
    return [token for prompt in probe.prompts for token in prompt if token not in special]


SAMPLING_RULES = (
    bias_bans_and_forces,
    only_allowed_tokens_are_drawn,
    banned_sequences_are_not_completed,
    least_tokens_come_before_any_end,
    end_tokens_end_nothing_when_ignored,
    penalties_count_the_output,
    mirostat_draws_by_seed_and_not_at_temperature_zero,
)
