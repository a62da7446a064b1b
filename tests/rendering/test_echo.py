"""The prompt said again before a choice's text, and scored: once for each prompt, whole, at its places."""

import asyncio

import pytest

from antiphon.domain.context import Context
from antiphon.domain.events import Finished, FinishReason, Started, TextDelta, Usage
from antiphon.domain.request import RawPrompt, SamplingOptions
from antiphon.engines.base import LoadSpec, PromptScores
from antiphon.errors import ContextLengthExceeded, EngineError, InvalidValue, UnsupportedParameter
from antiphon.rendering.renderer import Renderer
from antiphon_testing import Script, ScriptedTokenEngine, build_vocabulary, scripted_info
from antiphon_testing.rules import open_stream
from antiphon_testing.toy_model import ToyModel
from tests.rendering.scripted_renderer import answer, asking, events_of, renderer
from tests.support.chat_templates import build_conversation, prove_here

LONG = " the cat sat" * 700
"""2,100 tokens: several parts."""


async def test_a_choice_begins_with_the_callers_own_text():
    for prompt in ("Hello", " Hello", "<s>Hello", "a😀<|im_end|>b", "é"):
        for prefix in (False, True):
            engine, _ = renderer(Script(text=" world"), vocabulary=build_vocabulary(space_prefix=prefix))
            (choice,) = (await answer(engine, asking(RawPrompt(prompt), echo=True))).choices
            assert choice.text == prompt + " world" and choice.scores is None


async def test_the_prompt_is_each_choices_first_delta():
    engine, _ = renderer(Script(text=" world"))
    events = await events_of(engine, asking(echo=True, choices=2))
    assert events[0] == Started(2)
    for choice in (0, 1):
        deltas = [event for event in events if isinstance(event, TextDelta) and event.choice == choice]
        assert deltas == [TextDelta(choice, "Hello"), TextDelta(choice, " world", 1)]


async def test_token_ids_are_repeated_as_their_text():
    engine, tokens = renderer(Script(text=" world"))
    ids = (tokens.table.bos_id, *tokens.tokenizer.encode_plain(" the cat"))
    (choice,) = (await answer(engine, asking(RawPrompt(tokens=ids), echo=True))).choices
    assert choice.text == " the cat world"


async def test_the_completion_may_end_the_prompts_last_character():
    engine, tokens = renderer(Script(text=b"\x98\x80!"))
    ids = tokens.tokenizer.encode_plain(b"a\xf0\x9f")
    (choice,) = (await answer(engine, asking(RawPrompt(tokens=ids), echo=True, logprobs=0))).choices
    assert choice.text == "a😀!"
    assert [(score.piece, score.offset) for score in choice.scores] == [
        (b"a", 0), (b"\xf0\x9f", 1), (b"\x98\x80", 1), (b"!", 2), (b"</s>", 3),
    ]  # fmt: skip
    (choice,) = (await answer(engine, asking(RawPrompt(tokens=ids), echo=True, max_tokens=0))).choices
    assert choice.text == "a\ufffd"


async def test_every_prompt_token_is_scored_but_the_first():
    engine, tokens = renderer(Script(text=" world"))
    (choice,) = (await answer(engine, asking(RawPrompt("Hello the cat"), echo=True, logprobs=2))).choices
    prompt = tokens.requests[0].prompt.ids
    model = ToyModel(tokens.table)
    assert [score.token for score in choice.scores[: len(prompt)]] == list(prompt)
    first, *rest = choice.scores
    assert (first.piece, first.logprob, first.alternatives, first.offset) == (b"<s>", None, (), 0)
    for place, score in enumerate(rest[:-2], start=1):
        row = model.logprobs(prompt[:place])
        assert score.logprob == pytest.approx(row[score.token], abs=1e-5)
        best = sorted(row, reverse=True)[:2]
        assert [value for _, _, value in score.alternatives] == pytest.approx(best, abs=1e-5)
    text = [(score.piece.decode(), score.offset) for score in rest]
    assert text == [("Hello", 0), (" the", 5), (" cat", 9), (" world", 13), ("</s>", 19)]


@pytest.mark.parametrize("prompt", [" the cat", "  the cat", "Hello the cat"])
async def test_offsets_allow_for_the_space_that_tokenizers_add(prompt):
    engine, _ = renderer(Script(text=" world"), vocabulary=build_vocabulary(space_prefix=True))
    (choice,) = (await answer(engine, asking(RawPrompt(prompt), echo=True, logprobs=0))).choices
    cat = next(score for score in choice.scores if b"cat" in score.piece)
    assert choice.text[cat.offset :].startswith(cat.piece.decode())
    assert choice.scores[-2].offset == len(prompt)


async def test_the_prompt_is_scored_once_for_all_choices():
    engine, tokens = renderer(info=scripted_info(context_length=4096), spec=LoadSpec("m", prefill_chunk=100))
    request = asking(RawPrompt(LONG), RawPrompt("Hello"), echo=True, logprobs=1, choices=3, max_tokens=2)
    found = await answer(engine, request)
    assert [asked.prompt_logprobs for asked in tokens.requests].count(1) == 2
    scored = {asked.choice for asked in tokens.requests if asked.prompt_logprobs is not None}
    assert scored == {0}
    for mine, other in zip(found.choices[:3], found.choices[1:3], strict=False):
        assert list(mine.scores)[:2101] == list(other.scores)[:2101]
    assert all(choice.text.startswith(LONG) for choice in found.choices[:3])


