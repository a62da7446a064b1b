"""Hard cases of the Messages API: what agents send and read, and where another server failed with it.

Each test names the issue that describes the failure. That of ToolSearch is in test_messages.py.
"""

import base64
import json
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from antiphon.assembly.app_state import read_document
from antiphon.auth.sealing import Sealer, derive_key
from antiphon.domain.context import Context
from antiphon.domain.events import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from antiphon.domain.messages import MediaContent, Role
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.domain.stored_responses import SealedReasoning
from antiphon.errors import InvalidValue
from antiphon.pipeline.documents import DocumentTexts
from antiphon_testing import Script, scripted_info
from antiphon_testing.scripted_engine import ScriptedRequest
from tests.support.calling_engine import CallingEngine
from tests.support.documents import make_pdf
from tests.support.http_server import LooseEngine, Reply, Served, serving, serving_tokens
from tests.support.vendor_engine import STARTED, USAGE, VendorDouble
from tests.support.vendors.conversations import PIXEL

BODY: dict[str, Any] = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]}
READ: dict[str, Any] = {"name": "Read", "description": "Reads.", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "text"}


def serve_events(*events: Event) -> AbstractAsyncContextManager[Served]:
    """A server whose model makes these events."""

    async def iterate() -> AsyncGenerator[Event, None]:
        for event in events:
            yield event

    return serving(LooseEngine(iterate))


async def ask(served: Served, **fields: Any) -> Reply:
    reply = await served.ask("/v1/messages?beta=true", BODY | fields)
    assert reply.status == 200, reply.body
    return reply


async def list_prompts(*requests: dict[str, Any]) -> list[str]:
    """The prompts that a local model gets for these requests."""
    engine = CallingEngine(Script("Yes"), info=scripted_info(8192))
    async with serving_tokens(m=engine) as served:
        for fields in requests:
            await ask(served, **fields)
    return engine.list_prompts()


def require_order(events: list[Any]) -> None:
    """Checks that one block is open at a time, has been started, and gets only deltas of its kind."""
    kinds = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "thinking"}
    open_block, index = None, -1
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert open_block is None and event["index"] == index + 1
                open_block, index = event["content_block"]["type"], event["index"]
            case "content_block_delta":
                kind = kinds.get(event["delta"]["type"], "tool_use")
                assert (open_block, index) == (kind, event["index"])
            case "content_block_stop":
                assert open_block is not None and index == event["index"]
                open_block = None
    assert open_block is None and events[-1]["type"] == "message_stop"


async def test_a_system_message_among_the_others_is_taken_in_both_forms():
    """Claude Code sends it as blocks first, and as a text later: claude-code #77698, vLLM #44000."""
    user = {"role": "user", "content": "Hi"}
    blocks = {"role": "system", "content": [{"type": "text", "text": "E"}]}
    first, later = await list_prompts(
        {"messages": [user, blocks]}, {"messages": [user, {"role": "system", "content": "E"}]}
    )
    assert first == later and "E" in first


async def test_the_billing_line_does_not_change_the_prompt():
    """Its `cch` changed with each request, and no cached prefix was found: llama.cpp #20623, tale #3400."""
    rules = {"type": "text", "text": "Rules."}
    prompts = await list_prompts(
        *(
            {"system": [{"type": "text", "text": f"x-anthropic-billing-header: cch={number};"}, rules]}
            for number in (1, 2)
        ),
        {"system": [rules]},
    )
    assert len({*prompts}) == 1 and "Rules." in prompts[0]


async def test_reasoning_ends_with_a_signature():
    """Without one the block is discarded, and with an empty one clients fail: CLIProxyAPI #3817, nielspeter
    #17."""
    events = ReasoningDelta(0, "Hm."), TextDelta(0, "Yes"), Finished(0, FinishReason.STOP), Usage(5, 2)
    async with serve_events(Started(5), *events) as served:
        streamed = (await ask(served, stream=True)).events()
        whole = (await ask(served)).json()
    require_order(streamed)
    deltas = [event["delta"] for event in streamed if event["type"] == "content_block_delta"]
    assert [delta["type"] for delta in deltas] == ["thinking_delta", "signature_delta", "text_delta"]
    assert deltas[1]["signature"] and whole["content"][0]["signature"]


