"""The load generator: several connections, each of which sends one request after the other.

Every answer is checked: status 200, and of a stream every chunk and `[DONE]`. Times are in milliseconds.
"""

import asyncio
import json
import re
import time
from dataclasses import dataclass, field

from benchmarks.gateway_sides.upstream import CHUNKS, PACE, PACED_CHUNKS, TEXT

PROMPT = "Tell me a story about a fox and a hen, and let it end well. " * 5
STAMP = re.compile(rb"t(\d+)e\"")
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
CONTENT = re.compile(rb'"content": ?"' + TEXT.encode())


TOKENS = 64
"""Tokens of an answer of the demo model."""
USED = re.compile(rb'"completion_tokens": ?(\d+)')

MODELS = {"paced": "paced", "held": "held", "tokens": "cantor"}
"""The model of a kind of load; `fake` for the others."""


@dataclass
class LoadTimes:
    """What some requests took, in milliseconds."""

    times: list[float] = field(default_factory=list)
    """The times from a request to the end of its answer."""
    firsts: list[float] = field(default_factory=list)
    """The times from the upstream's write of a stream's first chunk to its arrival."""
    delays: list[float] = field(default_factory=list)
    """The same times of every chunk."""
    tokens: int = 0
    """Tokens that a model made."""
    seconds: float = 0.0
    """From the first request to the end of the last answer."""

    @property
    def count(self) -> int:
        """Number of tokens, of paced chunks, or of requests."""
        return self.tokens or len(self.delays) or len(self.times)

    def add(self, other: "LoadTimes") -> None:
        self.times += other.times
        self.firsts += other.firsts
        self.delays += other.delays

    def find_quantiles(self, name: str) -> tuple[float, float]:
        """Finds the median and the 99th percentile of the times of this name."""
        values = sorted(getattr(self, name))
        return values[len(values) // 2], values[len(values) * 99 // 100]


def build_fields(kind: str) -> dict[str, object]:
    """Builds the body of a request of one kind of load, without the model."""
    fields: dict[str, object] = {"temperature": 0.7, "max_tokens": TOKENS}
    fields["messages"] = [{"role": "user", "content": PROMPT}]
    if kind in ("streamed", "paced", "tokens"):
        fields["stream"] = True
    if kind == "tokens":
        fields |= {"temperature": 0, "stream_options": {"include_usage": True}}
    if kind == "tools":
        roles = ("system", *("user", "assistant") * 9, "user")
        fields["messages"] = [{"role": role, "content": PROMPT} for role in roles]
        fields["tools"] = [{"type": "function", "function": build_function(name)} for name in FUNCTIONS]
        schema = {"name": "tale", "schema": build_function("tale")["parameters"]}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


FUNCTIONS = ("find_fox", "find_hen", "end_story")


def build_function(name: str) -> dict[str, object]:
    """Builds a function with four parameters."""
    properties = {
        "place": {"type": "string", "description": "The place of the story."},
        "day": {"type": "string", "enum": ["today", "tomorrow", "yesterday"]},
        "number": {"type": "integer", "minimum": 1, "maximum": 100},
        "names": {"type": "array", "items": {"type": "string"}, "maxItems": 10},
    }
    parameters = {
        "type": "object",
        "properties": properties,
        "required": ["place"],
        "additionalProperties": False,
    }
    return {"name": name, "description": f"Does {name} in the story.", "parameters": parameters}


def build_request(key: str, model: str, fields: dict[str, object]) -> bytes:
    """Builds the bytes of one HTTP request."""
    body = json.dumps({"model": model} | fields).encode()
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

    def __init__(self, request: bytes, kind: str) -> None:
        self._request = request
        self._kind = kind
        self._deadline = 0.0
        self._times = LoadTimes()
        self._received = bytearray()
        self._is_first = True
        self._finished: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._finished is not None and not self._finished.done():
            self._finished.set_exception(
                RuntimeError(f"the connection broke after {bytes(self._received)!r}")
            )

    def run(self, times: LoadTimes, deadline: float) -> "asyncio.Future[None]":
        """Sends requests until the deadline. The future is done when the last answer is complete."""
        self._times, self._deadline = times, deadline
        self._finished = asyncio.get_running_loop().create_future()
        self._send_request()
        return self._finished

    def data_received(self, data: bytes) -> None:
        if self._kind == "paced":
            self._note_stamps(data)
        received, finished = self._received, self._finished
        received += data
        if finished is None or not self._is_complete():
            return
        now = time.perf_counter()
        try:
            self._require_valid_answer()
        except ValueError as error:
            finished.set_exception(error)
            self.transport.close()
            return
        self._times.times.append((now - self._sent) * 1000)
        received.clear()
        if now < self._deadline:
            self._send_request()
        else:
            finished.set_result(None)

    def _send_request(self) -> None:
        self._is_first = True
        self._sent = time.perf_counter()
        self.transport.write(self._request)

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
        if self._kind == "streamed":
            is_right = is_right and b"[DONE]" in received and len(CONTENT.findall(received)) == CHUNKS
        elif self._kind == "paced":
            is_right = is_right and b"[DONE]" in received and len(STAMP.findall(received)) == PACED_CHUNKS
        elif self._kind == "tokens":
            used = USED.findall(received)
            is_right = is_right and b"[DONE]" in received and bool(used)
            self._times.tokens += int(used[-1]) if used else 0
        else:
            is_right = is_right and TEXT.encode() * CHUNKS in received
        if not is_right:
            raise ValueError(f"unexpected answer: {bytes(received)!r}")


class Load:
    """Connections to one gateway, which stay open between runs."""

    def __init__(self, port: int, key: str, prefix: str, kind: str, connections: int) -> None:
        """`prefix`: of the names of models. `kind`: buffered, streamed, tools, paced, held or tokens."""
        self._port = port
        self._kind = kind
        self._request = build_request(key, prefix + MODELS.get(kind, "fake"), build_fields(kind))
        self._connections = connections
        self._callers: list[Caller] = []

    async def connect(self) -> None:
        """Opens the connections."""
        loop = asyncio.get_running_loop()
        for _ in range(self._connections):
            _, caller = await loop.create_connection(
                lambda: Caller(self._request, self._kind), "127.0.0.1", self._port
            )
            self._callers.append(caller)

    async def run(self, seconds: float) -> LoadTimes:
        """Sends requests on all connections for `seconds`, and waits for the last answers."""
        times, began = LoadTimes(), time.perf_counter()
        running = []
        for caller in self._callers:
            running.append(caller.run(times, began + seconds))
            if self._kind == "paced":
                # The streams begin at different times, so their chunks do too.
                await asyncio.sleep(PACE * PACED_CHUNKS / self._connections)
        await asyncio.gather(*running)
        times.seconds = time.perf_counter() - began
        return times

    async def run_once(self) -> None:
        """Sends one request on each connection, and waits for the answers."""
        await self.run(0.0)

    def close(self) -> None:
        """Closes the connections."""
        for caller in self._callers:
            caller.transport.close()
