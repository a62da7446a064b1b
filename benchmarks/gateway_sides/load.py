"""The load: so many connections, each asking for one thing after the other. Prints its figures as JSON.

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
class Seen:
    """What all connections saw."""

    times: list[float] = field(default_factory=list)
    """From request to the end of the answer."""
    firsts: list[float] = field(default_factory=list)
    """From the upstream's write of a stream's first chunk to its arrival."""
    delays: list[float] = field(default_factory=list)
    """The same of every chunk."""


def build_request(key: str, model: str, stream: bool) -> bytes:
    """One request as it goes over the wire."""
    asked: dict[str, object] = {"model": model, "temperature": 0.7, "max_tokens": 64}
    asked["messages"] = [{"role": "user", "content": PROMPT}]
    if stream:
        asked["stream"] = True
    body = json.dumps(asked).encode()
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

    def __init__(self, request: bytes, kind: str, until: float, seen: Seen) -> None:
        self._request = request
        self._kind = kind
        self._until = until
        self._seen = seen
        self._got = bytearray()
        self._is_first = True
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(RuntimeError(f"the connection broke after {bytes(self._got)!r}"))

    def data_received(self, data: bytes) -> None:
        if self._kind == "paced":
            self._note_stamps(data)
        got = self._got
        got += data
        if not self._is_whole():
            return
        now = time.perf_counter()
        try:
            self._require_right()
        except ValueError as wrong:
            self.over.set_exception(wrong)
            self._transport.close()
            return
        self._seen.times.append((now - self._sent) * 1000)
        got.clear()
        if now < self._until:
            self._ask()
        else:
            self.over.set_result(None)
            self._transport.close()

    def _ask(self) -> None:
        self._is_first = True
        self._sent = time.perf_counter()
        self._transport.write(self._request)

    def _note_stamps(self, data: bytes) -> None:
        """Notes how long ago the upstream wrote these chunks."""
        now = time.monotonic_ns()
        for stamp in STAMP.findall(data):
            delay = (now - int(stamp)) / 1e6
            self._seen.delays.append(delay)
            if self._is_first:
                self._is_first = False
                self._seen.firsts.append(delay)

    def _is_whole(self) -> bool:
        if self._got.endswith(b"0\r\n\r\n"):
            return True
        head, end, body = self._got.partition(b"\r\n\r\n")
        length = LENGTH.search(head) if end else None
        return length is not None and len(body) >= int(length[1])

    def _require_right(self) -> None:
        """Raises ValueError for an answer that is not what was asked for."""
        got = self._got
        right = got.startswith(b"HTTP/1.1 200")
        if self._kind == "streamed":
            right = right and b"[DONE]" in got and len(CONTENT.findall(got)) == CHUNKS
        elif self._kind == "paced":
            right = right and b"[DONE]" in got and len(STAMP.findall(got)) == PACED_CHUNKS
        else:
            right = right and TEXT.encode() * CHUNKS in got
        if not right:
            raise ValueError(f"not what was asked for: {bytes(got)!r}")


async def ask(port: int, request: bytes, kind: str, connections: int, seconds: float) -> dict[str, float]:
    """Asks for so long, and returns the figures."""
    loop, seen, callers = asyncio.get_running_loop(), Seen(), []
    began = time.perf_counter()
    for _ in range(connections):
        _, caller = await loop.create_connection(
            lambda: Caller(request, kind, began + seconds, seen), "127.0.0.1", port
        )
        callers.append(caller)
        if kind == "paced":
            # Streams neither tick nor begin together.
            await asyncio.sleep(PACE * PACED_CHUNKS / connections)
    await asyncio.gather(*(caller.over for caller in callers))
    taken = time.perf_counter() - began
    found = {"requests": len(seen.times), "rate": len(seen.times) / taken, "chunks": len(seen.delays)}
    for name, values in (("", seen.times), ("first_", seen.firsts), ("chunk_", seen.delays)):
        if values:
            values.sort()
            found[f"{name}p50"] = statistics.median(values)
            found[f"{name}p99"] = values[len(values) * 99 // 100]
    return found


def main(port: str, key: str, model: str, connections: str, seconds: str, kind: str) -> None:
    request = build_request(key, model, kind != "buffered")
    print(json.dumps(uvloop.run(ask(int(port), request, kind, int(connections), float(seconds)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