class ThinkingEngine(LooseEngine):
    """Thinks and answers. `earlier`: the reasoning in the messages of each request."""

    def __init__(self) -> None:
        super().__init__(self.think)
        self.earlier: list[list[str]] = []

    async def think(self) -> AsyncGenerator[Event, None]:
        for event in (
            Started(5),
            ReasoningDelta(0, "Two and "),
            ReasoningDelta(0, "two."),
            TextDelta(0, "4"),
        ):
            yield event
        yield Finished(0, FinishReason.STOP)
        yield Usage(5, 2)

    async def prepare(self, request: GenerationRequest, context: Context) -> ScriptedRequest:
        messages = request.prompts[0].messages  # type: ignore[union-attr]
        self.earlier.append([message.reasoning for message in messages if message.reasoning])
        return await super().prepare(request, context)


def answer_with(block: dict[str, Any]) -> dict[str, Any]:
    """The turn after an answer with this block of reasoning."""
    answer = {"role": "assistant", "content": [block, {"type": "text", "text": "4"}]}
    return {"messages": [*BODY["messages"], answer, {"role": "user", "content": "Why?"}]}


async def test_omitted_reasoning_comes_home_in_its_signature():
    """Claude Code asks for `display: omitted`, and sends the block back as it came."""
    omitted = {"thinking": {"type": "adaptive", "display": "omitted"}}
    engine = ThinkingEngine()
    async with serving(engine) as served:
        whole = (await ask(served, **omitted)).json()
        streamed = (await ask(served, stream=True, **omitted)).events()
        require_order(streamed)
        kinds = [event["delta"]["type"] for event in streamed if event["type"] == "content_block_delta"]
        assert kinds == ["signature_delta", "text_delta"]
        signature = next(event["delta"]["signature"] for event in streamed if "delta" in event)
        block = whole["content"][0]
        assert (block["type"], block["thinking"]) == ("thinking", "")
        for sealed in (block["signature"], signature):
            assert sealed.startswith("antiphon") and "two" not in sealed
            reply = await ask(
                served, **answer_with({"type": "thinking", "thinking": "", "signature": sealed})
            )
            assert engine.earlier[-1] == ["Two and two."]
            assert "x-antiphon-ignored" not in reply.headers
        assert block["signature"] != signature


async def test_a_signature_that_does_not_open_is_named():
    """It is of another installation, of another project, or changed."""
    foreign = Sealer(derive_key(b"f" * 32)).seal(SealedReasoning("Two and two."), "default")
    engine = ThinkingEngine()
    async with serving(engine) as served:
        other = served.edge.sealer.seal(SealedReasoning("Two and two."), "another")
        for sealed in (foreign, other, other[:-4], "antiphon1.", "antiphon1.é", "antiphon9"):
            reply = await ask(
                served, **answer_with({"type": "thinking", "thinking": "", "signature": sealed})
            )
            assert reply.headers["x-antiphon-ignored"] == "messages[].content[].signature", sealed
            assert engine.earlier[-1] == []
        shown = {"type": "thinking", "thinking": "Two.", "signature": foreign}
        assert "x-antiphon-ignored" not in (await ask(served, **answer_with(shown))).headers
        assert engine.earlier[-1] == ["Two."]


async def test_earlier_reasoning_is_taken():
    """Other servers refused the turn, or crashed: llm-scaler #341, cc-switch #1831."""
    history: list[Any] = [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "Yes"},
    ]
    turns = [
        *BODY["messages"],
        {"role": "assistant", "content": history},
        {"role": "user", "content": "Why?"},
    ]
    (prompt,) = await list_prompts({"messages": turns})
    assert "Yes" in prompt and "redacted" not in prompt


