"""What a choice shows of its tokens: stop texts that stay, control tokens by their names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.events import Finished, FinishReason, TextDelta
from antiphon.domain.request import Overflow, RawPrompt, SamplingOptions
from antiphon.errors import ContextLengthExceeded, InvalidValue
from antiphon.rendering.prompt import MOST_TRUNCATED
from antiphon_testing import Script, scripted_info
from tests.rendering.scripted_renderer import GREEDY, answer, asking, events_of, renderer
from tests.support.chat_templates import build_conversation

PIECES = ("Hello", " world", " the", "é", "😀", "日本語", "END", "st", "op", "a")
GOES_ON = SamplingOptions(temperature=0.0, ignore_eos=True)


def ids_of(tokens, *texts):
    return tuple(token for text in texts for token in tokens.tokenizer.encode_plain(text))


async def choice_of(script, **output):
    engine, _ = renderer(script)
    (choice,) = (await answer(engine, asking(**output))).choices
    return choice


async def test_a_stop_text_stays_at_the_end_and_nothing_after_it():
    for burst in (1, 2, 8):
        choice = await choice_of(
            Script(text=" the STOP!ping cat", burst=burst), stop=("STOP!p",), include_stop=True
        )
        assert (choice.text, choice.reason) == (" the STOP!p", FinishReason.STOP)


@given(
    words=st.lists(st.sampled_from(PIECES), max_size=8),
    stops=st.lists(st.text("aéSTOPtop😀日", min_size=1, max_size=3), min_size=1, max_size=3),
    burst=st.integers(1, 4),
    logprobs=st.sampled_from([None, 0]),
)
async def test_with_its_stop_text_a_choice_is_the_other_and_that_text(words, stops, burst, logprobs):
    """However tokens and steps cut it, and whether or not it is scored."""
    script = Script(text="".join(words), burst=burst)
    asked = {"stop": tuple(stops), "logprobs": logprobs}
    cut = await choice_of(script, **asked)
    kept = await choice_of(script, include_stop=True, **asked)
    stopped = [stop for stop in stops if "".join(words).startswith(cut.text + stop)]
    ends = {cut.text + stop for stop in stopped} or {"".join(words)}
    assert kept.text in ends and kept.reason == cut.reason
    if logprobs is not None:
        said = b"".join(score.piece for score in kept.scores).decode(errors="replace")
        assert said.startswith(kept.text)
        assert all(score.offset < len(kept.text) for score in kept.scores if score.piece != b"</s>")
        assert list(cut.scores) == list(kept.scores)[: len(cut.scores)]


async def test_a_stop_text_that_stays_is_not_held_back():
    engine, _ = renderer(Script(text=" the cat sat"))
    events = await events_of(engine, asking(stop=(" the cat sat on",), include_stop=True))
    assert [event.text for event in events if isinstance(event, TextDelta)] == [" the", " cat", " sat"]


@pytest.mark.parametrize("logprobs", [None, 1])
async def test_a_stop_tokens_text_is_shown_only_where_stops_stay(logprobs):
    engine, tokens = renderer(Script(text="Hello world the"))
    stop = ids_of(tokens, " world")
    for include, text in ((False, "Hello"), (True, "Hello world")):
        request = asking(stop_token_ids=stop, include_stop=include, logprobs=logprobs)
        found = await answer(engine, request)
        (choice,) = found.choices
        assert (choice.text, choice.reason) == (text, FinishReason.STOP)
        assert found.usage.completion_tokens == 2
        assert logprobs is None or [score.piece for score in choice.scores] == [b"Hello", b" world"]


@pytest.mark.parametrize("logprobs", [None, 1])
async def test_control_tokens_show_as_their_names_when_they_shall(logprobs):
    engine, tokens = renderer()
    names = tokens.tokenizer.controls
    said = (*ids_of(tokens, "Hello"), names["<|im_start|>"], *ids_of(tokens, " world"))
    tokens.script = Script(tokens=said)
    for shown, include, text in (
        (False, False, "Hello world"),
        (True, False, "Hello<|im_start|> world"),
        (False, True, "Hello world"),
        (True, True, "Hello<|im_start|> world</s>"),
    ):
        request = asking(show_special=shown, include_stop=include, logprobs=logprobs)
        (choice,) = (await answer(engine, request)).choices
        assert (choice.text, choice.reason) == (text, FinishReason.STOP)
        if logprobs is not None:
            *_, world, end = choice.scores
            assert text[world.offset :].startswith(" world") and len(choice.scores) == 4
            assert end.piece == b"</s>" and text[end.offset :] in ("", "</s>")


async def test_stop_texts_match_the_names_that_are_shown():
    engine, tokens = renderer()
    names = tokens.tokenizer.controls
    tokens.script = Script(tokens=(*ids_of(tokens, "Hello"), names["[INST]"], *ids_of(tokens, " world")))
    for shown, text in ((False, "Hello world"), (True, "Hello")):
        (choice,) = (await answer(engine, asking(show_special=shown, stop=("[INST]",)))).choices
        assert choice.text == text


async def test_an_end_token_that_ends_nothing_shows_like_any_other():
    engine, tokens = renderer()
    tokens.script = Script(
        tokens=(*ids_of(tokens, "Hello"), tokens.tokenizer.controls["</s>"], *ids_of(tokens, " world"))
    )
    for shown, text in ((False, "Hello world"), (True, "Hello</s> world")):
        request = asking(show_special=shown, max_tokens=3, sampling=GOES_ON)
        (choice,) = (await answer(engine, request)).choices
        assert (choice.text, choice.reason) == (text, FinishReason.LENGTH)


async def test_too_many_tokens_are_shortened_on_request():
    engine, tokens = renderer(Script(text=" the", endless=True), info=scripted_info(context_length=12))
    prompt = RawPrompt(tokens=(20,) * 9)
    with pytest.raises(ContextLengthExceeded):
        await answer(engine, asking(prompt, max_tokens=50))
    found = await answer(engine, asking(prompt, max_tokens=50, overflow=Overflow.SHORTEN))
    assert (found.usage.completion_tokens, found.choices[0].reason) == (3, FinishReason.LENGTH)
    found = await answer(engine, asking(prompt, max_tokens=2, overflow=Overflow.SHORTEN))
    assert found.usage.completion_tokens == 2
    full = RawPrompt(tokens=(20,) * 12)
    asked = len(tokens.requests)
    with pytest.raises(ContextLengthExceeded):
        await answer(engine, asking(full, max_tokens=50, overflow=Overflow.SHORTEN, sampling=GREEDY))
    assert len(tokens.requests) == asked


@pytest.mark.parametrize("logprobs", [None, 1])
async def test_ids_are_told_when_they_shall_as_many_as_entries(logprobs):
    """Those that end the choice among them, and not those that a stop text cuts off; these are counted."""
    engine, tokens = renderer(lambda request: Script(text=("Hello END world", " the cat")[request.choice]))
    asked = {"choices": 2, "stop": ("END",), "logprobs": logprobs}
    found = await answer(engine, asking(RawPrompt("Hello"), RawPrompt(" cat"), token_ids=True, **asked))
    first, second = ids_of(tokens, "Hello "), (*ids_of(tokens, " the cat"), tokens.table.eos_id)
    assert [choice.ids for choice in found.choices] == [first, second] * 2
    cut = len(ids_of(tokens, "Hello END")) - len(first)
    assert sum(len(choice.ids) for choice in found.choices) == found.usage.completion_tokens - 2 * cut
    for choice in found.choices if logprobs is not None else ():
        assert choice.ids == tuple(score.token for score in choice.scores)
    bos = tokens.table.bos_id
    assert found.prompts == ((bos, *ids_of(tokens, "Hello")), (bos, *ids_of(tokens, " cat")))
    plain = await answer(engine, asking(**asked))
    assert plain.prompts == () and {choice.ids for choice in plain.choices} == {()}


async def test_each_event_tells_the_ids_of_the_tokens_that_it_shows():
    engine, tokens = renderer(Script(text="a😀b"))
    events = await events_of(engine, asking(token_ids=True, echo=True))
    told = [event for event in events if isinstance(event, TextDelta | Finished)]
    assert all(len(event.ids) == event.tokens for event in told)
    assert [event.tokens for event in told] == [0, 1, 2, 1, 1]
    joined = tuple(token for event in told for token in event.ids)
    assert joined == (*ids_of(tokens, "a😀b"), tokens.table.eos_id)


@pytest.mark.parametrize("logprobs", [None, 0])
async def test_a_cut_prompts_last_tokens_are_used_and_counted(logprobs):
    engine, tokens = renderer(Script(text=" world"), info=scripted_info(context_length=8))
    long = " the cat sat" * 9
    with pytest.raises(ContextLengthExceeded):
        await answer(engine, asking(RawPrompt(long), max_tokens=2))
    ids = (*ids_of(tokens, long),)
    for prompt in (RawPrompt(long), RawPrompt(tokens=ids)):
        for count, max_tokens, left in ((3, 2, 3), (-1, 2, 6), (-1, None, 7), (-1, 5, 3)):
            request = asking(
                prompt, truncate_prompt=count, max_tokens=max_tokens, echo=True, token_ids=True,
                logprobs=logprobs,
            )  # fmt: skip
            found = await answer(engine, request)
            assert tokens.requests[-1].prompt.ids == ids[-left:] == found.prompts[0]
            assert found.usage.prompt_tokens == left
            text = "".join((" the", " cat", " sat")[place % 3] for place in range(27))[-4 * left :]
            assert found.choices[0].text == text + (" world" if max_tokens != 1 else "")
            if logprobs is not None:
                assert [score.offset for score in found.choices[0].scores][:left] == [*range(0, 4 * left, 4)]


async def test_a_shorter_prompt_is_not_cut_and_a_chat_keeps_its_end():
    engine, tokens = renderer(Script(text=" world"))
    await answer(engine, asking(RawPrompt("Hello"), truncate_prompt=50))
    await answer(engine, asking(build_conversation("Hello the cat")))
    await answer(engine, asking(build_conversation("Hello the cat"), truncate_prompt=4))
    whole, talked, cut = (request.prompt.ids for request in tokens.requests)
    assert len(whole) == 2 and len(talked) > 4 and cut == talked[-4:]


async def test_a_prompt_that_is_cut_may_be_long_but_not_without_end():
    engine, tokens = renderer(info=scripted_info(context_length=8))
    await answer(engine, asking(RawPrompt("a" * 5_000), truncate_prompt=3, max_tokens=1))
    for request in (
        asking(RawPrompt("a" * (MOST_TRUNCATED + 1)), truncate_prompt=3, max_tokens=1),
        asking(RawPrompt("a" * 50), truncate_prompt=20, max_tokens=1),
    ):
        with pytest.raises(ContextLengthExceeded):
            await answer(engine, request)
    with pytest.raises(InvalidValue):
        await answer(engine, asking(RawPrompt(tokens=(1,) * 9 + (99_999,)), truncate_prompt=3))
    assert len(tokens.requests) == 1
