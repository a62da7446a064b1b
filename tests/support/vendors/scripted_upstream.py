"""A vendor on loopback. The path selects the wire format, and the model's name selects a fault.

- `fake` answers. `fake-no-usage` tells no usage.
- `fake-503` answers with that status, `fake-429-after-7` also with Retry-After.
- `fake-says-CODE` answers with 400 and an error of this code, `fake-html` with a page of HTML and 502.
- `fake-deep` answers with JSON that is too deep to be read, `fake-deep-error` with 400 and such an error.
- `fake-no-text-error` answers with 400 and an error whose text is no UTF-8.
- `fake-missing-finish` ends its answer without a finish reason.
- `fake-FAULT-at-POINT` fails at one point of the exchange: see FAULTS and POINTS.
- `fake-closing` closes its connection in the moment in which the next request arrives.
"""

import asyncio
import contextlib
import json
import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.vendors.answer_shapes import (
    CLAUDE,
    GEMINI,
    OPENAI,
    POINTS,
    AnswerOptions,
    AnswerShape,
    build_corrupt_headers,
    build_corrupt_part,
    find_place,
)
from tests.support.waiting import await_until

FAULTS = ("reset", "close", "ended", "stall", "garbage", "truncated", "error", "huge", "trickle")
"""The faults: the connection is reset (`reset`) or closed (`close`), the body ends early (`ended`), no more
bytes are sent (`stall`), or the next part is replaced by invalid bytes (`garbage`), a cut event
(`truncated`), an error event (`error`), a too large event (`huge`), or sent byte by byte (`trickle`)."""

CORRUPT_FAULTS = frozenset(("ended", "garbage", "truncated", "error", "huge"))
"""Faults that replace bytes of the answer."""

STATUS = re.compile(r"fake-(\d{3})(?:-after-([\w,: ]+))?")
CODE = re.compile(r"fake-says-(\w+)")
FAULT = re.compile(rf"fake-({'|'.join(FAULTS)})-at-({'|'.join(POINTS)})")

DEEP = b"[" * 100_000 + b"]" * 100_000

UNREADABLE = {
    "fake-deep": (200, b'{"choices": [], "more": %b}' % DEEP),
    "fake-deep-error": (400, b'{"error": {"message": %b}}' % DEEP[70_000:-70_000]),
    "fake-no-text-error": (400, b'{"error": {"message": "\xff"}}'),
}
"""The status and the body of answers that no decoder reads."""

PAUSE_S = 0.06
"""Seconds before a fault, so that the bytes before it reach the caller."""

TRICKLE_S = 0.5
"""Seconds between two bytes of a trickle."""

GEMINI_PATH = re.compile(r"/models/([^:/]+):(stream)?")

