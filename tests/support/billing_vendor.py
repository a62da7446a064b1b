"""A vendor of OpenAI's format on loopback that bills more than it shows. The model's name chooses the answer.

- `late` shows two words and the finish, and tells its usage a moment later, also when nobody reads any more.
- `silent` answers nothing, until its client leaves.
- `one` shows one word and then nothing, until its client leaves.
- `whole` sends a whole answer of 200 words at once.
- `huge` tells a usage that cannot be true.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

USAGE = {"prompt_tokens": 1_000, "completion_tokens": 2_000, "total_tokens": 3_000}
HUGE = {"prompt_tokens": 2**31, "completion_tokens": 2**31, "total_tokens": 2**32}

PAUSE_S = 0.1
"""Seconds between the finish and the usage."""


@dataclass
class BillingVendor:
    """`url`: its address. `requests`: how many came. `left`: how many clients left a silent answer."""

    url: str = ""
    requests: int = 0
    left: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one request."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            self.requests += 1
            await self._answer(body["model"], bool(body.get("stream")), reader, writer)
        writer.close()

    async def _answer(
        self, model: str, is_streamed: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if model == "whole":
            words = [build_chunk({"content": "word "}) for _ in range(200)]
            end = build_event({"choices": [], "usage": USAGE}) + b"data: [DONE]\n\n"
            content = b"".join(words) + build_chunk({}, "stop") + end
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
            writer.write(head % len(content) + content)
            return
        if is_streamed:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        if is_streamed and model != "silent":
            writer.write(build_chunk({"role": "assistant", "content": "word "}))
        if model in ("silent", "one"):
            await reader.read(1)
            self.left += 1
            return
        usage = HUGE if model == "huge" else USAGE
        if not is_streamed:
            message = {"role": "assistant", "content": "word word"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            content = json.dumps({"id": "a", "choices": [choice], "usage": usage}).encode()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            writer.write(head % len(content) + content)
            return
        writer.write(build_chunk({"content": "word"}) + build_chunk({}, "stop"))
        await writer.drain()
        await asyncio.sleep(PAUSE_S)
        writer.write(build_event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")


def build_event(content: object) -> bytes:
    return b"data: %b\n\n" % json.dumps(content).encode()


def build_chunk(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return build_event({"id": "c", "object": "chat.completion.chunk", "choices": [choice]})


@contextmanager
def serve_billing_vendor() -> Iterator[BillingVendor]:
    """Serves in a thread until the end of the block."""
    vendor, ready, over = BillingVendor(), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        server = await asyncio.start_server(vendor.handle, "127.0.0.1", 0)
        vendor.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        async with server:
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    ready.wait(60)
    try:
        yield vendor
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(60)
        loop.close()
