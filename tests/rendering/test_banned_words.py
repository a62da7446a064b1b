"""Words that may not be said, as tokens: at the beginning of a text and after a space, whatever the tokenizer
puts before a text."""

import pytest

from antiphon.domain.context import Context
from antiphon.domain.request import GenerationRequest, Output, RawPrompt
from antiphon.errors import InvalidValue
from antiphon.rendering.renderer import Renderer
from antiphon_testing import Script, ScriptedTokenEngine, build_vocabulary
from antiphon_testing.rules import open_stream
from tests.support.chat_templates import prove_here


async def asked(*words, space_prefix=False, **request):
    """What reaches the engine, and the engine."""
    vocabulary = build_vocabulary(space_prefix=space_prefix)
    engine = ScriptedTokenEngine(Script("ok"), vocabulary=vocabulary)
    renderer = Renderer(engine, prove=prove_here)
    wanted = GenerationRequest("m", (RawPrompt("Hello"),), output=Output(bad_words=words), **request)
    async with open_stream(renderer, wanted, Context("r")) as events:
        async for _ in events:
            pass
    (found,) = engine.requests
    return found, engine.tokenizer.encode_plain


@pytest.mark.parametrize("space_prefix", [False, True])
async def test_a_word_is_banned_as_it_begins_a_text_and_after_a_space(space_prefix):
    request, plain = await asked("Hello", "  the lamp", "\n", space_prefix=space_prefix)
    written = ("Hello", " Hello", "the lamp", " the lamp", "\n", " \n")
    assert set(request.sampling.banned) == {plain(text) for text in written}
    assert len(request.sampling.banned) == len(set(request.sampling.banned))


async def test_the_name_of_a_control_token_is_banned_as_text():
    request, plain = await asked("<|im_end|>")
    assert set(request.sampling.banned) == {plain("<|im_end|>"), plain(" <|im_end|>")}


@pytest.mark.parametrize("space_prefix", [False, True])
async def test_without_words_nothing_is_banned(space_prefix):
    request, _ = await asked(space_prefix=space_prefix)
    assert request.sampling.banned == ()


@pytest.mark.parametrize("word", ["", "  "])
async def test_a_word_of_spaces_is_refused_by_its_place(word):
    with pytest.raises(InvalidValue, match="nothing but spaces") as refusal:
        await asked("a", word)
    assert refusal.value.param == "bad_words[1]"


async def test_the_priority_reaches_the_engine():
    request, _ = await asked(priority=-3)
    assert request.priority == -3
