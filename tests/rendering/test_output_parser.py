"""A renderer that is given tools: what it asks of the engine, and the events that it makes of a call."""

import json

import pytest

from antiphon.constraints.grammar_types import TextAround, load_group
from antiphon.domain.events import Finished, FinishReason, TextDelta, ToolCallDelta, ToolCallStarted, Usage
from antiphon.domain.messages import Message, Role, Tool, ToolCall, ToolChoice, Tools
from antiphon.domain.request import Constraint, ConstraintKind, Conversation, GenerationRequest, Output
from antiphon.errors import ContextLengthExceeded, UnsupportedParameter
from antiphon.rendering.renderer import Renderer
from antiphon_testing import Script, scripted_info
from tests.rendering.scripted_renderer import GREEDY, answer, events_of, renderer
from tests.support.chat_templates import prove_here
from tests.support.reasoning_models import Constrained

WEATHER = Tool("weather", "Tells.", {"type": "object", "properties": {"city": {"type": "string"}}})
SAID = 'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'


def made(script, **changes):
    engine = Constrained(script, **changes)
    return Renderer(engine, prove=prove_here), engine


TOOLS = Tools((WEATHER,))


def asking(tools=TOOLS, **output):
    prompt = Conversation((Message(Role.USER, "hi"),), tools=tools)
    return GenerationRequest("m", (prompt,), GREEDY, Output(**output))


async def test_a_call_is_told_apart_and_every_token_is_told_once():
    for burst in (1, 3, 500):
        speaker, _ = made(Script(SAID, burst=burst))
        events = await events_of(speaker, asking(choices=2))
        (usage,) = (event for event in events if isinstance(event, Usage))
        counted = [
            event
            for event in events
            if isinstance(event, TextDelta | ToolCallStarted | ToolCallDelta | Finished)
        ]
        assert sum(event.tokens for event in counted) == usage.completion_tokens > 40
        for choice in range(2):
            mine = [event for event in counted if event.choice == choice]
            text = "".join(event.text for event in mine if isinstance(event, TextDelta))
            (begun,) = (event for event in mine if isinstance(event, ToolCallStarted))
            arguments = "".join(event.arguments for event in mine if isinstance(event, ToolCallDelta))
            assert (text, begun.name, begun.index, arguments) == ("I look.", "weather", 0, '{"city": "Bern"}')
            assert mine[-1] == Finished(choice, FinishReason.TOOL_CALLS, mine[-1].tokens)


async def test_calls_of_all_choices_have_ids_of_their_own():
    speaker, _ = made(Script(SAID))
    generation = await answer(speaker, asking(choices=3))
    calls = [call for choice in generation.choices for call in choice.calls]
    assert {(call.name, call.arguments) for call in calls} == {("weather", '{"city": "Bern"}')}
    assert len({call.id for call in calls}) == 3 and all(call.id.startswith("call_") for call in calls)


async def test_a_cut_call_is_incomplete_and_keeps_its_scores():
    speaker, _ = made(Script(SAID))
    (cut,) = (await answer(speaker, asking(max_tokens=60))).choices
    assert cut.reason is FinishReason.LENGTH and '{"city": "Bern"}'.startswith(cut.calls[0].arguments)
    (whole,) = (await answer(speaker, asking(logprobs=0))).choices
    assert whole.calls == (ToolCall(whole.calls[0].id, "weather", '{"city": "Bern"}'),)
    assert b"".join(score.piece for score in (whole.scores or ())[:-1]).decode() == SAID


@pytest.mark.parametrize("choice", [ToolChoice.AUTO, ToolChoice.REQUIRED])
async def test_notation_is_no_content_wherever_the_length_ends(choice):
    said = SAID if choice is ToolChoice.AUTO else SAID.partition("\n")[2]
    mark = SAID.index("<tool_call>") + len("<tool_call>")
    speaker, _ = made(Script(said))
    whole = len((await answer(speaker, asking(logprobs=0))).choices[0].scores or ())
    for most in range(1, whole):
        asked = asking(Tools((WEATHER,), choice), max_tokens=most)
        (cut,) = (await answer(speaker, asked)).choices
        assert cut.reason is FinishReason.LENGTH
        shown = "" if choice is ToolChoice.REQUIRED else "I look."
        assert cut.text == shown or (choice is ToolChoice.AUTO and SAID[: mark - 1].startswith(cut.text))
        if most % 3 == 0:
            events = await events_of(speaker, asked)
            assert "".join(each.text for each in events if isinstance(each, TextDelta)) == cut.text


