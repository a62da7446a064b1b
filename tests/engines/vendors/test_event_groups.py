"""The groups in which the events of a vendor's streamed answer travel: those of one network read together."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from antiphon.domain.context import Context
from antiphon.domain.events import EventGroup, Finished, Started, TextDelta, Usage
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.engines.vendors.base import VendorModel
from antiphon.engines.vendors.engine import EVENTS_PER_TURN, VendorEngine
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.profiles import VendorProfile, build_profile
from antiphon.engines.vendors.provider import Provider, ProviderOptions
from antiphon.errors import ProviderBroken

REQUEST = GenerationRequest("m", (Conversation((Message(Role.USER, "Count."),)),))
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\ndata: [DONE]\n\n'


def write(*texts: str) -> bytes:
    """The server-sent events of these texts."""
    chunks = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    return b"".join([b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks])


@asynccontextmanager
async def stream(
    parts: Sequence[bytes],
) -> AsyncIterator[tuple[AsyncIterator[EventGroup], asyncio.Semaphore]]:
    """The events of a vendor that writes each part of its answer when the semaphore is released."""
    gate = asyncio.Semaphore(0)

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            await gate.acquire()
            writer.write(part)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        options = ProviderOptions("v", url, ("Authorization", ""), allows_private=True)
        provider = Provider(options, OpenAIUpstream(), lambda: None)
        profile = build_profile(VendorProfile(), "v", "openai", frozenset())
        engine, context = VendorEngine(provider, VendorModel("m", "v"), profile), Context("r")
        try:
            async with (await engine.prepare(REQUEST, context)).stream(context) as groups:
                yield groups, gate
        finally:
            await provider.aclose()


async def test_the_events_of_one_read_are_one_group():
    parts = [HEAD + write("a"), write("b", "c"), write("d") + END + USAGE]
    async with stream(parts) as (groups, gate):
        gate.release()
        assert [type(event) for event in await anext(groups)] == [Started, TextDelta]
        gate.release()
        assert await anext(groups) == [TextDelta(0, "b"), TextDelta(0, "c")]
        gate.release()
        assert [type(event) for event in await anext(groups)] == [TextDelta, Finished, Usage]
        assert await anext(groups, None) is None


async def test_events_before_a_fault_come_before_its_error():
    async with stream([HEAD + write("a"), write("b") + b"data: {odd\n\n"]) as (groups, gate):
        gate.release()
        await anext(groups)
        gate.release()
        assert await anext(groups) == [TextDelta(0, "b")]
        with pytest.raises(ProviderBroken):
            await anext(groups)


async def test_a_large_group_comes_in_parts():
    """Other requests get their turn between two of them."""
    texts = [str(number) for number in range(3 * EVENTS_PER_TURN)]
    async with stream([HEAD + write(*texts) + END + USAGE]) as (groups, gate):
        gate.release()
        found = [group async for group in groups]
    assert max(map(len, found)) <= EVENTS_PER_TURN
    assert [event.text for group in found for event in group if isinstance(event, TextDelta)] == texts
