"""Log-probabilities with the text that they belong to: however tokens cut characters, steps cut tokens, and
stop strings cut the text."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.events import Finished, TextDelta, TokenScore
from antiphon.domain.request import RawPrompt, SamplingOptions
from antiphon.domain.values import replace
from antiphon.errors import ContextLengthExceeded, InvalidValue
from antiphon.rendering.renderer import Renderer, RendererOptions
from antiphon_testing import Script, ScriptedTokenEngine, scripted_info
from antiphon_testing.toy_model import ToyModel
from tests.rendering.scripted_renderer import answer, asking, events_of, renderer
from tests.support.chat_templates import build_conversation, prove_here

PIECES = ("Hello", " world", " the", "é", "😀", "日本語", "\n\n", "END", "a", "  ")


def in_bytes(scores):
    return b"".join(score.piece for score in scores)


async def test_plain_choices_carry_no_scores():
    engine, tokens = renderer(Script(text="Hello world"))
    assert (await answer(engine, asking())).choices[0].scores is None
    assert tokens.requests[0].logprobs is None


async def test_tokens_have_raw_logprobs_and_best_alternatives_first():
    engine, tokens = renderer()
    found = await answer(
        engine, asking(logprobs=3, max_tokens=6, sampling=SamplingOptions(temperature=1.7, seed=3))
    )
    past = tokens.requests[0].prompt.ids
    model = ToyModel(tokens.table)
    for score in found.choices[0].scores:
        row = model.logprobs(past)
        assert score.logprob == row[score.token]
        assert [value for _, _, value in score.alternatives] == sorted(row, reverse=True)[:3]
        past = (*past, score.token)


async def test_zero_asks_for_no_alternatives():
    engine, _ = renderer(Script(text="Hello world"))
    scores = (await answer(engine, asking(logprobs=0))).choices[0].scores
    assert [score.piece for score in scores] == [b"Hello", b" world", b"</s>"]
    assert not any(score.alternatives for score in scores)


async def test_the_end_of_the_turn_has_an_entry_by_its_name():
    engine, tokens = renderer(Script(text="Hello"))
    found = await answer(engine, asking(logprobs=2, token_ids=True))
    first, end = found.choices[0].scores
    assert (end.piece, end.offset, end.token) == (b"</s>", 5, tokens.table.eos_id)
    assert found.usage.completion_tokens == 2 and len(end.alternatives) == 2
    assert found.choices[0].ids == (first.token, end.token)


async def test_wanted_tokens_stand_in_the_place_of_the_likeliest():
    engine, tokens = renderer(Script(text="Hello world"))
    wanted = (7, tokens.tokenizer.encode_plain("Hello")[0], 40)
    found = await answer(engine, asking(logprobs=3, logprob_token_ids=wanted))
    past = tokens.requests[0].prompt.ids
    model = ToyModel(tokens.table)
    for score in found.choices[0].scores:
        row = model.logprobs(past)
        others = [token for token in wanted if token != score.token]
        assert [(at, value) for at, _, value in score.alternatives] == [
            (token, row[token]) for token in (score.token, *others)
        ]
        past = (*past, score.token)
    with pytest.raises(InvalidValue, match="token id 99999") as refused:
        await answer(engine, asking(logprobs=0, logprob_token_ids=(99_999,)))
    assert refused.value.param == "logprob_token_ids"


@pytest.mark.parametrize(
    ("most", "asked", "taken"),
    [
        (20, 20, True),
        (20, 21, False),
        (20, -1, False),
        (30, 30, True),
        (-1, -1, True),
        (0, 0, True),
        (0, 1, False),
    ],
)
async def test_the_operator_bounds_how_many_of_the_likeliest_are_given(most, asked, taken):
    tokens = ScriptedTokenEngine(Script(text="Hello world"))
    engine = Renderer(tokens, prove=prove_here, options=RendererOptions(most_logprobs=most))
    size = len(tokens.table.pieces)
    for fields in ({"logprobs": asked}, {"prompt_logprobs": asked}, {"logprobs": asked, "echo": True}):
        request = asking(max_tokens=2, **fields)
        (field, *_) = fields
        if not taken:
            with pytest.raises(InvalidValue, match=f"{field} must be at most {most}.*ANTIPHON_MAX_LOGPROBS"):
                await answer(engine, request)
            continue
        found = await answer(engine, request)
        scores = found.prompt_scores[0][1:] if field == "prompt_logprobs" else found.choices[0].scores[-2:]
        assert {len(score.alternatives) for score in scores} == {size if asked == -1 else asked}
    if not taken:
        with pytest.raises(InvalidValue) as refused:
            await answer(engine, asking(build_conversation("Hello"), logprobs=asked))
        assert refused.value.param == "top_logprobs"


async def test_wide_answers_are_bounded_though_no_max_tokens_is_said():
    tokens = ScriptedTokenEngine(info=scripted_info(context_length=8192))
    engine = Renderer(tokens, prove=prove_here, options=RendererOptions(most_logprobs=-1))
    wide = {"logprobs": 0, "logprob_token_ids": tuple(range(128))}
    for fields in (wide, {"logprobs": -1}):
        with pytest.raises(
            InvalidValue, match=r"1,048,576 are the most of one request: .*max_tokens"
        ) as refused:
            await answer(engine, asking(build_conversation("Hello"), max_tokens=None, **fields))
        assert refused.value.param == "logprobs" and not tokens.requests
        await answer(engine, asking(build_conversation("Hello"), max_tokens=2, **fields))
        tokens.requests.clear()


async def test_half_a_character_waits_for_its_other_half():
    engine, _ = renderer(Script(text="a😀b"))
    events = await events_of(engine, asking(logprobs=0))
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert [delta.text for delta in deltas] == ["a", "😀", "b"]
    assert [[score.piece for score in delta.scores] for delta in deltas] == [
        [b"a"],
        [b"\xf0\x9f", b"\x98\x80"],
        [b"b"],
    ]
    assert [score.offset for delta in deltas for score in delta.scores] == [0, 1, 1, 2]


async def test_bytes_that_are_no_character_keep_their_places():
    engine, _ = renderer(Script(text=b"\xf0\x9fa\x98\x80b\xf0\x9f"))
    (choice,) = (await answer(engine, asking(logprobs=0))).choices
    assert choice.text == "\ufffda\ufffd\ufffdb\ufffd"
    assert [(score.piece, score.offset) for score in choice.scores] == [
        (b"\xf0\x9f", 0), (b"a", 1), (b"\x98\x80", 2), (b"b", 4), (b"\xf0\x9f", 5), (b"</s>", 5),
    ]  # fmt: skip


async def test_a_stop_string_cuts_the_entries_of_whole_tokens():
    engine, _ = renderer(Script(text="Hello world END the"))
    (choice,) = (await answer(engine, asking(logprobs=0, stop=("ld END",)))).choices
    assert choice.text == "Hello wor"
    assert [score.piece for score in choice.scores] == [b"Hello", b" world"]
    (choice,) = (await answer(engine, asking(logprobs=0, stop=(" world",)))).choices
    assert (choice.text, in_bytes(choice.scores)) == ("Hello", b"Hello")
    (choice,) = (await answer(engine, asking(logprobs=0, stop=("Hello",)))).choices
    assert (choice.text, choice.scores) == ("", ())


async def test_an_invisible_token_has_an_entry_under_its_name():
    tokens = ScriptedTokenEngine()
    plain, control = tokens.tokenizer.encode_plain, tokens.tokenizer.controls["[INST]"]
    engine, _ = renderer(Script(tokens=(*plain("Hello"), control, *plain(" world"), control)))
    events = await events_of(engine, asking(logprobs=0))
    scores = [score for event in events if isinstance(event, TextDelta) for score in event.scores]
    assert [(score.piece, score.offset) for score in scores] == [
        (b"Hello", 0),
        (b"[INST]", 5),
        (b" world", 5),
    ]
    last, end = next(event for event in events if isinstance(event, Finished)).scores or ()
    assert (last.piece, last.offset) == (b"[INST]", 11) and (end.piece, end.offset) == (b"</s>", 11)


async def test_end_tokens_that_end_nothing_have_entries():
    engine, tokens = renderer()
    eos = tokens.table.eos_id
    sampling = SamplingOptions(temperature=0.0, ignore_eos=True, logit_bias=((eos, 100.0),))
    found = await answer(engine, asking(logprobs=0, max_tokens=3, sampling=sampling))
    assert [score.token for score in found.choices[0].scores] == [eos] * 3
    assert found.choices[0].text == ""


@given(
    words=st.lists(st.sampled_from(PIECES), max_size=12),
    stops=st.lists(st.sampled_from(["END", "\n\n", "llo", "本", "😀a", " the", "o w"]), max_size=3),
    burst=st.integers(1, 5),
    cut=st.integers(1, 20),
)
async def test_entries_offsets_and_text_agree_for_any_cut(words, stops, burst, cut):
    engine, _ = renderer(Script(text="".join(words), burst=burst), info=scripted_info(context_length=256))
    request = asking(logprobs=2, stop=tuple(stops), max_tokens=cut, token_ids=True)
    events = await events_of(engine, request)
    text = ""
    told: list[TokenScore] = []
    for event in events:
        if isinstance(event, TextDelta):
            for score in event.scores:
                assert len(text) <= score.offset < len(text) + len(event.text)
            text += event.text
            told += event.scores
        elif isinstance(event, Finished):
            assert [score.piece for score in event.scores or ()] in ([], [b"</s>"])
        if isinstance(event, TextDelta | Finished):
            assert event.ids == tuple(score.token for score in event.scores or ())
    (choice,) = (await answer(engine, request)).choices
    told += choice.scores[len(told) :]
    assert (choice.text, list(choice.scores)) == (text, told)
    assert choice.ids == tuple(score.token for score in told)
    (bare,) = (await answer(engine, replace(request, output=replace(request.output, logprobs=None)))).choices
    assert (bare.text, bare.ids) == (choice.text, choice.ids)
    told = [score for score in told if score.piece != b"</s>"]
    offsets = [score.offset for score in told]
    assert offsets == sorted(offsets)
    shown = in_bytes(told)
    whole = text.removesuffix("\ufffd").encode()
    assert shown.startswith(whole) and (not text or offsets[0] == 0)
    for score, begin in zip(told, offsets, strict=True):
        try:
            piece = score.piece.decode()
        except UnicodeDecodeError:
            continue
        assert piece.startswith(text[begin : begin + len(piece)]) and text[begin:]
    assert all(score.logprob is not None and math.isfinite(score.logprob) for score in told)


# --- what else the engine is asked ---


async def test_stop_strings_are_not_looked_for_in_the_first_min_tokens():
    engine, _ = renderer(Script(text="Hello world Hello"))
    sampling = SamplingOptions(temperature=0.0, min_tokens=1)
    (choice,) = (await answer(engine, asking(stop=("Hello",), sampling=sampling))).choices
    assert choice.text == "Hello world "


@pytest.mark.parametrize(
    ("field", "sampling", "output"),
    [
        ("allowed_token_ids", {"allowed_token_ids": (5, 99_999)}, {}),
        ("logit_bias", {"logit_bias": ((99_999, 1.0),)}, {}),
        ("stop_token_ids", {}, {"stop_token_ids": (99_999,)}),
    ],
)
async def test_token_ids_that_the_model_lacks_are_refused_by_name(field, sampling, output):

    engine, tokens = renderer()
    with pytest.raises(InvalidValue, match="token id 99999") as refused:
        await answer(engine, asking(sampling=SamplingOptions(**sampling), **output))
    assert refused.value.param == field and not tokens.requests


async def test_scores_beyond_the_memory_are_refused_first():
    engine, tokens = renderer(info=scripted_info(context_length=8192))
    await engine.profile()
    prompt = RawPrompt(tokens=(20,) * 4000)
    for output in ({"echo": True, "max_tokens": 4000}, {"max_tokens": 4096, "best_of": 128}):
        with pytest.raises(InvalidValue, match=r"log-probabilities, and 1,048,576 are the most") as refused:
            await answer(engine, asking(*(prompt,) * 60, logprobs=20, **output))
        assert refused.value.param == "logprobs" and not tokens.requests


async def test_too_large_min_tokens_are_refused_by_name():
    engine, _ = renderer(info=scripted_info(context_length=20))
    prompts = [RawPrompt(tokens=(9,) * size) for size in (8, 15)]
    for asked in (prompts[1:], prompts):
        with pytest.raises(ContextLengthExceeded, match=r"min_tokens is 9, and only 5") as refused:
            await answer(engine, asking(*asked, sampling=SamplingOptions(min_tokens=9)))
        assert refused.value.param == "min_tokens"
