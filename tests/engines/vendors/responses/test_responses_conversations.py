"""Conversations keep their meaning through OpenAI's Responses API, streamed and buffered."""

import json
from typing import Any

import pytest

from antiphon.domain.events import Usage, UsageSource
from antiphon.domain.values import replace
from antiphon.engines.vendors.base import NO_ATTRIBUTES, VendorModel
from antiphon.engines.vendors.profiles import VendorProfile
from antiphon.engines.vendors.responses.dialect import ResponsesUpstream
from tests.support.vendors.conversations import (
    ALL_BY_NAME,
    BY_NAME,
    CONVERSATIONS,
    PHOTO,
    PIXEL,
    require_reply,
)
from tests.support.vendors.responses_server import KEY, answer_call
from tests.support.vendors.vendor_exchange import VendorExchange

PROFILE = VendorProfile(max_output=8000, modalities=("text", "image"), reasoning=True)
MODEL = VendorModel("gpt-m", "open", PROFILE, passes_addresses=True)
USAGE = Usage(125, 40, 100, 15, UsageSource.REPORTED, cache_write_tokens=5)

# The API has no stop texts.
NAMES = [name for name in BY_NAME if name != "a withheld answer"]
NAMES += ["a detailed image", "scores", "an object", "some tools"]
MODES = pytest.mark.parametrize("is_buffered", [False, True], ids=["streamed", "buffered"])


def open_exchange(model: VendorModel = MODEL) -> VendorExchange:
    return VendorExchange(ResponsesUpstream(), answer_call, model, KEY, "/v1")


@MODES
@pytest.mark.parametrize("name", NAMES)
async def test_a_conversation_keeps_its_meaning(name: str, is_buffered: bool):
    conversation = ALL_BY_NAME[name]
    done = await open_exchange().run(conversation, is_buffered)
    assert len(done) == len(conversation.turns)
    for turn, (request, answer) in zip(conversation.turns, done, strict=True):
        require_reply(answer.choices[0], turn.reply, request)
        assert answer.usage == USAGE


async def test_streamed_and_buffered_answers_are_equal():
    for name in NAMES:
        streamed = await open_exchange().run(ALL_BY_NAME[name], is_buffered=False)
        buffered = await open_exchange().run(ALL_BY_NAME[name], is_buffered=True)
        assert [answer for _, answer in streamed] == [answer for _, answer in buffered]
    assert len(NAMES) > len(CONVERSATIONS)


def read_body(exchange: VendorExchange) -> Any:
    return json.loads(exchange.calls[-1].body)


@MODES
async def test_sealed_reasoning_goes_back_to_its_place(is_buffered: bool):
    exchange = open_exchange()
    done = await exchange.run(BY_NAME["reasoning between calls"], is_buffered)
    body = read_body(exchange)
    kinds = [item.get("role") or item["type"] for item in body["input"]]
    assert kinds == [
        "user", "reasoning", "function_call", "function_call_output",
        "reasoning", "assistant", "function_call", "function_call", "function_call_output",
        "function_call_output", "reasoning", "function_call", "function_call_output",
    ]  # fmt: skip
    sealed = [item["encrypted_content"] for item in body["input"] if item["type"] == "reasoning"]
    blocks = [answer.choices[0].thinking_blocks[0] for _, answer in done]
    assert sealed == [block["encrypted_content"] for block in blocks[:-1]]
    assert (body["store"], body["include"]) == (False, ["reasoning.encrypted_content"])
    assert body["reasoning"] == {"effort": "high", "summary": "auto"}


async def test_another_provider_does_not_get_the_sealed_reasoning():
    """It cannot open it, and would refuse the request: a route to it must still work."""
    conversation = BY_NAME["reasoning"]
    ((_, answer), _) = await open_exchange().run(conversation, is_buffered=True)
    request = conversation.build_request(1, [answer.choices[0]])
    for provider, items in (("open", 1), ("azure", 0)):
        call = ResponsesUpstream().encode(request, replace(MODEL, provider=provider), NO_ATTRIBUTES)
        sent = json.loads(call.body)["input"]
        assert sum(item["type"] == "reasoning" for item in sent) == items
        assert ("messages[].thinking_blocks" in call.ignored) is (items == 0)


async def test_hidden_reasoning_has_no_summary_and_stays_usable():
    exchange = open_exchange()
    ((_, answer),) = await exchange.run(ALL_BY_NAME["hidden reasoning"], is_buffered=False)
    (block,) = answer.choices[0].thinking_blocks
    assert read_body(exchange)["reasoning"] == {"effort": "high"}
    assert "summary" not in block and block["encrypted_content"]
    assert answer.choices[0].reasoning == ""


async def test_an_organization_without_summaries_is_not_asked_for_them():
    exchange = open_exchange(replace(MODEL, refused_parameters=frozenset({"reasoning.summary"})))
    await exchange.run(BY_NAME["reasoning"], is_buffered=True)
    assert read_body(exchange)["reasoning"] == {"effort": "high"}


async def test_a_model_that_does_not_reason_is_asked_for_no_reasoning():
    exchange = open_exchange(replace(MODEL, name="plain", profile=replace(PROFILE, reasoning=False)))
    for name in ("a chat", "parallel calls"):
        await exchange.run(BY_NAME[name], is_buffered=False)
    assert not read_body(exchange).keys() & {"reasoning", "include"}


async def test_images_arrive_in_results_and_as_addresses():
    exchange = open_exchange()
    await exchange.run(BY_NAME["results with images"], is_buffered=False)
    output = read_body(exchange)["input"][-2]["output"]
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"}
    assert output == [{"type": "input_text", "text": "taken"}, image]
    await exchange.run(BY_NAME["an address of an image"], is_buffered=False)
    assert read_body(exchange)["input"][0]["content"][-1] == image | {"image_url": PHOTO}
