"""The best of several candidates: by mean log-probability, renumbered, with every candidate counted."""

import math

import pytest

from antiphon.domain.context import Context
from antiphon.domain.events import CandidateTokens, Finished, Started, TextDelta
from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.request import RawPrompt, SamplingOptions
from antiphon.domain.values import replace
from antiphon.rendering.renderer import Renderer
from antiphon_testing import Script, ScriptedTokenEngine, flatten, scripted_info
from antiphon_testing.rules import open_stream
from tests.rendering.scripted_renderer import answer, asking, events_of, renderer
from tests.support.chat_templates import prove_here

HOT = SamplingOptions(temperature=1.5, seed=11)
ENDLESS = replace(HOT, ignore_eos=True)


async def test_the_given_choices_are_the_best_candidates_best_first():
    engine, _ = renderer()
    one = asking(choices=8, max_tokens=8, logprobs=0, sampling=ENDLESS)
    all_of_them = (await answer(engine, one)).choices
    ranked = sorted(
        all_of_them, key=lambda choice: -math.fsum(s.logprob for s in choice.scores) / len(choice.scores)
    )
    found = await answer(
        engine,
        asking(choices=2, best_of=8, max_tokens=8, sampling=ENDLESS),
    )
    assert [choice.text for choice in found.choices] == [choice.text for choice in ranked[:2]]
    assert [choice.index for choice in found.choices] == [0, 1]
    assert len({choice.text for choice in all_of_them}) > 4
    assert found.usage.completion_tokens == 64 and found.choices[0].scores is None


async def test_every_candidate_is_counted_and_the_prompt_once():
    engine, tokens = renderer()
    prompts = (RawPrompt("Hello"), RawPrompt("Hello the"))
    alone = (
        await answer(engine, asking(*prompts, choices=5, sampling=HOT, max_tokens=8))
    ).usage.completion_tokens
    found = await answer(engine, asking(*prompts, best_of=5, sampling=HOT, max_tokens=8))
    assert found.usage.completion_tokens == alone and found.usage.prompt_tokens == 5
    assert [asked.choice for asked in tokens.requests[10:]] == [0, 1, 2, 3, 4] * 2
    assert len(found.choices) == 2


async def test_the_end_of_a_candidate_counts_in_its_mean():
    lines = {0: "Hello world", 1: "Hello"}

    class Certain(ScriptedTokenEngine):
        def _score_steps(self, sequence, before, made, wanted):
            steps = super()._score_steps(sequence, before, made, wanted)
            ends = self.table.end_ids
            return type(steps)(steps.tokens, tuple(-9.0 if t in ends else -1.0 for t in steps.tokens))

    engine = Renderer(Certain(lambda request: Script(text=lines[request.choice])), prove=prove_here)
    (choice,) = (await answer(engine, asking(best_of=2))).choices
    assert choice.text == "Hello world"  # -11/3, against -10/2


async def test_equal_candidates_keep_order_logprobs_and_prompts():
    engine, _ = renderer(Script(text=" world"))
    found = await answer(engine, asking(choices=2, best_of=3, logprobs=1, echo=True))
    for choice in found.choices:
        assert choice.text == "Hello world"
        assert [score.piece for score in choice.scores] == [b"<s>", b"Hello", b" world", b"</s>"]
        assert [score.offset for score in choice.scores] == [0, 0, 5, 11]


async def test_what_candidates_make_is_told_while_nothing_is_given():
    engine, _ = renderer()
    events = await events_of(engine, asking(choices=1, best_of=3, max_tokens=8, sampling=HOT))
    assert isinstance(events[0], Started)
    kinds = [type(event) for event in events]
    assert kinds.index(TextDelta) > max(i for i, kind in enumerate(kinds) if kind is CandidateTokens)
    reported = sum(event.tokens for event in events if isinstance(event, CandidateTokens))
    assert reported == events[-1].completion_tokens
    assert not any(event.tokens for event in events if isinstance(event, TextDelta | Finished))


async def test_leaving_ends_every_candidate():
    engine, tokens = renderer(Script(text=" the", endless=True), info=scripted_info(sequences=2))
    async with open_stream(engine, asking(best_of=5, max_tokens=1000), Context("r")) as events:
        async for event in flatten(events):
            if isinstance(event, CandidateTokens):
                break
    assert tokens.ended_count == len(tokens.requests) > 0


@pytest.mark.parametrize("share", [False, True])
async def test_prefixes_are_shared_within_a_project_and_a_salt(share):
    engine, tokens = renderer(Script(text="ok"), projects_share=share)
    for project in ("one", "two"):
        for salt in ("", "s"):
            context = Context("r", Actor(ActorKind.SERVICE_KEY, f"key-{project}", project))
            await answer(engine, asking(cache_salt=salt), context)
    one, one_salted, two, two_salted = (asked.cache_salt for asked in tokens.requests)
    assert (one == two == "") if share else (one != two and one and two)
    assert len({one, one_salted, two_salted}) == 3
    assert [asked.actor for asked in tokens.requests] == ["key-one", "key-one", "key-two", "key-two"]
