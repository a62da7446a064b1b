"""The load generator: several connections, each of which sends one request after the other. Prints JSON.

    python -m benchmarks.gateway_sides.load PORT KEY MODEL CONNECTIONS SECONDS (buffered|streamed|paced)

Every answer is checked: status 200, and of a stream every chunk and `[DONE]`. Times are in milliseconds.
"""

import asyncio
import json
import re
import statistics
import sys
import time
from dataclasses import dataclass, field

import uvloop

from benchmarks.gateway_sides.upstream import CHUNKS, PACE, PACED_CHUNKS, TEXT

PROMPT = "Tell me a story about a fox and a hen, and let it end well. " * 5
STAMP = re.compile(rb"t(\d+)e\"")
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
CONTENT = re.compile(rb'"content": ?"' + TEXT.encode())


@dataclass
class LoadTimes:
    """The times of all requests, in milliseconds."""

    times: list[float] = field(default_factory=list)
    """The times from a request to the end of its answer."""
    firsts: list[float] = field(default_factory=list)
    """The times from the upstream's write of a stream's first chunk to its arrival."""
    delays: list[float] = field(default_factory=list)
    """The same times of every chunk."""


def build_request(key: str, model: str, stream: bool) -> bytes:
    """Builds the bytes of one HTTP request."""
    fields: dict[str, object] = {"model": model, "temperature": 0.7, "max_tokens": 64}
    fields["messages"] = [{"role": "user", "content": PROMPT}]
    if stream:
        fields["stream"] = True
    body = json.dumps(fields).encode()
    head = [
        "POST /v1/chat/completions HTTP/1.1",
        "host: 127.0.0.1",
        f"authorization: Bearer {key}",
        "accept: */*",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "user-agent: benchmark",
        "",
        "",
    ]
    return "\r\n".join(head).encode() + body


class Caller(asyncio.Protocol):
    """One connection."""

    def __init__(self, request: bytes, load_kind: str, deadline: float, times: LoadTimes) -> None:
        self._request = request
        self._load_kind = load_kind
        self._deadline = deadline
        self._times = times
        self._received = bytearray()
        self._is_first = True
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._send_request()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_exception(RuntimeError(f"the connection broke after {bytes(self._received)!r}"))

    def data_received(self, data: bytes) -> None:
        if self._load_kind == "paced":
            self._note_stamps(data)
        received = self._received
        received += data
        if not self._is_complete():
            return
        now = time.perf_counter()
        try:
            self._require_valid_answer()
        except ValueError as error:
            self.closed.set_exception(error)
            self._transport.close()
            return
        self._times.times.append((now - self._sent) * 1000)
        received.clear()
        if now < self._deadline:
            self._send_request()
        else:
            self.closed.set_result(None)
            self._transport.close()

    def _send_request(self) -> None:
        self._is_first = True
        self._sent = time.perf_counter()
        self._transport.write(self._request)

    def _note_stamps(self, data: bytes) -> None:
        """Notes how long ago the upstream wrote these chunks."""
        now = time.monotonic_ns()
        for stamp in STAMP.findall(data):
            delay = (now - int(stamp)) / 1e6
            self._times.delays.append(delay)
            if self._is_first:
                self._is_first = False
                self._times.firsts.append(delay)

    def _is_complete(self) -> bool:
        if self._received.endswith(b"0\r\n\r\n"):
            return True
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = LENGTH.search(head) if end else None
        return length is not None and len(body) >= int(length[1])

    def _require_valid_answer(self) -> None:
        """Raises ValueError if the answer is not complete and correct."""
        received = self._received
        is_right = received.startswith(b"HTTP/1.1 200")
        if self._load_kind == "streamed":
            is_right = is_right and b"[DONE]" in received and len(CONTENT.findall(received)) == CHUNKS
        elif self._load_kind == "paced":
            is_right = is_right and b"[DONE]" in received and len(STAMP.findall(received)) == PACED_CHUNKS
        else:
            is_right = is_right and TEXT.encode() * CHUNKS in received
        if not is_right:
            raise ValueError(f"unexpected answer: {bytes(received)!r}")


async def run_load(
    port: int, request: bytes, kind: str, connections: int, seconds: float
) -> dict[str, float]:
    """Sends requests for `seconds`, and returns the results."""
    loop, times, callers = asyncio.get_running_loop(), LoadTimes(), []
    began = time.perf_counter()
    for _ in range(connections):
        _, caller = await loop.create_connection(
            lambda: Caller(request, kind, began + seconds, times), "127.0.0.1", port
        )
        callers.append(caller)
        if kind == "paced":
            # The streams begin at different times, so their chunks do too.
            await asyncio.sleep(PACE * PACED_CHUNKS / connections)
    await asyncio.gather(*(caller.closed for caller in callers))
    elapsed = time.perf_counter() - began
    figures = {"requests": len(times.times), "rate": len(times.times) / elapsed, "chunks": len(times.delays)}
    for name, values in (("", times.times), ("first_", times.firsts), ("chunk_", times.delays)):
        if values:
            values.sort()
            figures[f"{name}p50"] = statistics.median(values)
            figures[f"{name}p99"] = values[len(values) * 99 // 100]
    return figures


def main(port: str, key: str, model: str, connections: str, seconds: str, kind: str) -> None:
    request = build_request(key, model, kind != "buffered")
    print(json.dumps(uvloop.run(run_load(int(port), request, kind, int(connections), float(seconds)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
