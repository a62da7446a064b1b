"""Clients at this server, whose model is OpenAI's behind its Responses API: the whole way there and back."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from antiphon.engines.vendors.base import VendorModel
from antiphon.engines.vendors.profiles import VendorProfile
from antiphon.engines.vendors.responses.dialect import ResponsesUpstream
from tests.support.vendors.conversations import BY_NAME, PIXEL
from tests.support.vendors.responses_server import KEY, REFUSAL, STATUSES, answer_call
from tests.support.vendors.vendor_gateway import connect_client
from tests.support.vendors.vendor_http import VendorServer, serve_vendor

PROFILE = VendorProfile(max_output=8000, modalities=("text", "image"), reasoning=True)
FAILING = [f"{point}-{code}" for point in ("error", "break") for code in STATUSES]
MODELS = [VendorModel(name, "open", PROFILE) for name in ("gpt-m", "cut", "refusing", *FAILING)]
MODES = pytest.mark.parametrize("stream", [False, True], ids=["buffered", "streamed"])
CONVERSATION = BY_NAME["reasoning between calls"]
TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}}
    for name in ("weather", "clock", "camera")
]
CHAT_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": tool["name"], "parameters": tool["parameters"]}}
    for tool in TOOLS
]
DATA = f"data:image/png;base64,{PIXEL}"


@pytest.fixture(scope="module")
def vendor() -> Iterator[VendorServer]:
    with serve_vendor(answer_call) as server:
        yield server


@asynccontextmanager
async def connect(vendor: VendorServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with connect_client(ResponsesUpstream(), f"{vendor.url}/v1", KEY, MODELS) as client:
        yield client


async def chat(client: openai.AsyncOpenAI, stream: bool, model: str = "gpt-m", **fields: Any) -> Any:
    """The message of one chat; of a stream, as the client puts it together."""
    fields.setdefault("messages", [{"role": "user", "content": "[a chat] Hi."}])
    if not stream:
        answer = await client.chat.completions.create(model=model, **fields)
        return answer.choices[0].message
    async with client.chat.completions.stream(model=model, **fields) as events:
        final = await events.get_final_completion()
        return final.choices[0].message


@MODES
async def test_sealed_reasoning_survives_the_tool_turns_of_a_chat(vendor: VendorServer, stream: bool):
    image = {"type": "image_url", "image_url": {"url": DATA}}
    results: list[Any] = ["9:00", "sun", "snow", [{"type": "text", "text": "Here."}, image]]
    messages: list[Any] = [{"role": "user", "content": f"[{CONVERSATION.name}] Plan my day."}]
    texts = []
    async with connect(vendor) as client:
        for _ in CONVERSATION.turns:
            message = await chat(client, stream, messages=messages, tools=CHAT_TOOLS, reasoning_effort="high")
            texts.append((message.content or "", message.model_extra["reasoning_content"]))
            messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": results.pop(0)}
                for call in message.tool_calls or ()
            ]
    assert texts == [(turn.reply.text, turn.reply.reasoning) for turn in CONVERSATION.turns]
    assert vendor.calls[-1].path == "/v1/responses"


async def respond(client: openai.AsyncOpenAI, stream: bool, **fields: Any) -> Any:
    if not stream:
        return await client.responses.create(model="gpt-m", **fields)
    async with client.responses.stream(model="gpt-m", **fields) as events:
        return await events.get_final_response()


@MODES
@pytest.mark.parametrize("kept_by", ["client", "server"])
async def test_sealed_reasoning_survives_the_tool_turns_of_responses(
    vendor: VendorServer, kept_by: str, stream: bool
):
    image = {"type": "input_image", "image_url": DATA, "detail": "auto"}
    results: list[Any] = ["9:00", "sun", "snow", [{"type": "input_text", "text": "Here."}, image]]
    items: list[Any] = [{"role": "user", "content": f"[{CONVERSATION.name}] Plan my day."}]
    fields: dict[str, Any] = {"tools": TOOLS, "reasoning": {"effort": "high", "summary": "auto"}}
    if kept_by == "client":
        fields |= {"store": False, "include": ["reasoning.encrypted_content"]}
    texts = []
    async with connect(vendor) as client:
        for _ in CONVERSATION.turns:
            response = await respond(client, stream, input=items, **fields)
            thoughts = [item for item in response.output if item.type == "reasoning"]
            texts.append(
                (response.output_text, "".join(part.text for item in thoughts for part in item.summary))
            )
            if kept_by == "client":
                items += [item.model_dump(exclude_none=True) for item in response.output]
            else:
                items, fields = [], fields | {"previous_response_id": response.id}
            items += [
                {"type": "function_call_output", "call_id": item.call_id, "output": results.pop(0)}
                for item in response.output
                if item.type == "function_call"
            ]
    assert texts == [(turn.reply.text, turn.reply.reasoning) for turn in CONVERSATION.turns]
    assert response.usage.output_tokens_details.reasoning_tokens == 15
    assert (response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens) == (125, 100)


@MODES
async def test_a_refusal_stays_one(vendor: VendorServer, stream: bool):
    async with connect(vendor) as client:
        message = await chat(client, stream, "refusing")
    assert (message.refusal, message.content or None) == (REFUSAL, None)


@MODES
@pytest.mark.parametrize(
    ("code", "status", "found"),
    [
        ("server_overloaded", 503, "provider_unavailable"),
        ("rate_limit_exceeded", 429, "provider_rate_limited"),
        ("context_length_exceeded", 400, "context_length_exceeded"),
        ("server_error", 502, "provider_failed"),
        ("invalid_api_key", 502, "provider_key_refused"),
        ("model_not_found", 404, "provider_model_not_found"),
    ],
)
async def test_an_error_keeps_its_meaning(
    vendor: VendorServer, code: str, status: int, found: str, stream: bool
):
    async with connect(vendor) as client:
        with pytest.raises(openai.APIStatusError) as refused:
            await chat(client, stream, f"error-{code}")
    assert (refused.value.status_code, refused.value.code) == (status, found)


async def read_unfinished(stream: Any) -> None:
    """Reads a stream, which must not finish."""
    async for chunk in stream:
        assert all(choice.finish_reason is None for choice in chunk.choices)


@pytest.mark.parametrize("model", ["break-server_error", "break-rate_limit_exceeded", "cut"])
async def test_a_broken_stream_never_looks_finished(vendor: VendorServer, model: str):
    messages: Any = [{"role": "user", "content": "[a chat] Hi."}]
    async with connect(vendor) as client:
        stream = await client.chat.completions.create(model=model, messages=messages, stream=True)
        with pytest.raises(openai.APIError, match="stream of the provider open broke"):
            await read_unfinished(stream)


async def test_a_field_that_the_api_lacks_is_refused(vendor: VendorServer):
    before = len(vendor.calls)
    async with connect(vendor) as client:
        fields: dict[str, Any] = {"seed": 3, "stop": ["END"], "n": 2, "frequency_penalty": 1.0}
        for name, value in fields.items():
            with pytest.raises(openai.BadRequestError) as refused:
                await chat(client, False, **{name: value})
            assert refused.value.param == name
    assert len(vendor.calls) == before
