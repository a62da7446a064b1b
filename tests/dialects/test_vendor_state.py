"""What vendors need back: blocks of reasoning and signatures of calls, in answers and in histories."""

import json

import pytest

from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.empower.decode import decode_chat as empower_chat
from antiphon.dialects.empower.dialect import EmpowerChatCompletions
from antiphon.dialects.fireworks.decode import decode_chat as fireworks_chat
from antiphon.dialects.fireworks.dialect import FireworksChatCompletions
from antiphon.dialects.openai.dialect import OpenAIChatCompletions, OpenAICompletions, decode_chat
from antiphon.dialects.services import ResponseMeta
from antiphon.domain.collect import collect
from antiphon.domain.events import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    ThinkingBlock,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from antiphon.domain.messages import Tool, Tools
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.errors import AntiphonError

META = ResponseMeta("1", 1, "m")
FIRST = {"type": "thinking", "thinking": "Hm.", "signature": "EqQB/+=="}
SECOND = {"type": "redacted_thinking", "data": "3q2+7w=="}
EVENTS: list[Event] = [
    Started(3),
    ReasoningDelta(0, "Hm."),
    ThinkingBlock(0, FIRST),
    ToolCallStarted(0, 0, "c0", "f", signature="c2ln"),
    ToolCallDelta(0, 0, "{}"),
    ThinkingBlock(0, SECOND),
    ToolCallStarted(0, 1, "c1", "f"),
    Finished(0, FinishReason.TOOL_CALLS),
    Usage(3, 5),
]
DIALECTS = ["openai", "fireworks", "empower"]
EXTRA = {"google": {"thought_signature": "c2ln"}}
CALL = GenerationCall(GenerationRequest("m", (Conversation((), tools=Tools((Tool("f"),))),)), stream=True)
CODECS = [
    OpenAIChatCompletions(report_unknown=False),
    FireworksChatCompletions(report_unknown=False),
    EmpowerChatCompletions(report_unknown=False),
]


def lines(data: bytes):
    return [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: {")]


async def iterate(events):
    yield events


@pytest.mark.parametrize("codec", CODECS, ids=DIALECTS)
async def test_a_whole_answer_has_both(codec):
    answer = json.loads(codec.encode_answer(META, CALL, await collect(iterate(EVENTS))))
    message = answer["choices"][0]["message"]
    assert message["thinking_blocks"] == [FIRST, SECOND]
    assert [call.get("extra_content") for call in message["tool_calls"]] == [EXTRA, None]


@pytest.mark.parametrize("codec", CODECS, ids=DIALECTS)
def test_a_stream_has_each_once(codec):
    encoder = codec.create_encoder(META, CALL)
    chunks = [chunk for event in EVENTS for chunk in lines(encoder.encode(event))]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    deltas = [choice["delta"] for choice in choices]
    assert [each["thinking_blocks"] for each in deltas if "thinking_blocks" in each] == [[FIRST, SECOND]]
    parts = [part for each in deltas for part in each.get("tool_calls", ())]
    assert [part.get("extra_content") for part in parts if "id" in part] == [EXTRA, None]
    assert all("extra_content" not in part for part in parts if "id" not in part)
    assert choices[-1]["finish_reason"] == "tool_calls" and "thinking_blocks" in choices[-2]["delta"]


@pytest.mark.parametrize(
    "codec", [OpenAIChatCompletions(report_unknown=False), OpenAICompletions(report_unknown=False)]
)
def test_without_them_nothing_is_shown(codec):
    encoder = codec.create_encoder(META, CALL)
    plain: list[Event] = [Started(3), TextDelta(0, "a"), Finished(0, FinishReason.STOP)]
    assert b"thinking" not in b"".join(map(encoder.encode, plain))
    encoder = OpenAICompletions(report_unknown=False).create_encoder(META, CALL)
    assert b"thinking" not in b"".join(map(encoder.encode, [*plain[:2], EVENTS[2], plain[2]]))


# --- coming back ---

CALLED = {"id": "c0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USER = {"role": "user", "content": "hi"}
RESULT = {"role": "tool", "tool_call_id": "c0", "content": "4"}


def history(call=CALLED, **message):
    return [USER, {"role": "assistant", "content": None, "tool_calls": [call]} | message, RESULT]


def decoded(messages, decode=decode_chat):
    return decode(json.dumps({"model": "m", "messages": messages}).encode())


def refusal(messages):
    with pytest.raises(AntiphonError) as caught:
        decoded(messages)
    return caught.value


@pytest.mark.parametrize("decode", [decode_chat, fireworks_chat, empower_chat], ids=DIALECTS)
def test_both_are_read_as_they_were(decode):
    call = decoded(history(CALLED | {"extra_content": EXTRA}, thinking_blocks=[FIRST, SECOND]), decode)
    message = call.request.prompts[0].messages[1]
    assert message.thinking_blocks == (FIRST, SECOND)
    assert message.tool_calls[0].signature == "c2ln"
    assert call.ignored == ()


@pytest.mark.parametrize("extra", [None, {}, EXTRA | {"b": 1}, {"google": {}}, {"google": 1}, {"openai": {}}])
def test_other_data_of_a_call_is_named(extra):
    call = decoded(history(CALLED | {"extra_content": extra}))
    (made,) = call.request.prompts[0].messages[1].tool_calls
    assert made.signature == ("c2ln" if extra and "b" in extra else None)
    assert call.ignored == (() if extra is None else ("messages[].tool_calls[].extra_content",))


DEEP: dict[str, object] = {}
for _ in range(60):
    DEEP = {"a": DEEP}
PLACE = "messages[1].thinking_blocks"


@pytest.mark.parametrize(
    ("blocks", "param"),
    [
        ([DEEP], PLACE),
        ([{"a": "x" * (1 << 22)}], PLACE),
        ("thinking", PLACE),
        (["thinking"], f"{PLACE}[0]"),
        ([{}] * 1025, PLACE),
    ],
    ids=["deep", "large", "a text", "a list of texts", "many"],
)
def test_blocks_are_bounded(blocks, param):
    error = refusal(history(thinking_blocks=blocks))
    assert (error.code, error.param) == ("invalid_value", param)


def test_blocks_are_the_assistants():
    error = refusal([USER | {"thinking_blocks": [FIRST]}])
    assert (error.code, error.param) == ("invalid_value", "messages[0].thinking_blocks")
    assert decoded([USER | {"thinking_blocks": []}]).request.prompts[0].messages[0].thinking_blocks == ()


@pytest.mark.parametrize("signature", [5, "", "x" * ((1 << 20) + 1), {}])
def test_a_signature_is_a_text_of_bounded_length(signature):
    extra = {"google": {"thought_signature": signature}}
    error = refusal(history(CALLED | {"extra_content": extra}))
    place = "messages[1].tool_calls[0].extra_content.google.thought_signature"
    assert (error.code, error.param) == ("invalid_value", place)