async def test_a_long_prompt_comes_in_parts_with_their_scores():
    words = "a😀日本語" * 400
    engine, _ = renderer(Script(text="!"), info=scripted_info(context_length=8192))
    events = await events_of(engine, asking(RawPrompt(words), echo=True, logprobs=1))
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert "".join(delta.text for delta in deltas) == words + "!" and len(deltas) > 2
    said = 0
    for delta in deltas:
        for score in delta.scores:
            assert said <= score.offset < said + len(delta.text)
        said += len(delta.text)
    assert b"".join(s.piece for delta in deltas for s in delta.scores) == b"<s>" + (words + "!").encode()


@pytest.mark.parametrize("logprobs", [None, 3])
@pytest.mark.parametrize("choices", [1, 3])
async def test_without_tokens_to_make_a_prompt_is_scored_and_no_more(logprobs, choices):
    engine, tokens = renderer()
    request = asking(RawPrompt("Hello world"), echo=True, max_tokens=0, logprobs=logprobs, choices=choices)
    events = await events_of(engine, request)
    assert isinstance(events[0], Started) and events[-1] == Usage(3, 0)
    found = await answer(engine, request)
    assert [(choice.text, choice.reason) for choice in found.choices] == [
        ("Hello world", FinishReason.LENGTH)
    ] * choices
    assert len(tokens.requests) == (0 if logprobs is None else 2)
    for choice in found.choices:
        assert choice.scores is None if logprobs is None else len(choice.scores) == 3


async def test_a_prompt_that_fills_the_context_can_be_scored():
    engine, _ = renderer(info=scripted_info(context_length=20))
    full = RawPrompt(tokens=(20,) * 20)
    found = await answer(engine, asking(full, echo=True, max_tokens=0, logprobs=0))
    assert len(found.choices[0].scores) == found.usage.prompt_tokens == 20
    with pytest.raises(ContextLengthExceeded):
        await answer(engine, asking(full, echo=True, max_tokens=1, logprobs=0))


async def test_scores_of_a_prompt_without_text_come_with_the_next():
    engine, tokens = renderer(Script(text="Hello"))
    bos = RawPrompt(tokens=(tokens.table.bos_id,))
    events = await events_of(engine, asking(bos, echo=True, logprobs=0))
    delta = next(event for event in events if isinstance(event, TextDelta))
    assert [score.piece for score in delta.scores] == [b"<s>", b"Hello"]
    events = await events_of(engine, asking(bos, echo=True, logprobs=0, max_tokens=0))
    end = next(event for event in events if isinstance(event, Finished))
    assert [score.piece for score in end.scores or ()] == [b"<s>"]


async def test_stop_strings_are_looked_for_in_the_completion_only():
    engine, _ = renderer(Script(text=" the Hello"))
    request = asking(RawPrompt("Hello world"), echo=True, stop=("Hello",), logprobs=0)
    (choice,) = (await answer(engine, request)).choices
    assert choice.text == "Hello world the "


@pytest.mark.parametrize("logprobs", [None, 1])
async def test_the_assistants_last_message_is_repeated_first(logprobs):
    engine, tokens = renderer(Script(text=" world"))
    prompt = build_conversation("Hi", "Hello <tool_call>")
    plain = await answer(engine, asking(prompt, logprobs=logprobs, choices=2))
    for best_of in (None, 2):
        found = await answer(engine, asking(prompt, echo=True, logprobs=logprobs, choices=2, best_of=best_of))
        assert [choice.text for choice in found.choices] == ["Hello <tool_call> world"] * 2
        assert [choice.scores for choice in found.choices] == [choice.scores for choice in plain.choices]
        assert found.usage == plain.usage
    assert all(request.prompt_logprobs is None for request in tokens.requests)


async def test_other_conversations_and_nothing_are_not_repeated():
    engine, tokens = renderer()
    with pytest.raises(UnsupportedParameter, match="its role is user") as refused:
        await answer(engine, asking(build_conversation("Hello"), echo=True))
    assert refused.value.param == "echo"
    with pytest.raises(InvalidValue) as empty:
        await answer(engine, asking(max_tokens=0))
    assert empty.value.param == "max_tokens" and not tokens.requests


class Forgetful(ScriptedTokenEngine):
    async def generate(self, request):
        async for event in super().generate(request):
            if not isinstance(event, PromptScores) or event.start == 1:
                yield event


async def test_an_engine_that_scores_a_part_is_found_out():
    tokens = Forgetful(spec=LoadSpec("m", prefill_chunk=2))
    engine = Renderer(tokens, prove=prove_here)
    for choices in (1, 2):
        request = asking(RawPrompt("Hello the cat sat"), echo=True, logprobs=0, choices=choices)
        with pytest.raises(EngineError, match="did not score"):
            await answer(engine, request)
    assert tokens.ended_count == len(tokens.requests)


async def test_leaving_ends_the_choices_that_wait_for_the_scores():
    engine, tokens = renderer(Script(prefill=60))
    request = asking(echo=True, logprobs=0, choices=3)
    async with open_stream(engine, request, Context("r")) as events:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(events)
    assert tokens.ended_count == len(tokens.requests)


async def test_completions_are_the_same_with_their_prompt():
    engine, _ = renderer()
    sampling = SamplingOptions(temperature=1.2, seed=5)
    bare = await answer(engine, asking(RawPrompt("Hello"), max_tokens=9, sampling=sampling))
    echoed = await answer(
        engine, asking(RawPrompt("Hello"), max_tokens=9, sampling=sampling, echo=True, logprobs=1)
    )
    assert echoed.choices[0].text == "Hello" + bare.choices[0].text
    assert echoed.usage == bare.usage