@pytest.mark.parametrize(
    ("choice", "around"),
    [
        (ToolChoice.AUTO, TextAround.TEXT),
        (ToolChoice.REQUIRED, TextAround.NOTHING),
        (ToolChoice.NONE, TextAround.TEXT_ALONE),
    ],
)
async def test_the_tool_choice_becomes_a_checked_constraint(choice, around):
    speaker, engine = made(Script("Hello"))
    (said,) = (await answer(speaker, asking(Tools((WEATHER,), choice)))).choices
    assert (said.text, said.calls, said.reason) == ("Hello", (), FinishReason.STOP)
    (constraint,) = engine.checked
    assert constraint.kind is ConstraintKind.CALLS and load_group(constraint.source).around is around
    assert engine.constraints == [constraint]


async def test_where_none_may_be_called_text_is_left_as_it_is():
    speaker, _ = made(Script(SAID))
    (said,) = (await answer(speaker, asking(Tools((WEATHER,), ToolChoice.NONE)))).choices
    assert (said.text, said.calls) == (SAID, ())


FORMAT = Constraint(ConstraintKind.JSON_OBJECT)


@pytest.mark.parametrize("choice", [ToolChoice.AUTO, ToolChoice.REQUIRED])
async def test_a_format_beside_tools_is_a_part_of_their_constraint(choice):
    speaker, engine = made(Script("{}"))
    await answer(speaker, asking(Tools((WEATHER,), choice), constraint=FORMAT))
    (constraint,) = engine.checked
    group = load_group(constraint.source)
    assert (constraint.kind, group.format) == (ConstraintKind.CALLS, FORMAT)
    assert group.can_be_format == (choice is ToolChoice.AUTO)


async def test_where_none_may_be_called_the_format_is_all_there_is():
    speaker, engine = made(Script("{}"))
    await answer(speaker, asking(Tools((WEATHER,), ToolChoice.NONE), constraint=FORMAT))
    assert engine.checked == [FORMAT]


CALL = SAID.partition("\n")[2]


@pytest.mark.parametrize("burst", [1, 3, 500])
@pytest.mark.parametrize(
    ("said", "text", "calls"),
    [
        ('{"a": "<tool_call>"}', '{"a": "<tool_call>"}', []),
        (f'{{"a": {json.dumps(CALL)}}}', f'{{"a": {json.dumps(CALL)}}}', []),
        (CALL, "", ['{"city": "Bern"}']),
    ],
)
async def test_an_answer_beside_a_format_is_that_or_calls(said, text, calls, burst):
    speaker, _ = made(Script(said, burst=burst))
    asked = asking(constraint=FORMAT)
    (whole,) = (await answer(speaker, asked)).choices
    assert (whole.text, [call.arguments for call in whole.calls]) == (text, calls)
    assert whole.reason is (FinishReason.TOOL_CALLS if calls else FinishReason.STOP)
    streamed = [event for event in await events_of(speaker, asked) if isinstance(event, TextDelta)]
    assert "".join(event.text for event in streamed) == text


@pytest.mark.parametrize("repeated", [1, 10_000])
async def test_a_prompt_that_tools_make_too_long_is_told_so(repeated):
    speaker, _ = made(Script("Hello"), info=scripted_info(context_length=20))
    tools = Tools((Tool("weather", "Tells the weather. " * repeated),))
    with pytest.raises(ContextLengthExceeded, match="your messages and tools resulted in"):
        await answer(speaker, asking(tools))


async def test_an_engine_that_takes_no_constraints_is_given_no_tools():
    speaker, _ = renderer()
    with pytest.raises(UnsupportedParameter) as caught:
        await answer(speaker, asking())
    assert caught.value.param == "tools"
