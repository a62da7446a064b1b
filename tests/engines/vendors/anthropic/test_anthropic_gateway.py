"""The openai client at this server, whose model is Anthropic's: the whole way there and back."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from antiphon.engines.vendors.anthropic.dialect import AnthropicUpstream
from antiphon.engines.vendors.base import VendorModel
from antiphon.engines.vendors.profiles import VendorProfile
from tests.support.vendors.anthropic_server import KEY, answer_call, sign
from tests.support.vendors.conversations import BY_NAME, PIXEL
from tests.support.vendors.vendor_gateway import connect_client
from tests.support.vendors.vendor_http import VendorServer, serve_vendor

PROFILE = VendorProfile(max_output=8000, modalities=("text", "image"), reasoning=True)
MODELS = ("claude-m", "error-overloaded_error", "error-rate_limit_error", "break-overloaded_error", "cut")

TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("weather", "clock", "camera")
]


@pytest.fixture(scope="module")
def vendor() -> Iterator[VendorServer]:
    with serve_vendor(answer_call) as server:
        yield server


@asynccontextmanager
async def connect(vendor: VendorServer) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a server whose models are the vendor's."""
    models = [VendorModel(name, "anthropic", PROFILE) for name in MODELS]
    async with connect_client(AnthropicUpstream(), f"{vendor.url}/v1", KEY, models) as client:
        yield client


async def ask(client: openai.AsyncOpenAI, stream: bool, model: str = "claude-m", **fields: Any) -> Any:
    """The message of one call; of a stream, as the client puts it together."""
    if not stream:
        answer = await client.chat.completions.create(model=model, **fields)
        return answer.choices[0].message
    async with client.chat.completions.stream(model=model, **fields) as events:
        final = await events.get_final_completion()
        return final.choices[0].message


@pytest.mark.parametrize("stream", [False, True], ids=["buffered", "streamed"])
async def test_signed_reasoning_survives_tool_turns(vendor: VendorServer, stream: bool):
    conversation = BY_NAME["reasoning between calls"]
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    results: list[Any] = ["9:00", "sun", "snow", [{"type": "text", "text": "Here."}, image]]
    messages: list[Any] = [{"role": "user", "content": f"[{conversation.name}] Plan my day."}]
    texts = []
    async with connect(vendor) as client:
        for _ in conversation.turns:
            message = await ask(client, stream, messages=messages, tools=TOOLS, reasoning_effort="high")
            texts.append((message.content or "", message.model_extra["reasoning_content"]))
            messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": results.pop(0)}
                for call in message.tool_calls or ()
            ]
    assert texts == [(turn.reply.text, turn.reply.reasoning) for turn in conversation.turns]
    last = vendor.calls[-1]
    blocks = [block for message in json.loads(last.body)["messages"] for block in message["content"]]
    signatures = [block["signature"] for block in blocks if block["type"] == "thinking"]
    assert signatures == [sign(turn.reply.reasoning) for turn in conversation.turns[:-1]]
    assert last.headers["anthropic-version"] == "2023-06-01"
    assert last.headers["x-api-key"] == KEY


@pytest.mark.parametrize("stream", [False, True], ids=["buffered", "streamed"])
@pytest.mark.parametrize(
    ("model", "status", "retry_after"),
    [("error-overloaded_error", 503, "1"), ("error-rate_limit_error", 429, "7")],
)
async def test_an_error_keeps_its_status(
    vendor: VendorServer, model: str, status: int, retry_after: str, stream: bool
):
    async with connect(vendor) as client:
        with pytest.raises(openai.APIStatusError) as refused:
            await ask(client, stream, model, messages=[{"role": "user", "content": "[a chat] Hi."}])
    assert refused.value.status_code == status
    assert refused.value.response.headers["retry-after"] == retry_after


async def read_texts(client: openai.AsyncOpenAI, model: str, texts: list[str]) -> None:
    """Adds the texts of a streamed answer, which must not finish."""
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "[a chat] Hi."}], stream=True
    )
    async for chunk in stream:
        for choice in chunk.choices:
            assert choice.finish_reason is None
            texts.append(choice.delta.content or "")


@pytest.mark.parametrize("model", ["break-overloaded_error", "cut"])
async def test_a_broken_stream_never_looks_finished(vendor: VendorServer, model: str):
    texts: list[str] = []
    async with connect(vendor) as client:
        with pytest.raises(openai.APIError, match="stream of the provider anthropic broke"):
            await read_texts(client, model, texts)
    # What comes together with the failure may be answered by a status instead.
    assert "Hello there.".startswith("".join(texts))


async def test_a_field_that_the_vendor_lacks_is_refused(vendor: VendorServer):
    before = len(vendor.calls)
    async with connect(vendor) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(client, False, messages=[{"role": "user", "content": "[a chat] Hi."}], seed=3)
    assert refused.value.param == "seed"
    assert len(vendor.calls) == before