END = b"0\r\n\r\n"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class UpstreamRequest:
    """A received request."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class ScriptedUpstream:
    """The vendor. `requests` has all requests in order."""

    url: str = ""
    requests: list[UpstreamRequest] = field(default_factory=list)
    left: int = 0
    """Requests whose client left before the answer was complete."""
    refused_key: str | None = None
    """A key that gets a 401."""
    pace: float = 0.0
    """Seconds between two chunks."""
    embeddings_status: int = 200
    """The status of the answers to requests for vectors."""
    embeddings_before_status: int = 0
    """Requests for vectors that are still answered before they get that status."""
    redirect: str = "http://127.0.0.1:9/stolen"
    """The address that redirects name, which must not be asked."""
    is_at_once: bool = False
    """Whether an answer without a fault is sent in one piece."""
    thinking: float = 0.0
    """Seconds before an answer begins."""
    connections: int = 0
    """Connections so far."""
    open: int = 0
    """Connections that are open."""
    has_shown: Callable[[str], bool] | None = None
    """Whether the caller has received the parts before a fault, named by `name_fault`. If None, a fault waits
    PAUSE_S."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        self.connections += 1
        self.open += 1
        closes = False
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while not (closes and await reader.read(1)) and (request := await read_request(reader)):
                    self.requests.append(request)
                    try:
                        await self._answer(request, reader, writer)
                    except (ConnectionError, asyncio.CancelledError):
                        self.left += 1
                        raise
                    closes = request.body.get("model") == "fake-closing"
        finally:
            self.open -= 1
            writer.close()

    async def _answer(
        self, request: UpstreamRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        shape, options = read_options(request)
        model = options.model
        await asyncio.sleep(self.thinking)
        if self.refused_key and request.headers.get("authorization", "").endswith(self.refused_key):
            send_status(writer, shape, 401, None)
        elif request.path.endswith("/models"):
            send_json(writer, 200, {"data": [{"id": "fake"}, {"id": "fake-503"}]})
        elif match := STATUS.fullmatch(model):
            send_status(writer, shape, int(match[1]), match[2], self.redirect)
        elif match := CODE.fullmatch(model):
            status = 429 if match[1] == "insufficient_quota" else 400
            send_json(writer, status, {"error": {"message": "too long by 7 tokens", "code": match[1]}})
        elif model == "fake-html":
            writer.write(b"HTTP/1.1 502 Bad\r\ncontent-type: text/html\r\ncontent-length: 9\r\n\r\n<p>no</p>")
        elif model in UNREADABLE:
            send_body(writer, *UNREADABLE[model])
        elif request.path.endswith("/embeddings") and self._refuses_embeddings():
            send_status(writer, shape, self.embeddings_status, None)
        elif request.path.endswith("/embeddings"):
            vectors = [
                {"index": index, "embedding": [1.0, index]} for index, _ in enumerate(request.body["input"])
            ]
            send_json(writer, 200, {"data": vectors, "usage": {"prompt_tokens": 3}})
        else:
            await self._send(shape, options, FAULT.fullmatch(model), (reader, writer))
        await writer.drain()

    def _refuses_embeddings(self) -> bool:
        if self.embeddings_status != 200 and self.embeddings_before_status:
            self.embeddings_before_status -= 1
            return False
        return self.embeddings_status != 200

    async def _send(
        self,
        shape: AnswerShape,
        options: AnswerOptions,
        fault: "re.Match[str] | None",
        connection: Connection,
    ) -> None:
        """Sends an answer in chunks, and fails at the point."""
        reader, writer = connection
        parts = shape.build_parts(options)
        kind = "text/event-stream" if options.is_streamed else "application/json"
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        frames = [head, *map(frame, parts), END]
        if self.is_at_once and not fault:
            frames = [b"".join(frames)]
        fault_index = find_place(shape, fault[2], options.is_streamed, len(frames)) if fault else len(frames)
        for index, part in enumerate(frames[:fault_index]):
            if options.model == "fake-missing-finish" and index == len(frames) - 2:
                await self._await_shown(name_fault(shape.name, options.model, options.is_streamed))
            writer.write(part)
            await writer.drain()
            await self._wait(reader)
        if fault:
            await self._await_shown(name_fault(shape.name, options.model, options.is_streamed))
            corrupt_bytes = build_corrupt_bytes(shape, fault, options.is_streamed)
            await self._fail(fault, frames[fault_index:], corrupt_bytes, connection)

    async def _wait(self, reader: asyncio.StreamReader) -> None:
        """Waits between two chunks. Raises ConnectionError if the client leaves meanwhile."""
        if self.pace:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.pace):
                    if not await reader.read(1):
                        raise ConnectionResetError("the client left")

    async def _await_shown(self, fault: str) -> None:
        """Waits until the caller has received the parts before the fault."""
        if self.has_shown is None:
            await asyncio.sleep(PAUSE_S)
        else:
            has_shown = self.has_shown
            await await_until(lambda: has_shown(fault), what=f"what came before {fault}")

    async def _fail(
        self,
        fault: "re.Match[str]",
        remaining_frames: list[bytes],
        corrupt_bytes: bytes,
        connection: Connection,
    ) -> None:
        """Fail as scripted, and then wait until the client leaves. `remaining_frames`: the rest of a correct
        answer. `corrupt_bytes`: their replacement."""
        reader, writer = connection
        kind, point = fault[1], fault[2]
        if point == "mid-chunk" and kind not in ("ended", "error", "huge", "truncated"):
            writer.write(remaining_frames[0][: len(remaining_frames[0]) // 2])
        match kind:
            case "reset":
                await asyncio.sleep(PAUSE_S)
                client_socket = writer.get_extra_info("socket")
                client_socket.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER: close sends RST
                writer.transport.abort()
                raise ConnectionResetError
            case "close":
                writer.close()
                raise ConnectionResetError
            case "trickle":
                await self._trickle(b"".join(remaining_frames), connection)
            case "stall":
                pass
            case _:
                writer.write(corrupt_bytes)
                if kind == "truncated" and point == "before-headers":
                    writer.close()
                    raise ConnectionResetError
        await writer.drain()
        if not await reader.read(1):
            raise ConnectionResetError("the client left")

    async def _trickle(self, content: bytes, connection: Connection) -> None:
        """Sends byte by byte until the client leaves."""
        reader, writer = connection
        for index in range(len(content)):
            writer.write(content[index : index + 1])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TRICKLE_S):
                    if not await reader.read(1):
                        raise ConnectionResetError("the client left")


def name_fault(shape: str, model: str, is_streamed: bool) -> str:
    """Returns the name of a fault for `has_shown`."""
    return f"{shape} {model} {'streamed' if is_streamed else 'whole'}"


def frame(part: bytes) -> bytes:
    """Encodes a part as a chunk of HTTP's chunked encoding."""
    return b"%x\r\n%b\r\n" % (len(part), part)


def build_corrupt_bytes(shape: AnswerShape, fault: "re.Match[str]", is_streamed: bool) -> bytes:
    """Returns the bytes that replace the rest of the answer; none for a fault of the connection."""
    kind, point = fault[1], fault[2]
    if kind not in CORRUPT_FAULTS:
        return b""
    if kind == "ended":
        return END
    if point == "before-headers":
        return build_corrupt_headers(shape, kind)
    ends = kind == "truncated" or not is_streamed
    return frame(build_corrupt_part(shape, kind, is_streamed)) + (END if ends else b"")


async def read_request(reader: asyncio.StreamReader) -> UpstreamRequest | None:
    """Reads a request; None if the client closed the connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip("\r\n").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return UpstreamRequest(first.split()[1], headers, json.loads(body) if body else {})


def read_options(request: UpstreamRequest) -> tuple[AnswerShape, AnswerOptions]:
    """Returns the wire format of the request's path, and the request's options."""
    body = request.body
    if match := GEMINI_PATH.search(request.path):
        return GEMINI, AnswerOptions(match[1], match[2] is not None)
    model, is_streamed = str(body.get("model", "")), bool(body.get("stream"))
    if request.path.endswith("/messages"):
        return CLAUDE, AnswerOptions(model, is_streamed)
    asks_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    return OPENAI, AnswerOptions(model, is_streamed, "messages" in body, asks_usage)


def send_json(writer: asyncio.StreamWriter, status: int, body: object, headers: str = "") -> None:
    """Sends a whole answer."""
    send_body(writer, status, json.dumps(body).encode(), headers)


def send_body(writer: asyncio.StreamWriter, status: int, data: bytes, headers: str = "") -> None:
    """Sends a whole answer in these bytes."""
    status_and_headers = (
        f"HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n"
    )
    writer.write(f"{status_and_headers}{headers}\r\n".encode() + data)


def send_status(
    writer: asyncio.StreamWriter, shape: AnswerShape, status: int, retry_after: str | None, redirect: str = ""
) -> None:
    """Sends an error, or a redirect."""
    headers = "" if retry_after is None else f"retry-after: {retry_after}\r\n"
    if 300 <= status < 400:
        headers += f"location: {redirect}\r\n"
    error = shape.build_error(status, f"said {status} of sk-secret-0123456789abcdef")
    send_json(writer, status, error, headers)


@contextmanager
def serve_upstream() -> Iterator[ScriptedUpstream]:
    """Runs a scripted vendor in its own thread."""
    upstream, loop, ready = ScriptedUpstream(), asyncio.new_event_loop(), threading.Event()
    tasks: set[asyncio.Task[None]] = set()
    servers: list[asyncio.Server] = []

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await upstream.handle(reader, writer)
        except ConnectionError:
            writer.close()
        finally:
            tasks.discard(task)

    async def listen() -> None:
        servers.append(await asyncio.start_server(connect, "127.0.0.1", 0))
        upstream.url = f"http://127.0.0.1:{servers[0].sockets[0].getsockname()[1]}/v1"
        ready.set()

    async def end() -> None:
        servers[0].close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        loop.stop()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(listen())
        loop.run_forever()
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(50)
    try:
        yield upstream
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop)
        thread.join(10)
