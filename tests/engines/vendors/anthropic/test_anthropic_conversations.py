"""Conversations keep their meaning through Anthropic's format, streamed and buffered."""

import json

import pytest

from antiphon.domain.events import Started, Usage, UsageSource
from antiphon.domain.messages import Role
from antiphon.domain.request import Conversation
from antiphon.engines.vendors.anthropic.dialect import AnthropicUpstream
from antiphon.engines.vendors.base import VendorModel
from antiphon.engines.vendors.profiles import VendorProfile
from tests.support.vendors.anthropic_server import KEY, answer_call, sign
from tests.support.vendors.conversations import BY_NAME, CONVERSATIONS, PHOTO, PIXEL, require_reply
from tests.support.vendors.vendor_exchange import VendorExchange

PROFILE = VendorProfile(max_output=8000, modalities=("text", "image"), reasoning=True)
USAGE = Usage(125, 40, 100, 15, UsageSource.REPORTED, cache_write_tokens=5)


def open_exchange(model: str = "claude-m") -> VendorExchange:
    asked = VendorModel(model, "anthropic", PROFILE, passes_addresses=True)
    return VendorExchange(AnthropicUpstream(), answer_call, asked, KEY, "/v1")


@pytest.mark.parametrize("is_buffered", [False, True], ids=["streamed", "buffered"])
@pytest.mark.parametrize("name", BY_NAME)
async def test_a_conversation_keeps_its_meaning(name: str, is_buffered: bool):
    conversation = BY_NAME[name]
    done = await open_exchange().run(conversation, is_buffered)
    assert len(done) == len(conversation.turns)
    for turn, (request, answer) in zip(conversation.turns, done, strict=True):
        require_reply(answer.choices[0], turn.reply, request)
        assert answer.usage == USAGE


async def test_streamed_and_buffered_answers_are_equal():
    for conversation in CONVERSATIONS:
        streamed = await open_exchange().run(conversation, is_buffered=False)
        buffered = await open_exchange().run(conversation, is_buffered=True)
        assert [answer for _, answer in streamed] == [answer for _, answer in buffered]


def test_whole_answers_are_asked_for_as_such():
    exchange = open_exchange()
    for is_buffered in (False, True):
        list(exchange.iterate(BY_NAME["a chat"].build_request(0, (), is_buffered)))
    bodies = [json.loads(call.body) for call in exchange.calls]
    assert [body.get("stream") for body in bodies] == [True, None]


async def test_signatures_survive_three_tool_turns():
    for is_buffered in (False, True):
        exchange = open_exchange()
        await exchange.run(BY_NAME["reasoning between calls"], is_buffered)
        last = json.loads(exchange.calls[-1].body)["messages"]
        blocks = [block for message in last for block in message["content"] if block["type"] == "thinking"]
        texts = ("First the time.", "Then it.", "A photo.")
        assert blocks == [{"type": "thinking", "thinking": text, "signature": sign(text)} for text in texts]
        assert [message["content"][0]["type"] for message in last if message["role"] == "assistant"] == [
            "thinking"
        ] * 3


async def test_redacted_reasoning_comes_back_unchanged():
    exchange = open_exchange("redacted")
    for is_buffered in (False, True):
        done = await exchange.run(BY_NAME["reasoning between calls"], is_buffered)
        block = {"type": "redacted_thinking", "data": sign("redacted")}
        assert [answer.choices[0].thinking_blocks for _, answer in done] == [(block,)] * 4
        assert {answer.choices[0].reasoning for _, answer in done} == {""}


async def test_results_of_parallel_calls_are_one_message():
    exchange = open_exchange()
    await exchange.run(BY_NAME["parallel calls"], is_buffered=False)
    messages = json.loads(exchange.calls[1].body)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert [block["content"][0]["text"] for block in messages[2]["content"]] == ["sun", "snow", "noon"]


async def test_images_arrive_in_results_and_as_addresses():
    exchange = open_exchange()
    await exchange.run(BY_NAME["results with images"], is_buffered=False)
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    result = json.loads(exchange.calls[-1].body)["messages"][-1]["content"][0]
    assert result["content"] == [{"type": "text", "text": "taken"}, {"type": "image", "source": source}]
    await exchange.run(BY_NAME["an address of an image"], is_buffered=False)
    parts = json.loads(exchange.calls[-1].body)["messages"][0]["content"]
    assert parts[-1] == {"type": "image", "source": {"type": "url", "url": PHOTO}}


def test_a_stream_begins_with_its_first_block():
    exchange = open_exchange()
    request = BY_NAME["a chat"].build_request(0)
    assert isinstance(request.prompts[0], Conversation)
    assert request.prompts[0].messages[0].role is Role.SYSTEM
    parts = exchange.send(request).parts
    events = list(exchange.read_stream(request, parts))
    assert events[0] == Started(125, 100, cache_write_tokens=5, source=UsageSource.ESTIMATED)
    start = exchange.upstream.start_stream(request, exchange.model)
    name, data = "message_start", parts[0].partition(b"data: ")[2].strip()
    assert start.feed(name, data) == ()
    assert start.feed("", data.replace(b"message_start", b"something_new", 1)) == ()
