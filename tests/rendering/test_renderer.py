"""The renderer over the scripted token engine: the contract of engines, and the semantics of prompts, text
and counts."""

import asyncio
import threading
import time

import pytest

from antiphon.domain.collect import collect
from antiphon.domain.context import Context
from antiphon.domain.events import Finished, FinishReason, Started, TextDelta, Usage
from antiphon.domain.messages import Message, Role, Tool, Tools
from antiphon.domain.request import Conversation, GenerationRequest, Output, RawPrompt, SamplingOptions
from antiphon.domain.values import replace
from antiphon.engines.base import EngineState
from antiphon.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineDied,
    EngineUnavailable,
    InvalidValue,
    TemplateRefused,
)
from antiphon.rendering.renderer import Renderer
from antiphon.rendering.template.chat_template import ChatTemplate
from antiphon_testing import (
    Failure,
    FakeClock,
    Hold,
    Script,
    ScriptedTokenEngine,
    build_vocabulary,
    check_engine,
    scripted_info,
)
from antiphon_testing.rules import flatten, open_stream
from tests.support.chat_templates import FAMILIES, LLAMA, build_conversation, prove_here
from tests.support.waiting import PATIENCE, await_until


def renderer(script=None, **changes):
    engine = ScriptedTokenEngine(script or Script(), **changes)
    return Renderer(engine, prove=prove_here), engine


def asking(*prompts, sampling=None, **output):
    return GenerationRequest(
        "m", prompts or (RawPrompt("Hello"),), sampling or SamplingOptions(temperature=0.0), Output(**output)
    )


async def events_of(engine, request, context=None):
    async with open_stream(engine, request, context or Context("r")) as events:
        return [event async for event in flatten(events)]


async def answer(engine, request, context=None):
    async with open_stream(engine, request, context or Context("r")) as events:
        return await collect(events)


async def text_of(engine, request):
    return (await answer(engine, request)).choices[0].text


# --- the contract ---


@pytest.mark.parametrize(("sequences", "space_prefix"), [(1, True), (4, False)])
async def test_it_keeps_the_contract_of_engines(sequences, space_prefix):
    tokens = ScriptedTokenEngine(
        info=scripted_info(context_length=128, sequences=sequences),
        vocabulary=build_vocabulary(space_prefix=space_prefix),
    )

    async def make():
        return Renderer(tokens, prove=prove_here)

    async def load():
        return (await tokens.info()).load

    await check_engine(make, load=load, patience=PATIENCE)
    assert tokens.is_closed


async def test_one_choices_events_tell_text_end_and_tokens():
    engine, _ = renderer(Script(text="Hello world"))
    assert await events_of(engine, asking()) == [
        Started(2),
        TextDelta(0, "Hello", 1),
        TextDelta(0, " world", 1),
        Finished(0, FinishReason.STOP, 1),
        Usage(2, 3),
    ]


# --- prompts ---


async def test_a_raw_prompt_gets_one_bos_and_may_hold_control_tokens():
    engine, tokens = renderer()
    table = {name: index for index, name in tokens.table.names.items()}
    assert (await engine.encode(RawPrompt("Hello")))[0] == table["<s>"]
    assert await engine.encode(RawPrompt("<s>Hello")) == await engine.encode(RawPrompt("Hello"))
    assert (await engine.encode(RawPrompt("a<|im_end|>")))[-1] == table["<|im_end|>"]
    assert table["<s>"] not in await engine.encode(RawPrompt("Hello", add_special=False))


async def test_a_raw_prompt_gets_no_bos_where_the_model_wants_none():
    engine, tokens = renderer(vocabulary=build_vocabulary(add_bos=False))
    assert tokens.table.bos_id not in await engine.encode(RawPrompt("Hello"))


@pytest.mark.parametrize("name", FAMILIES)
async def test_a_conversation_begins_with_exactly_one_bos(name):
    engine, tokens = renderer(info=scripted_info(chat_template=FAMILIES[name]))
    ids = await engine.encode(build_conversation("Hello <s>"))
    assert ids[0] == tokens.table.bos_id
    assert ids.count(tokens.table.bos_id) == 1