async def test_fields_of_betas_are_named_and_not_refused():
    """ "Extra inputs are not permitted" ended each request: CLIProxyAPI #1725, LiteLLM #20021, sub2api."""
    edits = [{"type": "clear_tool_uses_20250919"}]
    engine = CallingEngine(Script("Yes"), info=scripted_info(8192))
    async with serving_tokens(m=engine) as served:
        reply = await served.ask(
            "/v1/messages?beta=true",
            BODY
            | {
                "context_management": {"edits": edits},
                "fallbacks": [],
                "tools": [READ | {"defer_loading": True}],
            },
            headers={"anthropic-beta": "nobody-knows-this-2027-01-01"},
        )
    assert reply.status == 200
    named = reply.headers["x-antiphon-ignored"].split(", ")
    assert sorted(named) == ["context_management.edits[]", "fallbacks"]


async def test_a_call_after_a_text_keeps_all_of_its_input():
    """The first delta was lost, or came in the text's block: LiteLLM #25321, claude-code #63487."""
    events = (
        TextDelta(0, "I read."),
        ToolCallStarted(0, 0, "t1", "Read"),
        ToolCallDelta(0, 0, '{"a"'),
        ToolCallDelta(0, 0, ":1}"),
        Finished(0, FinishReason.TOOL_CALLS),
        Usage(5, 2),
    )
    async with serve_events(Started(5), *events) as served:
        streamed = (await ask(served, stream=True)).events()
        whole = (await ask(served)).json()
    require_order(streamed)
    parts = [
        event["delta"].get("partial_json") for event in streamed if event["type"] == "content_block_delta"
    ]
    assert json.loads("".join(filter(None, parts))) == whole["content"][1]["input"] == {"a": 1}


async def test_cached_tokens_are_told_at_both_ends_of_a_stream():
    """They were missing in message_delta, which is all that LangChain reads: hebo #187, LiteLLM #41067."""
    events = TextDelta(0, "Yes"), Finished(0, FinishReason.STOP), Usage(100, 2, 90)
    async with serve_events(Started(100, 90), *events) as served:
        streamed = (await ask(served, stream=True)).events()
    usages = [streamed[0]["message"]["usage"], streamed[-2]["usage"]]
    assert [(usage["input_tokens"], usage["cache_read_input_tokens"]) for usage in usages] == [(10, 90)] * 2


async def test_more_output_than_the_context_has_is_lowered():
    """Claude Code asks for 32,000 tokens whatever the model is, and got a 400 from each server with a small
    context."""
    engine = CallingEngine(Script("Yes"), info=scripted_info(512))
    async with serving_tokens(m=engine) as served:
        await ask(served, max_tokens=32_000)
    assert engine.requests[0].max_tokens < 512


async def test_results_of_parallel_calls_keep_their_order_and_their_image():
    """The image parted the results, or their order was lost: Zoo-Code #1705."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    turns = [
        *BODY["messages"],
        {"role": "assistant", "content": [CALL, CALL | {"id": "t2"}]},
        {
            "role": "user",
            "content": [
                RESULT | {"tool_use_id": "t2", "content": "failed", "is_error": True},
                RESULT | {"content": [{"type": "text", "text": "Here."}, image]},
                {"type": "text", "text": "Go on."},
            ],
        },
    ]
    engine = VendorDouble(lambda _: [STARTED, TextDelta(0, "Yes"), Finished(0, FinishReason.STOP), USAGE])
    async with serving(engine) as served:
        await ask(served, messages=turns, tools=[READ])
    (prompt,) = engine.requests[0].prompts
    assert isinstance(prompt, Conversation)
    failed, shown, rest = prompt.messages[2:]
    assert (failed.role, failed.tool_call_id, failed.is_error) == (Role.TOOL, "t2", True)
    assert (shown.role, shown.tool_call_id, shown.is_error) == (Role.TOOL, "t1", False)
    assert isinstance(shown.content[1], MediaContent)
    assert (rest.role, rest.text) == (Role.USER, "Go on.")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_stop_text_that_matched_is_told(stream: bool):
    """Other servers say end_turn and no text, and clients then do not know which of their texts it was."""
    engine = CallingEngine(Script("Hi.\n\nHuman: and you?"), info=scripted_info(2048))
    async with serving_tokens(m=engine) as served:
        reply = await ask(served, stop_sequences=["###", "\n\nHuman"], stream=stream)
    end = reply.events()[-2]["delta"] if stream else reply.json()
    assert (end["stop_reason"], end["stop_sequence"]) == ("stop_sequence", "\n\nHuman")


async def test_each_call_has_an_id_before_its_block_begins():
    """Claude Code stopped rendering at a call without one, and each resumed session failed: its notes of
    2.1.246. Blocks that nobody began ended it too: CLIProxyAPI #3720, CliRelay #739."""
    calls = '<tool_call>\n{"name": "Read", "arguments": {}}\n</tool_call>\n' * 2
    engine = CallingEngine(Script(calls), info=scripted_info(8192))
    async with serving_tokens(m=engine) as served:
        events = (await ask(served, tools=[READ], stream=True, max_tokens=999)).events()
    require_order(events)
    blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [block["type"] for block in blocks] == ["tool_use", "tool_use"]
    assert len({block["id"] for block in blocks}) == 2 and all(block["id"] for block in blocks)


