"""Calls of models that reason: after the reasoning, before its closing mark, and in later turns."""

import json

import pytest

from antiphon.constraints.checking_process import check_constraint
from antiphon.constraints.grammar_types import Prelude, TextFrame, load_prelude
from antiphon.domain.events import FinishReason, ReasoningDelta, TextDelta
from antiphon.domain.messages import Message, Role, Tool, ToolCall, ToolChoice, Tools
from antiphon.domain.request import Conversation, GenerationRequest, Output
from antiphon.domain.values import replace
from antiphon.rendering.call_notation import CALL_FAMILIES
from antiphon.rendering.renderer import Renderer
from antiphon_testing import Script, scripted_info
from tests.rendering.scripted_renderer import GREEDY, answer, events_of
from tests.support.call_texts import IDS, VOCABULARY, begin, takes
from tests.support.chat_templates import prove_here
from tests.support.reasoning_models import Constrained
from tests.support.tool_templates import GEMMA, HERMES, KIMI, QWEN_CODER, TAIL

THINKING = "{# </think> #}"
OPENING = TAIL.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
WRITE = Tool(
    "write", None, {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
)
TOOLS = Tools((WRITE,))
QWEN_CALL = (
    "<tool_call>\n<function=write>\n<parameter=text>\na </think> b\n</parameter>\n</function>\n</tool_call>"
)
KIMI_CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.write:0<|tool_call_argument_begin|>"
    '{"text": "a </think> b"}<|tool_call_end|><|tool_calls_section_end|>'
)
JSON_CALL = '<tool_call>\n{"name": "write", "arguments": {"text": "a </think> b"}}\n</tool_call>'
CALLED = [("write", '{"text": "a </think> b"}')]


def made(text, template, burst=1):
    engine = Constrained(Script(text, burst=burst), info=scripted_info(chat_template=template))
    return Renderer(engine, prove=prove_here), engine


def asking(*messages, tools=TOOLS, **output):
    prompt = Conversation(messages or (Message(Role.USER, "hi"),), tools=tools)
    return GenerationRequest("m", (prompt,), GREEDY, Output(**output))


async def hear(text, template, burst, *messages):
    """Reasoning, content, calls and the reason of the end; streamed and buffered alike."""
    speaker, _ = made(text, template, burst)
    (said,) = (await answer(speaker, asking(*messages))).choices
    events = await events_of(speaker, asking(*messages))
    assert "".join(each.text for each in events if isinstance(each, TextDelta)) == said.text
    assert "".join(each.text for each in events if isinstance(each, ReasoningDelta)) == (said.reasoning or "")
    return said.reasoning, said.text, [(call.name, call.arguments) for call in said.calls], said.reason


def opening(source):
    """The template with an open thought at the end of its prompt."""
    return source.replace(TAIL, OPENING) + THINKING


@pytest.mark.parametrize("burst", [1, 4, 500])
@pytest.mark.parametrize(
    ("source", "call"), [(QWEN_CODER, QWEN_CALL), (KIMI, KIMI_CALL), (HERMES, JSON_CALL)]
)
async def test_the_end_of_the_reasoning_and_a_call_can_come_in_one_step(source, call, burst):
    """vLLM #43220, #45866: several tokens of one step held both, and the reasoning's end or the call was
    lost."""
    heard = await hear(f"I need to write.</think>\n\n{call}", opening(source), burst)
    assert heard == ("I need to write.", "", CALLED, FinishReason.TOOL_CALLS)
    heard = await hear(f"<think>\nI need to write.\n</think>\n\nI do.\n{call}", source + THINKING, burst)
    assert heard == ("I need to write.", "I do.", CALLED, FinishReason.TOOL_CALLS)


@pytest.mark.parametrize("burst", [1, 4, 500])
@pytest.mark.parametrize(("source", "call"), [(QWEN_CODER, QWEN_CALL), (KIMI, KIMI_CALL)])
async def test_a_call_before_the_end_of_the_reasoning_ends_it(source, call, burst):
    """vLLM #44676, #46079: the call was taken for reasoning and lost."""
    heard = await hear(f"I need to write.\n{call}", opening(source), burst)
    assert heard == ("I need to write.", "", CALLED, FinishReason.TOOL_CALLS)
    heard = await hear("I could <tool_call> or <function=write>.</think>No.", opening(source), burst)
    assert heard == ("I could <tool_call> or <function=write>.", "No.", [], FinishReason.STOP)


GEMMA_4 = (
    GEMMA.replace(
        TAIL, "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
    )
    + "{# <|channel>thought\n<channel|> #}"
)


