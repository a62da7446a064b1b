"""A prompt's own scores beside what is generated from it: true ranks, once for each prompt, beside echo or
without."""

import pytest

from antiphon.domain.events import Finished, PromptScored, Started, TextDelta, Usage
from antiphon.domain.request import RawPrompt
from antiphon.engines.base import LoadSpec, PromptScores
from antiphon.errors import EngineError, InvalidValue
from antiphon.rendering.renderer import Renderer
from antiphon_testing import Script, ScriptedTokenEngine, scripted_info
from antiphon_testing.toy_model import ToyModel
from tests.rendering.scripted_renderer import answer, asking, events_of, renderer
from tests.support.chat_templates import build_conversation, prove_here


def require_true(scores, prompt, table, width):
    model = ToyModel(table)
    assert [score.token for score in scores] == list(prompt)
    first, *rest = scores
    assert (first.logprob, first.rank, first.alternatives) == (None, None, ())
    for place, score in enumerate(rest, start=1):
        row = model.logprobs(prompt[:place])
        assert score.logprob == pytest.approx(row[score.token], abs=1e-5)
        assert score.rank == 1 + sum(value > row[score.token] for value in row)
        best = sorted(row, reverse=True)[:width]
        assert [value for _, _, value in score.alternatives] == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("width", [0, 3])
async def test_each_prompts_tokens_have_their_scores_and_ranks(width):
    engine, tokens = renderer(Script(text=" world"))
    prompts = (RawPrompt("Hello the cat"), RawPrompt(" sat on"))
    found = await answer(engine, asking(*prompts, prompt_logprobs=width, choices=2))
    assert [choice.text for choice in found.choices] == [" world"] * 4
    assert all(choice.scores is None for choice in found.choices)
    asked = [request for request in tokens.requests if request.prompt_logprobs is not None]
    assert [request.choice for request in asked] == [0, 0]
    for scores, request in zip(found.prompt_scores, asked, strict=True):
        require_true(scores, request.prompt.ids, tokens.table, width)


async def test_a_conversations_control_tokens_are_scored():
    engine, tokens = renderer(Script(text=" world"))
    found = await answer(engine, asking(build_conversation("Hello"), prompt_logprobs=1, choices=2))
    (scores,) = found.prompt_scores
    require_true(scores, tokens.requests[0].prompt.ids, tokens.table, 1)
    assert b"<|im_start|>" in [score.piece for score in scores]


@pytest.mark.parametrize(("logprobs", "wanted"), [(0, 4), (4, 0), (2, 3)])
async def test_with_echo_each_keeps_its_own_alternatives(logprobs, wanted):
    engine, tokens = renderer(Script(text=" world"))
    request = asking(RawPrompt("Hello the cat"), echo=True, logprobs=logprobs, prompt_logprobs=wanted)
    found = await answer(engine, request)
    (choice,) = found.choices
    prompt = tokens.requests[0].prompt.ids
    assert len(tokens.requests) == 1 and choice.text == "Hello the cat world"
    require_true(found.prompt_scores[0], prompt, tokens.table, wanted)
    echoed = list(choice.scores)[1 : len(prompt)]
    assert {len(score.alternatives) for score in echoed} == {logprobs}
    same = zip(echoed, list(found.prompt_scores[0])[1:], strict=True)
    assert all(mine.logprob == theirs.logprob for mine, theirs in same)


async def test_they_come_once_after_started_and_nothing_else_changes():
    engine, _ = renderer(Script(text=" the cat"))
    plain = await events_of(engine, asking(choices=2))
    scored = await events_of(engine, asking(choices=2, prompt_logprobs=1))
    kinds = [type(event) for event in scored]
    assert kinds[:2] == [Started, PromptScored] and kinds.count(PromptScored) == 1
    assert [event for event in scored if isinstance(event, TextDelta | Finished)] == [
        event for event in plain if isinstance(event, TextDelta | Finished)
    ]
    assert scored[-1] == Usage(2, 6, 0)


async def test_a_prompt_without_echo_may_be_scored_alone():
    engine, tokens = renderer()
    request = asking(RawPrompt("Hello the"), max_tokens=0, echo=True, prompt_logprobs=2)
    found = await answer(engine, request)
    assert found.usage == Usage(3, 0) and [len(scores) for scores in found.prompt_scores] == [3]
    assert found.choices[0].scores is None and len(tokens.requests) == 1


async def test_a_prompt_of_one_token_has_nothing_to_score():
    engine, tokens = renderer(Script(text="Hello"))
    bos = RawPrompt(tokens=(tokens.table.bos_id,))
    found = await answer(engine, asking(bos, prompt_logprobs=2))
    assert [(score.logprob, score.rank) for score in found.prompt_scores[0]] == [(None, None)]


class Unranked(ScriptedTokenEngine):
    """Leaves the ranks out, as an engine written before them."""

    async def generate(self, request):
        async for event in super().generate(request):
            if isinstance(event, PromptScores):
                yield PromptScores(
                    event.start, event.logprobs, event.alternative_ids, event.alternative_logprobs
                )
            else:
                yield event


async def test_an_engine_that_tells_no_ranks_is_found_out():
    engine = Renderer(Unranked(spec=LoadSpec("m", prefill_chunk=2)), prove=prove_here)
    with pytest.raises(EngineError, match="did not score"):
        await answer(engine, asking(prompt_logprobs=0))


async def test_too_many_prompt_scores_are_refused_before_a_token():
    engine, tokens = renderer(info=scripted_info(context_length=60_000))
    long = RawPrompt(tokens=(20,) * 50_000)
    with pytest.raises(InvalidValue, match="10,500,000 log-probabilities") as refused:
        await answer(engine, asking(long, max_tokens=1, prompt_logprobs=20, choices=10))
    assert refused.value.param == "prompt_logprobs" and not tokens.requests
