"""One HTTP client for both servers. It requests streamed text completions, and records the time of each chunk
and the usage.

It sends the same bytes to both servers. It parses the answer only after the stream's end, so that the client
takes little CPU time during the measurement.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LAST = b"0\r\n\r\n"
"""The end of a chunked body."""

CONTENT = b'"text":"'
"""The field of a completion's chunk with text, as both servers write it."""


@dataclass(frozen=True)
class StreamResult:
    """The result of one stream. Times are of the performance counter, in seconds."""

    began: float
    times: tuple[float, ...]
    """The arrival time of each chunk with text. A chunk is one token, or several that make one character."""
    prompt_tokens: int
    tokens: int
    """Completion tokens by the server's usage, or the number of chunks if the stream was closed early."""

    @property
    def first(self) -> float:
        """Seconds from the request to the first token."""
        return self.times[0] - self.began

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """The end time and the seconds of each wait between two chunks."""
        return [
            (current, current - previous)
            for previous, current in zip(self.times, self.times[1:], strict=False)
        ]


class StreamRequest(asyncio.Protocol):
    """One request on its own connection, and the received bytes."""

    def __init__(self, request: bytes) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.first_text: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set at the first text, or at the end of the stream."""
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
        if not self.first_text.done() and CONTENT in data:
            self.first_text.set_result(None)
        if self._tail == LAST:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.first_text, self.closed):
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Closes the connection."""
        if self._transport is not None:
            self._transport.abort()

    def read(self, must_be_complete: bool = True) -> StreamResult:
        """Parses the received bytes. Raises RuntimeError with the answer if it is not a stream, or, with
        `must_be_complete`, if the stream has no usage."""
        times, usage, incomplete_line, received_at = [], None, b"", self._began
        for received_at, piece in self._pieces:
            *lines, incomplete_line = (incomplete_line + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    chunk = json.loads(line[len(b"data: ") :])
                    usage = chunk.get("usage") or usage
                    times += [received_at] * any(map(has_text, chunk.get("choices", ())))
        if usage is None and (must_be_complete or not times):
            answer = b"".join(piece for _, piece in self._pieces)
            raise RuntimeError(answer[-2000:].decode("utf-8", "replace") or "the connection was closed")
        counts = usage or {"prompt_tokens": 0, "completion_tokens": len(times)}
        return StreamResult(
            self._began, tuple(times) or (received_at,), counts["prompt_tokens"], counts["completion_tokens"]
        )


def has_text(choice: Mapping[str, Any]) -> bool:
    return bool(choice.get("text") or choice.get("delta", {}).get("content"))


async def send_request(
    port: int, model: str, prompt: Sequence[int] | str, tokens: int, fields: Mapping[str, object]
) -> StreamRequest:
    """Sends one request for a streamed completion of token ids or a text; with `messages` among the fields,
    for a streamed chat."""
    body = {"model": model, "max_tokens": tokens, "stream": True}
    body |= {"stream_options": {"include_usage": True}} | dict(fields)
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    if "messages" not in fields:
        body["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
    request = build_request(path, json.dumps(body).encode())
    _, stream_request = await asyncio.get_running_loop().create_connection(
        lambda: StreamRequest(request), "127.0.0.1", port
    )
    return stream_request


def build_request(path: str, body: bytes) -> bytes:
    head = [
        f"POST {path} HTTP/1.1",
        "host: 127.0.0.1",
        "accept: text/event-stream",
        "connection: close",
    ]
    head += ["content-type: application/json", f"content-length: {len(body)}", "", ""]
    return "\r\n".join(head).encode() + body