async def test_a_conversation_has_the_bos_that_is_asked_for():
    """Left out, it is there where the model wants one; no template gets a second."""

    async def begins(conversation, source, **changes):
        changes = {"info": scripted_info(chat_template=FAMILIES[source])} | changes
        engine, tokens = renderer(**changes)
        ids = await engine.encode(conversation)
        return ids.count(tokens.table.bos_id), ids[0] == tokens.table.bos_id

    wanted, unwanted = (
        replace(build_conversation("Hello"), add_special=True),
        replace(build_conversation("Hello"), add_special=False),
    )
    plain = {"vocabulary": build_vocabulary(add_bos=False)}
    assert await begins(build_conversation("Hello"), "chatml") == await begins(wanted, "chatml") == (1, True)
    assert (
        await begins(unwanted, "chatml")
        == await begins(build_conversation("Hello"), "chatml", **plain)
        == (0, False)
    )
    assert await begins(wanted, "chatml", **plain) == await begins(wanted, "llama") == (1, True)
    assert await begins(unwanted, "llama") == (1, True)


async def test_what_the_template_writes_is_shown_as_it_stands():
    engine, _ = renderer(info=scripted_info(chat_template=LLAMA))
    assert await engine.apply(build_conversation("Hello <s>")) == (
        "<s><|start_header_id|>user<|end_header_id|>\n\nHello <s><|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


async def test_a_message_left_open_is_gone_on_with_and_not_repeated():
    engine, tokens = renderer(Script(text=" blue."))
    asked = replace(
        build_conversation("What is the sky?", "The sky is"), generation_prompt=False, continues=True
    )
    said = await answer(engine, asking(asked))
    assert said.choices[0].text == " blue."
    sent = tokens.requests[0].prompt.ids
    assert (await engine.decode(sent)).endswith("assistant\nThe sky is")


async def apply_beside_the_loop(engine, conversation, monkeypatch):
    """The prompt, whose rendering ends only if the event loop goes on meanwhile."""
    await engine.profile()
    begun, may_end, render = threading.Event(), threading.Event(), ChatTemplate.render

    def render_held(*arguments):
        begun.set()
        assert may_end.wait(PATIENCE), "the event loop stands still"
        return render(*arguments)

    monkeypatch.setattr(ChatTemplate, "render", render_held)
    async with asyncio.TaskGroup() as group:
        job = group.create_task(engine.apply(conversation))
        await await_until(begun.is_set)
        may_end.set()
    return job.result()


async def test_values_that_a_template_walks_far_run_in_a_thread(monkeypatch):
    source = "{% for i in range(n) %}{% endfor %}{{ messages[0].content }}"
    engine, _ = renderer(info=scripted_info(chat_template="{% set n = n or 1 %}" + source))
    long = replace(build_conversation("Hello"), template_values={"n": 99_999})
    assert await apply_beside_the_loop(engine, long, monkeypatch) == "Hello"


async def test_tools_of_many_values_are_rendered_beside_the_event_loop(monkeypatch):
    """Numbers are work as texts are."""
    engine, _ = renderer()
    schema = {"type": "object", "properties": {"a": {"enum": list(range(20_000))}}}
    many = replace(build_conversation("Hello"), tools=Tools((Tool("f", "does", schema),)))
    assert "19999" in await apply_beside_the_loop(engine, many, monkeypatch)


async def test_a_user_who_writes_the_bos_first_does_not_replace_it():
    engine, tokens = renderer(info=scripted_info(chat_template="{{ messages[0].content }}"))
    assert (await engine.encode(build_conversation("<s>")))[0] == tokens.table.bos_id
    assert len(await engine.encode(build_conversation("<s>"))) > 1


@pytest.mark.parametrize("prompt", [RawPrompt("a\ud83d"), build_conversation("ok", "\ude00")])
async def test_half_a_surrogate_pair_is_refused(prompt):
    engine, _ = renderer()
    with pytest.raises(InvalidValue, match="surrogate") as refused:
        await answer(engine, asking(prompt))
    assert refused.value.param == ("prompt" if isinstance(prompt, RawPrompt) else "messages")


async def test_token_ids_are_used_as_they_are():
    engine, tokens = renderer(Script(text="ok"))
    await answer(engine, asking(RawPrompt(tokens=(7, 8, 9))))
    assert tokens.requests[0].prompt.ids == (7, 8, 9)


async def test_token_ids_outside_the_vocabulary_are_refused_by_number():
    engine, tokens = renderer()
    for wrong in (-1, len(tokens.table.pieces)):
        with pytest.raises(InvalidValue, match=str(wrong)) as refused:
            await answer(engine, asking(RawPrompt(tokens=(1, wrong))))
        assert refused.value.param == "prompt"
    assert not tokens.requests


@pytest.mark.parametrize("prompt", [RawPrompt("", add_special=False), RawPrompt(tokens=())])
async def test_a_prompt_without_a_token_is_refused(prompt):
    engine, _ = renderer()
    with pytest.raises(InvalidValue, match="no token"):
        await answer(engine, asking(prompt))


@pytest.mark.parametrize("logprobs", [None, 0])
@pytest.mark.parametrize("echo", [False, True])
async def test_an_empty_text_is_the_token_that_a_text_begins_after(echo, logprobs):
    with_bos, without = build_vocabulary(add_bos=False), replace(build_vocabulary(), bos_id=None)
    for table, start in ((with_bos, with_bos.bos_id), (without, without.eos_id)):
        engine, tokens = renderer(Script(text="ok"), vocabulary=table)
        found = await answer(engine, asking(RawPrompt(""), echo=echo, logprobs=logprobs))
        assert tokens.requests[0].prompt.ids == (start,)
        assert (found.choices[0].text, found.usage.prompt_tokens) == ("ok", 1)
        said = None if logprobs is None else [score.token for score in found.choices[0].scores]
        assert said is None or (said[0] == start and said[1] != start) is echo


async def test_an_empty_text_needs_a_token_to_begin_after():
    engine, _ = renderer(vocabulary=replace(build_vocabulary(), bos_id=None, eos_id=None))
    with pytest.raises(InvalidValue, match="neither a begin nor an end token") as refused:
        await answer(engine, asking(RawPrompt("")))
    assert refused.value.param == "prompt"


async def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers():
    engine, tokens = renderer(info=scripted_info(context_length=20))
    with pytest.raises(
        ContextLengthExceeded, match=r"20 tokens. However, your prompt resulted in 20 "
    ) as refused:
        await answer(engine, asking(RawPrompt(tokens=(9,) * 20)))
    assert refused.value.param == "prompt"
    with pytest.raises(
        ContextLengthExceeded,
        match=r"requested 21 tokens \(15 in the prompt, 6 in the completion.* at most 5\b",
    ):
        await answer(engine, asking(RawPrompt(tokens=(9,) * 15), max_tokens=6))
    assert not tokens.requests
    found = await answer(engine, asking(RawPrompt(tokens=(9,) * 15), max_tokens=5))
    assert found.usage.prompt_tokens == 15


async def test_a_conversation_that_does_not_fit_names_the_messages():
    engine, _ = renderer(info=scripted_info(context_length=20))
    with pytest.raises(ContextLengthExceeded) as refused:
        await answer(engine, asking(build_conversation("Hello world " * 20)))
    assert refused.value.param == "messages"


async def test_without_max_tokens_a_choice_may_use_what_is_left():
    engine, tokens = renderer(Script(text=" the", endless=True), info=scripted_info(context_length=20))
    found = await answer(engine, asking(RawPrompt(tokens=(9,) * 15)))
    assert found.usage.completion_tokens == tokens.requests[0].max_tokens == 5
    assert found.choices[0].reason is FinishReason.LENGTH


async def test_an_impossible_text_is_refused_without_tokenizing():
    class Slow(ScriptedTokenEngine):
        async def tokenize(self, pieces, add_bos):
            raise NotImplementedError

    engine = Renderer(Slow(info=scripted_info(context_length=20)), prove=prove_here)
    with pytest.raises(ContextLengthExceeded, match="at least"):
        await answer(engine, asking(RawPrompt("x" * 10_000)))


async def test_other_work_goes_on_while_a_large_chat_is_rendered():
    engine, _ = renderer()
    await engine.profile()
    large = Conversation(tuple(Message(Role.USER, "a word <|im_end|> " * 10) for _ in range(5_000)))

    async def measure_longest_pause():
        """In the process's own time, because a busy machine lets it wait."""
        longest = 0.0

        async def pulse():
            nonlocal longest
            while True:
                begun = time.process_time()
                await asyncio.sleep(0)
                longest = max(longest, time.process_time() - begun)

        async with asyncio.TaskGroup() as group:
            beating = group.create_task(pulse())
            with pytest.raises(ContextLengthExceeded):
                await answer(engine, asking(large))
            beating.cancel()
        return longest

    for _ in range(3):  # the event loop's thread alone may have had to wait
        if (longest := await measure_longest_pause()) < 1.0:
            break
    assert longest < 1.0  # a tenth of a second is promised


# --- chat ---


async def test_a_conversation_is_answered_from_its_template():
    engine, tokens = renderer(Script(text="Hi"))
    assert await text_of(engine, asking(build_conversation("Hello"))) == "Hi"
    said = b"".join(tokens.table.pieces[token] for token in tokens.requests[0].prompt.ids)
    assert said == b"user\nHello\nassistant\n"


async def test_a_model_without_a_template_serves_completions_only():
    engine, _ = renderer(Script(text="ok"), info=scripted_info(chat_template=None))
    assert not (await engine.profile()).chat
    assert await text_of(engine, asking()) == "ok"
    with pytest.raises(TemplateRefused, match=r"no chat template.*/v1/completions"):
        await answer(engine, asking(build_conversation("Hello")))


@pytest.mark.parametrize(
    "source", ["{{ ''.__class__.__mro__ }}", "{{ 'a' * 10**9 }}", "{% for i in range(10**9) %}{% endfor %}"]
)
async def test_a_hostile_template_is_refused_and_completions_stay(source):
    tokens = ScriptedTokenEngine(Script(text="ok"), info=scripted_info(chat_template=source))
    engine = Renderer(tokens)  # in the real helper
    assert not (await engine.profile()).chat
    assert await text_of(engine, asking()) == "ok"
    with pytest.raises(TemplateRefused, match=r"template was refused.*/v1/completions"):
        await answer(engine, asking(build_conversation("Hello")))


# --- text ---


async def test_characters_cut_by_tokens_arrive_whole():
    engine, tokens = renderer(Script(text="a😀日本語"))
    events = await events_of(engine, asking())
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert "".join(delta.text for delta in deltas) == "a😀日本語"
    emoji = next(delta for delta in deltas if "😀" in delta.text)
    assert emoji.tokens == 2
    assert len(tokens.tokenizer.encode_plain("😀")) == 2


async def test_a_character_cut_by_the_end_becomes_one_replacement():
    engine, _ = renderer(Script(text=b"ok \xf0\x9f\x98"))
    assert await text_of(engine, asking()) == "ok \ufffd"
    assert await text_of(engine, asking(max_tokens=4)) == "ok \ufffd"


async def test_the_leading_space_of_an_answer_is_kept():
    engine, _ = renderer(Script(text=" the cat"), vocabulary=build_vocabulary(space_prefix=True))
    assert await text_of(engine, asking()) == " the cat"


async def test_started_comes_with_an_invisible_first_token():
    gate = asyncio.Event()
    engine, _ = renderer(Script(text="😀", hold=Hold(gate, after=1)))
    async with open_stream(engine, asking(), Context("r")) as events:
        (started,) = await anext(events)
        assert isinstance(started, Started)
        gate.set()
        assert await anext(events) == [TextDelta(0, "😀", 2)]


async def test_many_tokens_are_decoded_like_few():
    engine, tokens = renderer()
    (cat,) = tokens.tokenizer.encode_plain(" cat")
    assert await engine.decode((cat,) * 20_000) == " cat" * 20_000


async def test_decoding_gives_back_the_text_without_the_prefix_space():
    for prefix in (False, True):
        engine, tokens = renderer(vocabulary=build_vocabulary(space_prefix=prefix))
        for text in ("Hello 😀", " two", ""):
            assert await engine.decode(await engine.encode(RawPrompt(text))) == text
        with pytest.raises(InvalidValue, match="token id"):
            await engine.decode((len(tokens.table.pieces),))


# --- stop strings and ends ---


@pytest.mark.parametrize("burst", [1, 3, 100])
async def test_a_stop_string_is_cut_and_counts_to_its_last_token(burst):
    engine, tokens = renderer(Script(text="Hello the stop world and more", burst=burst))
    found = await answer(engine, asking(stop=("stop",)))
    assert found.choices[0].text == "Hello the "
    assert found.choices[0].reason is FinishReason.STOP
    until = tokens.tokenizer.encode_plain("Hello the stop")
    assert found.usage.completion_tokens == len(until)
    assert tokens.ended_count == 1
    assert (await tokens.info()).load.running == 0


async def test_a_stop_string_of_half_characters_never_leaks():
    engine, _ = renderer(Script(text="ab 日😀 c"))
    events = await events_of(engine, asking(stop=("日😀",)))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "ab "


async def test_what_looked_like_a_stop_string_is_shown_at_the_end():
    engine, _ = renderer(Script(text="one <END"))
    assert await text_of(engine, asking(stop=("<END>",))) == "one <END"


async def test_a_stop_string_ends_one_choice_and_no_other():
    engine, tokens = renderer(lambda request: Script(text=("a STOP b", "a b c")[request.choice]))
    found = await answer(engine, asking(choices=2, stop=("STOP",)))
    assert [choice.text for choice in found.choices] == ["a ", "a b c"]
    assert tokens.ended_count == 2


async def test_stop_tokens_and_the_end_of_turn_are_a_stop():
    engine, tokens = renderer(Script(text="Hello world"))
    (world,) = tokens.tokenizer.encode_plain(" world")
    found = await answer(engine, asking(stop_token_ids=(world,)))
    assert found.choices[0].reason is FinishReason.STOP
    assert found.usage.completion_tokens == 2
    assert tokens.requests[0].stop_token_ids == (world,)


async def test_a_stop_token_that_the_model_does_not_have_is_refused():
    engine, tokens = renderer()
    with pytest.raises(InvalidValue, match="not one of this model's") as refused:
        await answer(engine, asking(stop_token_ids=(0, len(tokens.table.pieces))))
    assert refused.value.param == "stop_token_ids"
    assert tokens.requests == []


async def test_an_end_token_with_a_text_shows_nothing():
    table = build_vocabulary()
    word = table.pieces.index(b"END")
    engine, _ = renderer(Script(text="Hi"), vocabulary=replace(table, end_ids=(word,), eos_id=word))
    assert await text_of(engine, asking()) == "Hi"


async def test_too_long_stop_strings_are_refused_before_any_token():
    engine, tokens = renderer()
    with pytest.raises(InvalidValue):
        await answer(engine, asking(stop=("x" * 100_000,)))
    assert not tokens.requests


# --- choices, prompts, sampling ---


async def test_choices_of_a_prompt_are_siblings_and_prompts_are_not():
    engine, tokens = renderer()
    await answer(engine, asking(RawPrompt("Hello"), RawPrompt("the cat"), choices=2, max_tokens=3))
    groups = [request.group for request in tokens.requests]
    assert groups[0] == groups[1] != groups[2] == groups[3]
    assert [request.choice for request in tokens.requests] == [0, 1, 0, 1]
    assert tokens.requests[1].prompt == tokens.requests[0].prompt != tokens.requests[2].prompt
    await answer(engine, asking(choices=2, max_tokens=3), Context("r"))
    assert len({request.group for request in tokens.requests}) == 3


async def test_usage_counts_each_prompt_once_and_every_choice():
    engine, tokens = renderer(Script(text="Hello world"), info=scripted_info(sequences=8))
    prompts = (RawPrompt("Hello"), RawPrompt("the cat sat"))
    found = await answer(engine, asking(*prompts, choices=3))
    sizes = [len(await engine.encode(prompt)) for prompt in prompts]
    assert found.usage == Usage(sum(sizes), 6 * 3, 0)
    assert [choice.index for choice in found.choices] == list(range(6))
    assert (await tokens.info()).load.prefill_tokens < sum(sizes) * 2


async def test_the_callers_sampling_wins_and_a_seed_is_drawn():
    info = replace(scripted_info(), sampling=SamplingOptions(temperature=0.3, top_k=7))
    engine, tokens = renderer(info=info)
    clock = FakeClock()
    await answer(engine, asking(max_tokens=1, sampling=SamplingOptions(top_k=2)), Context("r", clock=clock))
    await answer(engine, asking(max_tokens=1, sampling=SamplingOptions(seed=99)), Context("r", clock=clock))
    first, second = (request.sampling for request in tokens.requests)
    assert (first.temperature, first.top_k, first.seed) == (0.3, 2, 1)
    assert (second.top_k, second.seed) == (7, 99)
    prepared = await engine.prepare(asking(sampling=SamplingOptions(top_p=0.5)), Context("r", clock=clock))
    assert (prepared.report.temperature, prepared.report.top_p) == (0.3, 0.5)


# --- failures, leaving, deadlines ---


@pytest.mark.parametrize("choices", [1, 3])
async def test_a_failing_choice_ends_its_siblings_and_is_raised(choices):
    error = EngineDied("gone")

    def script(request):
        fails = request.choice == choices - 1
        return Script(text=" the", endless=True, failure=Failure(error, after=3) if fails else None)

    engine, tokens = renderer(script)
    with pytest.raises(EngineDied) as raised:
        await answer(engine, asking(choices=choices))
    assert raised.value is error
    assert tokens.ended_count == choices
    assert (await tokens.info()).load.running == 0


@pytest.mark.parametrize("choices", [1, 3])
async def test_what_fails_before_the_first_token_has_made_no_event(choices):
    engine, _ = renderer(Script(failure=Failure(EngineUnavailable("away"), after=None)))
    async with open_stream(engine, asking(choices=choices), Context("r")) as events:
        with pytest.raises(EngineUnavailable):
            await anext(events)


async def test_a_choice_in_the_batch_means_the_request_has_begun():
    hold = asyncio.Event()

    def script(request):
        if request.choice == 0:
            return Script(text=" the", endless=True)
        return Script(hold=Hold(hold, after=None), failure=Failure(EngineUnavailable("away"), after=0))

    engine, _ = renderer(script)
    async with open_stream(engine, asking(choices=2), Context("r")) as events:
        await anext(events)
        hold.set()
        with pytest.raises(EngineDied, match="away"):
            async for _ in events:
                pass


@pytest.mark.parametrize("choices", [1, 3])
async def test_leaving_ends_every_sequence_at_once(choices):
    engine, tokens = renderer(Script(text=" the", endless=True))
    async with open_stream(engine, asking(choices=choices), Context("r")) as events:
        async for event in flatten(events):
            if isinstance(event, TextDelta):
                break
    load = (await tokens.info()).load
    assert (load.running, load.queued, load.free_sequences) == (0, 0, 4)
    assert tokens.ended_count == choices


@pytest.mark.parametrize("choices", [1, 3])
async def test_a_deadline_ends_a_generation_that_goes_on(choices):
    engine, tokens = renderer(Script(text=" the", endless=True, hold=Hold(asyncio.Event(), after=2)))
    clock = FakeClock()
    with pytest.raises(DeadlineExceeded):
        await answer(
            engine, asking(choices=choices), Context("r", deadline=clock.monotonic() + 0.05, clock=clock)
        )
    assert (await tokens.info()).load.running == 0


# --- the model behind it ---


async def test_the_profile_tells_what_the_engine_told():
    engine, tokens = renderer()
    profile = await engine.profile()
    assert (profile.context_length, profile.chat, profile.exact) == (2048, True, True)
    assert profile.vocabulary == len(tokens.table.pieces)


async def test_an_engine_that_came_back_is_asked_again_and_believed():
    tokens = ScriptedTokenEngine(Script(text="ok"))
    generation = 1
    proved = 0

    async def prove(payload):
        nonlocal proved
        proved += 1

    engine = Renderer(tokens, generation=lambda: generation, prove=prove)
    assert await text_of(engine, asking(build_conversation("Hello"))) == "ok"
    generation = 2
    await engine.profile()
    assert proved == 1  # the same weights: nothing is learnt anew
    tokens._facts = replace(tokens._facts, chat_template=LLAMA, context_length=99)
    assert (await engine.profile()).context_length == 2048
    generation = 3
    assert (await engine.profile()).context_length == 99
    assert proved == 2


async def test_its_state_is_the_engines():
    standing = EngineState.RESTARTING
    engine = Renderer(ScriptedTokenEngine(), state=lambda: standing, prove=prove_here)
    assert engine.state() is EngineState.RESTARTING
    standing = EngineState.READY
    assert engine.state() is EngineState.READY
