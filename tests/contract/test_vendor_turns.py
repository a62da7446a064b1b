"""The clients of OpenAI and Anthropic take three tool turns with a vendor's model. They send each answer back
as it came, and the vendor gets its blocks of reasoning and its signatures back unchanged, buffered and
streamed."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import openai
import pytest

from antiphon.domain.events import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ThinkingBlock,
    ToolCallDelta,
    ToolCallStarted,
)
from antiphon.domain.messages import Role
from antiphon.domain.request import Conversation, GenerationRequest
from tests.contract.clients import run_scenarios
from tests.contract.conftest import serve_engine
from tests.support.vendor_engine import STARTED, USAGE, VendorDouble

WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
TURNS = 3


def answer(request: GenerationRequest) -> list[Event]:
    """Two blocks around two calls in each of three turns, and then a text."""
    (prompt,) = request.prompts
    assert isinstance(prompt, Conversation)
    turn = sum(message.role is Role.ASSISTANT for message in prompt.messages)
    if turn == TURNS:
        return [STARTED, TextDelta(0, "Rain."), Finished(0, FinishReason.STOP), USAGE]
    return [
        STARTED,
        ReasoningDelta(0, f"Turn {turn}."),
        ThinkingBlock(0, {"type": "thinking", "thinking": f"Turn {turn}.", "signature": f"sig+/{turn}=="}),
        ToolCallStarted(0, 0, f"call-{turn}-0", "get_weather", signature=f"call+/{turn}=="),
        ToolCallDelta(0, 0, "{}"),
        ThinkingBlock(0, {"type": "redacted_thinking", "data": f"redacted {turn}", "nested": [{"a": None}]}),
        ToolCallStarted(0, 1, f"call-{turn}-1", "get_weather"),
        ToolCallDelta(0, 1, "{}"),
        Finished(0, FinishReason.TOOL_CALLS),
        USAGE,
    ]


@pytest.fixture
def vendor() -> Iterator[tuple[openai.OpenAI, VendorDouble]]:
    engine = VendorDouble(answer)
    with (
        serve_engine(engine) as target,
        openai.OpenAI(base_url=target.base_url, api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield client, engine


def ask_whole(client: openai.OpenAI, messages: list[Any]) -> Any:
    made = client.chat.completions.create(model="scripted", messages=messages, tools=[WEATHER])
    return made.choices[0].message


def ask_streamed(client: openai.OpenAI, messages: list[Any]) -> Any:
    """The message that the client's own accumulator makes of a stream."""
    with client.chat.completions.stream(model="scripted", messages=messages, tools=[WEATHER]) as stream:
        return stream.get_final_completion().choices[0].message


@pytest.mark.parametrize("ask", [ask_whole, ask_streamed])
def test_three_turns_return_what_the_vendor_sent(
    vendor: tuple[openai.OpenAI, VendorDouble], ask: Any
) -> None:
    client, engine = vendor
    messages: list[Any] = [{"role": "user", "content": "What is the weather?"}]
    for _ in range(TURNS):
        message = ask(client, messages)
        messages.append(message)
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls
        ]
    assert ask(client, messages).content == "Rain."
    expect_own_blocks(engine)
    assert [request.is_buffered for request in engine.requests] == [ask is ask_whole] * (TURNS + 1)


@pytest.mark.parametrize("scenario", ["think", "stream_think"])
def test_npms_anthropic_returns_what_the_vendor_sent(
    vendor: tuple[openai.OpenAI, VendorDouble], scenario: str
) -> None:
    client, engine = vendor
    run = ("npm_anthropic@messages", scenario)
    found = run_scenarios(str(client.base_url).rstrip("/"), "scripted", [run])[run]
    assert "result" in found, found["error"]
    assert found["result"]["text"] == "Rain."
    thinking = [block for turn in found["result"]["blocks"] for block in turn if block["type"] == "thinking"]
    assert [block["thinking"] for block in thinking if block["thinking"]] == ["Turn 0.", "Turn 1.", "Turn 2."]
    expect_own_blocks(engine, kept=("type", "thinking", "signature", "data"))
    assert [request.is_buffered for request in engine.requests] == [scenario == "think"] * (TURNS + 1)


@pytest.mark.parametrize("name", ["ai_sdk_anthropic@messages", "ai_sdk_openai@responses"])
@pytest.mark.parametrize("scenario", ["think", "stream_think"])
def test_the_ai_sdk_returns_what_the_vendor_sent(
    vendor: tuple[openai.OpenAI, VendorDouble], name: str, scenario: str
) -> None:
    client, engine = vendor
    run = (name, scenario)
    found = run_scenarios(str(client.base_url).rstrip("/"), "scripted", [run])[run]
    assert "result" in found, found["error"]
    assert found["result"]["text"] == "Rain."
    assert [text for text in found["result"]["reasoning"] if text] == ["Turn 0.", "Turn 1.", "Turn 2."]
    kept = ("type", "thinking", "signature", "data") if name.endswith("@messages") else ()
    expect_own_blocks(engine, kept)
    assert [request.is_buffered for request in engine.requests] == [scenario == "think"] * (TURNS + 1)


def expect_own_blocks(engine: VendorDouble, kept: Collection[str] = ()) -> None:
    """Checks that the last request has what the engine sent in each turn before. `kept`: the fields of blocks
    that the API has; by default all."""
    (prompt,) = engine.requests[-1].prompts
    assert isinstance(prompt, Conversation)
    turns = [each for each in prompt.messages if each.role is Role.ASSISTANT]
    for at, turn in enumerate(turns):
        sent = answer(engine.requests[at])
        blocks = [each.block for each in sent if isinstance(each, ThinkingBlock)]
        assert strip(turn.thinking_blocks, kept) == strip(blocks, kept)
        assert [call.signature for call in turn.tool_calls] == [f"call+/{at}==", None]
        assert turn.reasoning == f"Turn {at}."
    assert len(turns) == TURNS


def strip(blocks: Iterable[Mapping[str, Any]], kept: Collection[str]) -> list[dict[str, Any]]:
    return [{name: value for name, value in block.items() if not kept or name in kept} for block in blocks]
