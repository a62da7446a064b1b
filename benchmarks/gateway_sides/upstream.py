"""A fake vendor: a bare protocol that writes fixed bytes in OpenAI's format.

    python -m benchmarks.gateway_sides.upstream PORT

A buffered answer is one write. So is a stream: 20 chunks, the finish, the usage and `[DONE]`, each in an
HTTP chunk of its own. The model `paced` streams instead one chunk every 20 ms, and each has in it the
nanosecond of the monotonic clock at which it was written. The model `held` answers after a second.
"""

import asyncio
import re
import sys
import time

import uvloop

CHUNKS = 20
"""The number of chunks of a stream that is sent at once."""
PACED_CHUNKS = 50
"""The number of chunks of a paced stream."""
PACE = 0.02
"""Seconds between two of them."""
HOLD = 1.0
"""Seconds after which the model `held` answers."""
TEXT = " antiphon"

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
STREAMED = re.compile(rb'"stream": ?true')
PACED = re.compile(rb'"model": ?"paced"')
HELD = re.compile(rb'"model": ?"held"')

USAGE = b'"usage":{"prompt_tokens":60,"completion_tokens":20,"total_tokens":80}'
NAMES = b'"id":"chatcmpl-1","created":1790000000,"model":"fake"'
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"


def build_chunk(choices: bytes, more: bytes = b"") -> bytes:
    """Builds one event in one HTTP chunk."""
    event = b'data: {%b,"object":"chat.completion.chunk","choices":[%b]%b}\n\n' % (NAMES, choices, more)
    return frame(event)


def frame(event: bytes) -> bytes:
    """Wraps bytes in one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(event), event)


def build_text(text: str) -> bytes:
    """Builds a chunk of text."""
    return build_chunk(b'{"index":0,"delta":{"content":"%b"},"finish_reason":null}' % text.encode())


def build_json(body: bytes) -> bytes:
    """Builds a complete HTTP answer."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


OPENING = build_chunk(b'{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}')
CLOSING = (
    build_chunk(b'{"index":0,"delta":{},"finish_reason":"stop"}')
    + build_chunk(b"", b"," + USAGE)
    + frame(b"data: [DONE]\n\n")
    + END
)
BUFFERED = build_json(
    b'{%b,"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"%b"},'
    b'"finish_reason":"stop"}],%b}' % (NAMES, (TEXT * CHUNKS).encode(), USAGE)
)
AT_ONCE = STREAM_HEAD + OPENING + build_text(TEXT) * CHUNKS + CLOSING
OTHERS = build_json(b'{"object":"list","data":[{"id":"fake","object":"model"}]}')
"""The answer to requests without a body: health, models."""


class Upstream(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._received = b""
        self._chunks_left = 0
        self._loop = asyncio.get_running_loop()
        self._next_chunk_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        head, end, body = received.partition(b"\r\n\r\n")
        length = LENGTH.search(head) if end else None
        if not end or (length and len(body) < int(length[1])):
            self._received = received
            return
        self._received = b""
        if length is None:
            self._transport.write(OTHERS)
        elif HELD.search(body):
            self._loop.call_later(HOLD, self._transport.write, BUFFERED)
        elif not STREAMED.search(body):
            self._transport.write(BUFFERED)
        elif PACED.search(body):
            self._transport.write(STREAM_HEAD + OPENING)
            self._chunks_left = PACED_CHUNKS
            self._next_chunk_at = self._loop.time() + PACE
            self._loop.call_at(self._next_chunk_at, self._tick)
        else:
            self._transport.write(AT_ONCE)

    def _tick(self) -> None:
        """Writes the next chunk of a paced stream."""
        if self._transport.is_closing():
            return
        if self._chunks_left == 0:
            self._transport.write(CLOSING)
            return
        self._chunks_left -= 1
        self._transport.write(build_text(f"t{time.monotonic_ns()}e"))
        self._next_chunk_at += PACE
        self._loop.call_at(self._next_chunk_at, self._tick)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
