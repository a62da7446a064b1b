"""OpenAI's own client at the same test server: it sends our requests, and reads the answers alike."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from pydantic import TypeAdapter

from antiphon.domain.collect import CollectedGeneration
from antiphon.engines.vendors.base import VendorModel
from antiphon.engines.vendors.profiles import VendorProfile
from antiphon.engines.vendors.responses.dialect import ResponsesUpstream
from tests.support.vendors.conversations import ALL_BY_NAME
from tests.support.vendors.responses_server import KEY, STATUSES, answer_call
from tests.support.vendors.vendor_exchange import VendorExchange
from tests.support.vendors.vendor_http import serve_vendor

PROFILE = VendorProfile(max_output=8000, modalities=("text", "image"), reasoning=True)
MODEL = VendorModel("gpt-m", "open", PROFILE, passes_addresses=True)
NAMES = (
    "reasoning between calls",
    "parallel calls",
    "images",
    "an address of an image",
    "structured output",
    "a cut answer",
    "a required call",
    "some tools",
    "scores",
    "an object",
)


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with (
        serve_vendor(answer_call) as vendor,
        openai.OpenAI(base_url=f"{vendor.url}/v1", api_key=KEY, max_retries=0, timeout=60) as client,
    ):
        yield client


@pytest.mark.parametrize("is_buffered", [False, True], ids=["streamed", "buffered"])
async def test_the_client_sends_our_requests_and_reads_the_same(client: openai.OpenAI, is_buffered: bool):
    shape = ResponseCreateParamsNonStreaming if is_buffered else ResponseCreateParamsStreaming
    request_type, event_type = TypeAdapter[Any](shape), TypeAdapter[Any](ResponseStreamEvent)
    exchange = VendorExchange(ResponsesUpstream(), answer_call, MODEL, KEY, "/v1")
    for name in NAMES:
        done = await exchange.run(ALL_BY_NAME[name], is_buffered)
        for call, (_, answer) in zip(exchange.calls, done, strict=True):
            body = json.loads(call.body)
            assert unpack(request_type.validate_python(body)) == body
            if is_buffered:
                made = client.responses.create(**body)
                response = Response.model_validate(made.to_dict(), strict=False)
            else:
                events = [
                    event_type.validate_python(each.to_dict()) for each in client.responses.create(**body)
                ]
                response = events[-1].response
            assert describe_response(response) == describe_answer(answer)
        exchange.calls.clear()


def unpack(value: Any) -> Any:
    """A validated value with lists in the place of iterators, which validate an item when it is read."""
    if isinstance(value, dict):
        return {name: unpack(each) for name, each in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    return [unpack(each) for each in value]


def describe_response(response: Response) -> Any:
    """What the client read."""
    usage = response.usage
    assert usage is not None
    thoughts = [item for item in response.output if item.type == "reasoning"]
    return {
        "text": response.output_text,
        "reasoning": "\n\n".join(part.text for item in thoughts for part in item.summary),
        "sealed": [item.encrypted_content for item in thoughts],
        "calls": [
            (item.call_id, item.name, item.arguments)
            for item in response.output
            if item.type == "function_call"
        ],
        "incomplete": response.incomplete_details and response.incomplete_details.reason,
        "tokens": (usage.input_tokens, usage.output_tokens, usage.output_tokens_details.reasoning_tokens),
    }


def describe_answer(answer: CollectedGeneration) -> Any:
    """What this server read."""
    (choice,), usage = answer.choices, answer.usage
    return {
        "text": choice.text,
        "reasoning": choice.reasoning,
        "sealed": [block["encrypted_content"] for block in choice.thinking_blocks],
        "calls": [(call.id, call.name, call.arguments) for call in choice.calls],
        "incomplete": "max_output_tokens" if choice.reason == "length" else None,
        "tokens": (usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens),
    }


def test_the_client_reads_the_servers_errors(client: openai.OpenAI):
    for code, status in STATUSES.items():
        with pytest.raises(openai.APIStatusError) as refused:
            client.responses.create(
                model=f"error-{code}",
                input=[{"type": "message", "role": "user", "content": "x"}],
                store=False,
            )
        assert (refused.value.status_code, refused.value.code) == (status, code)
    stream = client.responses.create(
        model="break-server_error",
        input=[{"type": "message", "role": "user", "content": "[a chat] Hi."}],
        store=False,
        stream=True,
    )
    last = [event.type for event in stream][-1]
    assert last == "response.failed"