@pytest.mark.parametrize("burst", [1, 4, 500])
async def test_reasoning_after_a_tools_result_is_reasoning(burst):
    """vLLM #39885: in the turns after a result, streamed reasoning of Gemma 4 came as content."""
    call = ToolCall("call_1", "write", '{"text": "x"}')
    turn = (Message(Role.ASSISTANT, "", tool_calls=(call,)), Message(Role.TOOL, "ok", tool_call_id="call_1"))
    history = (Message(Role.USER, "hi"), *turn, *turn)
    written = '<|tool_call>call:write{text:<|"|>a </think> b<|"|>}<tool_call|>'
    text = f"<|channel>thought\nI need more.\n<channel|>I do. {written}"
    for messages in (history[:1], history[:3], history):
        heard = await hear(text, GEMMA_4, burst, *messages)
        assert heard == ("I need more.", "I do.", CALLED, FinishReason.TOOL_CALLS)


@pytest.mark.parametrize(
    ("source", "call"), [(QWEN_CODER, QWEN_CALL), (KIMI, KIMI_CALL), (HERMES, JSON_CALL)]
)
async def test_any_split_of_reasoning_text_and_calls_is_read_alike(source, call):
    """vLLM #55082, #31501: arguments were lost where a step had several tokens. From one token for each step
    up to a third of the answer."""
    text = f"<think>\nI need to write.\n</think>\n\nI do.\n{call}"
    expected = ("I need to write.", "I do.", CALLED, FinishReason.TOOL_CALLS)
    speaker, engine = made(text, source + THINKING)
    for burst in (1, 2, 3, 5, 7, 11, 17, 29, 43):
        engine.script = Script(text, burst=burst)
        (said,) = (await answer(speaker, asking())).choices
        calls = [(call.name, call.arguments) for call in said.calls]
        assert (said.reasoning, said.text, calls, said.reason) == expected, burst


async def test_a_call_in_the_reasoning_of_other_families_is_a_text():
    call = JSON_CALL.replace("</think>", "</thinking>")
    heard = await hear(f"I need {call} No.</think>Done.", opening(HERMES), 3)
    assert heard == (f"I need {call} No.", "Done.", [], FinishReason.STOP)


CLOSE = IDS["<|end|>"]


def follow(family, budget=None):
    """The grammar of a call after reasoning that `<|end|>` closes."""
    notation = CALL_FAMILIES[family]("")
    prelude = Prelude(
        frames=(TextFrame((), (CLOSE,)),),
        budget=budget,
        forbidden_text="<|end|>",
        call_opening=to_ids(notation.find_early_opening(IDS)),
    )
    constraint = replace(notation.build_constraint(TOOLS, IDS), prelude=prelude.dump())
    return begin(check_constraint(constraint, VOCABULARY))


def to_ids(names):
    return (IDS[names[0]],) if names[0] in IDS else ("".join(names),)


def spell(text):
    tokens: list[int] = []
    while text:
        name = next((name for name in IDS if text.startswith(name)), None)
        tokens += [IDS[name]] if name else text[0].encode()
        text = text[len(name) if name else 1 :]
    return tokens


@pytest.mark.parametrize(("family", "call"), [("qwen-coder", QWEN_CALL), ("kimi", KIMI_CALL)])
@pytest.mark.parametrize("budget", [None, 40])
def test_a_budget_of_reasoning_does_not_cut_a_call(family, call, budget):
    """vLLM #44676: the budget forced the end of the reasoning into the arguments of a call."""
    for text in (f"Hm.{call}", f"Hm.<|end|>{call}", f"Hm. <tool_call> or not?<|end|>Then I say {call}"):
        matcher = follow(family, budget)
        assert takes(matcher, spell(text)) and matcher.is_complete, text
    assert len(spell(call)) > 40
    assert not takes(follow(family, 40), spell("Hm" * 30))
    for wrong in (call.replace("write", "erase"), call.replace("text", "texts")):
        assert not takes(follow(family, budget), spell(f"Hm.{wrong}")), wrong


async def test_the_budget_and_the_calls_opening_reach_the_engine():
    speaker, engine = made("x", opening(QWEN_CODER))
    await answer(speaker, asking())
    prelude = load_prelude(engine.constraints[0].prelude)
    assert prelude.call_opening == ("<tool_call>\n<function=",)
    await answer(speaker, asking(tools=Tools((WRITE,), ToolChoice.NONE)))
    assert load_prelude(engine.constraints[1].prelude).call_opening == ()


async def test_kimi_reads_the_functions_name_in_the_calls_id():
    calls = tuple(ToolCall(f"call_{index}", "write", json.dumps({"text": str(index)})) for index in range(2))
    speaker, engine = made("Done.", KIMI)
    messages = (
        Message(Role.USER, "hi"),
        Message(Role.ASSISTANT, "", tool_calls=calls),
        *(Message(Role.TOOL, "ok", tool_call_id=call.id) for call in calls),
    )
    await answer(speaker, asking(*messages))
    tokens = engine.requests[-1].prompt.ids
    prompt = b"".join(engine.table.pieces[token] for token in tokens).decode(errors="replace")
    assert "functions.write:0<|tool_call_argument_begin|>" in prompt
    assert "functions.write:1<|tool_call_argument_begin|>" in prompt