# --- documents ----------------------------------------------------------------------------------------------


class Reader:
    """Reads documents as text. `count`: how many it has read."""

    count = 0

    async def __call__(self, data: bytes, media_type: str) -> str:
        self.count += 1
        if not data.startswith(b"%PDF"):
            raise InvalidValue("the document is damaged")
        return "Page one."


def show_pdf(data: bytes = b"%PDF-1.7", **fields: Any) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(data).decode()}
    return {"type": "document", "source": source} | fields


async def test_a_pdf_is_text_for_a_model_that_takes_none():
    """Claude Code's Read sends a PDF in a result, and again with each later turn."""
    reader, engine = Reader(), CallingEngine(Script("Yes"), info=scripted_info(8192))
    blocks = [{"type": "text", "text": "A"}, show_pdf(title="Book"), {"type": "text", "text": "B"}]
    read = [
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [RESULT | {"content": blocks}]},
    ]
    async with serving_tokens(DocumentTexts(reader), m=engine) as served:
        for _ in range(2):
            await ask(served, messages=[*BODY["messages"], *read], tools=[READ])
        counted = await served.ask(
            "/v1/messages/count_tokens",
            {"model": "m", "messages": [*BODY["messages"], *read], "tools": [READ]},
        )
    first, again = engine.list_prompts()
    assert first == again and "A\n\n[Book]\n\nPage one.\n\nB" in first
    assert reader.count == 1
    assert counted.json() == {"input_tokens": len(engine.requests[0].prompt.ids)}


async def test_a_pdf_that_cannot_be_read_is_refused_by_its_name():
    engine, damaged = CallingEngine(Script("Yes"), info=scripted_info(8192)), show_pdf(b"no PDF")
    turn = {"role": "user", "content": [damaged]}
    async with serving_tokens(DocumentTexts(Reader()), m=engine) as served:
        reply = await served.ask("/v1/messages", BODY | {"messages": [turn]})
    assert reply.status == 400
    assert reply.error["message"] == "messages[0].content[0].source: the document is damaged"
    async with serving_tokens(m=engine) as served:
        reply = await served.ask("/v1/messages", BODY | {"messages": [turn]})
    assert reply.status == 400 and "takes no documents" in reply.error["message"]


async def test_the_sandbox_reads_a_pdf():
    assert await read_document(make_pdf([["One"], ["Two"]]), "application/pdf") == "One\n\nTwo"


async def test_tools_that_anthropic_runs_are_refused_if_the_operator_says_so():
    search = {"type": "web_search_20250305", "name": "web_search"}
    for setting, status in (("ignore", 200), ("refuse", 400)):
        async with serving(hosted_tools=setting) as served:
            reply = await served.ask("/v1/messages", BODY | {"tools": [search]})
            counted = await served.ask(
                "/v1/messages/count_tokens",
                {"model": "m", "messages": BODY["messages"], "tools": [search]},
            )
        assert reply.status == status
        if status == 200:
            assert reply.headers["x-antiphon-ignored"] == "tools[].web_search_20250305"
            assert counted.headers["x-antiphon-ignored"] == "tools[].web_search_20250305"
        else:
            text = "tools[0].type web_search_20250305 is not supported"
            assert text in reply.error["message"] and text in counted.error["message"]
