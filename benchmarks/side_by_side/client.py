"""One HTTP client for both servers: a streamed text completion, timed by chunk, counted by its usage.

It writes the same bytes to either and keeps what comes with the time at which it came; nothing is parsed
before the stream is over, so that the client takes next to nothing of the machine that it measures.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LAST = b"0\r\n\r\n"
"""Ends a chunked body."""

CONTENT = b'"text":"'
"""Of a chunk with a choice, as both servers write it."""


@dataclass(frozen=True)
class Streamed:
    """What one stream brought; times are of the performance counter, in seconds."""

    began: float
    times: tuple[float, ...]
    """When each chunk with text came. A chunk is a token, or several that make one character."""
    prompt_tokens: int
    tokens: int
    """Completion tokens, by the server's own usage; of a stream that was left, its chunks."""

    @property
    def first(self) -> float:
        """Seconds from the request to the first token."""
        return self.times[0] - self.began

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """(when it ended, seconds) of each wait between two chunks."""
        return [(after, after - before) for before, after in zip(self.times, self.times[1:], strict=False)]


class Exchange(asyncio.Protocol):
    """One request, and whatever comes back."""

    def __init__(self, request: bytes) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.speaking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done with the first text, or with the end."""
        self._pieces: list[tuple[float, bytes]] = []
        self._began = 0.0
        self._request = request
        self._tail = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._began = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._pieces.append((time.perf_counter(), data))
        self._tail = (self._tail + data)[-len(LAST) :]
        if not self.speaking.done() and CONTENT in data:
            self.speaking.set_result(None)
        if self._tail == LAST:
            self.leave()

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.speaking, self.over):
            if not future.done():
                future.set_result(None)

    def leave(self) -> None:
        """Closes the connection, at the end or before."""
        if self._transport is not None:
            self._transport.abort()

    def read(self, whole: bool = True) -> Streamed:
        """Takes apart what came. Raises RuntimeError with the answer when it is no stream, or not `whole`."""
        times, usage, pending, when = [], None, b"", self._began
        for when, piece in self._pieces:
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    chunk = json.loads(line[len(b"data: ") :])
                    usage = chunk.get("usage") or usage
                    times += [when] * any(one.get("text") for one in chunk.get("choices", ()))
        if usage is None and (whole or not times):
            answer = b"".join(piece for _, piece in self._pieces)
            raise RuntimeError(answer[-2000:].decode("utf-8", "replace") or "the connection was closed")
        counts = usage or {"prompt_tokens": 0, "completion_tokens": len(times)}
        return Streamed(
            self._began, tuple(times) or (when,), counts["prompt_tokens"], counts["completion_tokens"]
        )


async def ask(
    port: int, model: str, prompt: Sequence[int], tokens: int, fields: Mapping[str, object]
) -> Exchange:
    """Sends one request for a streamed completion of token ids."""
    body = {"model": model, "prompt": list(prompt), "max_tokens": tokens, "stream": True}
    body |= {"stream_options": {"include_usage": True}} | dict(fields)
    request = _request(json.dumps(body).encode())
    _, exchange = await asyncio.get_running_loop().create_connection(
        lambda: Exchange(request), "127.0.0.1", port
    )
    return exchange


def _request(body: bytes) -> bytes:
    head = [
        "POST /v1/completions HTTP/1.1",
        "host: 127.0.0.1",
        "accept: text/event-stream",
        "connection: close",
    ]
    head += ["content-type: application/json", f"content-length: {len(body)}", "", ""]
    return "\r\n".join(head).encode() + body
