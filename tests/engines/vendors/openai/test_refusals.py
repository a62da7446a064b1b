"""A vendor's refusal stays a refusal in each dialect that has one, and is text in the others."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

from antiphon.engines.vendors.base import VendorModel
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.profiles import VendorProfile
from tests.support.vendors.vendor_gateway import connect_client, serve_gateway
from tests.support.vendors.vendor_http import VendorCall, VendorReply, VendorServer, serve_vendor

PIECES = ("I cannot", " help with that.")
REFUSAL = "".join(PIECES)
MODELS = (VendorModel("careful", "open", VendorProfile()),)
HELLO: Any = [{"role": "user", "content": "Hi"}]
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
USAGE = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
MODES = pytest.mark.parametrize("is_streamed", [False, True], ids=["buffered", "streamed"])


class Answer(pydantic.BaseModel):
    """What the caller would parse."""

    text: str


def answer_call(call: VendorCall) -> VendorReply:
    if not json.loads(call.body).get("stream"):
        message = {"role": "assistant", "content": None, "refusal": REFUSAL}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return VendorReply((json.dumps({"choices": [choice], "usage": USAGE}).encode(),))
    deltas: list[Any] = [{"role": "assistant", "content": "", "refusal": None}]
    deltas += [{"refusal": piece} for piece in PIECES]
    chunks: list[Any] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    chunks.append({"choices": [], "usage": USAGE})
    lines = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]
    return VendorReply((*lines, b"data: [DONE]\n\n"), content_type="text/event-stream")


@pytest.fixture(scope="module")
def vendor() -> Iterator[VendorServer]:
    with serve_vendor(answer_call) as server:
        yield server


@MODES
@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL]}], ids=["a chat", "with tools"])
async def test_a_chat_has_the_refusal_and_no_content(
    vendor: VendorServer, fields: dict[str, Any], is_streamed: bool
):
    asked: Any = {"model": "careful", "messages": HELLO} | fields
    async with connect_client(OpenAIUpstream(), f"{vendor.url}/v1", "k", MODELS) as client:
        if is_streamed:
            async with client.chat.completions.stream(**asked) as events:
                kinds = [event.type async for event in events]
                answer: Any = await events.get_final_completion()
            assert kinds.count("refusal.delta") == len(PIECES) and "refusal.done" in kinds
        else:
            answer = await client.chat.completions.create(**asked)
    (choice,) = answer.choices
    assert (choice.message.refusal, choice.message.content or None) == (REFUSAL, None)
    assert choice.finish_reason == "stop"


async def test_a_refusal_is_not_parsed_by_the_schema(vendor: VendorServer):
    async with connect_client(OpenAIUpstream(), f"{vendor.url}/v1", "k", MODELS) as client:
        assert isinstance(client, openai.AsyncOpenAI)
        answer = await client.chat.completions.parse(model="careful", messages=HELLO, response_format=Answer)
    message = answer.choices[0].message
    assert message.parsed is None and message.refusal == REFUSAL


@MODES
async def test_messages_has_the_text_and_the_stop_reason_refusal(vendor: VendorServer, is_streamed: bool):
    body = {"model": "careful", "max_tokens": 64, "messages": HELLO, "stream": is_streamed}
    async with serve_gateway(OpenAIUpstream(), f"{vendor.url}/v1", "k", MODELS) as served:
        reply = await served.ask("/v1/messages", body)
    if is_streamed:
        events = reply.events()
        text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
        end = next(event["delta"] for event in events if event["type"] == "message_delta")
    else:
        end = reply.json()
        (block,) = end["content"]
        text = block["text"]
    assert text == REFUSAL
    assert end["stop_reason"] == end["stop_details"]["type"] == "refusal"
